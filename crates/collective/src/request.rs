//! An operation under way: what blocking calls wait for and non-blocking calls return.

use std::any::Any;
use std::fmt::Write;

use tidemill_net::{Caller, Contradiction, Engine, GroupId, NetError, Pattern, Rank, Status, Task, Wait};

use crate::communicator::Communicator;
use crate::direct::{Job, LargeProgress, Poll, Progress};
use crate::exec::Execution;
use crate::{Collective, Op};

/// Polls of a direct collective before the engine is involved: a microsecond or two.
const POLLS_DIRECT: u32 = 40;

/// What starting an operation gave.
#[must_use]
pub enum Started {
    /// It is over already.
    Done(Status),
    /// It goes on; wait for it.
    Pending(Request),
}

/// An operation that is not over yet. Dropping it lets the operation go on by itself; the memory it uses must outlive
/// it, see [`Request::detach`].
#[must_use]
pub struct Request {
    comm: Communicator,
    what: What,
    state: Option<State>,
    slices: u32,
}

/// For stall reports.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    Send { dest: u32 },
    Recv { source: Option<u32> },
    Collective { collective: Collective, seq: u32, signature: u32 },
}

impl What {
    /// The error with the call that it ends, if it is to be told.
    pub(crate) fn named(self, comm: &Communicator, error: NetError) -> NetError {
        named(&Who { comm, what: self, group: None, direct: false }, error)
    }
}

fn named(caller: &impl Caller, mut error: NetError) -> NetError {
    if let NetError::PeerEnded { call, .. } = &mut error {
        caller.describe(call);
    }
    error
}

pub(crate) enum State {
    /// Ops of the engine, or a task.
    Group(GroupId),
    /// A blocking collective that is stepped by whoever waits for it.
    Execution(Box<Execution>),
    /// A blocking collective in shared memory. Apart, so that requests are small: a window of messages moves many.
    Direct(Box<DirectCall<Progress>>),
    /// The same, reading the peers' memory.
    Large(Box<DirectCall<LargeProgress>>),
}

/// A direct collective under way.
pub(crate) struct DirectCall<P> {
    pub job: Job,
    pub op: Op,
    pub progress: P,
}

/// What blocking collectives of a communicator that are over have left for its next one, so that small ones allocate
/// nothing.
#[derive(Default)]
pub(crate) struct Spares {
    direct: Option<Box<DirectCall<Progress>>>,
    execution: Option<Box<Execution>>,
}

impl Spares {
    pub(crate) fn direct(&mut self, job: Job, op: &Op, progress: Progress) -> State {
        let call = DirectCall { job, op: op.clone(), progress };
        State::Direct(match self.direct.take() {
            Some(mut over) => {
                *over = call;
                over
            }
            None => Box::new(call),
        })
    }

    pub(crate) fn execution(&mut self, execution: Execution) -> State {
        State::Execution(match self.execution.take() {
            Some(over) => execution.instead_of(over),
            None => Box::new(execution),
        })
    }

    /// Takes what ended well.
    fn keep(&mut self, state: State) {
        match state {
            State::Direct(mut call) => {
                call.op = Op::NoOp;
                self.direct = Some(call);
            }
            State::Execution(mut execution) => self.execution = execution.become_spare().then_some(execution),
            State::Group(_) | State::Large(_) => {}
        }
    }
}

impl State {
    pub(crate) fn large(job: Job, op: &Op, progress: LargeProgress) -> Self {
        State::Large(Box::new(DirectCall { job, op: op.clone(), progress }))
    }

    fn is_direct(&self) -> bool {
        matches!(self, State::Direct(_) | State::Large(_))
    }
}

impl Request {
    /// The communicator of the operation.
    pub fn communicator(&self) -> &Communicator {
        &self.comm
    }

    pub(crate) fn new(comm: &Communicator, what: What, state: State) -> Self {
        Request { comm: comm.clone(), what, state: Some(state), slices: 0 }
    }

    /// Whether it is over, after a bit of progress. The outcome is given once.
    ///
    /// # Errors
    /// What the operation failed with.
    pub fn test(&mut self) -> Result<Option<Status>, NetError> {
        let (endpoint, state) = (self.comm.endpoint(), &mut self.state);
        endpoint.check_process()?;
        endpoint.try_once(|engine| step(&self.comm, self.what, state, engine))
    }

    /// Waits for a microsecond or two; `None`: not yet.
    ///
    /// # Errors
    /// What the operation failed with.
    pub fn poll_briefly(&mut self) -> Result<Option<Status>, NetError> {
        if matches!(self.state, Some(State::Large(_))) {
            return Ok(None);
        }
        let state = &mut self.state;
        self.comm.endpoint().poll_briefly(|engine| step(&self.comm, self.what, state, engine))
    }

    /// Waits for up to 100 ms or a signal; `None`: look at signals and call again with the same `wait`.
    ///
    /// # Errors
    /// What the operation failed with.
    pub fn wait_slice(&mut self, wait: &mut Wait) -> Result<Option<Status>, NetError> {
        let comm = &self.comm;
        comm.endpoint().check_process()?;
        let who = Who { comm, what: self.what, group: self.group(), direct: self.is_direct() };
        self.slices += 1;
        if let (true, What::Collective { seq, signature, .. }) = (self.slices > 1, self.what) {
            comm.look_for_contradiction(seq, signature);
        }
        let state = &mut self.state;
        comm.endpoint().wait_slice(wait, &who, |engine| step(comm, self.what, state, engine))
    }

    /// Waits until it is over.
    ///
    /// # Errors
    /// What the operation failed with; [`NetError::Interrupted`] when the caller wants it
    /// ([`tidemill_net::interruptible`]).
    pub fn wait(mut self) -> Result<Status, NetError> {
        let mut wait = Wait::default();
        loop {
            if let Some(status) = self.wait_slice(&mut wait)? {
                return Ok(status);
            }
            if tidemill_net::is_interrupted() {
                return Err(NetError::Interrupted);
            }
        }
    }

    /// Waits until one of `requests` is over, for up to 100 ms or a signal; then [`Request::test`] says which. `false`:
    /// look at signals and call again with the same `wait`. For requests of non-blocking calls, of one job.
    ///
    /// # Errors
    /// The job's fault.
    pub fn wait_any_slice(requests: &mut [&mut Request], wait: &mut Wait) -> Result<bool, NetError> {
        let requests = &*requests;
        let Some(first) = requests.first() else { return Ok(true) };
        let endpoint = first.comm.endpoint();
        endpoint.check_process()?;
        let step = |engine: &mut Engine| {
            let is_over = |group| engine.is_complete(group);
            requests.iter().any(|request| request.group().is_none_or(is_over)).then_some(Ok(()))
        };
        Ok(endpoint.wait_slice(wait, &AnyOf(requests), step)?.is_some())
    }

    fn is_direct(&self) -> bool {
        self.state.as_ref().is_some_and(State::is_direct)
    }

    fn group(&self) -> Option<GroupId> {
        match self.state.as_ref()? {
            State::Group(group) => Some(*group),
            State::Execution(execution) => execution.waits_in(),
            State::Direct(_) | State::Large(_) => None,
        }
    }

    /// Withdraws a receive that no message has matched yet. Returns whether that succeeded; the request is then over.
    pub fn cancel(&mut self) -> bool {
        match self.state {
            Some(State::Group(group)) => self.comm.endpoint().lock().cancel_recvs(group),
            _ => false,
        }
    }

    /// Nobody will wait any more: the operation goes on by itself, and `keepalive` (what owns its buffers) is dropped
    /// when it is over. A collective cannot be left like that: its communicator is unusable afterwards.
    pub fn detach(mut self, keepalive: Option<Box<dyn Any + Send>>) {
        if self.comm.endpoint().check_process().is_err() {
            // The parent's operation, not this process's; its memory is this process's copy.
            self.state = None;
            return;
        }
        match self.state.take() {
            Some(State::Group(group)) => self.comm.endpoint().lock().detach(group, keepalive),
            Some(State::Execution(execution)) => {
                self.comm.abandon();
                execution.detach(&mut self.comm.endpoint().lock(), keepalive);
            }
            Some(State::Direct(_) | State::Large(_)) => self.comm.abandon(),
            None => {}
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            Request { comm: self.comm.clone(), what: self.what, state: Some(state), slices: 0 }.detach(None);
        }
    }
}

/// One look at an operation; with its result the state is used up.
#[inline]
fn step(
    comm: &Communicator,
    what: What,
    state: &mut Option<State>,
    engine: &mut Engine,
) -> Option<Result<Status, NetError>> {
    let result = match state.as_mut().expect("a request is not used after it is over") {
        State::Group(group) => {
            if !engine.is_complete(*group) {
                return None;
            }
            engine.take(*group)
        }
        State::Execution(execution) => execution.step(engine)?.map(|()| Status::default()),
        State::Direct(call) => {
            // SAFETY: the request's maker keeps the buffers valid until it is over.
            let poll = unsafe { comm.poll_direct(&call.job, &call.op, &mut call.progress, engine) };
            polled(comm, what, poll, engine)?
        }
        State::Large(call) => {
            // SAFETY: as above.
            let poll = unsafe { comm.poll_large(&call.job, &call.op, &mut call.progress, engine) };
            polled(comm, what, poll, engine)?
        }
    };
    let result = result.map_err(|error| what.named(comm, error));
    let over = state.take().expect("as above");
    let told = matches!(over, State::Group(_));
    // Of one that failed messages may still be under way, to and from its memory.
    if result.is_ok() && !told {
        comm.0.spares.lock().keep(over);
    }
    if let (Err(error), What::Collective { .. }, false) = (&result, what, told) {
        comm.fail(error);
    }
    Some(result)
}

fn polled(comm: &Communicator, what: What, poll: Poll, engine: &mut Engine) -> Option<Result<Status, NetError>> {
    match poll {
        Poll::Moved => {
            engine.note_moved();
            None
        }
        Poll::Waiting => comm.direct_peer_left(engine).map(Err),
        Poll::Done => Some(Ok(Status::default())),
        Poll::Failed(error) => Some(Err(error)),
        Poll::Contradicted(rank) => {
            let What::Collective { seq, .. } = what else { unreachable!("only collectives are direct") };
            comm.contradict(engine, seq, rank);
            None
        }
    }
}

/// The blocking part of a direct collective before anybody sleeps.
///
/// # Safety
/// As [`crate::direct::Direct::poll`].
#[inline]
pub(crate) unsafe fn spin_direct(
    direct: &mut crate::direct::Direct,
    job: &Job,
    op: &Op,
    progress: &mut Progress,
    polls_max: u32,
) -> Poll {
    for _ in 0..POLLS_DIRECT.min(polls_max) {
        // SAFETY: by this function's contract.
        match unsafe { direct.poll(job, op, progress) } {
            Poll::Waiting => std::hint::spin_loop(),
            over => return over,
        }
    }
    Poll::Waiting
}

/// Several requests, of which one is waited for.
struct AnyOf<'a>(&'a [&'a mut Request]);

impl AnyOf<'_> {
    fn who<'a>(request: &'a Request) -> Who<'a> {
        Who { comm: &request.comm, what: request.what, group: request.group(), direct: request.is_direct() }
    }
}

impl Caller for AnyOf<'_> {
    fn describe(&self, text: &mut String) {
        if self.0.len() > 1 {
            let _ = write!(text, "any of {} requests, the first a ", self.0.len());
        }
        Self::who(self.0[0]).describe(text);
    }

    fn waiting_for(&self, engine: &Engine) -> Vec<Option<Rank>> {
        let mut ranks: Vec<_> = self.0.iter().flat_map(|request| Self::who(request).waiting_for(engine)).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }
}

struct Who<'a> {
    comm: &'a Communicator,
    what: What,
    group: Option<GroupId>,
    direct: bool,
}

impl Caller for Who<'_> {
    fn describe(&self, text: &mut String) {
        // Writing to a text cannot fail.
        let _ = match self.what {
            What::Send { dest } => write!(text, "send to rank {dest}"),
            What::Recv { source: Some(source) } => write!(text, "recv from rank {source}"),
            What::Recv { source: None } => write!(text, "recv from any rank"),
            What::Collective { collective, seq, .. } => write!(text, "{collective} #{seq}"),
        };
        let _ = write!(text, " on comm \"{}\"", self.comm.0.name.lock());
    }

    fn falls_asleep(&self) {
        if self.direct {
            self.comm.count_sleeper(1);
        }
    }

    fn is_awake(&self) {
        if self.direct {
            self.comm.count_sleeper(-1);
        }
    }

    fn waiting_for(&self, engine: &Engine) -> Vec<Option<Rank>> {
        if self.direct {
            return self.comm.direct_waits_for().into_iter().map(Some).collect();
        }
        match (self.group, self.what) {
            (Some(group), _) => engine.waiting_for(group),
            (None, What::Recv { source }) => vec![source.map(|r| self.comm.world_rank(r))],
            (None, What::Send { dest }) => vec![Some(self.comm.world_rank(dest))],
            (None, What::Collective { .. }) => Vec::new(),
        }
    }
}

/// A probe that waits: says whom it waits for.
pub(crate) struct Probing<'a> {
    pub comm: &'a Communicator,
    pub pattern: Pattern,
}

impl Probing<'_> {
    /// Why no such message can come any more, if so.
    pub(crate) fn never(&self, engine: &mut Engine) -> Option<NetError> {
        engine.never(self.comm.p2p_context(), &self.pattern).map(|error| named(self, error))
    }
}

impl Caller for Probing<'_> {
    fn describe(&self, text: &mut String) {
        let _ = write!(text, "probe on comm \"{}\"", self.comm.0.name.lock());
    }

    fn waiting_for(&self, _engine: &Engine) -> Vec<Option<Rank>> {
        vec![self.pattern.source]
    }
}

impl Communicator {
    pub(crate) fn contradict(&self, engine: &mut Engine, seq: u32, rank: usize) {
        let (seq, theirs) = self.direct_divergence(rank, seq);
        let rank = self.world_rank(rank as u32);
        engine.contradict(Contradiction { context: self.collective_context(), seq, rank, theirs, lengths: None });
    }
}
