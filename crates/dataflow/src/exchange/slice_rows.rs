//! Rows that wait for the end of their slice of event time: in memory as long as there is room, then on disk.
//!
//! What spills is all that is in memory, as one run with the slices in order. Slices are taken in order, too, so each
//! run is read once from its start to its end.

use std::collections::{BTreeMap, VecDeque};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use tidemill_batch::batch_bytes;
use tidemill_batch::memory::{Governor, Reservation, SpillFile, SpillReader, SpillWriter};

use crate::error::TaskError;

/// The rows, see the module.
pub(super) struct SliceRows {
    schema: SchemaRef,
    governor: Governor,
    reservation: Reservation,
    memory: BTreeMap<i64, Vec<RecordBatch>>,
    /// Older rows, in the order in which they came.
    runs: Vec<SpilledRun>,
}

struct SpilledRun {
    file: SpillFile,
    reader: Option<SpillReader>,
    /// How many batches have been read, and the slice of each of the others.
    read: usize,
    slices: VecDeque<i64>,
}

impl SliceRows {
    /// No rows yet, of this schema.
    pub(super) fn new(schema: &SchemaRef, governor: &Governor, reservation: Reservation) -> Self {
        let (schema, governor) = (SchemaRef::clone(schema), governor.clone());
        SliceRows { schema, governor, reservation, memory: BTreeMap::new(), runs: Vec::new() }
    }

    /// Keeps rows of a slice.
    ///
    /// # Errors
    /// If the disk is full or fails.
    pub(super) fn push(&mut self, slice: i64, rows: RecordBatch) -> Result<(), TaskError> {
        let bytes = batch_bytes(&rows);
        self.memory.entry(slice).or_default().push(rows);
        // A run is not worth its file below what every operator may hold.
        match self.reservation.try_grow(bytes) || self.reservation.grow_to_floor(bytes) {
            true => Ok(()),
            false => self.spill(),
        }
    }

    fn spill(&mut self) -> Result<(), TaskError> {
        let (mut writer, mut slices) = (SpillWriter::new(&self.governor, &self.schema)?, VecDeque::new());
        for (slice, batches) in std::mem::take(&mut self.memory) {
            for rows in batches {
                writer.write(&rows)?;
                slices.push_back(slice);
            }
        }
        self.reservation.free();
        self.runs.push(SpilledRun { file: writer.finish()?, reader: None, read: 0, slices });
        Ok(())
    }

    /// The last slice that has rows.
    pub(super) fn last(&self) -> Option<i64> {
        let spilled = self.runs.iter().filter_map(|run| run.slices.back());
        spilled.chain(self.memory.keys().next_back()).max().copied()
    }

    /// Takes the rows of a slice, which no earlier one may follow.
    ///
    /// # Errors
    /// If the disk fails, or returns data other than what was written.
    pub(super) fn take(&mut self, slice: i64) -> Result<Vec<RecordBatch>, TaskError> {
        let mut taken = Vec::new();
        for run in &mut self.runs {
            run.take(slice, &mut taken)?;
        }
        self.runs.retain(|run| !run.slices.is_empty());
        let memory = self.memory.remove(&slice).unwrap_or_default();
        self.reservation.shrink(memory.iter().map(batch_bytes).sum());
        taken.extend(memory);
        Ok(taken)
    }

    /// All rows, with their slices. Those of a slice are in the order in which they came.
    ///
    /// # Errors
    /// As [`SliceRows::take`].
    pub(super) fn all(&self) -> Result<Vec<(i64, RecordBatch)>, TaskError> {
        let mut all = Vec::new();
        for run in &self.runs {
            let mut reader = run.file.read()?;
            for _ in 0..run.read {
                reader.next_batch()?;
            }
            for &slice in &run.slices {
                all.push((slice, reader.next_batch()?.expect("a run has a batch for each of its slices")));
            }
        }
        let memory = self.memory.iter();
        all.extend(memory.flat_map(|(slice, batches)| batches.iter().map(|rows| (*slice, rows.clone()))));
        Ok(all)
    }
}

impl SpilledRun {
    fn take(&mut self, slice: i64, taken: &mut Vec<RecordBatch>) -> Result<(), TaskError> {
        while self.slices.front() == Some(&slice) {
            let reader = match &mut self.reader {
                Some(reader) => reader,
                None => self.reader.insert(self.file.read()?),
            };
            taken.push(reader.next_batch()?.expect("a run has a batch for each of its slices"));
            self.slices.pop_front();
            self.read += 1;
        }
        Ok(())
    }
}
