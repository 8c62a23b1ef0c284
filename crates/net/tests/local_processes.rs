//! The local transport between real processes: conformance, sleep and wake-up, a peer killed at any moment, and one
//! that overwrites shared memory. Each test starts this test binary again as workers, which meet through their
//! parent.

mod local_common;

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use local_common::{Recorder, exchange};
use tidemill_net::local::{InboxAddress, InboxOptions, LocalInbox, LocalTransport, PeerInbox};
use tidemill_net::{Doorbell, FrameHeader, FrameKind, PushResult, Rank, Transport, TransportError, WakeReason};

const SCENE: &str = "TIDEMILL_TEST_SCENE";
/// Nothing here takes a second; this only turns a hang into a failure.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A worker in its own process, driven through its standard input and output.
struct Worker {
    process: Child,
    input: ChildStdin,
    output: BufReader<std::process::ChildStdout>,
}

impl Worker {
    fn line(&mut self) -> String {
        let mut line = String::new();
        // The child's test harness prints lines too.
        while !line.starts_with("worker: ") {
            line.clear();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the worker has ended");
        }
        line["worker: ".len()..].trim().to_owned()
    }

    fn tell(&mut self, text: &str) {
        writeln!(self.input, "{text}").unwrap();
    }

    fn succeeds(mut self) {
        let start = Instant::now();
        while start.elapsed() < TIMEOUT {
            if let Some(status) = self.process.try_wait().unwrap() {
                assert!(status.success(), "a worker failed");
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("a worker hangs");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Something is left to end only after a failed test.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts `size` workers of a scene and lets them find each other.
fn start(scene: &str, size: u32) -> Vec<Worker> {
    let mut workers: Vec<Worker> = (0..size)
        .map(|rank| {
            let mut process = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "worker", "--nocapture", "--test-threads=1"])
                .env(SCENE, format!("{scene} {rank} {size}"))
                .env("TIDEMILL_SINGLE_COPY", if scene == "uncopied" { "0" } else { "1" })
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let input = process.stdin.take().unwrap();
            let output = BufReader::new(process.stdout.take().unwrap());
            Worker { process, input, output }
        })
        .collect();
    let addresses: Vec<String> = workers.iter_mut().map(Worker::line).collect();
    workers.iter_mut().for_each(|worker| worker.tell(&addresses.join(" ")));
    workers.iter_mut().for_each(|worker| assert_eq!(worker.line(), "connected"));
    // Nobody may start before all have opened all, which the rendezvous of a job also ensures.
    workers.iter_mut().for_each(|worker| worker.tell("go"));
    workers
}

fn say(text: &str) {
    println!("worker: {text}");
}

fn hear() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
}

/// Not a test: what the workers of the other tests run.
#[test]
fn worker() {
    let Ok(scene) = std::env::var(SCENE) else { return };
    let words: Vec<&str> = scene.split(' ').collect();
    let (rank, size): (u32, u32) = (words[1].parse().unwrap(), words[2].parse().unwrap());
    let others: Vec<Rank> = (0..size).filter(|&r| r != rank).map(Rank).collect();
    let inbox = LocalInbox::create(&others, Rank(rank), false).unwrap();
    let doorbell = inbox.doorbell();
    println!(); // The harness has not ended its own line.
    say(&hex(&inbox.address().encode()));
    let addresses: Vec<InboxAddress> =
        hear().split(' ').map(|text| InboxAddress::decode(&unhex(text)).unwrap()).collect();
    let peers =
        others.iter().map(|peer| (*peer, PeerInbox::open(&addresses[peer.index()], Rank(rank)).unwrap())).collect();
    let mut transport = LocalTransport::open(Rank(rank), inbox, peers);
    assert_eq!(transport.name(), "shm");
    say("connected");
    hear();
    match words[0] {
        "exchange" => {
            let max = transport.limits(others[0]).frame_bytes_max;
            exchange(&mut transport, size, 100, max);
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            assert!(maps.contains("memfd:tidemill") && !maps.contains("/dev/shm/"), "{maps}");
        }
        "sleepy" => sleepy(&mut transport, &doorbell, rank),
        "stream" => stream(&mut transport),
        "survive" => survive(&mut transport, &doorbell),
        "copied" => copied(&mut transport, rank),
        "uncopied" => uncopied(&mut transport),
        "scribbled" => scribbled(&mut transport, size),
        scene => panic!("{scene}?"),
    }
}

/// Catches what works between threads but not between processes.
#[test]
fn all_to_all_between_processes() {
    for size in [2, 3, 5] {
        start("exchange", size).into_iter().for_each(Worker::succeeds);
    }
}

/// Two workers that sleep before every frame must wake each other every time, whichever way they sleep.
#[test]
fn sleepers_are_woken() {
    start("sleepy", 2).into_iter().for_each(Worker::succeeds);
}

fn sleepy(transport: &mut LocalTransport, doorbell: &Doorbell, rank: u32) {
    // A descriptor that never becomes ready, for the other way of sleeping.
    let quiet = std::os::unix::net::UnixStream::pair().unwrap();
    let peer = Rank(1 - rank);
    let mut sink = Recorder::default();
    for round in 0..2000u32 {
        if round % 2 == rank {
            let pushed = transport.push(peer, &FrameHeader::new(FrameKind::Eager, 1), &[round as u8], &mut 0).unwrap();
            assert_eq!(pushed, PushResult::Sent);
            transport.flush();
            continue;
        }
        let fd = (round % 8 >= 4).then(|| quiet.0.as_raw_fd());
        while sink.frames.is_empty() {
            let armed = doorbell.arm(fd);
            if !transport.poll(&mut sink) {
                assert_ne!(armed.sleep(TIMEOUT), WakeReason::TimedOut, "a wake-up was lost in round {round}");
            }
        }
        assert_eq!(sink.frames.remove(0).2, [round as u8]);
    }
}

/// A worker killed while it pushes leaves only whole frames, in order; the survivor learns of it, and continues.
#[test]
fn killed_peer_leaves_whole_frames() {
    for delay_us in [0, 300, 2000, 20_000] {
        let mut workers = start("stream", 2);
        std::thread::sleep(Duration::from_micros(delay_us));
        let mut dying = workers.remove(1);
        dying.process.kill().unwrap();
        dying.process.wait().unwrap();
        workers[0].tell("killed");
        workers.into_iter().for_each(Worker::succeeds);
    }
}

fn stream(transport: &mut LocalTransport) {
    let Some(peer) = transport.peers().next() else { unreachable!() };
    if peer == Rank(0) {
        // Runs until killed.
        let payload: Vec<u8> = (0..=255).cycle().take(10_000).collect();
        for seq in 0u32.. {
            let len = (seq as usize * 37) % payload.len();
            let header = FrameHeader { seq, ..FrameHeader::new(FrameKind::Eager, len as u64) };
            while transport.push(peer, &header, &payload[..len], &mut 0).unwrap() == PushResult::Blocked {}
            transport.flush();
        }
    }
    let killed = std::thread::spawn(hear);
    let mut sink = Recorder::default();
    let mut next = 0;
    let mut told = false;
    while sink.lost.is_empty() {
        if killed.is_finished() && !told {
            transport.mark_lost(peer, "killed");
            told = true;
        }
        transport.poll(&mut sink);
        transport.flush();
        for (_, header, payload) in sink.frames.drain(..) {
            assert_eq!((header.seq, payload.len()), (next, (next as usize * 37) % 10_000));
            assert!(payload.iter().enumerate().all(|(i, byte)| *byte == i as u8));
            next += 1;
        }
    }
    let error = transport.push(peer, &FrameHeader::new(FrameKind::Eager, 0), &[], &mut 0).unwrap_err();
    assert!(matches!(error, TransportError::PeerLost { .. }), "{error}");
    let error = transport.read_peer(peer, 4096, &mut [0; 8]).unwrap_err();
    assert!(error.to_string().contains("its process has ended"), "{error}");
}

/// The death of one worker does not disturb the exchange of the others, even if the dead one sleeps with a full ring.
#[test]
fn others_continue_when_one_dies() {
    let mut workers = start("survive", 3);
    let mut dying = workers.remove(2);
    assert_eq!(dying.line(), "idle");
    dying.process.kill().unwrap();
    dying.process.wait().unwrap();
    workers.iter_mut().for_each(|worker| worker.tell("killed"));
    workers.into_iter().for_each(Worker::succeeds);
}

fn survive(transport: &mut LocalTransport, doorbell: &Doorbell) {
    if transport.peers().all(|peer| peer != Rank(2)) {
        say("idle");
        // Runs until killed. Never polls, so that its rings fill up.
        hear();
        unreachable!("killed before");
    }
    let header = FrameHeader::new(FrameKind::Eager, 1000);
    while transport.push(Rank(2), &header, &[0; 1000], &mut 0).unwrap() == PushResult::Sent {}
    hear();
    transport.mark_lost(Rank(2), "killed");
    let other = transport.peers().next().unwrap();
    let mut sink = Recorder::default();
    for _ in 0..1000 {
        assert_eq!(transport.push(other, &header, &[1; 1000], &mut 0).unwrap(), PushResult::Sent);
        transport.flush();
        while sink.frames.is_empty() {
            let armed = doorbell.arm(None);
            if !transport.poll(&mut sink) {
                assert_ne!(armed.sleep(TIMEOUT), WakeReason::TimedOut);
            }
        }
        sink.frames.remove(0);
    }
}

/// Reads and writes memory of another process, unaligned and across pages.
#[test]
fn single_copies_between_processes() {
    start("copied", 2).into_iter().for_each(Worker::succeeds);
}

fn copied(transport: &mut LocalTransport, rank: u32) {
    let peer = Rank(1 - rank);
    if let Some(reason) = transport.no_single_copy_reason(peer) {
        eprintln!("skipped: {reason}");
        return;
    }
    let mut buffer: Vec<u8> = (0..1_000_001u32).map(|i| (i / 3) as u8 ^ rank as u8).collect();
    let addr = (buffer.as_mut_ptr().expose_provenance() as u64).to_le_bytes();
    assert_eq!(transport.push(peer, &FrameHeader::new(FrameKind::Offer, 8), &addr, &mut 0).unwrap(), PushResult::Sent);
    let mut sink = Recorder::default();
    let mut wait = |transport: &mut LocalTransport| {
        while sink.frames.is_empty() {
            transport.poll(&mut sink);
        }
        sink.frames.remove(0).2
    };
    let theirs = u64::from_le_bytes(wait(transport).try_into().unwrap());
    if rank == 0 {
        let mut found = vec![0; buffer.len() - 1];
        transport.read_peer(peer, theirs + 1, &mut found).unwrap();
        assert!(found.iter().zip(&buffer[1..]).all(|(theirs, ours)| *theirs == ours ^ 1));
        transport.write_peer(peer, theirs, &buffer).unwrap();
    }
    assert_eq!(transport.push(peer, &FrameHeader::new(FrameKind::Done, 0), &[], &mut 0).unwrap(), PushResult::Sent);
    wait(transport);
    if rank == 1 {
        assert!(buffer.iter().enumerate().all(|(i, byte)| *byte == (i / 3) as u8), "not what worker 0 wrote");
    }
}

/// Where a peer's memory cannot be read, the reason is known, and an attempt gives an error.
#[test]
fn single_copies_can_be_switched_off() {
    start("uncopied", 2).into_iter().for_each(Worker::succeeds);
}

fn uncopied(transport: &mut LocalTransport) {
    let peer = transport.peers().next().unwrap();
    assert!(!transport.limits(peer).single_copy && transport.claims(peer).is_none());
    assert!(transport.no_single_copy_reason(peer).unwrap().contains("TIDEMILL_SINGLE_COPY=0"));
    transport.read_peer(peer, 4096, &mut [0; 8]).unwrap_err();
}

/// Random bytes all over the inbox, again and again while it is polled and pushed to, give errors, not a crash or a
/// hang.
#[test]
fn an_overwriting_peer_does_no_harm() {
    start("scribbled", 2).into_iter().for_each(Worker::succeeds);
}

fn scribbled(transport: &mut LocalTransport, size: u32) {
    let peer = transport.peers().next().unwrap();
    assert_eq!(size, 2);
    // Our own inbox stands for one that a peer has overwritten: the same memory, found in the way a peer finds it.
    let fd = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| std::fs::read_link(path).is_ok_and(|link| link.to_string_lossy().contains("memfd:tidemill")))
        .unwrap();
    let memory = std::fs::OpenOptions::new().write(true).open(fd).unwrap();
    let len = memory.metadata().unwrap().len() as usize;
    let mut state = 88172645463325252u64;
    let mut sink = Recorder::default();
    for round in 0..60 {
        let garbage: Vec<u8> = (0..len.div_ceil(8))
            .flat_map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                // Small numbers too: they are more likely to pass for turns and lengths.
                if round % 2 == 0 {
                    state.to_le_bytes()
                } else {
                    ((state & 3) << 32 | (state >> 8 & 0xff)).to_le_bytes()
                }
            })
            .collect();
        std::os::unix::fs::FileExt::write_all_at(&memory, &garbage[..len], 0).unwrap();
        transport.poll(&mut sink);
        let _ = transport.push(peer, &FrameHeader::new(FrameKind::Eager, 8), &[0; 8], &mut 0);
        transport.flush();
    }
    assert!(matches!(sink.lost[..], [TransportError::Corrupt { .. }]), "{:?}", sink.lost);
}

/// A peer with other options must not mistake an inbox of one shape for one of another.
#[test]
fn shapes_that_differ_between_peers_work() {
    let options = |slots, bytes| InboxOptions { ring_slots: slots, ring_bytes: bytes };
    let a = LocalInbox::with_options(&[Rank(1)], Rank(0), false, options(4, 256)).unwrap();
    let b = LocalInbox::with_options(&[Rank(0), Rank(2)], Rank(1), false, options(64, 65536)).unwrap();
    let to_a = PeerInbox::open(&a.address(), Rank(1)).unwrap();
    let to_b = PeerInbox::open(&b.address(), Rank(0)).unwrap();
    let mut a = LocalTransport::open(Rank(0), a, vec![(Rank(1), to_b)]);
    let mut b = LocalTransport::open(Rank(1), b, vec![(Rank(0), to_a)]);
    assert_eq!((a.limits(Rank(1)).frame_bytes_max, b.limits(Rank(0)).frame_bytes_max), (16384, 64));
    let mut sink = Recorder::default();
    for (from_a, to, len) in [(true, Rank(1), 16384usize), (false, Rank(0), 64)] {
        let payload = vec![5; len];
        let (sender, receiver) = if from_a { (&mut a, &mut b) } else { (&mut b, &mut a) };
        assert_eq!(
            sender.push(to, &FrameHeader::new(FrameKind::Eager, len as u64), &payload, &mut 0).unwrap(),
            PushResult::Sent
        );
        assert!(receiver.poll(&mut sink));
        assert_eq!(sink.frames.pop().unwrap().2, payload);
    }
}
