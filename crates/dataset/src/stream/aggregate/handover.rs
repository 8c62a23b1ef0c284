//! States of windows that go from one copy to another.

use std::collections::BTreeSet;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use bytes::{Buf, Bytes};
use tidemill_dataflow::TaskError;
use tidemill_dataflow::checkpoint::rows;

use super::WindowAggregation;
use crate::stream::window::Micros;

/// Rows of a part, about: small enough for its memory to be used again and again.
const PART_ROWS: usize = 1 << 13;

/// States that another copy has kept.
pub(super) struct Acquired {
    /// Windows that end here or before have fired there.
    pub fired: Micros,
    /// Of these, the starts of those that late rows have changed since.
    pub changed: BTreeSet<Micros>,
    /// In which they were there, of every key one.
    pub level: usize,
    pub states: RecordBatch,
}

impl Acquired {
    pub(super) fn decode(schema: &SchemaRef, mut part: Bytes) -> Result<Self, TaskError> {
        let mut time = || {
            let eight = part.first_chunk().copied().ok_or("what another copy handed over was cut short")?;
            part.advance(size_of::<Micros>());
            Ok::<Micros, &str>(Micros::from_le_bytes(eight))
        };
        let (level, fired, count) = (time()? as usize, time()?, time()?);
        let changed = (0..count).map(|_| time()).collect::<Result<_, _>>()?;
        Ok(Acquired { fired, changed, level, states: rows::decode(schema, &part)? })
    }
}

/// Parts of what is handed over: a level, times, and states behind them. Whoever gets them need not know of which bucket.
pub(super) struct Released<'a> {
    shape: &'a WindowAggregation,
    bucket: u32,
    times: Vec<u8>,
    parts: Vec<(u32, Bytes)>,
    /// Of each level what is in no part yet, and how many rows that is.
    levels: Vec<(Vec<RecordBatch>, usize)>,
}

impl<'a> Released<'a> {
    pub(super) fn new(shape: &'a WindowAggregation, bucket: u32, fired: Micros, changed: &BTreeSet<Micros>) -> Self {
        let times = [fired, changed.len() as Micros].into_iter().chain(changed.iter().copied());
        let times = times.flat_map(Micros::to_le_bytes).collect();
        Released { shape, bucket, times, parts: Vec::new(), levels: Vec::new() }
    }

    pub(super) fn add(&mut self, pane: Micros, level: usize, states: &RecordBatch) -> Result<(), TaskError> {
        self.levels.resize(self.levels.len().max(level + 1), Default::default());
        for start in (0..states.num_rows()).step_by(PART_ROWS) {
            let some = states.slice(start, PART_ROWS.min(states.num_rows() - start));
            let (left, rows) = &mut self.levels[level];
            left.push(self.shape.of_pane(pane, &some)?);
            *rows += some.num_rows();
            if *rows >= PART_ROWS {
                self.end(level)?;
            }
        }
        Ok(())
    }

    fn end(&mut self, level: usize) -> Result<(), TaskError> {
        let states = match &std::mem::take(&mut self.levels[level]).0[..] {
            [] => return Ok(()),
            [one] => one.clone(),
            some => concat_batches(&self.shape.pane_schema, some)?,
        };
        let before = [&(level as Micros).to_le_bytes(), &self.times[..]].concat();
        self.parts.push((self.bucket, rows::encode_plain(&states, before)?));
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<Vec<(u32, Bytes)>, TaskError> {
        (0..self.levels.len()).try_for_each(|level| self.end(level))?;
        Ok(self.parts)
    }
}
