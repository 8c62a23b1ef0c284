//! An operation in progress: what blocking calls wait for and non-blocking calls return.

use std::any::Any;
use std::fmt::Write;

use tidemill_net::{
    CallDescriber, CallMismatch, CallWait, Engine, EngineTask, GroupId, MatchPattern, NetError, Rank, ReceiveStatus,
};

use crate::communicator::Communicator;
use crate::direct::{DirectChannel, DirectOperation, DirectPoll, DirectProgress};
use crate::exec::ScheduleExecution;
use crate::request_state::RequestState;
use crate::{Collective, ReduceOp};

/// Polls of a direct collective before the engine gets involved: a microsecond or two.
const POLLS_DIRECT: u32 = 40;

/// The result of starting an operation.
#[must_use]
pub enum StartResult {
    /// The operation has already finished.
    Done(ReceiveStatus),
    /// The operation continues; wait for it.
    Pending(Request),
}

/// An unfinished operation. Dropping it lets the operation continue by itself; the memory it uses must outlive it, see
/// [`Request::detach`].
#[must_use]
pub struct Request {
    comm: Communicator,
    what: RequestKind,
    state: Option<RequestState>,
    slices: u32,
}

/// For stall reports.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RequestKind {
    Send { dest: u32 },
    Recv { source: Option<u32> },
    Collective { collective: Collective, seq: u32, signature: u32 },
}

impl RequestKind {
    /// The error, with the name of the failed call if it should be reported.
    pub(crate) fn named(self, comm: &Communicator, error: NetError) -> NetError {
        named(&RequestCaller { comm, what: self, group: None, more: Vec::new(), direct: false }, error)
    }
}

fn named(caller: &impl CallDescriber, mut error: NetError) -> NetError {
    if let NetError::PeerEnded { call, .. } = &mut error {
        caller.describe(call);
    }
    error
}

impl Request {
    /// The communicator of the operation.
    pub fn communicator(&self) -> &Communicator {
        &self.comm
    }

    pub(crate) fn new(comm: &Communicator, what: RequestKind, state: RequestState) -> Self {
        Request { comm: comm.clone(), what, state: Some(state), slices: 0 }
    }

    /// Returns the outcome if the operation has finished, after a bit of progress. The outcome is returned once.
    ///
    /// # Errors
    /// The operation's failure.
    pub fn test(&mut self) -> Result<Option<ReceiveStatus>, NetError> {
        let (endpoint, state) = (self.comm.endpoint(), &mut self.state);
        endpoint.check_process()?;
        endpoint.try_once(|engine| step(&self.comm, self.what, state, engine))
    }

    /// Waits for a microsecond or two; `None`: not finished yet.
    ///
    /// # Errors
    /// The operation's failure.
    pub fn poll_briefly(&mut self) -> Result<Option<ReceiveStatus>, NetError> {
        if matches!(self.state, Some(RequestState::Large(_))) {
            return Ok(None);
        }
        let state = &mut self.state;
        self.comm.endpoint().poll_briefly(|engine| step(&self.comm, self.what, state, engine))
    }

    /// Waits for up to 100 ms or until a signal; `None`: check for signals and call again with the same `wait`.
    ///
    /// # Errors
    /// The operation's failure.
    pub fn wait_slice(&mut self, wait: &mut CallWait) -> Result<Option<ReceiveStatus>, NetError> {
        let comm = &self.comm;
        comm.endpoint().check_process()?;
        let (group, more) = self.groups();
        let who = RequestCaller { comm, what: self.what, group, more, direct: self.is_direct() };
        self.slices += 1;
        if let (true, RequestKind::Collective { seq, signature, .. }) = (self.slices > 1, self.what) {
            comm.look_for_contradiction(seq, signature);
        }
        let state = &mut self.state;
        comm.endpoint().wait_slice(wait, &who, |engine| step(comm, self.what, state, engine))
    }

    /// Waits until the operation has finished.
    ///
    /// # Errors
    /// The operation's failure; [`NetError::Interrupted`] when the caller requests it
    /// ([`tidemill_net::interruptible`]).
    pub fn wait(mut self) -> Result<ReceiveStatus, NetError> {
        let mut wait = CallWait::default();
        loop {
            if let Some(status) = self.wait_slice(&mut wait)? {
                return Ok(status);
            }
            if tidemill_net::is_interrupted() {
                return Err(NetError::Interrupted);
            }
        }
    }

    /// Waits until one of `requests` has finished, for up to 100 ms or until a signal; [`Request::test`] then says
    /// which one. `false`: check for signals and call again with the same `wait`. For requests of non-blocking calls,
    /// all of one job.
    ///
    /// # Errors
    /// Any failure of the job.
    pub fn wait_any_slice(requests: &mut [&mut Request], wait: &mut CallWait) -> Result<bool, NetError> {
        let requests = &*requests;
        let Some(first) = requests.first() else { return Ok(true) };
        let endpoint = first.comm.endpoint();
        endpoint.check_process()?;
        let step = |engine: &mut Engine| {
            let is_over = |group| engine.is_complete(group);
            requests.iter().any(|request| request.group().is_none_or(is_over)).then_some(Ok(()))
        };
        Ok(endpoint.wait_slice(wait, &AnyRequest(requests), step)?.is_some())
    }

    fn is_direct(&self) -> bool {
        self.state.as_ref().is_some_and(RequestState::is_direct)
    }

    fn group(&self) -> Option<GroupId> {
        self.groups().0
    }

    /// The groups in which it waits, with the first one separate.
    fn groups(&self) -> (Option<GroupId>, Vec<GroupId>) {
        match self.state {
            Some(RequestState::Group(group)) => (Some(group), Vec::new()),
            Some(RequestState::Execution(ref execution)) => execution.waits_in(),
            Some(RequestState::Direct(_) | RequestState::Large(_)) | None => (None, Vec::new()),
        }
    }

    /// Withdraws a receive that no message has matched yet. Returns whether that succeeded; the request has then
    /// finished.
    pub fn cancel(&mut self) -> bool {
        match self.state {
            Some(RequestState::Group(group)) => self.comm.endpoint().lock().cancel_recvs(group),
            _ => false,
        }
    }

    /// Stops waiting: the operation continues by itself, and `keepalive` (which owns its buffers) is dropped when it
    /// has finished. A blocking collective cannot be left this way: its communicator is unusable afterwards.
    pub fn detach(mut self, keepalive: Option<Box<dyn Any + Send>>) {
        if self.comm.endpoint().check_process().is_err() {
            // The operation belongs to the parent process, not to this one; its memory here is a copy.
            self.state = None;
            return;
        }
        match self.state.take() {
            Some(RequestState::Group(group)) => self.comm.endpoint().lock().detach(group, keepalive),
            Some(RequestState::Execution(execution)) => {
                self.comm.abandon();
                execution.detach(&mut self.comm.endpoint().lock(), keepalive);
            }
            Some(RequestState::Direct(_) | RequestState::Large(_)) => self.comm.abandon(),
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

/// Checks an operation once. Returning its result consumes the state.
#[inline]
fn step(
    comm: &Communicator,
    what: RequestKind,
    state: &mut Option<RequestState>,
    engine: &mut Engine,
) -> Option<Result<ReceiveStatus, NetError>> {
    let result = match state.as_mut().expect("a request is not used after it is over") {
        RequestState::Group(group) => {
            if !engine.is_complete(*group) {
                return None;
            }
            engine.take(*group)
        }
        RequestState::Execution(execution) => {
            let result = execution.step(engine);
            if execution.needs_follow_up() {
                comm.follow_up(execution);
            }
            result?.map(|()| ReceiveStatus::default())
        }
        RequestState::Direct(call) => {
            // SAFETY: the request's maker keeps the buffers valid until it is over.
            let poll = unsafe { comm.poll_direct(&call.job, &call.op, &mut call.progress, engine) };
            polled(comm, what, poll, engine)?
        }
        RequestState::Large(call) => {
            // SAFETY: as above.
            let poll = unsafe { comm.poll_large(&call.job, &call.op, &mut call.progress, engine) };
            polled(comm, what, poll, engine)?
        }
    };
    let result = result.map_err(|error| what.named(comm, error));
    let over = state.take().expect("as above");
    let told = matches!(over, RequestState::Group(_));
    // After a failure, messages may still be in flight, to and from its memory.
    if result.is_ok() && !told {
        comm.0.spares.lock().keep(over);
    }
    if let (Err(error), RequestKind::Collective { .. }, false) = (&result, what, told) {
        comm.fail(error);
    }
    Some(result)
}

fn polled(
    comm: &Communicator,
    what: RequestKind,
    poll: DirectPoll,
    engine: &mut Engine,
) -> Option<Result<ReceiveStatus, NetError>> {
    match poll {
        DirectPoll::Moved => {
            engine.note_moved();
            None
        }
        DirectPoll::Waiting => comm.direct_peer_left(engine).map(Err),
        DirectPoll::Done => Some(Ok(ReceiveStatus::default())),
        DirectPoll::Failed(error) => Some(Err(error)),
        DirectPoll::Contradicted(rank) => {
            let RequestKind::Collective { seq, .. } = what else { unreachable!("only collectives are direct") };
            comm.contradict(engine, seq, rank);
            None
        }
    }
}

/// The blocking part of a direct collective before any rank sleeps.
///
/// # Safety
/// As [`DirectChannel::poll`].
#[inline]
pub(crate) unsafe fn spin_direct(
    direct: &mut DirectChannel,
    job: &DirectOperation,
    op: &ReduceOp,
    progress: &mut DirectProgress,
    polls_max: u32,
) -> DirectPoll {
    for _ in 0..POLLS_DIRECT.min(polls_max) {
        // SAFETY: by this function's contract.
        match unsafe { direct.poll(job, op, progress) } {
            DirectPoll::Waiting => std::hint::spin_loop(),
            over => return over,
        }
    }
    DirectPoll::Waiting
}

/// Several requests; waits for any one of them.
struct AnyRequest<'a>(&'a [&'a mut Request]);

impl AnyRequest<'_> {
    fn who<'a>(request: &'a Request) -> RequestCaller<'a> {
        let (group, more) = request.groups();
        RequestCaller { comm: &request.comm, what: request.what, group, more, direct: request.is_direct() }
    }
}

impl CallDescriber for AnyRequest<'_> {
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

struct RequestCaller<'a> {
    comm: &'a Communicator,
    what: RequestKind,
    group: Option<GroupId>,
    more: Vec<GroupId>,
    direct: bool,
}

impl CallDescriber for RequestCaller<'_> {
    fn describe(&self, text: &mut String) {
        // Writing to a `String` cannot fail.
        let _ = match self.what {
            RequestKind::Send { dest } => write!(text, "send to rank {dest}"),
            RequestKind::Recv { source: Some(source) } => write!(text, "recv from rank {source}"),
            RequestKind::Recv { source: None } => write!(text, "recv from any rank"),
            RequestKind::Collective { collective, seq, .. } => write!(text, "{collective} #{seq}"),
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
            (Some(_), _) | (None, RequestKind::Collective { .. }) => {
                let groups = self.group.iter().chain(&self.more);
                groups.flat_map(|&group| engine.waiting_for(group)).collect()
            }
            (None, RequestKind::Recv { source }) => vec![source.map(|r| self.comm.world_rank(r))],
            (None, RequestKind::Send { dest }) => vec![Some(self.comm.world_rank(dest))],
        }
    }
}

/// A waiting probe; reports which rank it waits for.
pub(crate) struct ProbeCaller<'a> {
    pub comm: &'a Communicator,
    pub pattern: MatchPattern,
}

impl ProbeCaller<'_> {
    /// Why such a message can no longer arrive, if so.
    pub(crate) fn never(&self, engine: &mut Engine) -> Option<NetError> {
        engine.never(self.comm.p2p_context(), &self.pattern).map(|error| named(self, error))
    }
}

impl CallDescriber for ProbeCaller<'_> {
    fn describe(&self, text: &mut String) {
        let _ = write!(text, "probe on comm \"{}\"", self.comm.0.name.lock());
    }

    fn waiting_for(&self, _engine: &Engine) -> Vec<Option<Rank>> {
        vec![self.pattern.source]
    }
}

impl Communicator {
    /// After a step of an execution: reports a failure that leaves messages in flight to the job, and tells the
    /// background about work that continues after the end.
    #[cold]
    pub(crate) fn follow_up(&self, execution: &mut ScheduleExecution) {
        match execution.untold_failure() {
            Some(error) => {
                self.abandon();
                self.0.endpoint.report_failure(&error.to_string());
            }
            None => self.0.endpoint.leave_to_background(),
        }
    }

    pub(crate) fn contradict(&self, engine: &mut Engine, seq: u32, rank: usize) {
        let (seq, theirs) = self.direct_divergence(rank, seq);
        let rank = self.world_rank(rank as u32);
        engine.contradict(CallMismatch { context: self.collective_context(), seq, rank, theirs, lengths: None });
    }
}
