//! The executor: runs one rank's schedule over an endpoint, each strand a round at a time.
//!
//! An execution is a state machine that is stepped between bits of progress: by the blocking call itself or, as a task
//! of the engine, by whichever thread drives the engine. It posts a round's messages, waits until all are complete,
//! does the local work, and moves to the next round.
//!
//! Once all strands have finished, the result is complete. The execution still waits for late sends from the caller's
//! buffers. Late sends from scratch finish by themselves and take the scratch memory with them. In an all-reduce, at
//! most one call's sends are left behind this way: a later result cannot arrive before every receiver of this one has
//! it.

use std::sync::Arc;

use parking_lot::Mutex;
use tidemill_net::{Engine, EngineTask, Envelope, GroupId, MatchPattern, MemoryRegion, NetError, Rank};

use crate::schedule::{BufferId, BufferRange, LocalStep, Round, Schedule, ScheduleMessage, Strand};
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

/// A collective under way. Public, though hidden, for callers that drive engines by hand, such as the simulator.
pub struct ScheduleExecution {
    schedule: Arc<Schedule>,
    /// World rank of each rank of the communicator.
    ranks: Arc<[Rank]>,
    envelope: Envelope,
    dtype: DType,
    item_bytes: usize,
    op: ReduceOp,
    buffers: ScheduleBuffers,
    begun: bool,
    first: StrandProgress,
    more: Option<Box<MoreProgress>>,
}

/// State that schedules with a single strand and no late sends do not need. Most schedules are like that and allocate
/// nothing.
#[derive(Default)]
struct MoreProgress {
    /// The second and later strands.
    strands: Vec<StrandProgress>,
    /// Sends that no round waits for: out of the caller's buffers, and out of scratch.
    late: [Option<GroupId>; 2],
    failure: ExecutionFailure,
    /// After a failure: the messages that were in flight.
    left_over: Vec<GroupId>,
    left_behind: bool,
}

/// The progress of a strand.
#[derive(Clone, Copy, Default)]
struct StrandProgress {
    round: usize,
    posted: bool,
    /// The current round's messages; `None` before the first round and after the last.
    group: Option<GroupId>,
}

/// A failure while messages of other strands were in flight, to and from the caller's memory. They end only with the
/// job, which therefore has to learn of the failure.
#[derive(Default)]
enum ExecutionFailure {
    #[default]
    None,
    Untold(NetError),
    Told(NetError),
}

impl ScheduleExecution {
    /// Makes an execution that is ready to step.
    ///
    /// # Safety
    /// `buffers.send` is readable and `buffers.recv` writable, and nothing else touches them, until the execution is
    /// over or the keepalive passed to [`ScheduleExecution::detach`] has been dropped.
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
            begun: false,
            first: StrandProgress::default(),
            more: None,
        }
    }

    /// Puts this execution into the allocation of a finished one, and reuses its scratch memory.
    pub(crate) fn with_scratch_of(mut self, mut over: Box<ScheduleExecution>) -> Box<ScheduleExecution> {
        self.buffers.scratch = std::mem::take(&mut over.buffers.scratch);
        *over = self;
        over
    }

    /// After it is over: drops everything of its caller's, so that [`ScheduleExecution::with_scratch_of`] can reuse it.
    /// `false`: it is not worth keeping.
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

    fn post(&mut self, engine: &mut Engine, group: GroupId, strand: &Strand, round: &Round) {
        // Receives first: a message that finds its receive posted needs no extra copy. Sends and receives keep their
        // own order.
        for message in &round.messages {
            if let ScheduleMessage::Recv { from, range } = *message {
                let region = self.region(range);
                let pattern = MatchPattern {
                    source: Some(self.ranks[from as usize]),
                    tag: Some(strand.recv_channel as i32),
                    seq: self.envelope.seq,
                };
                // SAFETY: the caller of `new` keeps the buffers; scratch lives as long as `self`.
                unsafe { engine.post_recv(group, self.envelope.context, pattern, region) };
            }
        }
        let envelope = Envelope { tag: strand.send_channel as i32, ..self.envelope };
        for message in &round.messages {
            let (to, range, group) = match *message {
                ScheduleMessage::Send { to, range } => (to, range, group),
                ScheduleMessage::LateSend { to, range } => {
                    let late = &mut self.more().late[usize::from(range.buffer == BufferId::Scratch)];
                    (to, range, *late.get_or_insert_with(|| engine.new_group()))
                }
                ScheduleMessage::Recv { .. } => continue,
            };
            let region = self.region(range);
            // SAFETY: as above; no receive of the round writes what its sends read, and nothing writes the data of a
            // late send until its receiver has it. Scratch that is still being read at the end goes to the engine
            // (`end`).
            unsafe { engine.post_send(group, self.ranks[to as usize], &envelope, region) };
        }
    }

    fn work(&mut self, round: &Round) -> Result<(), NetError> {
        for local in &round.local {
            let (LocalStep::Copy { from, into }
            | LocalStep::ReduceLeft { from, into }
            | LocalStep::ReduceRight { from, into }) = *local;
            let (from, into) = (self.region(from), self.region(into));
            if from.len == 0 || (from.ptr == into.ptr && matches!(local, LocalStep::Copy { .. })) {
                continue;
            }
            // SAFETY: both are within buffers that are ours while no message of the round is pending, other strands
            // work elsewhere, and a schedule's local steps never name overlapping ranges (checked by the schedules'
            // property tests).
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

    fn strand(&mut self, index: usize) -> &mut StrandProgress {
        match index {
            0 => &mut self.first,
            _ => &mut self.more().strands[index - 1],
        }
    }

    fn more(&mut self) -> &mut MoreProgress {
        self.more.get_or_insert_default()
    }

    /// Advances a strand as far as possible. Returns whether it has finished.
    #[inline]
    fn step_strand(&mut self, engine: &mut Engine, index: usize) -> Result<bool, NetError> {
        let mut progress = *self.strand(index);
        if progress.posted && progress.group.is_some_and(|group| !engine.is_complete(group)) {
            return Ok(false);
        }
        if progress.round == self.schedule.strands[index].rounds.len() {
            return Ok(true);
        }
        let schedule = Arc::clone(&self.schedule);
        let result = self.advance(engine, &schedule.strands[index], &mut progress);
        *self.strand(index) = progress;
        result
    }

    fn advance(
        &mut self,
        engine: &mut Engine,
        strand: &Strand,
        progress: &mut StrandProgress,
    ) -> Result<bool, NetError> {
        let group = *progress.group.get_or_insert_with(|| engine.new_group());
        while let Some(round) = strand.rounds.get(progress.round) {
            if !progress.posted {
                self.post(engine, group, strand, round);
                progress.posted = true;
            }
            if !engine.is_complete(group) {
                return Ok(false);
            }
            if let Some(error) = engine.take_error(group) {
                return Err(error);
            }
            self.work(round)?;
            progress.posted = false;
            progress.round += 1;
        }
        progress.group = None;
        engine.take(group).map(|_| true)
    }

    /// All messages in flight.
    fn take_groups(&mut self) -> Vec<GroupId> {
        let mut groups: Vec<GroupId> = self.first.group.take().into_iter().collect();
        if let Some(more) = &mut self.more {
            groups.extend(more.strands.iter_mut().filter_map(|strand| strand.group.take()));
            groups.extend(more.late.iter_mut().filter_map(Option::take));
            groups.append(&mut more.left_over);
        }
        groups
    }

    /// All strands have finished: waits for the sends from the caller's memory, and leaves scratch behind.
    fn end(&mut self, engine: &mut Engine) -> Option<Result<(), NetError>> {
        let Some(more) = &mut self.more else { return Some(Ok(())) };
        let [from_caller, from_scratch] = &mut more.late;
        if let Some(group) = *from_caller {
            if !engine.is_complete(group) {
                return None;
            }
            *from_caller = None;
            if let Err(error) = engine.take(group) {
                return Some(Err(error));
            }
        }
        if let Some(group) = from_scratch.take() {
            if engine.is_complete(group) {
                return Some(engine.take(group).map(|_| ()));
            }
            more.left_behind = true;
            engine.detach(group, Some(Box::new(std::mem::take(&mut self.buffers.scratch))));
        }
        Some(Ok(()))
    }

    /// The execution has failed: it is over if no messages are in flight.
    #[cold]
    fn fail(&mut self, engine: &mut Engine, error: NetError) -> Option<Result<(), NetError>> {
        self.more().failure = ExecutionFailure::Untold(error);
        self.settle(engine)
    }

    /// After a failure: the execution is over once nothing reads or writes the caller's memory.
    fn settle(&mut self, engine: &mut Engine) -> Option<Result<(), NetError>> {
        let groups = self.take_groups();
        if groups.iter().any(|&group| !engine.is_complete(group)) {
            // The strand of a group no longer matters.
            self.more().left_over = groups;
            return None;
        }
        groups.into_iter().for_each(|group| engine.detach(group, None));
        match std::mem::take(&mut self.more().failure) {
            ExecutionFailure::Untold(error) | ExecutionFailure::Told(error) => Some(Err(error)),
            ExecutionFailure::None => unreachable!("only a failed execution settles"),
        }
    }

    /// Its failure, returned once: the job must learn of it, or the execution may never end.
    pub(crate) fn untold_failure(&mut self) -> Option<NetError> {
        let failure = &mut self.more.as_mut()?.failure;
        match std::mem::take(failure) {
            ExecutionFailure::Untold(error) => {
                *failure = ExecutionFailure::Told(error.clone());
                Some(error)
            }
            other => {
                *failure = other;
                None
            }
        }
    }

    /// Whether the communicator has to act on the last step: [`Communicator::follow_up`].
    ///
    /// [`Communicator::follow_up`]: crate::Communicator::follow_up
    #[inline]
    pub(crate) fn needs_follow_up(&self) -> bool {
        let needs = |more: &MoreProgress| more.left_behind || matches!(more.failure, ExecutionFailure::Untold(_));
        self.more.as_deref().is_some_and(needs)
    }

    /// The groups of messages for which it currently waits. The first is separate because it is usually the only one.
    pub(crate) fn waits_in(&self) -> (Option<GroupId>, Vec<GroupId>) {
        let others = |more: &MoreProgress| {
            let strands = more.strands.iter().filter_map(|strand| strand.group);
            strands.chain(more.late[0]).chain(more.left_over.iter().copied()).collect()
        };
        (self.first.group, self.more.as_deref().map_or_else(Vec::new, others))
    }

    /// Lets the messages in flight finish by themselves; `keepalive` owns the caller's buffers until then.
    pub(crate) fn detach(mut self, engine: &mut Engine, keepalive: Option<Box<dyn std::any::Any + Send>>) {
        let kept = Arc::new(Mutex::new((std::mem::take(&mut self.buffers.scratch), keepalive)));
        for group in self.take_groups() {
            engine.detach(group, Some(Box::new(Arc::clone(&kept))));
        }
    }
}

impl EngineTask for ScheduleExecution {
    fn step(&mut self, engine: &mut Engine) -> Option<Result<(), NetError>> {
        if !self.begun {
            self.begun = true;
            self.buffers.scratch.clear();
            self.buffers.scratch.resize(self.schedule.scratch_len * self.item_bytes, 0);
            if self.schedule.strands.len() > 1 {
                self.more().strands = vec![StrandProgress::default(); self.schedule.strands.len() - 1];
            }
        }
        if self.more.as_deref().is_some_and(|more| !matches!(more.failure, ExecutionFailure::None)) {
            return self.settle(engine);
        }
        let mut ended = true;
        for index in 0..self.schedule.strands.len() {
            match self.step_strand(engine, index) {
                Ok(at_end) => ended &= at_end,
                Err(error) => return self.fail(engine, error),
            }
        }
        if !ended {
            return None;
        }
        match self.end(engine)? {
            Ok(()) => Some(Ok(())),
            Err(error) => self.fail(engine, error),
        }
    }

    fn waiting_for(&self, engine: &Engine) -> Vec<Option<Rank>> {
        let (first, others) = self.waits_in();
        let mut ranks: Vec<_> = first.into_iter().chain(others).flat_map(|group| engine.waiting_for(group)).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }
}
