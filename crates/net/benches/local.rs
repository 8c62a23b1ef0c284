//! Measures the parts of the local transport, between two processes pinned to two cores.
//!
//! Latency: half a round trip of one frame, the median over short runs. Frames: one worker streams frames of a size
//! to the other, which touches the payload by copying it out. Copy: the receiver reads messages from the sender's
//! memory, alone or with both copying their chunks. `cargo bench -p tidemill-net --bench local`; `-- --quick` is a
//! smoke run.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use tidemill_net::claim::ChunkTransfer;
use tidemill_net::local::{InboxAddress, InboxOptions, LocalInbox, LocalTransport, PeerInbox};
use tidemill_net::{FrameHeader, FrameKind, FrameSink, PushResult, Rank, Transport, TransportError};

const ADDRESS: &str = "TIDEMILL_BENCH_ADDRESS";
const BUFFER_BYTES: usize = 64 << 20;

/// Counts frames and copies payloads out, as an engine does.
struct Target {
    frames: u64,
    seq: u32,
    buffer: Vec<u8>,
}

impl FrameSink for Target {
    #[inline]
    fn frame(&mut self, _: Rank, header: &FrameHeader, payload: &[u8]) {
        self.frames += 1;
        self.seq = header.seq;
        self.buffer[..payload.len()].copy_from_slice(payload);
    }
    fn begin(&mut self, _: Rank, _: &FrameHeader) -> *mut u8 {
        unreachable!()
    }
    fn landed(&mut self, _: Rank, _: &FrameHeader) {}
    fn lost(&mut self, error: TransportError) {
        panic!("{error}")
    }
}

struct Side {
    transport: LocalTransport,
    target: Target,
    peer: Rank,
    quick: bool,
}

impl Side {
    fn push(&mut self, seq: u32, len: usize) {
        let header = FrameHeader { seq, ..FrameHeader::new(FrameKind::Eager, len as u64) };
        let payload = std::mem::take(&mut self.target.buffer);
        while self.transport.push(self.peer, &header, &payload[..len], &mut 0).unwrap() == PushResult::Blocked {
            self.transport.flush();
            std::hint::spin_loop();
        }
        self.target.buffer = payload;
    }

    fn wait(&mut self, frames: u64) {
        let mut polls = 0;
        while self.target.frames < frames {
            if !self.transport.poll(&mut self.target) {
                std::hint::spin_loop();
                polls += 1;
                if polls == 3 {
                    self.transport.flush();
                }
            }
        }
        self.target.frames -= frames;
    }

    fn meet(&mut self) {
        self.push(0, 0);
        self.transport.flush();
        self.wait(1);
    }

    fn latency(&mut self, first: bool, len: usize) {
        let (runs, rounds) = if self.quick { (3, 100) } else { (200, 1000) };
        let mut times = Vec::new();
        for _ in 0..runs {
            self.meet();
            let start = Instant::now();
            for _ in 0..rounds {
                if first {
                    self.push(1, len);
                    self.wait(1);
                } else {
                    self.wait(1);
                    self.push(1, len);
                }
            }
            self.transport.flush();
            times.push(start.elapsed().as_nanos() as f64 / rounds as f64 / 2.0);
        }
        times.sort_by(f64::total_cmp);
        if first {
            println!("latency {len:>6} B: {:7.0} ns (best {:.0})", times[times.len() / 2], times[0]);
        }
    }

    fn stream(&mut self, first: bool, len: usize) {
        let frames = if self.quick { 100 } else { (1usize << 29) / len.max(4096) };
        let mut best = f64::INFINITY;
        for _ in 0..if self.quick { 1 } else { 5 } {
            self.meet();
            let start = Instant::now();
            if first {
                for _ in 0..frames {
                    self.push(1, len);
                }
                self.transport.flush();
                self.wait(1);
            } else {
                self.wait(frames as u64);
                self.push(1, 0);
                self.transport.flush();
            }
            best = best.min(start.elapsed().as_secs_f64());
        }
        if first {
            let per_frame = best / frames as f64;
            println!("frames {len:>7} B: {:7.2} GB/s {:8.0} ns", len as f64 / per_frame / 1e9, per_frame * 1e9);
        }
    }

    /// `first` receives. With `chunk_bytes`, the sender helps to copy.
    fn copy(&mut self, first: bool, message: &mut [u8], theirs: u64, len: usize, chunk_bytes: Option<usize>) {
        let rounds = if self.quick { 2 } else { ((1usize << 29) / len).max(8) };
        let chunks = chunk_bytes.map_or(1, |chunk| len.div_ceil(chunk));
        let range = |chunk: u32| {
            let chunk_bytes = chunk_bytes.unwrap_or(len);
            chunk as usize * chunk_bytes..((chunk as usize + 1) * chunk_bytes).min(len)
        };
        let mut best = f64::INFINITY;
        for _ in 0..if self.quick { 1 } else { 3 } {
            self.meet();
            let start = Instant::now();
            for _ in 0..rounds {
                // The sender has just announced the message; the receiver answers, and both copy.
                if first {
                    let claim = self.transport.claims(self.peer).unwrap().0;
                    let transfer = claim.start(chunks as u32);
                    self.push(transfer.generation, 0);
                    self.transport.flush();
                    while let Some(chunk) = claim.take_front(transfer) {
                        let range = range(chunk);
                        let addr = theirs + range.start as u64;
                        self.transport.read_peer(self.peer, addr, &mut message[range]).unwrap();
                        claim.finish(1);
                    }
                    while !claim.is_complete(transfer) {
                        std::hint::spin_loop();
                    }
                    self.push(0, 0);
                    self.wait(1);
                } else {
                    self.wait(1);
                    let claim = self.transport.claims(self.peer).unwrap().1;
                    let transfer = ChunkTransfer { generation: self.target.seq, chunks: chunks as u32 };
                    while chunk_bytes.is_some()
                        && let Some(chunk) = claim.take_back(transfer)
                    {
                        let range = range(chunk);
                        let addr = theirs + range.start as u64;
                        self.transport.write_peer(self.peer, addr, &message[range]).unwrap();
                        claim.finish(1);
                    }
                    self.wait(1);
                    self.push(0, 0);
                    self.transport.flush();
                }
            }
            best = best.min(start.elapsed().as_secs_f64() / rounds as f64);
        }
        if first {
            let how = chunk_bytes.map_or("receiver alone".to_owned(), |chunk| format!("both, {:>4} KiB", chunk >> 10));
            let kib = len >> 10;
            println!("copy {kib:>6} KiB, {how}: {:6.2} GB/s {:8.1} us", len as f64 / best / 1e9, best * 1e6);
        }
    }

    fn run(&mut self, first: bool, message: &mut [u8], theirs: u64) {
        for len in [0, 8, 32, 64, 128, 256, 1024, 4096, 8192, 16 << 10, 64 << 10] {
            self.latency(first, len);
        }
        for len in [8, 64, 1024, 4096, 16 << 10, 32 << 10, 64 << 10] {
            self.stream(first, len);
        }
        for shift in [12, 13, 14, 16, 18, 20, 22, 24] {
            for chunk in [None, Some(32 << 10), Some(64 << 10), Some(256 << 10), Some(1 << 20)] {
                if chunk.is_none_or(|chunk| chunk < 1 << shift) {
                    self.copy(first, message, theirs, 1 << shift, chunk);
                }
            }
        }
    }
}

/// What it costs to check the rings of all peers when nothing has arrived.
fn idle_polls(quick: bool) {
    for peers in [1u32, 3, 7, 15, 63] {
        let ranks: Vec<Rank> = (0..peers + 1).map(Rank).collect();
        let inbox = LocalInbox::create(&ranks[1..], Rank(0), true).unwrap();
        let others: Vec<LocalInbox> =
            ranks[1..].iter().map(|r| LocalInbox::create(&[Rank(0)], *r, true).unwrap()).collect();
        let opened = others.iter().zip(&ranks[1..]);
        let opened = opened.map(|(other, r)| (*r, PeerInbox::open(&other.address(), Rank(0)).unwrap())).collect();
        let mut transport = LocalTransport::open(Rank(0), inbox, opened);
        let mut target = Target { frames: 0, seq: 0, buffer: Vec::new() };
        let polls = if quick { 10 } else { 20_000 };
        let mut best = f64::INFINITY;
        for _ in 0..20 {
            let start = Instant::now();
            (0..polls).for_each(|_| assert!(!transport.poll(&mut target)));
            best = best.min(start.elapsed().as_nanos() as f64 / polls as f64);
        }
        println!("idle poll of {peers:>2} peers: {best:6.1} ns");
    }
}

fn pin(core: usize) {
    // SAFETY: `set` is plain data, and only this thread is affected. Failure (one core) only costs accuracy.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
}

/// Memory as NumPy allocates large arrays: on huge pages if possible.
fn message() -> Vec<u8> {
    let mut message = Vec::<u8>::with_capacity(BUFFER_BYTES);
    // SAFETY: advice about our own allocation; rounding inwards to pages.
    unsafe {
        let start = message.as_mut_ptr().addr().next_multiple_of(4096);
        let start = message.as_mut_ptr().with_addr(start);
        libc::madvise(start.cast(), BUFFER_BYTES - 4096, libc::MADV_HUGEPAGE);
    }
    message.resize(BUFFER_BYTES, 1);
    message
}

fn side(inbox: LocalInbox, rank: Rank, peer: Rank, address: &str, quick: bool) -> (Side, u64) {
    let (inbox_hex, addr) = address.trim().split_once(' ').unwrap();
    let peer_inbox = PeerInbox::open(&InboxAddress::decode(&unhex(inbox_hex)).unwrap(), rank).unwrap();
    let transport = LocalTransport::open(rank, inbox, vec![(peer, peer_inbox)]);
    let target = Target { frames: 0, seq: 0, buffer: vec![0; 1 << 20] };
    (Side { transport, target, peer, quick }, addr.parse().unwrap())
}

fn announce(inbox: &LocalInbox, message: &mut [u8]) -> String {
    format!("{} {}", hex(&inbox.address().encode()), message.as_mut_ptr().expose_provenance())
}

fn inbox(rank: u32, peer: u32) -> LocalInbox {
    let ring = std::env::var("RING_BYTES").ok().and_then(|text| text.parse().ok());
    let mut options = InboxOptions::for_peers(1);
    options.ring_bytes = ring.unwrap_or(options.ring_bytes);
    LocalInbox::with_options(&[Rank(peer)], Rank(rank), false, options).unwrap()
}

fn main() {
    let quick = std::env::args().any(|arg| arg == "--quick" || arg == "--test");
    let mut message = message();
    if let Ok(address) = std::env::var(ADDRESS) {
        pin(1);
        let inbox = inbox(1, 0);
        println!("{}", announce(&inbox, &mut message));
        let (mut side, theirs) = side(inbox, Rank(1), Rank(0), &address, quick);
        side.run(false, &mut message, theirs);
        return;
    }
    pin(0);
    idle_polls(quick);
    let inbox = inbox(0, 1);
    let mut child: Child = Command::new(std::env::current_exe().unwrap())
        .env(ADDRESS, announce(&inbox, &mut message))
        .args(quick.then_some("--quick"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let (mut side, theirs) = side(inbox, Rank(0), Rank(1), &line, quick);
    println!("single copy: {:?}", side.transport.no_single_copy_reason(Rank(1)));
    side.run(true, &mut message, theirs);
    std::io::stdout().flush().unwrap();
    assert!(child.wait().unwrap().success());
}
