//! A worker's inbox: one segment with a ring for each other worker of the host, and the doorbell that wakes its
//! owner.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};

use bytemuck::{Pod, Zeroable};
use parking_lot::Mutex;

use super::layout::{self, InboxLayout, NONCE_OFFSET};
use super::single_copy::{self, SingleCopy};
use crate::Rank;
use crate::doorbell::{Doorbell, DoorbellHandle};
use crate::ring::RingShape;
use crate::segment::{Segment, SegmentError, SegmentRef};
use crate::sync::AtomicU64;

/// The sizes of a worker's inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboxOptions {
    /// At most this many frames are in flight from one peer: a power of two, at least 4.
    pub ring_slots: u32,
    /// At most this many payload bytes are in flight from one peer: a power of two, at least 256. A frame is at most
    /// a quarter of it.
    pub ring_bytes: u32,
}

impl InboxOptions {
    /// The sizes for a worker with `peer_count` others on its host. With few peers, rings are as large as bandwidth
    /// requires; with many, the rings of all pairs together must stay small: 64 workers make 4,032 rings.
    pub fn for_peers(peer_count: usize) -> Self {
        match peer_count {
            0..8 => Self { ring_slots: 256, ring_bytes: 256 << 10 },
            8..16 => Self { ring_slots: 256, ring_bytes: 128 << 10 },
            _ => Self { ring_slots: 128, ring_bytes: 64 << 10 },
        }
    }
}

/// With up to this many peers, the pages of rings are faulted in at once.
const POPULATE_PEERS_MAX: usize = 3;

/// More peers than any host has. Limits how much memory an address can make us map.
const PEERS_MAX: u32 = 4096;

/// How peers find an inbox. Plain bytes that travel through the rendezvous.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct InboxAddress {
    /// Random. Shows that a peer opened this inbox, and proves that single copies work.
    nonce: [u64; 2],
    /// The inode of the owner's PID namespace: in another one, `pid` would mean nothing or another process.
    pid_namespace: u64,
    /// The nonce's address in the owner's address space.
    nonce_addr: u64,
    pid: u32,
    /// -1 if the inbox is only for threads of the owner's process.
    segment_fd: i32,
    pipe_fd: i32,
    peer_count: u32,
    ring_slots: u32,
    ring_bytes: u32,
    /// Whether the owner lets peers read and write its memory.
    single_copy: u32,
    reserved: u32,
}

impl InboxAddress {
    /// The length of an encoded address.
    pub const LEN: usize = size_of::<Self>();

    /// Encodes it for the rendezvous.
    pub fn encode(&self) -> [u8; Self::LEN] {
        bytemuck::cast(*self)
    }

    /// Decodes the output of [`InboxAddress::encode`]; `None` if the length or a size is invalid.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let address: Self = bytemuck::try_pod_read_unaligned(bytes).ok()?;
        (address.layout().shape.is_valid() && address.peer_count <= PEERS_MAX).then_some(address)
    }

    /// The owner's process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    fn layout(&self) -> InboxLayout {
        let shape = RingShape { slots: self.ring_slots, bulk_bytes: self.ring_bytes };
        InboxLayout { peer_count: self.peer_count, shape }
    }
}

/// The owner's side of an inbox.
#[derive(Debug)]
pub struct LocalInbox {
    pub(super) segment: Arc<Segment>,
    pub(super) layout: InboxLayout,
    pub(super) peers: Vec<Rank>,
    doorbell: Arc<Doorbell>,
    nonce: [u64; 2],
}

impl LocalInbox {
    /// Creates the inbox that the workers `peers` can write to: threads of this process if `in_process`, otherwise
    /// processes of this host. For the latter, it also lets other processes of this user read and write our memory,
    /// for single copies, if the kernel (Yama) restricts that. `rank` is the owner's.
    ///
    /// # Errors
    /// [`SegmentError`] at a limit; the caller then does without shared memory.
    pub fn create(peers: &[Rank], rank: Rank, in_process: bool) -> Result<Self, SegmentError> {
        Self::with_options(peers, rank, in_process, InboxOptions::for_peers(peers.len()))
    }

    /// [`LocalInbox::create`] with sizes chosen.
    ///
    /// # Errors
    /// As [`LocalInbox::create`].
    ///
    /// # Panics
    /// If a size is out of range, a peer is named twice, or `rank` is among the peers.
    pub fn with_options(
        peers: &[Rank],
        rank: Rank,
        in_process: bool,
        options: InboxOptions,
    ) -> Result<Self, SegmentError> {
        let shape = RingShape { slots: options.ring_slots, bulk_bytes: options.ring_bytes };
        assert!(shape.is_valid(), "ring sizes must be powers of two, at least 4 frames and 256 bytes: {options:?}");
        assert!(peers.len() <= PEERS_MAX as usize, "{} peers on one host exceed the limit of {PEERS_MAX}", peers.len());
        let mut distinct: Vec<Rank> = peers.iter().copied().chain([rank]).collect();
        distinct.sort_unstable();
        assert!(distinct.windows(2).all(|pair| pair[0] != pair[1]), "worker {rank} and peers {peers:?} overlap");

        let layout = InboxLayout { peer_count: peers.len() as u32, shape };
        let segment = Arc::new(if in_process {
            Segment::private(layout.len())?
        } else {
            single_copy::allow_peers();
            Segment::create(layout.len())?
        });
        let nonce = random_nonce();
        layout::write_header(&segment, layout, peers, nonce);
        if peers.len() <= POPULATE_PEERS_MAX {
            (0..layout.peer_count).for_each(|index| layout.populate(&segment, index));
        }
        let doorbell = Arc::new(Doorbell::on(layout.doorbell(&segment))?);
        if in_process {
            IN_PROCESS.lock().get_or_insert_default().insert(nonce, (Arc::downgrade(&segment), doorbell.bell()));
        }
        Ok(Self { segment, layout, peers: peers.to_vec(), doorbell, nonce })
    }

    /// The doorbell on which the owner sleeps, shared by all transports of the worker: each rings it or gives it a
    /// descriptor.
    pub fn doorbell(&self) -> Arc<Doorbell> {
        self.doorbell.clone()
    }

    /// Where the owner announces the processor that it runs on.
    pub(crate) fn place(&self) -> SegmentRef<AtomicU64> {
        self.layout.place(&self.segment)
    }

    /// The address at which peers find this inbox.
    pub fn address(&self) -> InboxAddress {
        InboxAddress {
            nonce: self.nonce,
            pid_namespace: pid_namespace(),
            nonce_addr: self.segment.range(NONCE_OFFSET, 16).as_ptr().expose_provenance() as u64,
            pid: std::process::id(),
            segment_fd: self.segment.fd().unwrap_or(-1),
            pipe_fd: self.doorbell.pipe_fd(),
            peer_count: self.layout.peer_count,
            ring_slots: self.layout.shape.slots,
            ring_bytes: self.layout.shape.bulk_bytes,
            single_copy: !single_copy::is_disabled() as u32,
            reserved: 0,
        }
    }
}

/// Inboxes of workers that are threads of this process. Their peers open them by address, like any other inbox. An
/// entry is removed with its inbox.
type InProcess = HashMap<[u64; 2], (Weak<Segment>, DoorbellHandle)>;
static IN_PROCESS: Mutex<Option<InProcess>> = Mutex::new(None);

impl Drop for LocalInbox {
    fn drop(&mut self) {
        if self.segment.fd().is_none() {
            IN_PROCESS.lock().get_or_insert_default().remove(&self.nonce);
        }
    }
}

/// A peer's inbox, opened for writing.
#[derive(Debug)]
pub struct PeerInbox {
    pub(super) segment: Arc<Segment>,
    pub(super) layout: InboxLayout,
    /// This worker's index among the inbox's peers.
    pub(super) own_index: u32,
    pub(super) bell: DoorbellHandle,
    pub(super) single_copy: SingleCopy,
}

impl PeerInbox {
    /// Where the peer announces the processor that it runs on.
    pub(crate) fn place(&self) -> SegmentRef<AtomicU64> {
        self.layout.place(&self.segment)
    }

    /// Turns single copies off because the peer cannot make them: both sides copy a large message, so neither does.
    pub(crate) fn refuse_single_copy(&mut self) {
        if self.single_copy.lack().is_none() {
            self.single_copy = SingleCopy::Unavailable("it cannot read this worker's memory".into());
        }
    }

    /// Why large messages from and to this peer are copied twice, and whether the user chose that; `None` if they are
    /// not.
    pub fn no_single_copy(&self) -> Option<(&str, bool)> {
        Some((self.single_copy.lack()?, self.single_copy.is_switched_off()))
    }

    /// Opens the inbox of another worker of this host for worker `rank`, and finds out whether single copies work.
    ///
    /// # Errors
    /// [`SegmentError`] if it cannot be reached from here; the caller falls back to TCP and warns with this error.
    pub fn open(address: &InboxAddress, rank: Rank) -> Result<Self, SegmentError> {
        let (pid, layout) = (address.pid, address.layout());
        let mismatch = |reason: String| SegmentError::Mismatch { pid, reason };
        let (own, theirs) = (pid_namespace(), address.pid_namespace);
        if own != theirs {
            let reason = format!("it runs in another PID namespace ({theirs}, ours is {own}), maybe another container");
            return Err(mismatch(reason));
        }
        let in_process = address.segment_fd < 0;
        let (segment, bell, single_copy);
        if in_process {
            let registered = IN_PROCESS.lock().as_ref().and_then(|map| map.get(&address.nonce).cloned());
            let found = registered.and_then(|(weak, bell)| Some((weak.upgrade()?, bell)));
            (segment, bell) = found.ok_or_else(|| mismatch("its inbox is not in this process".into()))?;
            if segment.len() != layout.len() {
                return Err(mismatch("its size differs".into()));
            }
        } else {
            segment = Arc::new(Segment::open(pid, address.segment_fd as RawFd, layout.len())?);
            bell = DoorbellHandle::open(layout.doorbell(&segment), pid, address.pipe_fd)?;
        }
        layout::check_header(&segment, layout, address.nonce, pid)?;
        let own_index = layout
            .index_of(&segment, rank)
            .ok_or_else(|| mismatch(format!("its inbox has no ring for worker {rank}")))?;
        if !layout.take_producer(&segment, own_index) {
            return Err(mismatch(format!("a worker {rank} has already opened its inbox")));
        }
        if in_process {
            single_copy = SingleCopy::SameProcess;
        } else if address.single_copy == 0 && !single_copy::is_disabled() {
            single_copy = SingleCopy::SwitchedOff;
        } else {
            single_copy = single_copy::probe(pid, address.nonce_addr, address.nonce);
        }
        Ok(Self { segment, layout, own_index, bell, single_copy })
    }
}

fn random_nonce() -> [u64; 2] {
    let mut nonce = [0; 16];
    getrandom::fill(&mut nonce).expect("the kernel has random numbers");
    bytemuck::cast(nonce)
}

fn pid_namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    // Without /proc nothing can be opened anyway; that error comes next and is clearer.
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |meta| meta.ino())
}
