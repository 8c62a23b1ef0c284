//! Point to point: messages between two ranks of a communicator, probes, and messages whose arrays travel separately
//! from their object.

use tidemill_net::{CallWait, Engine, Envelope, MemoryRegion, ProbedMessage, ReceiveStatus};

use crate::communicator::{CollectiveError, Communicator};
use crate::parcel::{ParcelContexts, ParcelReceive, ParcelSlot};
use crate::request::{ProbeCaller, Request, RequestKind, StartResult};
use crate::request_state::RequestState;

impl Communicator {
    /// Sends `region` to `dest`.
    ///
    /// # Errors
    /// `NoSuchRank`; any failure of the job.
    ///
    /// # Safety
    /// `region` is readable until the request is over (or its keepalive is dropped).
    #[inline]
    pub unsafe fn send(&self, dest: u32, tag: i32, region: MemoryRegion) -> Result<StartResult, CollectiveError> {
        let world = self.check_rank(dest)?;
        let envelope = Envelope { context: self.p2p_context(), tag, seq: 0, signature: 0 };
        let mut engine = self.0.endpoint.lock();
        let group = engine.new_group();
        // SAFETY: by this function's contract.
        unsafe { engine.post_send(group, world, &envelope, region) };
        self.started(engine, group, RequestKind::Send { dest })
    }

    /// Sends `region` to `dest`; the request is over when a receive has matched the message.
    ///
    /// # Errors
    /// As [`Communicator::send`].
    ///
    /// # Safety
    /// As [`Communicator::send`].
    pub unsafe fn send_synchronous(
        &self,
        dest: u32,
        tag: i32,
        region: MemoryRegion,
    ) -> Result<StartResult, CollectiveError> {
        let world = self.check_rank(dest)?;
        let envelope = Envelope { context: self.p2p_context(), tag, seq: 0, signature: 0 };
        let mut engine = self.0.endpoint.lock();
        let group = engine.new_group();
        // SAFETY: by this function's contract.
        unsafe { engine.post_send_synchronous(group, world, &envelope, region) };
        self.started(engine, group, RequestKind::Send { dest })
    }

    /// Sends separately from the user's traffic: `key`, which is negative, takes the place of a tag, and neither probes
    /// nor wildcard receives see the message. For parts of a larger operation.
    ///
    /// # Errors
    /// As [`Communicator::send`].
    ///
    /// # Safety
    /// As [`Communicator::send`].
    pub unsafe fn send_hidden(
        &self,
        dest: u32,
        key: i32,
        region: MemoryRegion,
    ) -> Result<StartResult, CollectiveError> {
        let world = self.check_rank(dest)?;
        // Collectives have sequence numbers from 1 and `management` has tags from 0.
        let envelope = Envelope { context: self.collective_context(), tag: key, seq: 0, signature: 0 };
        let mut engine = self.0.endpoint.lock();
        let group = engine.new_group();
        // SAFETY: by this function's contract.
        unsafe { engine.post_send(group, world, &envelope, region) };
        self.started(engine, group, RequestKind::Send { dest })
    }

    /// The other end of [`Communicator::send_hidden`].
    ///
    /// # Errors
    /// As [`Communicator::recv`].
    ///
    /// # Safety
    /// As [`Communicator::recv`].
    pub unsafe fn recv_hidden(
        &self,
        source: u32,
        key: i32,
        region: MemoryRegion,
    ) -> Result<StartResult, CollectiveError> {
        let pattern = self.pattern(Some(source), Some(key))?;
        let mut engine = self.0.endpoint.lock();
        let group = engine.new_group();
        // SAFETY: by this function's contract.
        unsafe { engine.post_recv(group, self.collective_context(), pattern, region) };
        self.started(engine, group, RequestKind::Recv { source: Some(source) })
    }

    /// Receives one message into `region`. `None` is any source or any tag.
    ///
    /// # Errors
    /// `NoSuchRank`; any failure of the job.
    ///
    /// # Safety
    /// `region` is writable, and nothing else touches it, until the request is over (or its keepalive is dropped).
    #[inline]
    pub unsafe fn recv(
        &self,
        source: Option<u32>,
        tag: Option<i32>,
        region: MemoryRegion,
    ) -> Result<StartResult, CollectiveError> {
        let pattern = self.pattern(source, tag)?;
        let mut engine = self.0.endpoint.lock();
        let group = engine.new_group();
        // SAFETY: by this function's contract.
        unsafe { engine.post_recv(group, self.p2p_context(), pattern, region) };
        self.started(engine, group, RequestKind::Recv { source })
    }

    #[inline]
    pub(crate) fn started(
        &self,
        mut engine: impl std::ops::DerefMut<Target = Engine>,
        group: tidemill_net::GroupId,
        what: RequestKind,
    ) -> Result<StartResult, CollectiveError> {
        engine.flush();
        if engine.is_complete(group) {
            return Ok(StartResult::Done(engine.take(group).map_err(|error| what.named(self, error))?));
        }
        drop(engine);
        Ok(StartResult::Pending(Request::new(self, what, RequestState::Group(group))))
    }

    /// The status of the first message that a receive would take, if there is one.
    ///
    /// # Errors
    /// `NoSuchRank`; any failure of the job; `PeerLeft` when no such message can ever arrive.
    pub fn iprobe(&self, source: Option<u32>, tag: Option<i32>) -> Result<Option<ReceiveStatus>, CollectiveError> {
        let pattern = self.pattern(source, tag)?;
        let context = self.p2p_context();
        let caller = ProbeCaller { comm: self, pattern };
        Ok(self.0.endpoint.try_once(|engine| match engine.peek(context, &pattern) {
            Some(status) => Some(Ok(status)),
            None => caller.never(engine).map(Err),
        })?)
    }

    /// Waits for a message; `None` when a time slice ends: check for signals and call again.
    ///
    /// # Errors
    /// As [`Communicator::iprobe`].
    pub fn probe_slice(
        &self,
        source: Option<u32>,
        tag: Option<i32>,
        wait: &mut CallWait,
    ) -> Result<Option<ReceiveStatus>, CollectiveError> {
        let pattern = self.pattern(source, tag)?;
        let context = self.p2p_context();
        let caller = ProbeCaller { comm: self, pattern };
        Ok(self.0.endpoint.wait_slice(wait, &caller, |engine| match engine.peek(context, &pattern) {
            Some(status) => Some(Ok(status)),
            None => caller.never(engine).map(Err),
        })?)
    }

    /// Removes the first message that a receive would take from matching, if there is one.
    ///
    /// # Errors
    /// As [`Communicator::iprobe`].
    pub fn improbe(&self, source: Option<u32>, tag: Option<i32>) -> Result<Option<ProbedMessage>, CollectiveError> {
        let pattern = self.pattern(source, tag)?;
        let context = self.p2p_context();
        let caller = ProbeCaller { comm: self, pattern };
        Ok(self.0.endpoint.try_once(|engine| match engine.take_matched(context, &pattern) {
            Some(matched) => Some(Ok(matched)),
            None => caller.never(engine).map(Err),
        })?)
    }

    /// Like [`Communicator::improbe`], but waits; `None` when a time slice ends.
    ///
    /// # Errors
    /// As [`Communicator::iprobe`].
    pub fn mprobe_slice(
        &self,
        source: Option<u32>,
        tag: Option<i32>,
        wait: &mut CallWait,
    ) -> Result<Option<ProbedMessage>, CollectiveError> {
        let pattern = self.pattern(source, tag)?;
        let context = self.p2p_context();
        let caller = ProbeCaller { comm: self, pattern };
        Ok(self.0.endpoint.wait_slice(wait, &caller, |engine| match engine.take_matched(context, &pattern) {
            Some(matched) => Some(Ok(matched)),
            None => caller.never(engine).map(Err),
        })?)
    }

    /// Receives a message that a matching probe has removed from matching.
    ///
    /// # Errors
    /// Any failure of the job; `Truncated`.
    ///
    /// # Safety
    /// As [`Communicator::recv`].
    pub unsafe fn recv_matched(
        &self,
        matched: ProbedMessage,
        region: MemoryRegion,
    ) -> Result<StartResult, CollectiveError> {
        let source = Some(self.rank_of(matched.status().source));
        let mut engine = self.0.endpoint.lock();
        let group = engine.new_group();
        // SAFETY: by this function's contract.
        unsafe { engine.post_matched(group, matched, region) };
        self.started(engine, group, RequestKind::Recv { source })
    }

    /// Sends a parcel: `message` (see [`crate::parcel::encode`]) and the arrays it announces under `key`. With
    /// `synchronous`, the request is over when a receive has matched the message. A negative tag sends it separately
    /// from the user's traffic, as [`Communicator::send_hidden`] does.
    ///
    /// # Errors
    /// As [`Communicator::send`].
    ///
    /// # Safety
    /// As [`Communicator::send`], for all regions.
    pub unsafe fn send_parcel(
        &self,
        dest: u32,
        tag: i32,
        message: MemoryRegion,
        key: i32,
        arrays: &[MemoryRegion],
        synchronous: bool,
    ) -> Result<StartResult, CollectiveError> {
        let world = self.check_rank(dest)?;
        let envelope = Envelope { context: self.context_of(Some(tag)), tag, seq: 0, signature: 0 };
        let hidden = Envelope { context: self.collective_context(), tag: key, seq: 0, signature: 0 };
        let mut engine = self.0.endpoint.lock();
        let group = engine.new_group();
        // SAFETY: by this function's contract.
        unsafe {
            match synchronous {
                true => engine.post_send_synchronous(group, world, &envelope, message),
                false => engine.post_send(group, world, &envelope, message),
            }
            for array in arrays {
                engine.post_send(group, world, &hidden, *array);
            }
        }
        self.started(engine, group, RequestKind::Send { dest })
    }

    pub(crate) fn context_of(&self, tag: Option<i32>) -> u32 {
        if tag.is_some_and(|tag| tag < 0) { self.collective_context() } else { self.p2p_context() }
    }

    /// Receives a parcel of any length into newly allocated memory, which it leaves in `slot`. The receive progresses
    /// by itself. With `matched` it takes that message; otherwise it matches in the order of all such receives.
    ///
    /// # Errors
    /// `NoSuchRank`; any failure of the job.
    pub fn recv_parcel(
        &self,
        source: Option<u32>,
        tag: Option<i32>,
        matched: Option<ProbedMessage>,
        slot: ParcelSlot,
    ) -> Result<StartResult, CollectiveError> {
        let pattern = self.pattern(source, tag)?;
        let contexts = ParcelContexts { messages: self.context_of(tag), hidden: self.collective_context() };
        let task = ParcelReceive::new(contexts, pattern, matched, slot);
        let mut engine = self.0.endpoint.lock();
        let group = engine.add_task(Box::new(task));
        self.started(engine, group, RequestKind::Recv { source })
    }
}
