//! Operations in progress and the groups that wait for them.
//!
//! An op is one send or receive. Every op belongs to a group, and a group is complete when none of its ops is
//! pending, so that waiting for one message, or for a round of a collective, is one comparison. Both are kept in
//! slabs whose slots are reused: no allocation per message.

use std::any::Any;

use crate::{FrameHeader, NetError, Rank};

/// A range of memory that an op reads or writes until it completes.
#[derive(Clone, Copy, Debug)]
pub struct MemoryRegion {
    /// The first byte.
    pub ptr: *mut u8,
    /// The length.
    pub len: usize,
}

// SAFETY: a region is only an address; whoever posts an op promises (see `Engine::post_send`) that the memory
// outlives it and that no access conflicts with it, on whichever thread progress runs.
unsafe impl Send for MemoryRegion {}

impl MemoryRegion {
    /// The region a receive writes to.
    pub fn of_mut(slice: &mut [u8]) -> Self {
        MemoryRegion { ptr: slice.as_mut_ptr(), len: slice.len() }
    }

    /// The region a send reads from. Never written through.
    pub fn of(slice: &[u8]) -> Self {
        MemoryRegion { ptr: slice.as_ptr().cast_mut(), len: slice.len() }
    }

    /// An empty region.
    pub const EMPTY: MemoryRegion = MemoryRegion { ptr: std::ptr::NonNull::<u8>::dangling().as_ptr(), len: 0 };
}

/// The outcome of a completed receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveStatus {
    /// The sender.
    pub source: Rank,
    /// The message's tag.
    pub tag: i32,
    /// How many bytes were received.
    pub len: u64,
}

impl Default for ReceiveStatus {
    fn default() -> Self {
        ReceiveStatus { source: Rank(u32::MAX), tag: -1, len: 0 }
    }
}

/// Names a group. The generation detects stale handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupId {
    index: u32,
    generation: u32,
}

pub(super) type OpIndex = u32;

pub(super) enum PendingOp {
    /// A send that waits in its link's queue or for the receiver's answer to an offer.
    Send { group: GroupId, dest: Rank, region: MemoryRegion },
    /// A receive that is posted, or matched and filling.
    Recv { group: GroupId, region: MemoryRegion, received: u64, status: ReceiveStatus, sent_bytes: u64 },
    /// A task: pending until its last step.
    Task { group: GroupId },
}

impl PendingOp {
    fn group(&self) -> GroupId {
        match self {
            PendingOp::Send { group, .. } | PendingOp::Recv { group, .. } | PendingOp::Task { group } => *group,
        }
    }
}

#[derive(Default)]
struct GroupState {
    generation: u32,
    pending: u32,
    status: ReceiveStatus,
    error: Option<NetError>,
    /// Nobody will ask for the outcome: free the slot when the last op completes.
    detached: bool,
    live: bool,
    keepalive: Option<Box<dyn Any + Send>>,
}

/// The slabs.
#[derive(Default)]
pub(super) struct OpTable {
    ops: Vec<Option<PendingOp>>,
    free_ops: Vec<u32>,
    groups: Vec<GroupState>,
    free_groups: Vec<u32>,
    /// How many ops are pending; the background thread works only while there are some.
    pub(super) pending_ops: usize,
    /// How many ops have completed: tells whether a task may be able to continue.
    pub(super) completions: u64,
}

impl OpTable {
    pub(super) fn new_group(&mut self) -> GroupId {
        let index = self.free_groups.pop().unwrap_or_else(|| {
            self.groups.push(GroupState::default());
            (self.groups.len() - 1) as u32
        });
        let group = &mut self.groups[index as usize];
        group.live = true;
        GroupId { index, generation: group.generation }
    }

    fn group(&mut self, id: GroupId) -> &mut GroupState {
        let group = &mut self.groups[id.index as usize];
        assert!(group.live && group.generation == id.generation, "a group is used after it was taken");
        group
    }

    pub(super) fn insert(&mut self, op: PendingOp) -> OpIndex {
        self.group(op.group()).pending += 1;
        self.pending_ops += 1;
        match self.free_ops.pop() {
            Some(index) => {
                self.ops[index as usize] = Some(op);
                index
            }
            None => {
                self.ops.push(Some(op));
                (self.ops.len() - 1) as u32
            }
        }
    }

    pub(super) fn get_mut(&mut self, index: OpIndex) -> Option<&mut PendingOp> {
        self.ops.get_mut(index as usize).and_then(Option::as_mut)
    }

    pub(super) fn belongs(&self, index: OpIndex, group: GroupId) -> bool {
        self.ops[index as usize].as_ref().is_some_and(|op| op.group() == group)
    }

    /// Completes the op: records the result in its group and frees its slot.
    pub(super) fn complete(&mut self, index: OpIndex, result: Result<ReceiveStatus, NetError>) {
        let op = self.ops[index as usize].take().expect("an op completes once");
        self.free_ops.push(index);
        self.pending_ops -= 1;
        self.completions += 1;
        let group = op.group();
        self.note(group, result);
        let state = self.group(group);
        state.pending -= 1;
        if state.pending == 0 && state.detached {
            self.free(group);
        }
    }

    /// Records the outcome of something that needed no op.
    pub(super) fn note(&mut self, group: GroupId, result: Result<ReceiveStatus, NetError>) {
        let state = self.group(group);
        match result {
            Ok(status) => state.status = status,
            Err(error) => {
                state.error.get_or_insert(error);
            }
        }
    }

    pub(super) fn is_complete(&self, id: GroupId) -> bool {
        let group = &self.groups[id.index as usize];
        debug_assert!(group.live && group.generation == id.generation);
        group.pending == 0
    }

    /// Takes the outcome of a complete group and frees it.
    pub(super) fn take(&mut self, id: GroupId) -> Result<ReceiveStatus, NetError> {
        let state = self.group(id);
        assert!(state.pending == 0, "a group is taken before it is complete");
        let result = match state.error.take() {
            Some(error) => Err(error),
            None => Ok(state.status),
        };
        self.free(id);
        result
    }

    /// The first error so far of a group that will be used again for the next round.
    pub(super) fn take_error(&mut self, id: GroupId) -> Option<NetError> {
        self.group(id).error.take()
    }

    /// Records that nobody will wait for this group any more; `keepalive` (the buffers' owner) is dropped when its
    /// last op has ended.
    pub(super) fn detach(&mut self, id: GroupId, keepalive: Option<Box<dyn Any + Send>>) {
        let state = self.group(id);
        if state.pending == 0 {
            self.free(id);
        } else {
            state.detached = true;
            state.keepalive = keepalive;
        }
    }

    fn free(&mut self, id: GroupId) {
        let state = &mut self.groups[id.index as usize];
        *state = GroupState { generation: state.generation.wrapping_add(1), ..GroupState::default() };
        self.free_groups.push(id.index);
    }

    /// The ops of one group that are still pending, with what they wait for: `(peer, is_receive)`; wildcard receives
    /// name no peer. For stall reports, so it may be slow.
    pub(super) fn waiting_for(
        &self,
        id: GroupId,
        posted_source: impl Fn(OpIndex) -> Option<Rank>,
    ) -> Vec<Option<Rank>> {
        let mut peers = Vec::new();
        for (index, op) in self.ops.iter().enumerate() {
            match op {
                Some(PendingOp::Send { group, dest, .. }) if *group == id => peers.push(Some(*dest)),
                Some(PendingOp::Recv { group, status, .. }) if *group == id => {
                    let known = (status.source.0 != u32::MAX).then_some(status.source);
                    peers.push(known.or_else(|| posted_source(index as u32)));
                }
                _ => {}
            }
        }
        peers.dedup();
        peers
    }

    /// Looks at every pending op.
    pub(super) fn each(&self, look: impl FnMut(&PendingOp)) {
        self.ops.iter().flatten().for_each(look);
    }

    /// Whether `is_such` holds for any pending op.
    pub(super) fn any(&self, is_such: impl FnMut(&PendingOp) -> bool) -> bool {
        self.pending_ops > 0 && self.ops.iter().flatten().any(is_such)
    }

    /// All pending ops, in order to fail them.
    pub(super) fn indices(&self) -> Vec<OpIndex> {
        (0..self.ops.len() as u32).filter(|&i| self.ops[i as usize].is_some()).collect()
    }
}

/// A frame in a link's queue.
pub(super) struct QueuedFrame {
    pub header: FrameHeader,
    pub payload: FramePayload,
    pub sent: usize,
    /// The op that completes when the frame has left.
    pub completes: Option<OpIndex>,
}

const INLINE_BYTES_MAX: usize = size_of::<crate::AcceptPayload>();

pub(super) enum FramePayload {
    Region(MemoryRegion),
    /// The payload of a control frame; the longest is an [`AcceptPayload`](crate::AcceptPayload).
    Inline {
        bytes: [u8; INLINE_BYTES_MAX],
        len: u8,
    },
}

impl FramePayload {
    pub(super) fn inline(bytes: &[u8]) -> Self {
        let mut inline = [0; INLINE_BYTES_MAX];
        inline[..bytes.len()].copy_from_slice(bytes);
        FramePayload::Inline { bytes: inline, len: bytes.len() as u8 }
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        match self {
            // SAFETY: the op that owns this frame is pending, so its poster keeps the memory alive and unchanged.
            FramePayload::Region(region) => unsafe { std::slice::from_raw_parts(region.ptr, region.len) },
            FramePayload::Inline { bytes, len } => &bytes[..*len as usize],
        }
    }
}
