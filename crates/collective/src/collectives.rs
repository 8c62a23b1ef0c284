//! Collectives: checks a call, passes it to shared memory or to a schedule, and starts it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use tidemill_net::{Engine, EngineTask, Envelope, MemoryRegion, NetError, Rank, ReceiveStatus};

use crate::algorithms::{self, ScheduleParams, UnsupportedAlgorithm, blocks_end};
use crate::call::{self, CollectiveCall};
use crate::communicator::{CollectiveError, Communicator, CommunicatorCore, OverlayInUse, ScheduleKey};
use crate::direct::{DirectChannel, DirectOperation, DirectPoll, LargeProgress};
use crate::exec::ScheduleExecution;
use crate::overlay::slice_bytes;
use crate::request::{Request, RequestKind, StartResult, spin_direct};
use crate::request_state::RequestState;
use crate::schedule::Schedule;
use crate::tuner::{AlgorithmChoice, TuneQuery};
use crate::{Algorithm, Collective, VectorBlock};

/// Schedules cached per communicator.
const SCHEDULES_MAX: usize = 256;

impl Communicator {
    /// Starts a collective that this thread will wait for.
    ///
    /// # Errors
    /// A wrong root, length, operation or algorithm, before any data moves; any failure of the job.
    ///
    /// # Safety
    /// The call's regions stay valid, and nothing else touches them, until the request is over.
    #[inline]
    pub unsafe fn start(&self, call: &CollectiveCall) -> Result<StartResult, CollectiveError> {
        // SAFETY: by this function's contract.
        unsafe { if self.is_adaptive(call) { self.start_as(&self.adapted(call)) } else { self.start_as(call) } }
    }

    /// # Safety
    /// As [`Communicator::start`].
    #[inline]
    unsafe fn start_as(&self, call: &CollectiveCall) -> Result<StartResult, CollectiveError> {
        self.check(call)?;
        let overlay = self.overlay_of(call);
        let code = call.code_along(overlay.as_ref().map(|in_use| in_use.fingerprint));
        let signature = call::signature(code);
        let mut collectives = self.0.collectives.lock();
        let collectives_ref = &mut *collectives;
        collectives_ref.seq = collectives_ref.seq.wrapping_add(1).max(1);
        let seq = collectives_ref.seq;
        let what = RequestKind::Collective { collective: call.collective, seq, signature };
        if let Some(direct) = &mut collectives_ref.direct {
            direct.area().set_call(self.0.rank as usize, seq, signature, code);
            let way = collectives_ref.chooser.choose(call, || self.total_bytes(call));
            if way == Some(Algorithm::SingleCopy) {
                let job = self.job(call, direct.chain(signature));
                let state = RequestState::large(job, call.op, LargeProgress::new(call.collective));
                return Ok(StartResult::Pending(Request::new(self, what, state)));
            }
            if way == Some(Algorithm::SharedMemory) {
                let job = self.job(call, direct.chain(signature));
                let mut progress = DirectChannel::start();
                // SAFETY: by this function's contract; `check` has checked the lengths.
                let poll = unsafe { spin_direct(direct, &job, call.op, &mut progress, self.0.polls) };
                let sleepers = direct.sleepers();
                drop(collectives);
                if sleepers > 0 {
                    self.wake_all(&mut self.0.endpoint.lock());
                }
                match poll {
                    DirectPoll::Done => return Ok(StartResult::Done(ReceiveStatus::default())),
                    DirectPoll::Failed(error) => {
                        self.fail(&error);
                        return Err(error.into());
                    }
                    DirectPoll::Waiting | DirectPoll::Moved => {}
                    DirectPoll::Contradicted(rank) => self.contradict(&mut self.0.endpoint.lock(), seq, rank),
                }
                let state = self.0.spares.lock().direct(job, call.op, progress);
                return Ok(StartResult::Pending(Request::new(self, what, state)));
            }
        }
        drop(collectives);
        let execution = self.execution(call, overlay, seq, signature, code)?;
        let state = self.0.spares.lock().execution(execution);
        Ok(StartResult::Pending(Request::new(self, what, state)))
    }

    /// Starts a collective that progresses by itself.
    ///
    /// # Errors
    /// As [`Communicator::start`].
    ///
    /// # Safety
    /// As [`Communicator::start`]; after [`Request::detach`], until the keepalive is dropped.
    pub unsafe fn start_nonblocking(&self, call: &CollectiveCall) -> Result<Request, CollectiveError> {
        let adapted = self.is_adaptive(call).then(|| self.adapted(call));
        let call = adapted.as_ref().unwrap_or(call);
        self.check(call)?;
        let overlay = self.overlay_of(call);
        let [word, bytes] = call.code_along(overlay.as_ref().map(|in_use| in_use.fingerprint));
        let code = [word | call::NONBLOCKING, bytes];
        let signature = call::signature(code);
        let seq = {
            let mut collectives = self.0.collectives.lock();
            collectives.seq = collectives.seq.wrapping_add(1).max(1);
            if let Some(direct) = &collectives.direct {
                direct.area().set_call(self.0.rank as usize, collectives.seq, signature, code);
            }
            collectives.seq
        };
        let what = RequestKind::Collective { collective: call.collective, seq, signature };
        let execution = self.execution(call, overlay, seq, signature, code)?;
        let mut engine = self.0.endpoint.lock();
        let group = engine.add_task(Box::new(NonBlockingTask::new(execution, self)));
        engine.flush();
        drop(engine);
        self.0.endpoint.leave_to_background();
        Ok(Request::new(self, what, RequestState::Group(group)))
    }

    /// Starts a collective and waits for it. For callers that need not watch for signals.
    ///
    /// # Errors
    /// As [`Communicator::start`].
    ///
    /// # Safety
    /// The call's regions are valid, and nothing else touches them, during the call.
    pub unsafe fn run(&self, call: &CollectiveCall) -> Result<(), CollectiveError> {
        if let Some(bytes) = self.adaptive_bytes(call) {
            self.adapt(bytes)?;
        }
        // SAFETY: by this function's contract.
        match unsafe { self.start(call)? } {
            StartResult::Done(_) => Ok(()),
            StartResult::Pending(request) => Ok(request.wait().map(|_| ())?),
        }
    }

    pub(crate) fn execution(
        &self,
        call: &CollectiveCall,
        overlay: Option<OverlayInUse>,
        seq: u32,
        signature: u32,
        code: [u64; 2],
    ) -> Result<ScheduleExecution, CollectiveError> {
        let schedule = self.schedule(call, overlay)?;
        let context = self.collective_context();
        self.0.endpoint.lock().begin_collective(context, seq, signature, code);
        let envelope = Envelope { context, tag: 0, seq, signature };
        let (send, recv) = self.regions(call);
        let ranks = Arc::clone(&self.0.ranks);
        // SAFETY: by the contract of `start` and `start_nonblocking`.
        Ok(unsafe { ScheduleExecution::new(schedule, ranks, envelope, call.dtype, call.op.clone(), send, recv) })
    }

    /// The regions a schedule calls `Send` and `Recv`, with in-place calls resolved as [`Collective`] says.
    pub(crate) fn regions(&self, call: &CollectiveCall) -> (MemoryRegion, MemoryRegion) {
        let item = call.dtype.size_bytes();
        let part = |whole: MemoryRegion, start: usize, len: usize| MemoryRegion {
            // SAFETY: `check` has checked that the part is within the buffer.
            ptr: unsafe { whole.ptr.add(start * item) },
            len: len * item,
        };
        let me = self.0.rank as usize;
        use Collective::*;
        match (call.send, call.recv) {
            (Some(send), Some(recv)) => (send, recv),
            (Some(send), None) => match call.collective {
                Scatter => (send, part(send, me * call.count, call.count)),
                Scatterv => (send, part(send, call.send_blocks[me].start, call.send_blocks[me].len)),
                _ => (send, MemoryRegion::EMPTY),
            },
            (None, Some(recv)) => match call.collective {
                Gather | Allgather => (part(recv, me * call.count, call.count), recv),
                Gatherv | Allgatherv => (part(recv, call.recv_blocks[me].start, call.recv_blocks[me].len), recv),
                Bcast | Scatter | Scatterv => (MemoryRegion::EMPTY, recv),
                _ => (recv, recv),
            },
            (None, None) => (MemoryRegion::EMPTY, MemoryRegion::EMPTY),
        }
    }

    pub(crate) fn job(&self, call: &CollectiveCall, signature: u32) -> DirectOperation {
        let (send, recv) = self.regions(call);
        let item = call.dtype.size_bytes();
        let cut = |region: MemoryRegion, len: usize| MemoryRegion { len: (len * item).min(region.len), ..region };
        // Buffers may be longer than the call needs; direct collectives move only what the call specifies.
        let (send_len, recv_len) = self.lengths(call);
        DirectOperation {
            collective: call.collective,
            root: call.root as usize,
            dtype: call.dtype,
            signature,
            send: cut(send, send_len),
            recv: cut(recv, recv_len),
            blocks: call.common_blocks().map(|blocks| {
                assert_eq!(blocks.len(), self.0.ranks.len(), "{} has one block per rank", call.collective);
                let own = blocks[self.0.rank as usize].len;
                assert!(
                    call.collective != Collective::Allgatherv || own == call.count,
                    "this rank sends {} elements, but recv_blocks say {own}",
                    call.count
                );
                blocks.iter().map(|block| VectorBlock { start: block.start * item, len: block.len * item }).collect()
            }),
        }
    }

    /// Elements of send and receive buffer that the call uses on this rank.
    pub(crate) fn lengths(&self, call: &CollectiveCall) -> (usize, usize) {
        use Collective::*;
        let (n, p) = (call.count, self.0.ranks.len());
        let at_root = self.0.rank == call.root;
        match call.collective {
            Barrier => (0, 0),
            Bcast => (0, n),
            Reduce => (n, if at_root { n } else { 0 }),
            Allreduce | Scan | Exscan => (n, n),
            Gather => (n, if at_root { n * p } else { 0 }),
            Gatherv => (n, if at_root { blocks_end(call.recv_blocks) } else { 0 }),
            Allgather => (n, n * p),
            Allgatherv => (n, blocks_end(call.recv_blocks)),
            Scatter => (if at_root { n * p } else { 0 }, n),
            Scatterv => (if at_root { blocks_end(call.send_blocks) } else { 0 }, n),
            Alltoall => (n * p, n * p),
            Alltoallv => (blocks_end(call.send_blocks), blocks_end(call.recv_blocks)),
            ReduceScatterBlock => (n * p, n),
            ReduceScatter => {
                (blocks_end(call.send_blocks), call.send_blocks.get(self.0.rank as usize).map_or(0, |b| b.len))
            }
        }
    }

    #[inline]
    pub(crate) fn check(&self, call: &CollectiveCall) -> Result<(), CollectiveError> {
        self.0.endpoint.check_process()?;
        let faults = self.0.endpoint.faults();
        if self.0.abandoned.load(Ordering::Relaxed) || faults.has_failed() {
            // A call that failed together with the job is not itself the cause.
            let fatal = faults.fatal().map(CollectiveError::Net);
            return Err(
                fatal.unwrap_or_else(|| CollectiveError::Abandoned { comm: self.name(), from_parent: self.0.id >= 2 })
            );
        }
        if call.is_rooted() {
            self.check_rank(call.root)?;
        }
        if call.reduces() {
            call.op.check(call.dtype)?;
        }
        let item = call.dtype.size_bytes();
        let (send, recv) = self.lengths(call);
        let collective = call.collective;
        let short = |buffer, region: Option<MemoryRegion>, needed: usize| match region {
            Some(region) if region.len < needed * item => {
                Err(CollectiveError::Length { collective, buffer, found: region.len, needed: needed * item })
            }
            _ => Ok(()),
        };
        short("send", call.send, send)?;
        // An in-place call reads its contribution from the receive buffer.
        short("receive", call.recv, if call.send.is_none() { recv.max(send.min(in_place_send(call))) } else { recv })?;
        let missing = |needed: usize| needed * item > 0;
        let alone =
            |buffer, needed: usize| CollectiveError::Length { collective, buffer, found: 0, needed: needed * item };
        match (call.send, call.recv) {
            (None, None) if missing(send) => Err(alone("send", send)),
            (None, None) if missing(recv) => Err(alone("receive", recv)),
            (Some(_), None) if missing(recv) && !matches!(collective, Collective::Scatter | Collective::Scatterv) => {
                Err(alone("receive", recv))
            }
            (None, Some(_)) if missing(send) && matches!(collective, Collective::Scatter | Collective::Scatterv) => {
                Err(alone("send", send))
            }
            _ => Ok(()),
        }
    }

    /// The overlay of the call, if it uses one.
    #[inline]
    fn overlay_of(&self, call: &CollectiveCall) -> Option<OverlayInUse> {
        match call.options.algorithm {
            Some(Algorithm::Overlay) => self.0.overlay.read().clone(),
            _ => None,
        }
    }

    fn schedule(&self, call: &CollectiveCall, overlay: Option<OverlayInUse>) -> Result<Arc<Schedule>, CollectiveError> {
        let size = self.size();
        let commutative = !call.reduces() || call.op.is_commutative();
        let repeatable = call.options.repeatable && call.reduces();
        let item_bytes = call.dtype.size_bytes();
        let query = TuneQuery {
            collective: call.collective,
            bytes: self.total_bytes(call),
            item_bytes,
            ranks: size,
            hosts: self.hosts(),
            within_host: self.within_host(),
            commutative,
            repeatable,
        };
        let table = Arc::clone(&self.0.table.read());
        let choice = match (call.options.algorithm, call.options.chunk) {
            (Some(algorithm), _) if algorithm.is_direct() && size > 1 => return Err(self.not_direct(call, algorithm)),
            (Some(algorithm), _) if algorithm.is_direct() => table.choose(&query),
            (Some(Algorithm::Overlay), None) => {
                let parts = overlay.as_ref().map_or_else(Vec::new, |in_use| in_use.overlay.ranges(call.count));
                let longest = parts.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
                AlgorithmChoice { algorithm: Algorithm::Overlay, chunk: slice_len(longest, item_bytes) }
            }
            (Some(algorithm), Some(chunk)) => AlgorithmChoice { algorithm, chunk },
            (Some(algorithm), None) => AlgorithmChoice { algorithm, chunk: table.estimate_chunk(&query, algorithm) },
            (None, _) => table.choose(&query),
        };
        let in_place = match call.collective {
            Collective::Scatter | Collective::Scatterv => call.recv.is_none(),
            Collective::Bcast | Collective::Barrier => false,
            _ => call.send.is_none(),
        };
        let root = if call.is_rooted() { call.root } else { 0 };
        let key = ScheduleKey {
            collective: call.collective,
            algorithm: choice.algorithm,
            chunk: choice.chunk,
            root: overlay.as_ref().map_or(u64::from(root), |in_use| in_use.fingerprint),
            count: call.count,
            commutative,
            repeatable,
            in_place,
        };
        let cacheable = call.send_blocks.is_empty() && call.recv_blocks.is_empty();
        if cacheable && let Some(schedule) = self.0.collectives.lock().schedules.get(&key) {
            return Ok(Arc::clone(schedule));
        }
        let params = ScheduleParams {
            root,
            count: call.count,
            send_blocks: call.send_blocks,
            recv_blocks: call.recv_blocks,
            chunk: choice.chunk,
            hosts: &self.0.hosts,
            commutative,
            repeatable,
            in_place,
            overlay: overlay.as_ref().map(|in_use| &*in_use.overlay),
            ..ScheduleParams::new(self.0.rank, size)
        };
        let schedule = Arc::new(algorithms::schedule(call.collective, choice.algorithm, &params)?);
        if cacheable {
            let mut collectives = self.0.collectives.lock();
            if collectives.schedules.len() >= SCHEDULES_MAX {
                collectives.schedules.clear();
            }
            collectives.schedules.insert(key, Arc::clone(&schedule));
        }
        Ok(schedule)
    }

    /// The algorithm without messages that runs a blocking call for which there are no measurements.
    pub(crate) fn direct_way(&self, call: &CollectiveCall) -> Option<Algorithm> {
        let collectives = self.0.collectives.lock();
        collectives.direct.as_ref()?;
        collectives.chooser.untuned(call)
    }

    /// Why a call that requested an algorithm without messages got here.
    fn not_direct(&self, call: &CollectiveCall, algorithm: Algorithm) -> CollectiveError {
        let collectives = self.0.collectives.lock();
        let reason = match &collectives.direct {
            None => "it is for 2 to 32 workers of one host that share memory",
            Some(_) => collectives.chooser.obstacle(algorithm, call).unwrap_or("it is for blocking calls"),
        };
        let (commutative, repeatable) = (!call.reduces() || call.op.is_commutative(), call.options.repeatable);
        let params = ScheduleParams {
            commutative,
            repeatable,
            hosts: &self.0.hosts,
            ..ScheduleParams::new(self.0.rank, self.size())
        };
        let alternatives = algorithms::alternatives(call.collective, &params);
        UnsupportedAlgorithm { collective: call.collective, algorithm, reason, alternatives }.into()
    }

    /// Bytes of the vector, or of all blocks together; the same on every rank.
    pub(crate) fn total_bytes(&self, call: &CollectiveCall) -> usize {
        use Collective::*;
        let p = self.0.ranks.len();
        let elements = match call.collective {
            Gather | Allgather | Scatter | Alltoall | ReduceScatterBlock => call.count * p,
            // Lengths that only some ranks know must not affect the choice.
            Gatherv | Scatterv | Alltoallv => 0,
            Allgatherv => call.recv_blocks.iter().map(|b| b.len).sum(),
            ReduceScatter => call.send_blocks.iter().map(|b| b.len).sum(),
            _ => call.count,
        };
        elements * call.dtype.size_bytes()
    }
}

/// Elements of the receive buffer from which an in-place call reads its contribution.
fn in_place_send(call: &CollectiveCall) -> usize {
    use Collective::*;
    match call.collective {
        // Within the received range anyway.
        Gather | Gatherv | Allgather | Allgatherv | Scatter | Scatterv | Bcast | Barrier => 0,
        _ => usize::MAX,
    }
}

/// Elements of a slice for calls along an overlay that do not specify it.
fn slice_len(part_len: usize, item_bytes: usize) -> usize {
    let item_bytes = item_bytes.max(1);
    (slice_bytes(part_len * item_bytes) / item_bytes).max(1)
}

/// A non-blocking collective. If it fails here, the other ranks must learn that at once: this rank may look at its
/// request late, never, or only after the others have progressed.
struct NonBlockingTask {
    execution: ScheduleExecution,
    comm: Weak<CommunicatorCore>,
}

impl NonBlockingTask {
    fn new(execution: ScheduleExecution, comm: &Communicator) -> Self {
        NonBlockingTask { execution, comm: Arc::downgrade(&comm.0) }
    }
}

impl EngineTask for NonBlockingTask {
    fn step(&mut self, engine: &mut Engine) -> Option<Result<(), NetError>> {
        let result = self.execution.step(engine);
        if let (true, Some(comm)) = (self.execution.needs_follow_up(), self.comm.upgrade()) {
            Communicator(comm).follow_up(&mut self.execution);
        }
        if let (Some(Err(error)), Some(comm)) = (&result, self.comm.upgrade()) {
            Communicator(comm).fail(error);
        }
        result
    }

    fn waiting_for(&self, engine: &Engine) -> Vec<Option<Rank>> {
        self.execution.waiting_for(engine)
    }
}
