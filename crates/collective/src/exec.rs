//! The executor: runs one rank's schedule over an endpoint, a round at a time.
//!
//! An execution is a state machine that is stepped between bits of progress: by the blocking call itself, or, as a task
//! of the engine, by whoever drives. It posts a round's messages, waits until all are complete, does the local work and
//! goes on.

use std::sync::Arc;

use tidemill_net::{Engine, EngineTask, Envelope, GroupId, MatchPattern, MemoryRegion, NetError, Rank};

use crate::schedule::{BufferId, BufferRange, LocalStep, Schedule, ScheduleMessage};
use crate::{DType, ReduceOp, reduce};

/// Scratch memory that is kept for a communicator's next collective.
const SPARE_BYTES_MAX: usize = 64 << 10;

/// Where a schedule's buffers lie.
pub(crate) struct ScheduleBuffers {
    /// The caller's contribution; never written.
    pub send: MemoryRegion,
    /// The caller's result.
    pub recv: MemoryRegion,
    /// The executor's own.
    pub scratch: Vec<u8>,
}

/// A collective under way. Public, though hidden, for who drives engines by hand, as the simulator does.
pub struct ScheduleExecution {
    schedule: Arc<Schedule>,
    /// World rank of each rank of the communicator.
    ranks: Arc<[Rank]>,
    envelope: Envelope,
    dtype: DType,
    item_bytes: usize,
    op: ReduceOp,
    buffers: ScheduleBuffers,
    round: usize,
    posted: bool,
    group: Option<GroupId>,
}

impl ScheduleExecution {
    /// Ready to be stepped.
    ///
    /// # Safety
    /// `buffers.send` is readable and `buffers.recv` writable, and touched by nobody else, until the execution is over
    /// or what [`ScheduleExecution::detach`] was given has been dropped.
    pub unsafe fn new(
        schedule: Arc<Schedule>,
        ranks: Arc<[Rank]>,
        envelope: Envelope,
        dtype: DType,
        op: ReduceOp,
        send: MemoryRegion,
        recv: MemoryRegion,
    ) -> Self {
        let item_bytes = dtype.size_bytes();
        let buffers = ScheduleBuffers { send, recv, scratch: Vec::new() };
        ScheduleExecution {
            schedule,
            ranks,
            envelope,
            dtype,
            item_bytes,
            op,
            buffers,
            round: 0,
            posted: false,
            group: None,
        }
    }

    /// This execution in the place, and with the scratch memory, of one that is over.
    pub(crate) fn with_scratch_of(mut self, mut over: Box<ScheduleExecution>) -> Box<ScheduleExecution> {
        self.buffers.scratch = std::mem::take(&mut over.buffers.scratch);
        *over = self;
        over
    }

    /// After its end: keeps nothing of its caller's, to be of use to [`ScheduleExecution::with_scratch_of`]. `false`:
    /// it had better go.
    pub(crate) fn become_spare(&mut self) -> bool {
        self.op = ReduceOp::NoOp;
        self.buffers.scratch.capacity() <= SPARE_BYTES_MAX
    }

    fn region(&mut self, range: BufferRange) -> MemoryRegion {
        let (start, len) = (range.start * self.item_bytes, range.len * self.item_bytes);
        let whole = match range.buffer {
            BufferId::Send => self.buffers.send,
            BufferId::Recv => self.buffers.recv,
            BufferId::Scratch => MemoryRegion::of_mut(&mut self.buffers.scratch),
        };
        assert!(start + len <= whole.len, "a schedule stays within its buffers: {range:?} of {} bytes", whole.len);
        if len == 0 {
            return MemoryRegion::EMPTY;
        }
        // SAFETY: within the buffer, as just checked.
        MemoryRegion { ptr: unsafe { whole.ptr.add(start) }, len }
    }

    fn post(&mut self, engine: &mut Engine, group: GroupId) {
        let schedule = Arc::clone(&self.schedule);
        let messages = &schedule.rounds[self.round].messages;
        // Receives first: what has a place to go needs no copy on the way. Sends and receives keep their own order.
        for message in messages {
            if let ScheduleMessage::Recv { from, range } = *message {
                let region = self.region(range);
                let pattern = MatchPattern {
                    source: Some(self.ranks[from as usize]),
                    tag: Some(self.envelope.tag),
                    seq: self.envelope.seq,
                };
                // SAFETY: the caller of `new` keeps the buffers; scratch lives as long as `self`.
                unsafe { engine.post_recv(group, self.envelope.context, pattern, region) };
            }
        }
        for message in messages {
            if let ScheduleMessage::Send { to, range } = *message {
                let region = self.region(range);
                // SAFETY: as above; no receive of the round writes what its sends read.
                unsafe { engine.post_send(group, self.ranks[to as usize], &self.envelope, region) };
            }
        }
    }

    fn work(&mut self) -> Result<(), NetError> {
        let schedule = Arc::clone(&self.schedule);
        for local in &schedule.rounds[self.round].local {
            let (LocalStep::Copy { from, into }
            | LocalStep::ReduceLeft { from, into }
            | LocalStep::ReduceRight { from, into }) = *local;
            let (from, into) = (self.region(from), self.region(into));
            if from.len == 0 || (from.ptr == into.ptr && matches!(local, LocalStep::Copy { .. })) {
                continue;
            }
            // SAFETY: both are within buffers that are ours while no message of the round is pending; a schedule's
            // local steps never name overlapping ranges (checked by the schedules' property tests).
            let (from, into) = unsafe {
                (
                    std::slice::from_raw_parts(from.ptr.cast_const(), from.len),
                    std::slice::from_raw_parts_mut(into.ptr, into.len),
                )
            };
            let result = match local {
                LocalStep::Copy { .. } => {
                    tidemill_net::copy_slice(into, from);
                    Ok(())
                }
                LocalStep::ReduceLeft { .. } => reduce::reduce_left(&self.op, self.dtype, from, into),
                LocalStep::ReduceRight { .. } => reduce::reduce_right(&self.op, self.dtype, into, from),
            };
            result.map_err(|error| NetError::Operation(error.to_string()))?;
        }
        Ok(())
    }

    /// The group of messages it is waiting for now.
    pub(crate) fn waits_in(&self) -> Option<GroupId> {
        self.group
    }

    /// Lets the messages under way end by themselves; `keepalive` owns the caller's buffers meanwhile.
    pub(crate) fn detach(mut self, engine: &mut Engine, keepalive: Option<Box<dyn std::any::Any + Send>>) {
        if let Some(group) = self.group.take() {
            let scratch = std::mem::take(&mut self.buffers.scratch);
            engine.detach(group, Some(Box::new((scratch, keepalive))));
        }
    }
}

impl EngineTask for ScheduleExecution {
    fn step(&mut self, engine: &mut Engine) -> Option<Result<(), NetError>> {
        let group = *self.group.get_or_insert_with(|| {
            self.buffers.scratch.clear();
            self.buffers.scratch.resize(self.schedule.scratch_len * self.item_bytes, 0);
            engine.new_group()
        });
        loop {
            if self.round == self.schedule.rounds.len() {
                self.group = None;
                return Some(engine.take(group).map(|_| ()));
            }
            if !self.posted {
                self.post(engine, group);
                self.posted = true;
            }
            if !engine.is_complete(group) {
                return None;
            }
            let result = match engine.take_error(group) {
                Some(error) => Err(error),
                None => self.work(),
            };
            if let Err(error) = result {
                self.group = None;
                engine.detach(group, None);
                return Some(Err(error));
            }
            self.posted = false;
            self.round += 1;
        }
    }

    fn waiting_for(&self, engine: &Engine) -> Vec<Option<Rank>> {
        self.group.map_or_else(Vec::new, |group| engine.waiting_for(group))
    }
}
