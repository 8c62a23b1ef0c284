//! What the engine keeps of a key in memory, and knows of a bucket's snapshots.

use std::collections::BTreeSet;

use tidemill_dataflow::TaskError;

use super::logic::{KeyLogic, NEVER};
use crate::state::key_records::{KeyRecord, RecordKind};
use crate::time::window::Micros;

/// What is kept of a key.
pub(super) struct KeyEntry<S> {
    pub bucket: u32,
    pub state: Option<S>,
    pub timers: BTreeSet<Micros>,
    pub alarms: BTreeSet<Micros>,
    /// When rows came last, and when that is looked at next. `NEVER`: since time went on last, or before there was any.
    pub touched: Micros,
    pub looked_at: Option<Micros>,
    /// When the state is looked at for what has a time to live.
    pub expires: Option<Micros>,
    /// Whether a snapshot may not build on what was saved before.
    pub is_whole: bool,
    /// Counts calls of all keys: of the last of this key.
    pub called: u64,
}

impl<S> KeyEntry<S> {
    pub(super) fn new(bucket: u32) -> Self {
        KeyEntry {
            bucket,
            state: None,
            timers: BTreeSet::new(),
            alarms: BTreeSet::new(),
            touched: NEVER,
            looked_at: None,
            expires: None,
            is_whole: true,
            called: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state.is_none() && self.timers.is_empty() && self.alarms.is_empty()
    }

    /// Whether something of it is due at a time of the stream.
    pub(super) fn is_due_at(&self, at: Micros) -> bool {
        self.timers.contains(&at) || self.looked_at == Some(at) || self.expires == Some(at)
    }

    /// The times of the stream at which something of it is due. A time may come more than once.
    pub(super) fn due_times(&self) -> impl Iterator<Item = Micros> + '_ {
        self.timers.iter().chain(&self.looked_at).chain(&self.expires).copied()
    }

    /// When rows came last, or `now` if that is not known yet.
    pub(super) fn touched(&self, now: Micros) -> Micros {
        if self.touched == NEVER { now } else { self.touched }
    }

    /// What is saved of it: all, or what has changed since it was saved last if that is enough.
    ///
    /// # Errors
    /// When the state cannot be encoded.
    pub(super) fn record<L: KeyLogic<State = S>>(&self, logic: &mut L, whole: bool) -> Result<KeyRecord, TaskError> {
        let whole = whole || self.is_whole;
        Ok(KeyRecord {
            kind: if whole { RecordKind::Whole } else { RecordKind::Change },
            state: self.state.as_ref().map(|state| logic.encode(state, whole)).transpose()?,
            timers: self.timers.iter().copied().collect(),
            alarms: self.alarms.iter().copied().collect(),
            touched: self.touched,
        })
    }
}

/// What snapshots have of a bucket: a whole, and changes since.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SavedBytes {
    pub whole: usize,
    pub changed: usize,
    pub changes: usize,
}
