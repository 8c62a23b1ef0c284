//! The receiving half of a worker's links: receives messages into memory that batches can stay in, and passes their
//! frames to their destinations in the order in which they were sent.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidemill_batch::frame_buffers::FrameBuffer;
use tidemill_batch::wire::{HEADER_BYTES, ReceivedFrame, WireKind};
use tidemill_net::{Engine, EngineTask, GroupId, MatchPattern, MemoryRegion, NetError, Rank};

use super::Links;

/// Handles received frames.
pub(crate) trait FrameHandler: Send + Sync {
    /// Handles a frame of worker `from`. Called with the engine locked: must neither wait nor lock it.
    fn frame(&self, from: u32, frame: ReceivedFrame, links: &Links);
    /// Handles invalid bytes of worker `from`.
    fn damaged(&self, from: u32, reason: String);
    /// Whether this worker's part of the run cannot end without a message from `worker`.
    fn awaits(&self, worker: u32) -> bool;
    /// Handles that such a worker has left the job.
    fn left(&self, worker: u32, error: NetError);
}

/// A message that is being received into our memory.
struct LandingMessage {
    group: GroupId,
    room: FrameBuffer,
    len: usize,
}

/// The task that the module describes.
pub(crate) struct ReceivePump {
    links: Arc<Links>,
    inbox: Arc<dyn FrameHandler>,
    /// By sender, in the order of matching: a small message may be complete before a large earlier one.
    landing: Vec<VecDeque<LandingMessage>>,
    /// Set when the run is over.
    stop: Arc<AtomicBool>,
}

impl ReceivePump {
    pub(crate) fn new(links: &Arc<Links>, inbox: Arc<dyn FrameHandler>, stop: &Arc<AtomicBool>) -> Self {
        let landing = (0..links.workers()).map(|_| VecDeque::new()).collect();
        ReceivePump { links: Arc::clone(links), inbox, landing, stop: Arc::clone(stop) }
    }

    fn take_messages(&mut self, engine: &mut Engine) {
        let pattern = MatchPattern { source: None, tag: Some(0), seq: 0 };
        while let Some(matched) = engine.take_matched(self.links.context, &pattern) {
            let status = matched.status();
            let Some(worker) = self.links.worker(status.source) else {
                // Only members know the context; a stranger's message is dropped.
                continue;
            };
            let len = status.len as usize;
            // Aligned for every type. The length comes from a peer, which holds as many bytes: it can only send what
            // it has credit for.
            let mut room = self.links.buffer(len.next_multiple_of(HEADER_BYTES));
            let region = MemoryRegion { ptr: room.spare().as_mut_ptr().cast(), len };
            let group = engine.new_group();
            // SAFETY: `room` has `len` bytes of capacity, and is neither read nor moved out of `landing` before the
            // group is complete; when the engine dies, it ends its ops before it drops its tasks.
            unsafe { engine.post_matched(group, matched, region) };
            self.landing[worker as usize].push_back(LandingMessage { group, room, len });
        }
    }

    fn deliver(&mut self, engine: &mut Engine) {
        for worker in 0..self.landing.len() {
            while let Some(first) = self.landing[worker].front()
                && engine.is_complete(first.group)
            {
                let Some(LandingMessage { group, room, len }) = self.landing[worker].pop_front() else { return };
                if engine.take(group).is_err() {
                    // The job has failed, or the sender has left; both are reported elsewhere.
                    continue;
                }
                // SAFETY: the message just received filled `len` bytes.
                let mut message = unsafe { room.into_buffer(len) };
                while !message.is_empty() {
                    match ReceivedFrame::take(&mut message) {
                        Ok(frame) if frame.header.run == self.links.run => {
                            if let Err(reason) = self.take(worker as u32, frame) {
                                self.inbox.damaged(worker as u32, reason);
                            }
                        }
                        // A frame from before that run ended: others told its sender about the end.
                        Ok(frame) if frame.header.run < self.links.run => {
                            if let Err(reason) = self.settle_late(worker as u32, &frame) {
                                self.inbox.damaged(worker as u32, reason);
                            }
                        }
                        Ok(frame) => {
                            let reason = format!("a frame of run {} in run {}", frame.header.run, self.links.run);
                            self.inbox.damaged(worker as u32, reason);
                        }
                        Err(error) => {
                            self.inbox.damaged(worker as u32, error.to_string());
                            break;
                        }
                    }
                }
            }
        }
    }

    fn take(&self, from: u32, frame: ReceivedFrame) -> Result<(), String> {
        let links = &self.links;
        match frame.header.kind {
            WireKind::Lent => {
                let frame = links.loans.borrow(from, &frame, Arc::downgrade(links))?;
                self.inbox.frame(from, frame, links);
            }
            WireKind::Returned => links.loans.take_back(from, &frame)?,
            _ => self.inbox.frame(from, frame, links),
        }
        Ok(())
    }

    /// Handles what a frame of an earlier run lends or returns; its other content no longer matters.
    fn settle_late(&self, from: u32, frame: &ReceivedFrame) -> Result<(), String> {
        let links = &self.links;
        match frame.header.kind {
            WireKind::Lent => links.loans.borrow(from, frame, Arc::downgrade(links)).map(drop),
            WireKind::Returned => links.loans.take_back(from, frame),
            _ => Ok(()),
        }
    }

    fn look_for_leavers(&self, engine: &mut Engine) {
        for worker in self.links.others().filter(|&worker| self.inbox.awaits(worker)) {
            let pattern = MatchPattern { source: Some(self.links.rank(worker)), tag: Some(0), seq: 0 };
            if let Some(error) = engine.never(self.links.context, &pattern) {
                self.inbox.left(worker, error);
            }
        }
    }
}

impl EngineTask for ReceivePump {
    fn step(&mut self, engine: &mut Engine) -> Option<Result<(), NetError>> {
        self.take_messages(engine);
        self.deliver(engine);
        self.links.pump(engine);
        self.look_for_leavers(engine);
        let over = self.stop.load(Ordering::SeqCst) && self.landing.iter().all(VecDeque::is_empty);
        over.then_some(Ok(()))
    }

    fn waiting_for(&self, _engine: &Engine) -> Vec<Option<Rank>> {
        self.links.others().filter(|&w| self.inbox.awaits(w)).map(|w| Some(self.links.rank(w))).collect()
    }
}
