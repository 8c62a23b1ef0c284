//! The engine's entry for a key in memory, and what it knows about a bucket's snapshots.

use std::collections::BTreeSet;

use tidemill_dataflow::TaskError;

use super::logic::{KeyLogic, NEVER};
use crate::state::key_records::{KeyRecord, RecordKind};
use crate::time::window::Micros;

/// A key's entry in memory.
pub(super) struct KeyEntry<S> {
    pub bucket: u32,
    pub state: Option<S>,
    pub timers: BTreeSet<Micros>,
    pub alarms: BTreeSet<Micros>,
    /// When rows last came, and when that is checked next. `NEVER` if rows came after time last advanced, or before the
    /// stream had a time.
    pub touched: Micros,
    pub looked_at: Option<Micros>,
    /// When the state is next checked for expired parts.
    pub expires: Option<Micros>,
    /// Whether the next record must be full, because it cannot build on what was saved before.
    pub is_whole: bool,
    /// The number of its last call, counted over all keys.
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

    /// Whether something of the key is due at a time of the stream.
    pub(super) fn is_due_at(&self, at: Micros) -> bool {
        self.timers.contains(&at) || self.looked_at == Some(at) || self.expires == Some(at)
    }

    /// The event times at which something of the key is due. A time may occur more than once.
    pub(super) fn due_times(&self) -> impl Iterator<Item = Micros> + '_ {
        self.timers.iter().chain(&self.looked_at).chain(&self.expires).copied()
    }

    /// When rows last came, or `now` if that is not known yet.
    pub(super) fn touched(&self, now: Micros) -> Micros {
        if self.touched == NEVER { now } else { self.touched }
    }

    /// The key's record to save: everything, or the changes since the last record if these suffice.
    ///
    /// # Errors
    /// If the state cannot be encoded.
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

/// The sizes of a bucket's snapshots: a full one, and changes since.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SavedBytes {
    pub whole: usize,
    pub changed: usize,
    pub changes: usize,
}
