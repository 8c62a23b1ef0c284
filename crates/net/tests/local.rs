//! Conformance of the local transport, over both kinds of memory: frames arrive in order, whole and once, memory is
//! bounded, and misbehaving or vanishing peers do no harm. Workers are threads here; `local_processes.rs` does the
//! same with processes.

mod local_common;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use local_common::{Recorder, connect, expected_payload, pair, run_workers};
use tidemill_net::local::{InboxAddress, InboxOptions, LocalInbox, LocalTransport, PeerInbox};
use tidemill_net::{
    Engine, Envelope, FaultRegistry, FrameHeader, FrameKind, MatchPattern, MemoryRegion, PushResult, Rank, Transport,
    TransportError, WakeReason,
};

const SMALL: InboxOptions = InboxOptions { ring_slots: 4, ring_bytes: 256 };

/// Every worker sends every other a mixed sequence of lengths; order, content and count must be right at the other
/// end.
#[test]
fn all_to_all_in_order() {
    for in_process in [true, false] {
        for size in [1, 2, 3, 5, 8, 13] {
            run_workers(connect(size, in_process, None), |_, transport| {
                local_common::exchange(transport, size, 28, transport_max(size));
            });
        }
    }
}

/// Rings of four slots and 256 bytes: every wrap and every "full" happens over and over.
#[test]
fn tiny_rings_wrap_and_fill() {
    for in_process in [true, false] {
        run_workers(connect(3, in_process, Some(SMALL)), |_, transport| {
            local_common::exchange(transport, 3, if cfg!(miri) { 40 } else { 500 }, 64);
        });
    }
}

fn transport_max(size: u32) -> usize {
    InboxOptions::for_peers(size as usize - 1).ring_bytes as usize / 4
}

/// A ring is bounded: pushes to a worker that does not poll end in `Blocked`, and continue once it polls.
#[test]
fn full_ring_blocks_and_resumes() {
    let (mut a, mut b) = pair(Some(SMALL));
    let push = |a: &mut LocalTransport, i: u32| {
        let payload = expected_payload(0, i, 64);
        a.push(Rank(1), &FrameHeader { seq: i, ..FrameHeader::new(FrameKind::Eager, 64) }, &payload, &mut 0).unwrap()
    };
    let mut pushed = 0;
    while push(&mut a, pushed) == PushResult::Sent {
        pushed += 1;
        assert!(pushed <= 4, "more in flight than the ring has room for");
    }
    assert_eq!(pushed, 4, "four payloads of 64 bytes fill 256 bytes");
    let mut sink = Recorder::default();
    while b.poll(&mut sink) {}
    assert_eq!(sink.frames.len(), 4);
    assert_eq!(push(&mut a, pushed), PushResult::Sent, "a drained ring has room, lazily returned or not");
    while b.poll(&mut sink) {}
    assert_eq!(sink.frames.len(), 5);
    for (i, (from, header, payload)) in sink.frames.iter().enumerate() {
        assert_eq!((from.0, header.seq, payload), (0, i as u32, &expected_payload(0, i as u32, 64)));
    }
}

/// Whatever mix of lengths was sent before, a drained ring must accept a frame of the largest size. If returning
/// space too lazily or skipping to the next lap could prevent it, two workers would wait for each other forever.
#[test]
fn drained_ring_takes_the_largest_frame() {
    let (mut a, mut b) = pair(Some(InboxOptions { ring_slots: 8, ring_bytes: 1024 }));
    let mut sink = Recorder::default();
    for i in 0..500u32 {
        let len = [(i * 37) as usize % 257, 256][i as usize % 2];
        let payload = vec![7; len];
        let pushed = a.push(Rank(1), &FrameHeader::new(FrameKind::Eager, len as u64), &payload, &mut 0).unwrap();
        assert_eq!(pushed, PushResult::Sent, "frame {i} of {len} bytes");
        while b.poll(&mut sink) {}
    }
    assert_eq!(sink.frames.len(), 500);
}

/// Frames that a lost peer left behind are delivered, then the loss, once; pushes to it fail; the other link still
/// works.
#[test]
fn lost_peer_is_told_once_after_its_frames() {
    let mut workers = connect(3, true, None);
    let mut transports: Vec<_> = workers.drain(..).map(|(_, t)| t).collect();
    let header = FrameHeader::new(FrameKind::Eager, 1);
    assert_eq!(transports[1].push(Rank(0), &header, &[9], &mut 0).unwrap(), PushResult::Sent);
    transports[0].mark_lost(Rank(1), "gone");
    transports[0].mark_lost(Rank(1), "gone twice");
    let error = transports[0].push(Rank(1), &header, &[1], &mut 0).unwrap_err();
    assert!(matches!(error, TransportError::PeerLost { peer: Rank(1), ref reason } if reason == "gone"), "{error}");
    let mut sink = Recorder::default();
    while transports[0].poll(&mut sink) {}
    assert_eq!(sink.frames.len(), 1);
    assert_eq!(sink.lost.len(), 1, "{:?}", sink.lost);
    assert_eq!(transports[2].push(Rank(0), &header, &[3], &mut 0).unwrap(), PushResult::Sent);
    while transports[0].poll(&mut sink) {}
    assert_eq!(sink.frames[1].2, [3]);
}

/// Large messages between threads are plain copies; between processes (here: one process) they go through the kernel.
#[test]
fn single_copy_reads_and_writes() {
    for in_process in [true, false] {
        let mut workers = connect(2, in_process, None);
        let transport = &mut workers[0].1;
        assert!(transport.limits(Rank(1)).single_copy, "{:?}", transport.no_single_copy_reason(Rank(1)));
        let source: Vec<u8> = (0..300_000u32).map(|i| i as u8).collect();
        let mut target = vec![0u8; source.len()];
        transport.read_peer(Rank(1), source.as_ptr().expose_provenance() as u64, &mut target).unwrap();
        assert_eq!(target, source);
        let mut back = vec![0u8; source.len()];
        transport.write_peer(Rank(1), back.as_mut_ptr().expose_provenance() as u64, &target).unwrap();
        assert_eq!(back, source);
    }
}

/// Both workers copy one message, each its own chunks, until it is complete.
#[test]
fn claim_is_shared_by_both_sides() {
    let workers = connect(2, true, None);
    let (receiver, sender) = (&workers[0].1, &workers[1].1);
    let (front, back) = (receiver.claims(Rank(1)).unwrap().0, sender.claims(Rank(0)).unwrap().1);
    let transfer = front.start(100);
    thread::scope(|scope| {
        let helper =
            scope.spawn(|| std::iter::from_fn(|| back.take_back(transfer).inspect(|_| back.finish(1))).count());
        let own = std::iter::from_fn(|| front.take_front(transfer).inspect(|_| front.finish(1))).count();
        assert_eq!(own + helper.join().unwrap(), 100);
    });
    assert!(front.is_complete(transfer) && back.is_complete(transfer));
}

/// The receiver has finished its own chunks and goes to sleep while the sender copies the last one, after which no
/// message comes: unless the sender rings, the receiver sleeps until its timeout, a tenth of a second.
#[test]
#[cfg_attr(miri, ignore = "futexes")]
fn the_last_chunk_wakes_the_waiting_receiver() {
    const CHUNKS: usize = 8;
    const CHUNK_BYTES: usize = 32 << 10;
    let inboxes = [0, 1].map(|rank| LocalInbox::create(&[Rank(1 - rank)], Rank(rank), true).unwrap());
    let doorbell = inboxes[0].doorbell();
    let peers = [0, 1].map(|rank| PeerInbox::open(&inboxes[1 - rank].address(), Rank(rank as u32)).unwrap());
    let engines = inboxes.into_iter().zip(peers).enumerate().map(|(rank, (inbox, peer))| {
        let transport = LocalTransport::open(Rank(rank as u32), inbox, vec![(Rank(1 - rank as u32), peer)]);
        let routes = [0, 1].map(|other| (other != rank).then_some(0));
        Engine::new(Rank(rank as u32), vec![Box::new(transport)], &routes, Arc::new(FaultRegistry::default()))
    });
    let [mut receiver, mut sender] = <[Engine; 2]>::try_from(engines.collect::<Vec<_>>()).ok().unwrap();
    let (message, mut into) = (vec![7; CHUNKS * CHUNK_BYTES], vec![0u8; CHUNKS * CHUNK_BYTES]);
    let (sent, received) = (sender.new_group(), receiver.new_group());
    let envelope = Envelope { context: 0, tag: 1, seq: 0, signature: 0 };
    let pattern = MatchPattern { source: Some(Rank(1)), tag: Some(1), seq: 0 };
    let at = into.as_mut_ptr();
    // SAFETY: both buffers stay until their groups have been taken.
    unsafe {
        sender.post_send(sent, Rank(0), &envelope, MemoryRegion::of(&message));
        receiver.post_recv(received, 0, pattern, MemoryRegion::of_mut(&mut into));
    }
    while sender.progress() {}
    // One chunk each time, except for the last; the sender has not looked yet.
    // SAFETY: the receive buffer, which nobody else writes to meanwhile.
    while unsafe { at.add((CHUNKS - 2) * CHUNK_BYTES).read_volatile() } == 0 {
        assert!(receiver.progress(), "the message has arrived");
    }
    let armed = doorbell.arm(None);
    while sender.progress() {}
    assert_eq!(armed.sleep(Duration::ZERO), WakeReason::Rung, "the sender has copied the last chunk");
    while receiver.progress() {}
    receiver.take(received).unwrap();
    assert_eq!(into, message);
    while sender.progress() {}
    sender.take(sent).unwrap();
}

/// A garbage address, one that names strangers, and one used twice are refused with a reason.
#[test]
fn wrong_addresses_are_refused() {
    let inbox = LocalInbox::create(&[Rank(1)], Rank(0), true).unwrap();
    let address = inbox.address();
    assert_eq!(InboxAddress::decode(&address.encode()), Some(address));
    assert_eq!(InboxAddress::decode(&address.encode()[1..]), None);
    assert_eq!(InboxAddress::decode(&[0xff; InboxAddress::LEN]), None);
    let error = PeerInbox::open(&address, Rank(2)).unwrap_err().to_string();
    assert!(error.contains("no ring for worker 2"), "{error}");
    let opened = PeerInbox::open(&address, Rank(1)).unwrap();
    let error = PeerInbox::open(&address, Rank(1)).unwrap_err().to_string();
    assert!(error.contains("already opened"), "{error}");
    drop((inbox, opened));
    let error = PeerInbox::open(&address, Rank(1)).unwrap_err().to_string();
    assert!(error.contains("not in this process"), "{error}");
}

/// Descriptors are closed and memory is unmapped when transports are dropped; nothing has a name in /dev/shm.
#[test]
#[cfg_attr(miri, ignore = "/proc")]
fn nothing_is_left_behind() {
    let count = |what: &str| std::fs::read_to_string("/proc/self/maps").unwrap().matches(what).count();
    let maps = || count("memfd:tidemill");
    // Other tests of this file run at the same time, so a separate process counts the memory mappings.
    if std::env::var_os("TIDEMILL_TEST_ALONE").is_none() {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "nothing_is_left_behind", "--test-threads=1"])
            .env("TIDEMILL_TEST_ALONE", "1")
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    let fds = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = (fds(), maps());
    for _ in 0..100 {
        let workers = connect(3, false, None);
        assert!(maps() > before.1);
        assert_eq!(count("/dev/shm/"), 0);
        drop(workers);
    }
    assert_eq!((fds(), maps()), before);
}
