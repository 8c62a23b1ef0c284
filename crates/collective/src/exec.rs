//! The executor: runs one rank's schedule over an endpoint, a round at a time.
//!
//! An execution is a state machine that is stepped between bits of progress: by the blocking call itself, or, as a task
//! of the engine, by whoever drives. It posts a round's messages, waits until all are complete, does the local work and
//! goes on.

use std::sync::{Arc, Weak};

use tidemill_net::{Engine, Envelope, GroupId, NetError, Pattern, Rank, Region, Task};

use crate::communicator::{Communicator, Inner};
use crate::schedule::{Buffer, Local, Message, Range, Schedule};
use crate::{DType, Op, reduce};

/// Scratch memory that is kept for a communicator's next collective.
const SPARE_BYTES_MAX: usize = 64 << 10;

/// Where a schedule's buffers lie.
pub(crate) struct Buffers {
    /// The caller's contribution; never written.
    pub send: Region,
    /// The caller's result.
    pub recv: Region,
    /// The executor's own.
    pub scratch: Vec<u8>,
}

/// A collective under way. Public, though hidden, for who drives engines by hand, as the simulator does.
pub struct Execution {
    schedule: Arc<Schedule>,
    /// World rank of each rank of the communicator.
    ranks: Arc<[Rank]>,
    envelope: Envelope,
    dtype: DType,
    item_bytes: usize,
    op: Op,
    buffers: Buffers,
    round: usize,
    posted: bool,
    group: Option<GroupId>,
}

impl Execution {
    /// Ready to be stepped.
    ///
    /// # Safety
    /// `buffers.send` is readable and `buffers.recv` writable, and touched by nobody else, until the execution is over
    /// or what [`Execution::detach`] was given has been dropped.
    pub unsafe fn new(
        schedule: Arc<Schedule>,
        ranks: Arc<[Rank]>,
        envelope: Envelope,
        dtype: DType,
        op: Op,
        send: Region,
        recv: Region,
    ) -> Self {
        let item_bytes = dtype.size_bytes();
        let buffers = Buffers { send, recv, scratch: Vec::new() };
        Execution { schedule, ranks, envelope, dtype, item_bytes, op, buffers, round: 0, posted: false, group: None }
    }

    /// This execution in the place, and with the scratch memory, of one that is over.
    pub(crate) fn instead_of(mut self, mut over: Box<Execution>) -> Box<Execution> {
        self.buffers.scratch = std::mem::take(&mut over.buffers.scratch);
        *over = self;
        over
    }

    /// After its end: keeps nothing of its caller's, to be of use to [`Execution::instead_of`]. `false`: it had better
    /// go.
    pub(crate) fn become_spare(&mut self) -> bool {
        self.op = Op::NoOp;
        self.buffers.scratch.capacity() <= SPARE_BYTES_MAX
    }

    fn region(&mut self, range: Range) -> Region {
        let (start, len) = (range.start * self.item_bytes, range.len * self.item_bytes);
        let whole = match range.buffer {
            Buffer::Send => self.buffers.send,
            Buffer::Recv => self.buffers.recv,
            Buffer::Scratch => Region::of_mut(&mut self.buffers.scratch),
        };
        assert!(start + len <= whole.len, "a schedule stays within its buffers: {range:?} of {} bytes", whole.len);
        if len == 0 {
            return Region::EMPTY;
        }
        // SAFETY: within the buffer, as just checked.
        Region { ptr: unsafe { whole.ptr.add(start) }, len }
    }

    fn post(&mut self, engine: &mut Engine, group: GroupId) {
        let schedule = Arc::clone(&self.schedule);
        let messages = &schedule.rounds[self.round].messages;
        // Receives first: what has a place to go needs no copy on the way. Sends and receives keep their own order.
        for message in messages {
            if let Message::Recv { from, range } = *message {
                let region = self.region(range);
                let pattern = Pattern {
                    source: Some(self.ranks[from as usize]),
                    tag: Some(self.envelope.tag),
                    seq: self.envelope.seq,
                };
                // SAFETY: the caller of `new` keeps the buffers; scratch lives as long as `self`.
                unsafe { engine.post_recv(group, self.envelope.context, pattern, region) };
            }
        }
        for message in messages {
            if let Message::Send { to, range } = *message {
                let region = self.region(range);
                // SAFETY: as above; no receive of the round writes what its sends read.
                unsafe { engine.post_send(group, self.ranks[to as usize], &self.envelope, region) };
            }
        }
    }

    fn work(&mut self) -> Result<(), NetError> {
        let schedule = Arc::clone(&self.schedule);
        for local in &schedule.rounds[self.round].local {
            let (Local::Copy { from, into } | Local::ReduceLeft { from, into } | Local::ReduceRight { from, into }) =
                *local;
            let (from, into) = (self.region(from), self.region(into));
            if from.len == 0 || (from.ptr == into.ptr && matches!(local, Local::Copy { .. })) {
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
                Local::Copy { .. } => {
                    tidemill_net::copy_slice(into, from);
                    Ok(())
                }
                Local::ReduceLeft { .. } => reduce::reduce_left(&self.op, self.dtype, from, into),
                Local::ReduceRight { .. } => reduce::reduce_right(&self.op, self.dtype, into, from),
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

impl Task for Execution {
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

/// A non-blocking collective. That it failed here the others must hear at once: when this rank looks at its request, if
/// ever, may depend on them.
pub(crate) struct Telling {
    execution: Execution,
    comm: Weak<Inner>,
}

impl Telling {
    pub(crate) fn new(execution: Execution, comm: &Communicator) -> Self {
        Telling { execution, comm: Arc::downgrade(&comm.0) }
    }
}

impl Task for Telling {
    fn step(&mut self, engine: &mut Engine) -> Option<Result<(), NetError>> {
        let result = self.execution.step(engine);
        if let (Some(Err(error)), Some(comm)) = (&result, self.comm.upgrade()) {
            Communicator(comm).fail(error);
        }
        result
    }

    fn waiting_for(&self, engine: &Engine) -> Vec<Option<Rank>> {
        self.execution.waiting_for(engine)
    }
}
