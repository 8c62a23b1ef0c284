//! Messages that were delivered and may be redelivered.
//!
//! A message is redelivered if its connection is lost before the server has its acknowledgment, which is sent when a
//! checkpoint is durable. So the id of a message is remembered, and is part of checkpoints, from its delivery until
//!
//! - the server has answered a request that was sent after the acknowledgment, one more checkpoint is durable, and ten
//!   seconds have passed (the server writes acknowledgments to disk some time after receiving them), or
//! - an hour has passed since its connection was lost, without a redelivery.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long a killed server may still lose an acknowledgment.
const SETTLED_AFTER: Duration = Duration::from_secs(10);
/// How long to wait for redeliveries after a lost connection.
const LOST_FOR: Duration = Duration::from_secs(3600);
/// Maximum number of remembered ids; the number of unacknowledged messages stays below it.
const IDS_MAX: usize = 4_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageState {
    /// Not acknowledged yet.
    Given,
    /// Acknowledged with this number, at this time.
    Acknowledged(u64, Instant),
    /// May be redelivered.
    Lost(Instant),
}

/// The state of messages by id.
#[derive(Debug, Default)]
pub(crate) struct SeenMessageIds {
    states: HashMap<String, MessageState>,
    /// The last acknowledgment that the server had received when the previous checkpoint became durable.
    confirmed_before: u64,
}

impl SeenMessageIds {
    /// The ids of a checkpoint.
    pub(crate) fn restored(ids: impl IntoIterator<Item = String>, now: Instant) -> Self {
        let states = ids.into_iter().map(|id| (id, MessageState::Lost(now))).collect();
        SeenMessageIds { states, confirmed_before: 0 }
    }

    /// Notes the arrival of a message. Returns whether it is new.
    pub(crate) fn comes(&mut self, id: &str) -> bool {
        match self.states.get_mut(id) {
            Some(state) => {
                *state = MessageState::Given;
                false
            }
            None => self.states.insert(id.to_owned(), MessageState::Given).is_none(),
        }
    }

    /// Notes that delivered messages are acknowledged with this number, and that the server has all acknowledgments up
    /// to `confirmed`.
    pub(crate) fn acknowledged(&mut self, ids: Vec<String>, number: u64, confirmed: u64, now: Instant) {
        for id in ids {
            self.states.insert(id, MessageState::Acknowledged(number, now));
        }
        let before = std::mem::replace(&mut self.confirmed_before, confirmed);
        self.states.retain(|_, state| match state {
            MessageState::Given => true,
            MessageState::Acknowledged(number, at) => *number > before || now - *at < SETTLED_AFTER,
            MessageState::Lost(since) => now - *since < LOST_FOR,
        });
    }

    /// Notes that the connection was lost: everything that is remembered may be redelivered, because a killed server
    /// may have lost the last acknowledgments.
    pub(crate) fn lost(&mut self, now: Instant) {
        for state in self.states.values_mut() {
            if !matches!(state, MessageState::Lost(_)) {
                *state = MessageState::Lost(now);
            }
        }
    }

    /// The ids for the checkpoint.
    ///
    /// # Errors
    /// A description, if there are too many.
    pub(crate) fn ids(&self) -> Result<Vec<&String>, String> {
        match self.states.len() {
            0..=IDS_MAX => Ok(self.states.keys().collect()),
            count => Err(format!("{count} messages may be delivered again, but at most {IDS_MAX} are remembered")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(ids: &[&str]) -> Vec<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    fn ids(known: &SeenMessageIds) -> Vec<&String> {
        let mut ids = known.ids().unwrap();
        ids.sort();
        ids
    }

    /// An id that is forgotten too early duplicates a row; one that is never forgotten makes checkpoints grow.
    #[test]
    fn ids_are_remembered_as_long_as_they_may_come_again() {
        let now = Instant::now();
        let later = now + SETTLED_AFTER;
        let mut known = SeenMessageIds::restored(texts(&["r"]), now);
        assert!(!known.comes("r") && known.comes("a") && !known.comes("a"));
        known.acknowledged(texts(&["r", "a"]), 1, 0, now);
        assert!(known.comes("b"));
        // The server has the first one: it stays for one more checkpoint, and for some time.
        known.acknowledged(texts(&["b"]), 2, 1, later);
        assert_eq!(ids(&known), ["a", "b", "r"]);
        assert!(known.comes("c"));
        known.lost(later);
        known.acknowledged(Vec::new(), 3, 1, later + SETTLED_AFTER);
        assert_eq!(ids(&known), ["a", "b", "c", "r"]);
        assert!(!known.comes("b"));
        // Redeliveries are possible for an hour.
        known.acknowledged(Vec::new(), 4, 3, later + LOST_FOR);
        assert_eq!(ids(&known), ["b"]);
        known.acknowledged(texts(&["b"]), 5, 4, later + LOST_FOR);
        known.acknowledged(Vec::new(), 6, 5, later + LOST_FOR);
        known.acknowledged(Vec::new(), 7, 6, later + LOST_FOR);
        assert_eq!(ids(&known), ["b"]);
        known.acknowledged(Vec::new(), 8, 7, later + LOST_FOR + SETTLED_AFTER);
        assert!(ids(&known).is_empty());
    }
}
