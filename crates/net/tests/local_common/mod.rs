//! Shared by the tests of the local transport: connected workers, a recording sink, and the exchange that tests
//! conformance.

#![allow(dead_code, reason = "each test file uses its part")]

use std::thread;

use tidemill_net::local::{InboxOptions, LocalInbox, LocalTransport, PeerInbox};
use tidemill_net::{FrameHeader, FrameKind, FrameSink, PushResult, Rank, Transport, TransportError};

/// Records everything that arrives.
#[derive(Default)]
pub struct Recorder {
    pub frames: Vec<(Rank, FrameHeader, Vec<u8>)>,
    pub lost: Vec<TransportError>,
}

impl FrameSink for Recorder {
    fn frame(&mut self, src: Rank, header: &FrameHeader, payload: &[u8]) {
        self.frames.push((src, *header, payload.to_vec()));
    }
    fn begin(&mut self, _: Rank, _: &FrameHeader) -> *mut u8 {
        unreachable!("the local transport hands out whole frames")
    }
    fn landed(&mut self, _: Rank, _: &FrameHeader) {
        unreachable!("the local transport hands out whole frames")
    }
    fn lost(&mut self, error: TransportError) {
        self.lost.push(error);
    }
}

/// `size` connected workers, over private memory or over memfds of this process.
pub fn connect(size: u32, in_process: bool, options: Option<InboxOptions>) -> Vec<(Rank, LocalTransport)> {
    let in_process = in_process || cfg!(miri);
    let others = |rank: u32| (0..size).filter(|&r| r != rank).map(Rank).collect::<Vec<_>>();
    let inboxes: Vec<LocalInbox> = (0..size)
        .map(|rank| {
            let options = options.unwrap_or(InboxOptions::for_peers(size as usize - 1));
            LocalInbox::with_options(&others(rank), Rank(rank), in_process, options).unwrap()
        })
        .collect();
    let addresses: Vec<_> = inboxes.iter().map(LocalInbox::address).collect();
    let open = |(rank, inbox): (usize, LocalInbox)| {
        let rank = Rank(rank as u32);
        let peers = others(rank.0);
        let peers = peers.iter().map(|p| (*p, PeerInbox::open(&addresses[p.index()], rank).unwrap())).collect();
        (rank, LocalTransport::open(rank, inbox, peers))
    };
    // In-process inboxes can be found only while they exist, so all are opened before any can be dropped.
    inboxes.into_iter().enumerate().map(open).collect()
}

/// Two connected workers of one process.
pub fn pair(options: Option<InboxOptions>) -> (LocalTransport, LocalTransport) {
    let mut workers = connect(2, true, options).into_iter().map(|(_, transport)| transport);
    (workers.next().unwrap(), workers.next().unwrap())
}

/// Runs each worker in its own thread.
pub fn run_workers(workers: Vec<(Rank, LocalTransport)>, body: impl Fn(Rank, &mut LocalTransport) + Sync) {
    thread::scope(|scope| {
        for (rank, mut transport) in workers {
            let body = &body;
            scope.spawn(move || body(rank, &mut transport));
        }
    });
}

/// The payload of the `index`th frame of `source`: differs in every byte from its neighbors'.
pub fn expected_payload(source: u32, index: u32, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u32).wrapping_mul(31).wrapping_add(index * 7 + source * 101) as u8).collect()
}

/// Lengths at every boundary: empty, inline, over inline, odd, the largest.
pub fn length(index: u32, max: usize) -> usize {
    let edges = [0, 1, 7, 8, 31, 32, 33, 63, 64, 65, 333, 4096, max - 1, max];
    edges[index as usize % edges.len()].min(max)
}

/// Sends `count` frames to every other worker and checks the same number from each, in order, while pushing and
/// polling in turn as an engine does. Ends when everything has been sent and received.
pub fn exchange(transport: &mut LocalTransport, size: u32, count: u32, max: usize) {
    struct Checker {
        next: Vec<u32>,
        max: usize,
    }
    impl FrameSink for Checker {
        fn frame(&mut self, src: Rank, header: &FrameHeader, payload: &[u8]) {
            let index = self.next[src.index()];
            assert_eq!((header.seq, header.kind()), (index, Some(FrameKind::Eager)), "order from {src}");
            let expected = expected_payload(src.0, index, length(index, self.max));
            assert_eq!(header.len as usize, expected.len());
            assert!(payload == expected, "content of frame {index} from {src}");
            self.next[src.index()] += 1;
        }
        fn begin(&mut self, _: Rank, _: &FrameHeader) -> *mut u8 {
            unreachable!()
        }
        fn landed(&mut self, _: Rank, _: &FrameHeader) {
            unreachable!()
        }
        fn lost(&mut self, error: TransportError) {
            panic!("{error}");
        }
    }
    let me = transport_rank(transport, size);
    let mut checker = Checker { next: vec![0; size as usize], max };
    checker.next[me as usize] = count;
    let mut sent: Vec<u32> = vec![0; size as usize];
    sent[me as usize] = count;
    while checker.next.iter().chain(&sent).any(|done| *done < count) {
        let mut moved = transport.poll(&mut checker);
        for peer in 0..size {
            while sent[peer as usize] < count {
                let index = sent[peer as usize];
                let payload = expected_payload(me, index, length(index, max));
                let header = FrameHeader { seq: index, ..FrameHeader::new(FrameKind::Eager, payload.len() as u64) };
                match transport.push(Rank(peer), &header, &payload, &mut 0).unwrap() {
                    PushResult::Sent => moved = true,
                    PushResult::Blocked => break,
                }
                sent[peer as usize] += 1;
            }
        }
        transport.flush();
        if !moved {
            thread::yield_now();
        }
    }
}

/// The rank of a transport's own worker: the one it has no link to.
fn transport_rank(transport: &LocalTransport, size: u32) -> u32 {
    (0..size).find(|r| !transport.peers().any(|p| p.0 == *r)).expect("one rank is our own")
}
