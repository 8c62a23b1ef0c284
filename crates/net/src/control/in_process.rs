//! The control plane of workers that are threads of one process: the same events without sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::{ControlError, ControlEvent, MessageTarget, QUEUE_BYTES_MAX};
use crate::Rank;
use crate::threads::spawn_native;

struct InProcessGroup {
    inboxes: Vec<EventInbox>,
    exchange: Mutex<ExchangeRound>,
    changed: Condvar,
}

struct EventInbox {
    sender: Sender<Option<ControlEvent>>,
    queued_bytes: AtomicUsize,
}

#[derive(Default)]
struct ExchangeRound {
    round: u64,
    parts: Vec<Option<Vec<u8>>>,
    result: Arc<Vec<Vec<u8>>>,
    gone: Vec<MemberState>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MemberState {
    Present,
    Left,
    Lost,
}

const ENDED: &str = "its thread ended without leaving the job";

/// One worker's membership during start-up. If it is dropped before `start`, the others lose the worker.
pub(crate) struct InProcessMember {
    group: Arc<InProcessGroup>,
    rank: Rank,
    receiver: Option<Receiver<Option<ControlEvent>>>,
}

pub(super) fn group(size: u32) -> Vec<InProcessMember> {
    assert!(size > 0, "a job has at least one worker");
    let (inboxes, receivers): (Vec<_>, Vec<_>) = (0..size)
        .map(|_| {
            let (sender, receiver) = mpsc::channel();
            (EventInbox { sender, queued_bytes: AtomicUsize::new(0) }, receiver)
        })
        .unzip();
    let exchange = ExchangeRound {
        parts: vec![None; size as usize],
        gone: vec![MemberState::Present; size as usize],
        ..ExchangeRound::default()
    };
    let group = Arc::new(InProcessGroup { inboxes, exchange: Mutex::new(exchange), changed: Condvar::new() });
    (0..size)
        .zip(receivers)
        .map(|(rank, receiver)| InProcessMember {
            group: Arc::clone(&group),
            rank: Rank(rank),
            receiver: Some(receiver),
        })
        .collect()
}

impl InProcessMember {
    pub(super) fn allgather(&mut self, mine: &[u8], timeout: Duration) -> Result<Vec<Vec<u8>>, ControlError> {
        let deadline = Instant::now() + timeout;
        let mut exchange = self.group.exchange.lock();
        let round = exchange.round;
        exchange.parts[self.rank.index()] = Some(mine.to_vec());
        if exchange.parts.iter().all(Option::is_some) {
            exchange.result = Arc::new(exchange.parts.iter_mut().map(|part| part.take().expect("checked")).collect());
            exchange.round += 1;
            self.group.changed.notify_all();
        }
        while exchange.round == round {
            let absent = |r: &usize| exchange.parts[*r].is_none();
            if let Some(rank) =
                (0..exchange.parts.len()).filter(absent).find(|&r| exchange.gone[r] != MemberState::Present)
            {
                return Err(ControlError::Lost { rank: Rank(rank as u32), reason: ENDED.into() });
            }
            if self.group.changed.wait_until(&mut exchange, deadline).timed_out() && exchange.round == round {
                let missing = (0..exchange.parts.len()).filter(|&r| exchange.parts[r].is_none());
                let missing = missing.map(|r| Rank(r as u32)).collect();
                return Err(ControlError::TimedOut { missing, waited_s: timeout.as_secs() });
            }
        }
        let result = Arc::clone(&exchange.result);
        drop(exchange);
        Ok(result.to_vec())
    }

    pub(super) fn start(
        mut self,
        on_event: Box<dyn Fn(ControlEvent) + Send + Sync>,
    ) -> Result<MemberThread, ControlError> {
        let receiver = self.receiver.take().expect("a member starts once");
        let (group, rank) = (Arc::clone(&self.group), self.rank);
        let inbox_of = Arc::clone(&group);
        let name = format!("tidemill-ctl-{rank}");
        spawn_native(name, move || {
            while let Ok(Some(event)) = receiver.recv() {
                if let ControlEvent::Message { bytes, .. } = &event {
                    inbox_of.inboxes[rank.index()].queued_bytes.fetch_sub(bytes.len(), Ordering::Relaxed);
                }
                on_event(event);
            }
        })?;
        Ok(MemberThread { group, rank })
    }
}

impl Drop for InProcessMember {
    fn drop(&mut self) {
        // Still present: the member was never started.
        if self.receiver.is_some() {
            self.group.depart(self.rank, MemberState::Lost);
        }
    }
}

/// One worker's membership while it runs.
pub(super) struct MemberThread {
    group: Arc<InProcessGroup>,
    rank: Rank,
}

impl MemberThread {
    pub(super) fn send(&self, to: MessageTarget, bytes: &[u8]) -> Result<(), ControlError> {
        match to {
            MessageTarget::One(rank) => self.group.post(self.rank, rank, bytes),
            MessageTarget::All => {
                // Locked so that nobody departs meanwhile: the others must receive this message before they learn of
                // departures it causes.
                let _exchange = self.group.exchange.lock();
                let others = (0..self.group.inboxes.len() as u32).map(Rank).filter(|&rank| rank != self.rank);
                others.map(|rank| self.group.post(self.rank, rank, bytes)).fold(Ok(()), Result::and)
            }
        }
    }

    pub(super) fn leave(&self) {
        self.group.depart(self.rank, MemberState::Left);
    }

    pub(super) fn shutdown(&self) {
        self.group.depart(self.rank, MemberState::Lost);
        let _ = self.group.inboxes[self.rank.index()].sender.send(None);
    }
}

impl InProcessGroup {
    fn post(&self, from: Rank, to: Rank, bytes: &[u8]) -> Result<(), ControlError> {
        let inbox = &self.inboxes[to.index()];
        if inbox.queued_bytes.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len() > QUEUE_BYTES_MAX {
            inbox.queued_bytes.fetch_sub(bytes.len(), Ordering::Relaxed);
            return Err(ControlError::QueueFull);
        }
        // A worker whose thread has ended gets no message; its end is a separate event.
        let _ = inbox.sender.send(Some(ControlEvent::Message { from, bytes: bytes.to_vec() }));
        Ok(())
    }

    /// The first departure counts: a worker that has left cannot be lost later.
    fn depart(&self, rank: Rank, how: MemberState) {
        let mut exchange = self.exchange.lock();
        if exchange.gone[rank.index()] != MemberState::Present {
            return;
        }
        exchange.gone[rank.index()] = how;
        for (index, inbox) in self.inboxes.iter().enumerate() {
            if index != rank.index() {
                let event = match how {
                    MemberState::Left => ControlEvent::Left { rank },
                    _ => ControlEvent::Lost { rank, reason: ENDED.into() },
                };
                let _ = inbox.sender.send(Some(event));
            }
        }
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One worker reports a failure to all, and another leaves as soon as it receives it: the others must learn of
    /// the failure first.
    #[test]
    fn messages_come_before_the_departures_they_cause() {
        for _ in 0..2000 {
            let [hears, watches, tells] = group(3).try_into().ok().expect("three members");
            let leaver = Arc::new(Mutex::new(None::<MemberThread>));
            let leaves = Arc::clone(&leaver);
            let mut held = leaver.lock();
            *held = Some(
                hears
                    .start(Box::new(move |event| {
                        if let (ControlEvent::Message { .. }, Some(running)) = (&event, &*leaves.lock()) {
                            running.leave();
                        }
                    }))
                    .unwrap(),
            );
            drop(held);
            let (sender, heard) = mpsc::channel();
            let watching = watches.start(Box::new(move |event| drop(sender.send(event)))).unwrap();
            let telling = tells.start(Box::new(|_| ())).unwrap();
            telling.send(MessageTarget::All, b"the cable was pulled").unwrap();
            let first = heard.recv_timeout(Duration::from_secs(60)).unwrap();
            assert!(matches!(first, ControlEvent::Message { from: Rank(2), .. }), "{first:?}");
            let running = leaver.lock().take();
            running.iter().chain([&watching, &telling]).for_each(MemberThread::shutdown);
        }
    }
}
