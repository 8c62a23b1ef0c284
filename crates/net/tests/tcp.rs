//! Tests the TCP transport against the invariants of `Transport`, and against everything that a network can do to it.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::{Barrier, LazyLock};
use std::thread;
use std::time::Duration;

use tidemill_net::rendezvous::{JobKey, JobSecret};
use tidemill_net::tcp::{ConnectChoice, PeerListener, TcpTransport};
use tidemill_net::{FrameHeader, FrameKind, FrameSink, PushResult, Rank, Transport, TransportError};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Long enough for a busy machine; a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Records everything that arrives, however the transport delivered it.
#[derive(Default)]
struct Recorder {
    frames: Vec<(Rank, FrameHeader, Vec<u8>)>,
    placing: HashMap<Rank, Vec<u8>>,
    placed: usize,
    lost: Vec<TransportError>,
}

impl FrameSink for Recorder {
    fn frame(&mut self, src: Rank, header: &FrameHeader, payload: &[u8]) {
        assert!(!self.placing.contains_key(&src), "a frame within a frame");
        assert_eq!(payload.len() as u64, header.len);
        self.frames.push((src, *header, payload.to_vec()));
    }

    fn begin(&mut self, src: Rank, header: &FrameHeader) -> *mut u8 {
        let memory = self.placing.entry(src).insert_entry(vec![0; header.len as usize]);
        memory.into_mut().as_mut_ptr()
    }

    fn landed(&mut self, src: Rank, header: &FrameHeader) {
        let payload = self.placing.remove(&src).expect("begun before");
        self.placed += 1;
        self.frames.push((src, *header, payload));
    }

    fn lost(&mut self, error: TransportError) {
        self.lost.push(error);
    }
}

/// Connects `size` workers all to all, each in its own thread, and lets each run `work`.
fn run_workers<R: Send>(size: u32, work: impl Fn(Rank, TcpTransport) -> R + Sync) -> Vec<R> {
    run_workers_connected(ConnectChoice::All, size, work)
}

/// The same, with pairs connected as `connect` says.
fn run_workers_connected<R: Send>(
    connect: ConnectChoice,
    size: u32,
    work: impl Fn(Rank, TcpTransport) -> R + Sync,
) -> Vec<R> {
    let key = JobKey::new(&JobSecret::random(), "tcp");
    let (listeners, addresses): (Vec<_>, Vec<_>) = (0..size).map(|_| PeerListener::bind(&[LOOPBACK]).unwrap()).unzip();
    let (key, addresses, work) = (&key, &addresses, &work);
    thread::scope(|scope| {
        let workers: Vec<_> = listeners
            .into_iter()
            .zip(0..)
            .map(|(listener, rank)| {
                scope.spawn(move || {
                    let others = (0..size).filter(|&r| r != rank);
                    let peers: Vec<_> = others.map(|r| (Rank(r), addresses[r as usize].clone())).collect();
                    work(Rank(rank), TcpTransport::open(Rank(rank), &peers, listener, key, connect, PATIENCE).unwrap())
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    })
}

/// Sends all of a frame, and receives what comes meanwhile.
fn send_whole(transport: &mut TcpTransport, sink: &mut Recorder, dest: Rank, header: &FrameHeader, payload: &[u8]) {
    let mut sent = 0;
    while transport.push(dest, header, payload, &mut sent).unwrap() == PushResult::Blocked {
        if !transport.poll(sink) {
            sleep_on(transport);
        }
    }
}

/// The payload of the `index`th frame of `src`: a window on noise, at a different place for every frame.
fn payload(src: Rank, index: usize, len: usize) -> &'static [u8] {
    static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
            (state >> 24) as u8
        };
        (0..(1 << 20) + 50_000).map(|_| next()).collect()
    });
    let start = (src.index() * 997 + index * 61) % 50_000;
    &NOISE[start..start + len]
}

/// Empty, one byte, odd, around the size that is joined with its header, around what is delivered whole, around the
/// receive buffer, and the largest frame.
fn lengths(max: usize) -> Vec<usize> {
    vec![0, 1, 7, 333, 511, 512, 513, 8191, 8192, 8193, 65_503, 65_504, 65_505, 100_001, max - 1, max, 3, 0]
}

fn header(src: Rank, index: usize, len: usize) -> FrameHeader {
    FrameHeader { seq: index as u32, tag: src.0 as i32, ..FrameHeader::new(FrameKind::Eager, len as u64) }
}

/// Every worker sends to every other while it receives: frames arrive in order, whole and once, without deadlock when
/// all sockets are full.
#[test]
fn frames_arrive_whole_once_and_in_order() {
    for size in [1, 2, 3, 5, 8, 13] {
        run_workers(size, |me, mut transport| {
            let lens = lengths(transport.limits(me).frame_bytes_max);
            let lens = if size > 5 { &lens[..14] } else { &lens[..] };
            let mut sink = Recorder::default();
            let mut outgoing: Vec<(Rank, usize, usize)> =
                (0..size).map(Rank).filter(|&r| r != me).map(|r| (r, 0, 0)).collect();
            let expected = lens.len() * outgoing.len();
            while sink.frames.len() < expected || outgoing.iter().any(|(_, index, _)| *index < lens.len()) {
                let mut moved = false;
                for (dest, index, sent) in &mut outgoing {
                    if *index < lens.len() {
                        let before = *sent;
                        let bytes = payload(me, *index, lens[*index]);
                        match transport.push(*dest, &header(me, *index, bytes.len()), bytes, sent).unwrap() {
                            PushResult::Sent => (*index, *sent, moved) = (*index + 1, 0, true),
                            PushResult::Blocked => moved |= *sent > before,
                        }
                    }
                }
                if !(transport.poll(&mut sink) | moved) {
                    sleep_on(&transport);
                }
            }
            for src in (0..size).map(Rank).filter(|&r| r != me) {
                let from: Vec<_> = sink.frames.iter().filter(|(r, ..)| *r == src).collect();
                assert_eq!(from.len(), lens.len());
                for (index, (_, head, bytes)) in from.into_iter().enumerate() {
                    assert_eq!(*head, header(src, index, lens[index]));
                    assert!(*bytes == *payload(src, index, lens[index]), "frame {index} of {src} differs");
                }
            }
            assert!(sink.placing.is_empty() && sink.lost.is_empty());
            // A worker that is done must keep its sockets open for those that still read.
            transport
        });
    }
}

/// Sleeps on the transport's descriptor as an idle worker does; catches a wake-up that never comes.
fn sleep_on(transport: &TcpTransport) {
    let mut fd = libc_poll(transport.epoll_fd().unwrap());
    // SAFETY: one valid `pollfd`.
    let ready = unsafe { libc::poll(&mut fd, 1, PATIENCE.as_millis() as i32) };
    assert_ne!(ready, 0, "slept and was never woken");
}

fn libc_poll(fd: i32) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

fn is_readable(transport: &TcpTransport) -> bool {
    let mut fd = libc_poll(transport.epoll_fd().unwrap());
    // SAFETY: one valid `pollfd`.
    unsafe { libc::poll(&mut fd, 1, 0) == 1 }
}

/// The bytes in transit are bounded, a blocked frame continues where it stopped, and epoll reports once when it can.
#[test]
fn a_slow_receiver_blocks_the_sender_until_there_is_room() {
    let rounds = 64;
    let blocked_once = Barrier::new(2);
    run_workers(2, |me, mut transport| {
        let max = transport.limits(me).frame_bytes_max;
        let peer = Rank(1 - me.0);
        if me.0 == 1 {
            blocked_once.wait();
            let mut sink = Recorder::default();
            while sink.frames.len() < rounds {
                if !transport.poll(&mut sink) {
                    sleep_on(&transport);
                }
            }
            assert!(sink.frames.iter().enumerate().all(|(i, (.., bytes))| *bytes == *payload(peer, i, max)));
            assert!(sink.placed > 0, "long payloads go straight to their destination");
            return;
        }
        let mut blocked = 0;
        let mut in_flight = 0;
        for index in 0..rounds {
            let bytes = payload(me, index, max);
            let (head, mut sent) = (header(me, index, max), 0);
            while transport.push(peer, &head, bytes, &mut sent).unwrap() == PushResult::Blocked {
                if blocked == 0 {
                    in_flight = index * max + sent;
                    // Only now does the receiver begin to read; had it read before, nothing might ever have been
                    // blocked.
                    blocked_once.wait();
                }
                blocked += 1;
                sleep_on(&transport);
                transport.poll(&mut Recorder::default());
            }
        }
        assert!(blocked > 0, "64 MiB do not fit into a socket");
        assert!(in_flight <= 2 * transport.limits(peer).in_flight_bytes_max, "{in_flight} bytes were in flight");
        // Drained: room is no longer reported. (The peer's end may be, so only while it is open.)
        let mut sink = Recorder::default();
        transport.poll(&mut sink);
        assert!(!is_readable(&transport) || !sink.lost.is_empty() || transport.poll(&mut sink));
    });
}

/// Callers that want frames to queue behind as little as possible rely on this. If the sender did not notice a raised
/// limit, the link would stop.
#[test]
fn the_kernel_accepts_no_more_than_the_limit() {
    let (taken, read) = (Barrier::new(2), Barrier::new(2));
    run_workers(2, |me, mut transport| {
        let peer = Rank(1 - me.0);
        let max = transport.limits(me).frame_bytes_max;
        if me.0 == 1 {
            taken.wait();
            let mut sink = Recorder::default();
            while sink.frames.is_empty() {
                if !transport.poll(&mut sink) {
                    sleep_on(&transport);
                }
            }
            read.wait();
            return;
        }
        assert!(transport.limits(peer).network);
        let before = transport.link_info(peer).unwrap();
        transport.limit_unsent(peer, 4096);
        let (head, bytes, mut sent) = (header(me, 0, max), payload(me, 0, max), 0);
        assert_eq!(transport.push(peer, &head, bytes, &mut sent).unwrap(), PushResult::Blocked);
        let limited = sent;
        transport.limit_unsent(peer, u32::MAX);
        let mut result = transport.push(peer, &head, bytes, &mut sent).unwrap();
        assert!(sent > limited, "{limited} bytes with a limit, and no more without");
        taken.wait();
        while result == PushResult::Blocked {
            sleep_on(&transport);
            transport.poll(&mut Recorder::default());
            result = transport.push(peer, &head, bytes, &mut sent).unwrap();
        }
        read.wait();
        let after = transport.link_info(peer).unwrap();
        assert!(after.acked_bytes + after.buffered_bytes >= before.acked_bytes + max as u64);
        assert!(after.busy_us >= before.busy_us && after.rtt_us > 0);
    });
}

#[test]
fn a_peer_that_ends_is_lost_once_after_its_last_frames() {
    run_workers(3, |me, mut transport| {
        let bytes = payload(me, 0, 300_000);
        if me.0 == 2 {
            for dest in [Rank(0), Rank(1)] {
                let mut sent = 0;
                while transport.push(dest, &header(me, 0, bytes.len()), bytes, &mut sent).unwrap()
                    == PushResult::Blocked
                {
                    thread::yield_now();
                }
            }
            return;
        }
        let mut sink = Recorder::default();
        while !sink.lost.iter().any(|e| matches!(e, TransportError::PeerLost { peer: Rank(2), .. })) {
            if !transport.poll(&mut sink) {
                sleep_on(&transport);
            }
        }
        let last_words: Vec<_> = sink.frames.iter().filter(|(src, ..)| src.0 == 2).collect();
        assert!(last_words.len() == 1 && last_words[0].2 == *payload(Rank(2), 0, 300_000));
        for _ in 0..10 {
            transport.poll(&mut sink);
            let error = transport.push(Rank(2), &header(me, 1, 0), &[], &mut 0).unwrap_err();
            assert!(matches!(error, TransportError::PeerLost { peer: Rank(2), .. }));
        }
        assert_eq!(sink.lost.iter().filter(|e| matches!(e, TransportError::PeerLost { peer: Rank(2), .. })).count(), 1);
    });
}

/// A peer killed while frames flow both ways, and while this side only sends, causes neither a hang nor a crash by
/// SIGPIPE.
#[test]
fn a_sender_notices_that_the_receiver_is_gone() {
    run_workers(2, |me, mut transport| {
        if me.0 == 1 {
            return;
        }
        let bytes = payload(me, 0, 1 << 20);
        let mut sink = Recorder::default();
        let mut errors = 0;
        while errors < 3 {
            match transport.push(Rank(1), &header(me, 0, bytes.len()), bytes, &mut 0) {
                Ok(PushResult::Sent) => {}
                Ok(PushResult::Blocked) => sleep_on(&transport),
                Err(_) => errors += 1,
            }
        }
        while sink.lost.is_empty() {
            transport.poll(&mut sink);
        }
        transport.poll(&mut sink);
        assert_eq!(sink.lost.len(), 1);
    });
}

/// An authenticated connection that then sends bytes that are not frames gives one error, and the link is closed.
#[test]
fn bytes_that_are_not_frames_are_reported_as_corrupt() {
    let good = header(Rank(1), 0, 3);
    let cases: Vec<(&str, FrameHeader)> = vec![
        ("unknown kind 99", FrameHeader { kind_raw: 99, ..good }),
        ("bytes exceeds the limit", FrameHeader { len: (1 << 20) + 1, ..good }),
        ("bytes exceeds the limit", FrameHeader { len: u64::MAX, ..good }),
        ("reserved", FrameHeader { reserved: [0, 1, 0], ..good }),
    ];
    for (text, bad) in cases {
        run_workers(2, |me, mut transport| {
            let mut sink = Recorder::default();
            if me.0 == 1 {
                // First a valid frame, then a header that `push` sends unchanged (its payload is empty).
                assert_eq!(transport.push(Rank(0), &good, b"abc", &mut 0).unwrap(), PushResult::Sent);
                send_raw(&mut transport, &bad);
                while sink.lost.is_empty() {
                    transport.poll(&mut sink);
                }
                return;
            }
            while sink.lost.is_empty() {
                transport.poll(&mut sink);
            }
            assert_eq!(sink.frames.len(), 1);
            let TransportError::Corrupt { peer: Rank(1), reason } = &sink.lost[0] else { panic!("{:?}", sink.lost) };
            assert!(reason.contains(text), "{reason}");
            let again = transport.push(Rank(1), &good, b"abc", &mut 0).unwrap_err();
            assert!(matches!(again, TransportError::Corrupt { .. }));
        });
    }
}

/// Sends 32 arbitrary bytes, as the payload of a frame whose header counts as already sent.
fn send_raw(transport: &mut TcpTransport, bytes: &FrameHeader) {
    let outer = FrameHeader::new(FrameKind::Eager, 32);
    let mut sent = 32;
    assert_eq!(transport.push(Rank(0), &outer, bytes.as_bytes(), &mut sent).unwrap(), PushResult::Sent);
}

/// The bytes of a frame decode the same whether they arrive one by one or together with many frames. `sent` lets a
/// test cut frames anywhere.
#[test]
fn frames_cut_at_any_byte_are_reassembled() {
    run_workers(2, |me, mut transport| {
        let lens = [0, 1, 40, 9000, 20_000, 5];
        if me.0 == 1 {
            let mut stream = Vec::new();
            for (index, len) in lens.into_iter().enumerate() {
                stream.extend_from_slice(header(me, index, len).as_bytes());
                stream.extend_from_slice(payload(me, index, len));
            }
            let mut rest = &stream[..];
            let mut step = 1;
            while !rest.is_empty() {
                let cut = step.min(rest.len());
                let mut sent = 32;
                let part = FrameHeader::new(FrameKind::Eager, cut as u64);
                while transport.push(Rank(0), &part, &rest[..cut], &mut sent).unwrap() == PushResult::Blocked {}
                rest = &rest[cut..];
                step = step % 97 + 1;
                thread::yield_now();
            }
            return transport;
        }
        let mut sink = Recorder::default();
        while sink.frames.len() < lens.len() {
            if !transport.poll(&mut sink) {
                sleep_on(&transport);
            }
        }
        for (index, (src, head, bytes)) in sink.frames.iter().enumerate() {
            assert_eq!((*src, *head), (Rank(1), header(Rank(1), index, lens[index])));
            assert_eq!(bytes, payload(Rank(1), index, lens[index]));
        }
        transport
    });
}

#[test]
fn sixty_four_workers_connect_all_to_all() {
    run_workers(64, |me, mut transport| {
        let mut sink = Recorder::default();
        for dest in (0..64).map(Rank).filter(|&r| r != me) {
            assert_eq!(transport.push(dest, &header(me, 0, 9), payload(me, 0, 9), &mut 0).unwrap(), PushResult::Sent);
        }
        while sink.frames.len() < 63 {
            if !transport.poll(&mut sink) {
                sleep_on(&transport);
            }
        }
        transport
    });
}

/// Nobody is connected before the first frame, and then only senders and receivers are; however many call at once,
/// each frame arrives once and in order.
#[test]
fn workers_connect_when_they_first_send() {
    const FRAMES: usize = 20;
    // The ranks to which rank `me` of `size` sends.
    type Targets = fn(u32, u32) -> Vec<u32>;
    let patterns: [(&str, Targets); 3] = [
        ("ring", |me, size| vec![(me + 1) % size]),
        ("pairs that call each other at once", |me, size| Some(me ^ 1).filter(|&to| to < size).into_iter().collect()),
        ("all to all", |me, size| (0..size).filter(|&to| to != me).collect()),
    ];
    for (name, targets) in patterns {
        for size in [2, 3, 16] {
            let together = Barrier::new(size as usize);
            run_workers_connected(ConnectChoice::OnDemand, size, |me, mut transport| {
                let mut sink = Recorder::default();
                assert!((0..size).map(Rank).all(|peer| peer == me || !transport.is_linked(peer)), "{name}");
                together.wait();
                let to = targets(me.0, size);
                for index in 0..FRAMES {
                    for &dest in &to {
                        send_whole(&mut transport, &mut sink, Rank(dest), &header(me, index, 9), payload(me, index, 9));
                    }
                }
                let from: Vec<u32> = (0..size).filter(|&r| r != me.0 && targets(r, size).contains(&me.0)).collect();
                while sink.frames.len() < from.len() * FRAMES {
                    if !transport.poll(&mut sink) {
                        sleep_on(&transport);
                    }
                }
                for &src in &from {
                    let theirs = sink.frames.iter().filter(|(from, ..)| from.0 == src);
                    let expected = (0..FRAMES).map(|index| header(Rank(src), index, 9));
                    assert!(theirs.map(|(_, head, _)| *head).eq(expected), "{name} of {size}: from {src} to {me}");
                }
                let linked = (0..size).filter(|&r| r != me.0 && transport.is_linked(Rank(r)));
                let mut spoken: Vec<u32> = to.into_iter().chain(from).collect();
                spoken.sort_unstable();
                spoken.dedup();
                assert_eq!(linked.collect::<Vec<_>>(), spoken, "{name} of {size}");
                assert!(sink.lost.is_empty());
                // Nobody ends before all have checked.
                together.wait();
                transport
            });
        }
    }
}

/// A worker that sends to a peer for the first time and ends at once.
#[test]
fn what_a_worker_sends_before_it_ends_arrives_over_its_first_connection() {
    for _ in 0..50 {
        run_workers_connected(ConnectChoice::OnDemand, 2, |me, mut transport| {
            let mut sink = Recorder::default();
            if me.0 == 1 {
                send_whole(&mut transport, &mut sink, Rank(0), &header(me, 0, 9), payload(me, 0, 9));
                while !transport.finish(Rank(0)) {
                    thread::yield_now();
                }
                return;
            }
            while sink.lost.is_empty() {
                if !transport.poll(&mut sink) {
                    sleep_on(&transport);
                }
            }
            assert_eq!(sink.frames, [(Rank(1), header(Rank(1), 0, 9), payload(Rank(1), 0, 9).to_vec())]);
            assert!(transport.has_ended(Rank(1)));
        });
    }
}

/// A peer that is missing at first use is lost, in words that say what to check; so is one that listens and does not
/// answer.
#[test]
fn a_peer_that_is_not_reached_at_first_use_is_lost() {
    let key = JobKey::new(&JobSecret::random(), "");
    let silent = std::net::TcpListener::bind((LOOPBACK, 0)).unwrap();
    let gone = PeerListener::bind(&[LOOPBACK]).unwrap().1;
    for address in [gone[0], silent.local_addr().unwrap()] {
        let (listener, _) = PeerListener::bind(&[LOOPBACK]).unwrap();
        let peers = [(Rank(0), vec![address]), (Rank(2), vec![address])];
        let wait = Duration::from_millis(300);
        let on_demand = ConnectChoice::OnDemand;
        let mut transport = TcpTransport::open(Rank(1), &peers, listener, &key, on_demand, wait).unwrap();
        let mut sink = Recorder::default();
        assert_eq!(transport.push(Rank(2), &header(Rank(1), 0, 0), &[], &mut 0).unwrap(), PushResult::Blocked);
        while sink.lost.is_empty() {
            if !transport.poll(&mut sink) {
                sleep_on(&transport);
            }
        }
        let [TransportError::PeerLost { peer: Rank(2), reason }] = &sink.lost[..] else { panic!("{:?}", sink.lost) };
        assert!(reason.contains("firewalls") && reason.contains("127.0.0.1"), "{reason}");
        let again = transport.push(Rank(2), &header(Rank(1), 0, 0), &[], &mut 0).unwrap_err();
        assert!(matches!(again, TransportError::PeerLost { peer: Rank(2), .. }));
    }
}

/// Strangers that connect while a job opens: garbage, silence, another job's worker, and one of our own at the wrong
/// listener.
#[test]
fn strangers_do_not_keep_workers_from_connecting() {
    let secret = JobSecret::random();
    let (keys, other) = (JobKey::new(&secret, "ours"), JobKey::new(&JobSecret::random(), "theirs"));
    let (l0, a0) = PeerListener::bind(&[LOOPBACK]).unwrap();
    let (l1, a1) = PeerListener::bind(&[LOOPBACK]).unwrap();
    let mut held: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(a0[0]).unwrap()).collect();
    for (i, stream) in held.iter_mut().enumerate() {
        if i % 2 == 0 {
            let _ = stream.write_all(&[0x54; 300]);
        }
    }
    thread::scope(|scope| {
        let (stranger, _) = PeerListener::bind(&[LOOPBACK]).unwrap();
        let patience = Duration::from_secs(4);
        let (a0, a1, keys, other) = (&a0, &a1, &keys, &other);
        let refused = scope.spawn(move || {
            TcpTransport::open(Rank(1), &[(Rank(0), a0.clone())], stranger, other, ConnectChoice::All, patience)
                .map(drop)
                .unwrap_err()
        });
        let worker_0 = scope.spawn(move || {
            TcpTransport::open(Rank(0), &[(Rank(1), a1.clone())], l0, keys, ConnectChoice::All, PATIENCE).unwrap()
        });
        // The honest worker comes only now, after the stranger has been refused.
        let text = refused.join().unwrap().to_string();
        assert!(text.contains("secret"), "{text}");
        let worker_1 = scope.spawn(move || {
            TcpTransport::open(Rank(1), &[(Rank(0), a0.clone())], l1, keys, ConnectChoice::All, PATIENCE)
        });
        let (mut t1, mut t0) = (worker_1.join().unwrap().unwrap(), worker_0.join().unwrap());
        assert_eq!(t1.push(Rank(0), &header(Rank(1), 0, 2), b"hi", &mut 0).unwrap(), PushResult::Sent);
        let mut sink = Recorder::default();
        while sink.frames.is_empty() {
            t0.poll(&mut sink);
        }
    });
    drop(held);
}

#[test]
fn peers_that_do_not_come_are_named() {
    let key = JobKey::new(&JobSecret::random(), "");
    let (listener, _) = PeerListener::bind(&[LOOPBACK]).unwrap();
    let gone: SocketAddr = {
        let (_, addresses) = PeerListener::bind(&[LOOPBACK]).unwrap();
        addresses[0]
    };
    let peers = [(Rank(0), vec![gone]), (Rank(5), vec![gone])];
    let error = TcpTransport::open(Rank(3), &peers, listener, &key, ConnectChoice::All, Duration::from_secs(1))
        .map(drop)
        .unwrap_err();
    let text = error.to_string();
    assert!(text.contains("worker(s) 0, 5 within 1 s"), "{text}");
}

/// The address that is tried first may belong to another host, or to none.
#[test]
fn the_second_address_is_tried_too() {
    let key = JobKey::new(&JobSecret::random(), "");
    let stranger = std::net::TcpListener::bind((LOOPBACK, 0)).unwrap();
    let strange = stranger.local_addr().unwrap();
    thread::spawn(move || {
        for stream in stranger.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.write_all(b"220 mail.example.org ESMTP\r\n and more than a challenge's worth of bytes");
            let _ = stream.read(&mut [0; 64]);
        }
    });
    let (l0, a0) = PeerListener::bind(&[LOOPBACK]).unwrap();
    let (l1, a1) = PeerListener::bind(&[LOOPBACK]).unwrap();
    thread::scope(|scope| {
        let key = &key;
        scope.spawn(move || {
            TcpTransport::open(Rank(0), &[(Rank(1), a1)], l0, key, ConnectChoice::All, PATIENCE).unwrap()
        });
        let addresses = vec![strange, a0[0]];
        TcpTransport::open(Rank(1), &[(Rank(0), addresses)], l1, key, ConnectChoice::All, PATIENCE).unwrap();
    });
}

/// Addresses for other hosts are published without loopback first; the socket of a job within one host is not open to
/// other hosts.
#[test]
fn a_listener_is_as_open_as_the_job_needs() {
    let (_, addresses) = PeerListener::bind(&[LOOPBACK]).unwrap();
    assert!(addresses.len() == 1 && addresses[0].ip() == LOOPBACK);
    let (_open, addresses) = PeerListener::bind(&["192.0.2.7".parse().unwrap(), LOOPBACK]).unwrap();
    assert_eq!(addresses[0].ip().to_string(), "192.0.2.7");
    assert!(addresses.iter().skip_while(|a| !a.ip().is_loopback()).all(|a| a.ip().is_loopback()), "{addresses:?}");
    let loopback = addresses.iter().find(|a| a.ip() == LOOPBACK).expect("loopback is published as a last resort");
    TcpStream::connect(loopback).unwrap();
}

/// A thousand jobs in one process leave no descriptor and no thread behind.
#[test]
#[cfg(target_os = "linux")]
fn no_descriptor_is_left_behind() {
    // In a separate process, so that other tests' descriptors do not count.
    if std::env::var_os("TIDEMILL_TEST_ALONE").is_none() {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "no_descriptor_is_left_behind", "--test-threads=1"])
            .env("TIDEMILL_TEST_ALONE", "1")
            .stdout(std::process::Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let open = || run_workers(3, |me, transport| assert!(transport.epoll_fd().is_some() && me.0 < 3));
    open();
    let before = count();
    for _ in 0..300 {
        open();
    }
    assert_eq!(count(), before);
}
