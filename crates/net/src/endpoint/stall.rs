//! Explains long waits, and names calls that contradict each other, by asking the workers concerned over the control
//! plane. Their control threads answer, whatever their program is doing.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::{CallMismatch, EndpointState, Engine};
use crate::control::{ControlEvent, MessageTarget};
use crate::{NetError, Rank, notice};

/// How long an asked worker has to answer. On a machine with many more threads than cores, each of the half-dozen
/// threads that an answer passes through may wait for its turn; only the message waits for all of them.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(6);
/// How long a worker tries to find out where its program is, which needs the interpreter's cooperation.
const LOCATE_TIMEOUT: Duration = Duration::from_secs(3);

/// A longer traceback is cut in the middle: it must fit into a message, and people read its ends.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// The text, without its middle if it is very long.
pub(super) fn shortened(text: &str) -> Cow<'_, str> {
    if text.len() <= TEXT_BYTES_MAX {
        return Cow::Borrowed(text);
    }
    let half = TEXT_BYTES_MAX / 2;
    let (head, tail) = (text.floor_char_boundary(half), text.ceil_char_boundary(text.len() - half));
    Cow::Owned(format!("{}\n[... {} bytes left out ...]\n{}", &text[..head], tail - head, &text[tail..]))
}

/// A waiting call, for stall reports.
pub trait CallDescriber {
    /// Appends the call to `text` in words, such as `allreduce #417 on comm "rows"`. Called before each sleep.
    fn describe(&self, text: &mut String);
    /// The workers that it waits for; `None` stands for any worker. Asked only once a wait has become long.
    fn waiting_for(&self, engine: &Engine) -> Vec<Option<Rank>>;
    /// Called before the last look before a sleep. For calls that peers do not wake with messages.
    fn falls_asleep(&self) {}
    /// Called after the sleep, as the counterpart of `falls_asleep`.
    fn is_awake(&self) {}
}

/// What workers tell each other over the control plane.
pub(super) enum StallMessage {
    /// The sender's program raised an error, with this traceback.
    Failed(String),
    /// The job fails because calls contradict each other, with this explanation.
    Mismatch(String),
    /// Asks what a worker is doing.
    AskActivity { id: u32 },
    /// Asks which call was number `seq` on `context`.
    AskCall { id: u32, context: u32, seq: u32 },
    /// The answer to either question.
    Tell { id: u32, text: String },
    /// The sender's program has ended, and it stays until everything it sent is received. For workers without a link
    /// to it.
    Leaving,
}

impl StallMessage {
    pub(super) fn encode(&self) -> Vec<u8> {
        let (kind, numbers, text): (u8, &[u32], &str) = match self {
            StallMessage::Failed(text) => (1, &[], text),
            StallMessage::Mismatch(text) => (2, &[], text),
            StallMessage::AskActivity { id } => (3, &[*id], ""),
            StallMessage::AskCall { id, context, seq } => (4, &[*id, *context, *seq], ""),
            StallMessage::Tell { id, text } => (5, &[*id], text),
            StallMessage::Leaving => (6, &[], ""),
        };
        let mut bytes = vec![kind];
        numbers.iter().for_each(|n| bytes.extend_from_slice(&n.to_le_bytes()));
        bytes.extend_from_slice(text.as_bytes());
        bytes
    }

    /// Decodes the output of `encode`; `None` for anything else.
    pub(super) fn decode(bytes: &[u8]) -> Option<StallMessage> {
        let (&kind, rest) = bytes.split_first()?;
        let number = |at: usize| Some(u32::from_le_bytes(rest.get(at * 4..at * 4 + 4)?.try_into().ok()?));
        let text = |from: usize| Some(String::from_utf8_lossy(rest.get(from..)?).into_owned());
        Some(match kind {
            1 => StallMessage::Failed(text(0)?),
            2 => StallMessage::Mismatch(text(0)?),
            3 => StallMessage::AskActivity { id: number(0)? },
            4 => StallMessage::AskCall { id: number(0)?, context: number(1)?, seq: number(2)? },
            5 => StallMessage::Tell { id: number(0)?, text: text(4)? },
            6 => StallMessage::Leaving,
            _ => return None,
        })
    }
}

#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(bytes: &[u8]) {
    if let Some(message) = StallMessage::decode(bytes) {
        let encoded = message.encode();
        assert_eq!(StallMessage::decode(&encoded).map(|again| again.encode()), Some(encoded));
    }
}

type Locator = Arc<dyn Fn() -> Option<String> + Send + Sync>;
type CallFormatter = fn([u64; 2]) -> String;
/// Looks up the call under a number, for calls that the engine has not seen.
type CallLookup = Arc<dyn Fn(u32) -> Option<[u64; 2]> + Send + Sync>;

#[derive(Default)]
pub(super) struct StallReporter {
    /// Calls that currently sleep: what they are, since when, and whether on the main thread.
    asleep: Mutex<Vec<(u32, String, Instant, bool)>>,
    /// Texts of earlier sleeping calls, reused so that sleeping allocates nothing.
    spare: Mutex<Vec<String>>,
    ids: AtomicU32,
    answers: Mutex<HashMap<(u32, Rank), String>>,
    answered: Condvar,
    locator: Mutex<Option<Locator>>,
    formatter: Mutex<Option<CallFormatter>>,
    names: Mutex<HashMap<u32, String>>,
    /// By context: how many collectives created the communicator. The program did not call them.
    befores: Mutex<HashMap<u32, u32>>,
    lookups: Mutex<HashMap<u32, CallLookup>>,
}

/// Removes the call from the list when its sleep ends.
pub(super) struct SleepEntry<'a>(&'a StallReporter, u32);

impl Drop for SleepEntry<'_> {
    fn drop(&mut self) {
        let mut asleep = self.0.asleep.lock();
        if let Some(at) = asleep.iter().position(|(id, ..)| *id == self.1) {
            let (_, mut text, ..) = asleep.swap_remove(at);
            text.clear();
            self.0.spare.lock().push(text);
        }
    }
}

impl StallReporter {
    pub(super) fn enter(&self, caller: &dyn CallDescriber, since: Instant) -> SleepEntry<'_> {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        // SAFETY: asks for the numbers of this thread and its process, which cannot fail.
        let is_main = unsafe { libc::gettid() == libc::getpid() };
        let mut text = self.spare.lock().pop().unwrap_or_default();
        caller.describe(&mut text);
        self.asleep.lock().push((id, text, since, is_main));
        SleepEntry(self, id)
    }
}

impl super::Endpoint {
    /// Sets how to find out which line the program is at. `locator` runs on a separate thread, and may block or fail.
    pub fn set_locator(&self, locator: Locator) {
        *self.0.stall.locator.lock() = Some(locator);
    }

    /// Sets how to word the `call` given to [`Engine::begin_collective`].
    pub fn set_call_formatter(&self, formatter: CallFormatter) {
        *self.0.stall.formatter.lock() = Some(formatter);
    }

    /// Sets where to look up calls on `context` that never reached the engine. Called with the engine locked.
    pub fn set_call_lookup(&self, context: u32, lookup: CallLookup) {
        self.0.stall.lookups.lock().insert(context, lookup);
    }

    /// Forgets a communicator that has ended.
    pub fn forget_context(&self, context: u32) {
        self.0.stall.names.lock().remove(&context);
        self.0.stall.befores.lock().remove(&context);
        self.0.stall.lookups.lock().remove(&context);
        self.lock().close_context(context);
    }

    /// Sets the communicator's name in messages to the user.
    pub fn set_context_name(&self, context: u32, name: &str) {
        self.0.stall.names.lock().insert(context, name.to_owned());
    }

    /// Records that the first `seq` collectives on `context` created the communicator: messages to the user count
    /// only those of the program.
    pub fn set_calls_before(&self, context: u32, seq: u32) {
        self.0.stall.befores.lock().insert(context, seq);
    }

    /// See [`Endpoint::set_context_name`].
    pub fn context_name(&self, context: u32) -> String {
        self.0.context_name(context)
    }
}

impl EndpointState {
    fn context_name(&self, context: u32) -> String {
        self.stall.names.lock().get(&context).cloned().unwrap_or_else(|| format!("#{context}"))
    }

    /// Handles an event of the control plane. Runs on its thread, so it must not wait long.
    pub(super) fn on_control(self: &Arc<Self>, event: ControlEvent) {
        match event {
            ControlEvent::Message { from, bytes } => match StallMessage::decode(&bytes) {
                Some(StallMessage::Failed(traceback)) => {
                    self.faults.fail(NetError::PeerFailed { rank: from, traceback })
                }
                Some(StallMessage::Mismatch(text)) => self.faults.fail(NetError::Mismatch(text)),
                Some(StallMessage::AskActivity { id }) => self.aside(move |shared| {
                    let text = shared.activity();
                    let _ = shared.control.send(MessageTarget::One(from), &StallMessage::Tell { id, text }.encode());
                }),
                Some(StallMessage::AskCall { id, context, seq }) => self.aside(move |shared| {
                    let text = shared.describe_call(&mut shared.lock(), context, seq);
                    let _ = shared.control.send(MessageTarget::One(from), &StallMessage::Tell { id, text }.encode());
                }),
                Some(StallMessage::Tell { id, text }) => {
                    self.stall.answers.lock().insert((id, from), text);
                    self.stall.answered.notify_all();
                }
                Some(StallMessage::Leaving) => self.faults.begin_departure(from),
                None => notice!(self.rank, "ignored an invalid message of {} bytes from rank {from}", bytes.len()),
            },
            news => self.faults.hear(news),
        }
    }

    /// Runs `work` on a separate thread; questions are rare.
    fn aside(self: &Arc<Self>, work: impl FnOnce(&Arc<EndpointState>) + Send + 'static) {
        let shared = Arc::clone(self);
        let spawned = crate::threads::spawn_native("tidemill-answer".into(), move || work(&shared));
        if let Err(error) = spawned {
            notice!(self.rank, "cannot start a thread to answer a question: {error}");
        }
    }

    /// Asks and waits for the answer, at most [`ANSWER_TIMEOUT`].
    fn ask(&self, rank: Rank, question: impl FnOnce(u32) -> StallMessage) -> Option<String> {
        let id = self.stall.ids.fetch_add(1, Ordering::Relaxed);
        let _ = self.control.send(MessageTarget::One(rank), &question(id).encode());
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        let mut answers = self.stall.answers.lock();
        loop {
            if let Some(text) = answers.remove(&(id, rank)) {
                return Some(text);
            }
            if self.stall.answered.wait_until(&mut answers, deadline).timed_out() {
                return None;
            }
        }
    }

    /// What this worker is doing, in words that follow "which is".
    fn activity(&self) -> String {
        // Of several threads, the user most likely thinks of the main one as the program.
        let asleep = self.stall.asleep.lock().iter().min_by_key(|(_, _, since, is_main)| (!is_main, *since)).cloned();
        if let Some((_, what, since, _)) = asleep {
            return format!("in {what} for {:.0} s", since.elapsed().as_secs_f64());
        }
        let busy = self.lock().idle_for().as_secs_f64();
        match self.locate() {
            Some(place) => format!("in {place} (busy) for {busy:.0} s"),
            None => format!("busy in native code (location unknown) for {busy:.0} s"),
        }
    }

    fn locate(&self) -> Option<String> {
        let locator = self.stall.locator.lock().clone()?;
        let (sender, receiver) = std::sync::mpsc::channel();
        // The interpreter may be held for long; then this thread stays behind and ends when it is released.
        crate::threads::spawn_native("tidemill-locate".into(), move || {
            let _ = sender.send(locator());
        })
        .ok()?;
        receiver.recv_timeout(LOCATE_TIMEOUT).ok().flatten()
    }

    fn describe_call(&self, engine: &mut Engine, context: u32, seq: u32) -> String {
        let lookup = self.stall.lookups.lock().get(&context).cloned();
        let call = engine.call(context, seq).or_else(|| lookup.and_then(|lookup| lookup(seq)));
        match (call, *self.stall.formatter.lock()) {
            (Some(call), Some(format)) => format(call),
            _ => "another collective".into(),
        }
    }

    /// A call has waited long: finds out for which workers and prints it once, without blocking the call.
    #[cold]
    pub(super) fn warn_of_stall(&self, caller: &dyn super::CallDescriber, waited: Duration) {
        let mut what = String::new();
        caller.describe(&mut what);
        let ranks = caller.waiting_for(&self.lock());
        let Some(shared) = self.this.upgrade() else { return };
        shared.aside(move |shared| {
            let mut reasons = Vec::new();
            for rank in ranks.iter().take(8) {
                reasons.push(match rank {
                    None => "a message from any worker".into(),
                    Some(rank) => match shared.ask(*rank, |id| StallMessage::AskActivity { id }) {
                        Some(activity) => format!("rank {rank}, which is {activity}"),
                        None => format!("rank {rank}, which does not respond"),
                    },
                });
            }
            if ranks.len() > 8 {
                reasons.push(format!("{} more", ranks.len() - 8));
            }
            if reasons.is_empty() {
                reasons.push("its peers".into());
            }
            let waited = waited.as_secs_f64();
            notice!(shared.rank, "{what}: waiting for {waited:.0} s for {}", reasons.join("; "));
        });
    }

    /// Calls contradict each other: finds out what the other call was and fails the job, naming both.
    #[cold]
    pub(super) fn inquire(&self, engine: &mut Engine) {
        let Some(CallMismatch { context, seq, rank, theirs, lengths }) = engine.take_contradiction() else { return };
        engine.wait_for_verdict();
        // Another worker has reported it. A worker that looks later, for example at the end of its program, may no
        // longer know which call it was.
        if self.faults.fatal().is_some() {
            return;
        }
        let name = self.context_name(context);
        let formatter = *self.stall.formatter.lock();
        let ours = self.describe_call(engine, context, seq);
        let me = self.rank;
        let before = self.stall.befores.lock().get(&context).copied().unwrap_or(0);
        let word = move |theirs: &str| {
            let call = format!("collective #{} on comm \"{name}\"", seq.saturating_sub(before).max(1));
            if let Some((sent, expected)) = lengths {
                return format!(
                    "{call}: rank {rank} called {theirs}, rank {me} called {ours}, and the first sent {sent} bytes to \
                     the second, which expected {expected}; do both pass the same counts?"
                );
            }
            if ours == theirs {
                return format!("{call}: ranks {me} and {rank} both called {ours}, but earlier collectives differed");
            }
            format!("{call}: rank {me} called {ours}, but rank {rank} called {theirs}")
        };
        let Some(shared) = self.this.upgrade() else { return };
        shared.aside(move |shared| {
            let theirs = match (theirs, formatter) {
                (Some(call), Some(format)) => Some(format(call)),
                _ => shared.ask(rank, |id| StallMessage::AskCall { id, context, seq }),
            };
            let text = word(theirs.as_deref().unwrap_or("another one (it does not say which)"));
            let _ = shared.control.send(MessageTarget::All, &StallMessage::Mismatch(text.clone()).encode());
            shared.faults.fail(NetError::Mismatch(text));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The traceback of a recursion that prints its data may exceed a message; it must still reach the others.
    #[test]
    fn the_ends_of_a_long_traceback_are_kept() {
        let text = format!("begin{}end", "\u{e9}".repeat(9 << 20));
        let short = shortened(&text);
        assert!(short.len() < TEXT_BYTES_MAX + 100 && short.starts_with("begin") && short.ends_with("end"));
        assert!(short.contains("bytes left out"));
        assert_eq!(shortened("ValueError"), "ValueError");
    }

    /// A message that decodes differently would blame the wrong worker or line.
    #[test]
    fn messages_survive_encoding() {
        for message in [
            StallMessage::Failed("Traceback\n …".into()),
            StallMessage::Mismatch(String::new()),
            StallMessage::AskActivity { id: 7 },
            StallMessage::AskCall { id: u32::MAX, context: 3, seq: 417 },
            StallMessage::Tell { id: 1, text: "in app.py:88".into() },
        ] {
            let bytes = message.encode();
            assert_eq!(StallMessage::decode(&bytes).map(|m| m.encode()), Some(bytes));
        }
        for bytes in [&[][..], &[0], &[3, 1, 2], &[4, 0, 0, 0, 0], &[9, 9]] {
            assert!(StallMessage::decode(bytes).is_none());
        }
    }
}
