//! Messages that were given and may come again.
//!
//! A message comes again when its connection is lost before the server has its acknowledgement, and that is sent when a
//! checkpoint is durable. So a message's id is remembered, and is part of checkpoints, from when it was given until
//!
//! - the server has answered a question that was asked behind the acknowledgement, one further checkpoint is durable,
//!   and ten seconds are over (it writes acknowledgements to disk some time after it has had them), or
//! - an hour is over since its connection was lost, and it has not come again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long a server that is killed may forget an acknowledgement.
const SETTLED_AFTER: Duration = Duration::from_secs(10);
/// How long messages of a lost connection are waited for.
const LOST_FOR: Duration = Duration::from_secs(3600);
/// So many are remembered at most; the server is never owed as many.
const IDS_MAX: usize = 4_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageState {
    /// Not acknowledged.
    Given,
    /// With the acknowledgement of this number, at this time.
    Acknowledged(u64, Instant),
    /// It may come again.
    Lost(Instant),
}

/// Messages by their ids.
#[derive(Debug, Default)]
pub(crate) struct SeenMessageIds {
    states: HashMap<String, MessageState>,
    /// The last acknowledgement that the server has had when the checkpoint before was durable.
    confirmed_before: u64,
}

impl SeenMessageIds {
    /// Those of a checkpoint.
    pub(crate) fn restored(ids: impl IntoIterator<Item = String>, now: Instant) -> Self {
        let states = ids.into_iter().map(|id| (id, MessageState::Lost(now))).collect();
        SeenMessageIds { states, confirmed_before: 0 }
    }

    /// A message has come. Says whether it is new.
    pub(crate) fn comes(&mut self, id: &str) -> bool {
        match self.states.get_mut(id) {
            Some(state) => {
                *state = MessageState::Given;
                false
            }
            None => self.states.insert(id.to_owned(), MessageState::Given).is_none(),
        }
    }

    /// Those that were given are acknowledged with this number; the server is known to have had all up to `confirmed`.
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

    /// The connection was lost: all that is remembered may come again, as a server that was killed may have forgotten
    /// the last acknowledgements.
    pub(crate) fn lost(&mut self, now: Instant) {
        for state in self.states.values_mut() {
            if !matches!(state, MessageState::Lost(_)) {
                *state = MessageState::Lost(now);
            }
        }
    }

    /// For the checkpoint.
    ///
    /// # Errors
    /// In words, when there are too many.
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

    /// An id that is forgotten too early makes a row twice; one that is never forgotten makes checkpoints grow.
    #[test]
    fn ids_are_remembered_as_long_as_they_may_come_again() {
        let now = Instant::now();
        let later = now + SETTLED_AFTER;
        let mut known = SeenMessageIds::restored(texts(&["r"]), now);
        assert!(!known.comes("r") && known.comes("a") && !known.comes("a"));
        known.acknowledged(texts(&["r", "a"]), 1, 0, now);
        assert!(known.comes("b"));
        // The server has the first one: it stays for one checkpoint more, and for some time.
        known.acknowledged(texts(&["b"]), 2, 1, later);
        assert_eq!(ids(&known), ["a", "b", "r"]);
        assert!(known.comes("c"));
        known.lost(later);
        known.acknowledged(Vec::new(), 3, 1, later + SETTLED_AFTER);
        assert_eq!(ids(&known), ["a", "b", "c", "r"]);
        assert!(!known.comes("b"));
        // They may come for an hour.
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
