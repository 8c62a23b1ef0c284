//! Measures the TCP transport between two threads over loopback, beside the least that sockets cost: the same bytes
//! with plain `send` and `recv` on non-blocking sockets, without frames.
//!
//! Latency: half a round trip of one frame, the median of short runs. Stream: one side sends frames of 1 MiB, the
//! other receives them into one buffer. `cargo bench -p tidemill-net --bench tcp`; `-- --quick` is a smoke run.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use tidemill_net::rendezvous::{JobKey, JobSecret};
use tidemill_net::tcp::{ConnectChoice, PeerListener, TcpTransport};
use tidemill_net::{FrameHeader, FrameKind, FrameSink, PushResult, Rank, Transport, TransportError};

/// Counts frames and writes all payloads to one place.
struct Target {
    frames: usize,
    buffer: Vec<u8>,
}

impl FrameSink for Target {
    fn frame(&mut self, _: Rank, _: &FrameHeader, payload: &[u8]) {
        self.frames += 1;
        self.buffer[..payload.len()].copy_from_slice(payload);
    }
    fn begin(&mut self, _: Rank, _: &FrameHeader) -> *mut u8 {
        self.buffer.as_mut_ptr()
    }
    fn landed(&mut self, _: Rank, _: &FrameHeader) {
        self.frames += 1;
    }
    fn lost(&mut self, error: TransportError) {
        panic!("{error}")
    }
}

/// One end of a link, as far as the measurements need it.
trait End: Send {
    fn send(&mut self, bytes: &[u8]);
    fn receive(&mut self, len: usize);
}

struct Framed(TcpTransport, Rank, Target);

impl End for Framed {
    fn send(&mut self, bytes: &[u8]) {
        let header = FrameHeader::new(FrameKind::Eager, bytes.len() as u64);
        let mut sent = 0;
        while self.0.push(self.1, &header, bytes, &mut sent).unwrap() == PushResult::Blocked {
            thread::yield_now();
        }
    }
    fn receive(&mut self, _: usize) {
        while self.2.frames == 0 {
            self.0.poll(&mut self.2);
        }
        self.2.frames -= 1;
    }
}

struct Plain(TcpStream, Vec<u8>);

impl End for Plain {
    fn send(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.0.write(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(e) if e.kind() == ErrorKind::WouldBlock => thread::yield_now(),
                Err(e) => panic!("{e}"),
            }
        }
    }
    fn receive(&mut self, len: usize) {
        let mut got = 0;
        while got < len {
            match self.0.read(&mut self.1[got..len]) {
                Ok(n) => got += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => panic!("{e}"),
            }
        }
    }
}

const LEN_MAX: usize = 1 << 20;

fn framed() -> [Box<dyn End>; 2] {
    let key = JobKey::new(&JobSecret::random(), "bench");
    let listen = || PeerListener::bind(&[Ipv4Addr::LOCALHOST.into()]).unwrap();
    let ((l0, a0), (l1, a1)) = (listen(), listen());
    let wait = Duration::from_secs(10);
    let end = |t, peer| Box::new(Framed(t, peer, Target { frames: 0, buffer: vec![0; LEN_MAX] })) as Box<dyn End>;
    thread::scope(|scope| {
        let key = &key;
        let first = scope
            .spawn(move || TcpTransport::open(Rank(0), &[(Rank(1), a1)], l0, key, ConnectChoice::All, wait).unwrap());
        let second = TcpTransport::open(Rank(1), &[(Rank(0), a0)], l1, key, ConnectChoice::All, wait).unwrap();
        [end(first.join().unwrap(), Rank(1)), end(second, Rank(0))]
    })
}

fn plain() -> [Box<dyn End>; 2] {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let b = listener.accept().unwrap().0;
    [a, b].map(|stream| {
        stream.set_nodelay(true).unwrap();
        stream.set_nonblocking(true).unwrap();
        Box::new(Plain(stream, vec![0; LEN_MAX])) as Box<dyn End>
    })
}

/// Median seconds to send `len` bytes one way.
fn latency([mut a, mut b]: [Box<dyn End>; 2], len: usize, rounds: usize, runs: usize) -> f64 {
    let bytes = vec![1; len];
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..rounds * runs {
                b.receive(len);
                b.send(&bytes);
            }
        });
        let mut times: Vec<f64> = (0..runs)
            .map(|_| {
                let start = Instant::now();
                for _ in 0..rounds {
                    a.send(&bytes);
                    a.receive(len);
                }
                start.elapsed().as_secs_f64() / rounds as f64 / 2.0
            })
            .collect();
        times.sort_by(f64::total_cmp);
        times[runs / 2]
    })
}

/// Bytes per second in one direction.
fn stream([mut a, mut b]: [Box<dyn End>; 2], frames: usize) -> f64 {
    let bytes = vec![1; LEN_MAX];
    let start = Instant::now();
    thread::scope(|scope| {
        scope.spawn(move || (0..frames).for_each(|_| b.receive(LEN_MAX)));
        (0..frames).for_each(|_| a.send(&bytes));
    });
    (frames * LEN_MAX) as f64 / start.elapsed().as_secs_f64()
}

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick" || argument == "--test");
    let (rounds, runs, frames) = if quick { (100, 5, 200) } else { (1000, 9, 2000) };
    println!("{:>10} {:>14} {:>14}", "bytes", "transport us", "sockets us");
    for len in [8, 512, 4096, 65_536, LEN_MAX] {
        let rounds = (rounds * 512 / len.max(512)).max(5);
        let ours = latency(framed(), len, rounds, runs) * 1e6;
        let theirs = latency(plain(), len, rounds, runs) * 1e6;
        println!("{len:>10} {ours:>14.2} {theirs:>14.2}");
    }
    let ours = stream(framed(), frames) / 1e9;
    let theirs = stream(plain(), frames) / 1e9;
    println!("{:>10} {ours:>9.2} GB/s {theirs:>9.2} GB/s", "stream");
}
