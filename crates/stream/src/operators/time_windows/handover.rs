//! States of windows that move from one copy to another.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use bytes::{Buf, Bytes};
use tidemill_dataflow::TaskError;
use tidemill_dataflow::checkpoint::rows;

use super::WindowAggregation;
use crate::state::sorted_states::SortedStates;
use crate::time::window::Micros;

/// Approximate number of rows in a part: small enough for its memory to be reused.
const PART_ROWS: usize = 1 << 13;

/// States that another copy has handed over.
pub(super) struct AcquiredStates {
    /// Windows that end by then have fired there.
    pub fired: Micros,
    /// The starts of fired windows that late rows have changed since.
    pub changed: BTreeSet<Micros>,
    /// The level they were in, with at most one state per key.
    pub level: usize,
    pub states: RecordBatch,
}

impl AcquiredStates {
    pub(super) fn decode(schema: &SchemaRef, mut part: Bytes) -> Result<Self, TaskError> {
        let mut time = || {
            let eight = part.first_chunk().copied().ok_or("state handed over by another copy is truncated")?;
            part.advance(size_of::<Micros>());
            Ok::<Micros, &str>(Micros::from_le_bytes(eight))
        };
        let (level, fired, count) = (time()? as usize, time()?, time()?);
        let changed = (0..count).map(|_| time()).collect::<Result<_, _>>()?;
        Ok(AcquiredStates { fired, changed, level, states: rows::decode_in_place(schema, &part)? })
    }
}

/// Parts of a handover, made one by one: a level and times, followed by states. The receiver need not know their
/// buckets.
pub(super) struct HandoverParts {
    shape: Arc<WindowAggregation>,
    bucket: u32,
    times: Vec<u8>,
    /// The pane and level of each, and how many rows of the first are already in a part, or in `begun`.
    states: VecDeque<(Micros, usize, SortedStates)>,
    taken: usize,
    /// By level: what is in no part yet, and its number of rows.
    begun: Vec<(Vec<RecordBatch>, usize)>,
}

impl HandoverParts {
    pub(super) fn new(
        shape: Arc<WindowAggregation>,
        bucket: u32,
        fired: Micros,
        changed: &BTreeSet<Micros>,
        states: Vec<(Micros, usize, SortedStates)>,
    ) -> Self {
        let times = [fired, changed.len() as Micros].into_iter().chain(changed.iter().copied());
        let times = times.flat_map(Micros::to_le_bytes).collect();
        HandoverParts { shape, bucket, times, states: states.into(), taken: 0, begun: Vec::new() }
    }

    /// The next part: once a level has enough rows, or when nothing else is left.
    fn part(&mut self) -> Result<Option<Bytes>, TaskError> {
        while let Some((pane, level, states)) = self.states.front() {
            let (level, some) = (*level, PART_ROWS.min(states.rows() - self.taken));
            let slice = self.shape.of_pane(*pane, &states.slice(self.taken, some)?)?;
            self.taken += some;
            if self.taken == states.rows() {
                self.states.pop_front();
                self.taken = 0;
            }
            self.begun.resize(self.begun.len().max(level + 1), Default::default());
            let (begun, rows) = &mut self.begun[level];
            begun.push(slice);
            *rows += some;
            if *rows >= PART_ROWS {
                return self.end(level).map(Some);
            }
        }
        match self.begun.iter().position(|(begun, _)| !begun.is_empty()) {
            Some(level) => self.end(level).map(Some),
            None => Ok(None),
        }
    }

    fn end(&mut self, level: usize) -> Result<Bytes, TaskError> {
        let states = match &std::mem::take(&mut self.begun[level]).0[..] {
            [one] => one.clone(),
            some => concat_batches(&self.shape.pane_schema, some)?,
        };
        let before = [&(level as Micros).to_le_bytes(), &self.times[..]].concat();
        Ok(rows::encode_plain(&states, before)?)
    }
}

impl Iterator for HandoverParts {
    type Item = Result<(u32, Bytes), TaskError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.part().map(|part| part.map(|part| (self.bucket, part))).transpose()
    }
}
