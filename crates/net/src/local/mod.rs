//! The transport between workers of one host: processes over shared memory, or threads of one process over ordinary
//! memory. The same rings serve both; they differ only in where a [`Segment`](crate::Segment) comes from and how
//! large messages are copied.
//!
//! | file             | what                                                              |
//! |------------------|-------------------------------------------------------------------|
//! | `inbox.rs`       | a worker's segment, how peers find and open it                    |
//! | `layout.rs`      | where things lie in it                                            |
//! | `single_copy.rs` | one copy instead of two, through the kernel                       |
//! | `../ring.rs`     | the ring of frames; `../doorbell/` sleep and wake; `../claim.rs` two workers copy one message |

mod inbox;
mod layout;
mod single_copy;

use crate::ring::{PopResult, RingConsumer, RingProducer};
use crate::sync::{Ordering, fence};
use crate::transport::LocalClaim;
use crate::{DoorbellHandle, FrameHeader, FrameSink, PushResult, Rank, Transport, TransportError, TransportLimits};

pub use inbox::{InboxAddress, InboxOptions, LocalInbox, PeerInbox};
use layout::MappedRing;
use single_copy::SingleCopy;

/// How many frames are taken from one peer before it is the next one's turn.
const FRAMES_PER_TURN: u32 = 32;

/// Above this size, a single copy with its handshake beats two copies through the ring (bench `local`).
const EAGER_SINGLE_COPY_BYTES_MAX: usize = 16 << 10;
/// The same where the peer's memory cannot be read, and an offer only saves the receiver a copy.
const EAGER_BYTES_MAX: usize = 16 << 10;
/// The size of the pieces of large messages. Smaller pieces cost more frames, and larger ones overlap less when
/// copied in and out; from 16 KiB to 64 KiB the stream is fastest (bench `local`).
const FRAME_BYTES_MAX: usize = 32 << 10;

/// The links to the other workers of the host.
pub struct LocalTransport {
    name: &'static str,
    links: Vec<LocalLink>,
    /// Indexes into `links` by rank; `NO_LINK` elsewhere.
    link_of_rank: Vec<u32>,
    /// Links whose peers have to be rung, each once.
    to_ring: Vec<u32>,
    /// Where the next poll starts.
    first: usize,
    /// How many lost links the sink does not know about yet.
    losses_to_tell: u32,
    /// Keeps open the descriptors by which late peers find this worker.
    _inbox: LocalInbox,
}

const NO_LINK: u32 = u32::MAX;

struct LocalLink {
    rank: Rank,
    consumer: RingConsumer<MappedRing>,
    producer: RingProducer<MappedRing>,
    bell: DoorbellHandle,
    in_to_ring: bool,
    state: LinkState,
    limits: TransportLimits,
    single_copy: SingleCopy,
    claim_in: LocalClaim,
    claim_out: LocalClaim,
}

enum LinkState {
    Up,
    /// Frames that arrived before the loss are still delivered.
    Lost(LinkError),
    LostAndTold(LinkError),
}

/// A [`TransportError`] that can be returned any number of times.
#[derive(Clone)]
enum LinkError {
    Lost(String),
    Corrupt(String),
}

impl LinkError {
    fn of(&self, peer: Rank) -> TransportError {
        match self.clone() {
            Self::Lost(reason) => TransportError::PeerLost { peer, reason },
            Self::Corrupt(reason) => TransportError::Corrupt { peer, reason },
        }
    }
}

impl LocalTransport {
    /// Connects the inbox of worker `rank` to those of its peers, which do the same.
    ///
    /// # Panics
    /// If a peer is named twice, or the inbox was not created for it.
    pub fn open(rank: Rank, inbox: LocalInbox, peers: Vec<(Rank, PeerInbox)>) -> Self {
        let name = if inbox.segment.fd().is_some() { "shm" } else { "in-process" };
        let mut link_of_rank = vec![NO_LINK; peers.iter().map(|(rank, _)| rank.index() + 1).max().unwrap_or(0)];
        let mut links = Vec::with_capacity(peers.len());
        for (peer_rank, peer) in peers {
            let index = inbox.peers.iter().position(|known| *known == peer_rank);
            let index =
                index.unwrap_or_else(|| panic!("the inbox of worker {rank} has no ring for {peer_rank}")) as u32;
            let link_of_rank = &mut link_of_rank[peer_rank.index()];
            assert_eq!(
                std::mem::replace(link_of_rank, links.len() as u32),
                NO_LINK,
                "worker {peer_rank} is listed twice"
            );
            // SAFETY: `inbox` was fresh and is consumed here, and each peer occurs once, so there is no second
            // consumer.
            let consumer = unsafe { RingConsumer::new(inbox.layout.ring(&inbox.segment, index), inbox.layout.shape) };
            // SAFETY: `PeerInbox::open` made sure that no other worker has the writing end, and `peer` is consumed
            // here.
            let producer =
                unsafe { RingProducer::new(peer.layout.ring(&peer.segment, peer.own_index), peer.layout.shape) };
            let can_single_copy = peer.single_copy.lack().is_none();
            let frame_bytes_max = peer.layout.shape.frame_bytes_max().min(FRAME_BYTES_MAX);
            let eager_bytes_max = if can_single_copy { EAGER_SINGLE_COPY_BYTES_MAX } else { EAGER_BYTES_MAX };
            links.push(LocalLink {
                rank: peer_rank,
                consumer,
                producer,
                in_to_ring: false,
                state: LinkState::Up,
                limits: TransportLimits {
                    frame_bytes_max,
                    eager_bytes_max: eager_bytes_max.min(frame_bytes_max),
                    in_flight_bytes_max: peer.layout.shape.bulk_bytes as usize,
                    single_copy: can_single_copy,
                    network: false,
                },
                claim_in: inbox.layout.claim(&inbox.segment, index),
                claim_out: peer.layout.claim(&peer.segment, peer.own_index),
                bell: peer.bell,
                single_copy: peer.single_copy,
            });
        }
        let to_ring = Vec::with_capacity(links.len());
        Self { name, links, link_of_rank, to_ring, first: 0, losses_to_tell: 0, _inbox: inbox }
    }

    /// The workers that can be reached.
    pub fn peers(&self) -> impl Iterator<Item = Rank> {
        self.links.iter().map(|link| link.rank)
    }

    /// Why large messages to and from `peer` are copied twice, in words; `None` if they are not.
    pub fn no_single_copy_reason(&self, peer: Rank) -> Option<&str> {
        self.link(peer).single_copy.lack()
    }

    fn link_index(&self, peer: Rank) -> usize {
        let index = self.link_of_rank.get(peer.index()).copied().unwrap_or(NO_LINK);
        assert!(index != NO_LINK, "worker {peer} is not among the peers of this transport");
        index as usize
    }

    fn link(&self, peer: Rank) -> &LocalLink {
        &self.links[self.link_index(peer)]
    }

    fn ring_later(&mut self, index: usize) {
        if !std::mem::replace(&mut self.links[index].in_to_ring, true) {
            self.to_ring.push(index as u32);
        }
    }

    fn fail(&mut self, index: usize, error: LinkError) {
        let link = &mut self.links[index];
        if matches!(link.state, LinkState::Up) {
            link.state = LinkState::Lost(error);
            self.losses_to_tell += 1;
        }
    }

    /// Reports losses of links whose rings are drained; the poll that calls this has visited every link.
    #[cold]
    fn tell_losses(&mut self, sink: &mut dyn FrameSink) {
        for link in &mut self.links {
            if let LinkState::Lost(error) = &link.state {
                let error = error.clone();
                sink.lost(error.of(link.rank));
                link.state = LinkState::LostAndTold(error);
            }
        }
        self.losses_to_tell = 0;
    }
}

impl Transport for LocalTransport {
    fn name(&self) -> &'static str {
        self.name
    }

    fn limits(&self, peer: Rank) -> TransportLimits {
        self.link(peer).limits
    }

    #[inline]
    fn push(
        &mut self,
        dest: Rank,
        header: &FrameHeader,
        payload: &[u8],
        sent: &mut usize,
    ) -> Result<PushResult, TransportError> {
        let index = self.link_index(dest);
        let link = &mut self.links[index];
        if let LinkState::Lost(error) | LinkState::LostAndTold(error) = &link.state {
            return Err(error.of(dest));
        }
        match link.producer.push(header, payload) {
            Ok(true) => {
                *sent = size_of::<FrameHeader>() + payload.len();
                self.ring_later(index);
                Ok(PushResult::Sent)
            }
            Ok(false) => Ok(PushResult::Blocked),
            Err(corrupt) => {
                let error = LinkError::Corrupt(corrupt.to_string());
                self.fail(index, error.clone());
                Err(error.of(dest))
            }
        }
    }

    fn poll(&mut self, sink: &mut dyn FrameSink) -> bool {
        let mut moved = false;
        let (count, first) = (self.links.len(), self.first);
        for turn in 0..count {
            let index = if first + turn < count { first + turn } else { first + turn - count };
            let link = &mut self.links[index];
            let rank = link.rank;
            for _ in 0..FRAMES_PER_TURN {
                match link.consumer.pop(|header, payload| sink.frame(rank, header, payload)) {
                    Ok(PopResult::Nothing) => break,
                    Ok(PopResult::Frame) => moved = true,
                    Ok(PopResult::FrameAndSpace) => {
                        moved = true;
                        self.ring_later(index);
                        break;
                    }
                    Err(corrupt) => {
                        self.fail(index, LinkError::Corrupt(corrupt.to_string()));
                        break;
                    }
                }
            }
        }
        if moved {
            self.first = if first + 1 < count { first + 1 } else { 0 };
        } else if self.losses_to_tell > 0 {
            self.tell_losses(sink);
            return true;
        }
        moved
    }

    #[inline]
    fn flush(&mut self) {
        if self.to_ring.is_empty() {
            return;
        }
        // One fence for all doorbells: it orders every push before every look at a doorbell.
        fence(Ordering::SeqCst);
        for index in self.to_ring.drain(..) {
            let link = &mut self.links[index as usize];
            link.in_to_ring = false;
            link.bell.ring_fenced();
        }
    }

    fn claims(&self, peer: Rank) -> Option<(LocalClaim, LocalClaim)> {
        let link = self.link(peer);
        link.limits.single_copy.then(|| (link.claim_in.clone(), link.claim_out.clone()))
    }

    fn wake(&mut self, peer: Rank) {
        self.link(peer).bell.ring();
    }

    fn read_peer(&mut self, peer: Rank, addr: u64, into: &mut [u8]) -> Result<(), TransportError> {
        self.link(peer).single_copy.read(addr, into).map_err(|error| lost_in_copy(peer, "process_vm_readv", &error))
    }

    fn read_peer_parts(&mut self, peer: Rank, parts: &mut [(u64, &mut [u8])]) -> Result<(), TransportError> {
        self.link(peer).single_copy.read_parts(parts).map_err(|error| lost_in_copy(peer, "process_vm_readv", &error))
    }

    fn write_peer(&mut self, peer: Rank, addr: u64, from: &[u8]) -> Result<(), TransportError> {
        self.link(peer).single_copy.write(addr, from).map_err(|error| lost_in_copy(peer, "process_vm_writev", &error))
    }

    fn mark_lost(&mut self, peer: Rank, reason: &str) {
        self.fail(self.link_index(peer), LinkError::Lost(reason.into()));
    }
}

fn lost_in_copy(peer: Rank, call: &str, error: &std::io::Error) -> TransportError {
    let reason = match error.raw_os_error() {
        Some(libc::ESRCH) => "its process has ended".into(),
        _ => format!("{call}: {error}"),
    };
    TransportError::PeerLost { peer, reason }
}
