//! A queue that keeps any number of batches: in memory as long as there is room, then on disk.

use std::collections::VecDeque;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use super::{Governor, Reservation, SpillReader, SpillWriter};
use crate::batch_bytes;
use crate::error::BatchError;

/// The queue, see the module. First in, first out; no more pushes once popping has begun.
pub struct SpillQueue {
    schema: SchemaRef,
    governor: Governor,
    reservation: Reservation,
    memory: VecDeque<RecordBatch>,
    disk: Option<SpillWriter>,
    reader: Option<SpillReader>,
}

impl SpillQueue {
    /// An empty queue of batches with this schema; `name` is the owner.
    pub fn new(schema: &SchemaRef, governor: &Governor, name: &str) -> Self {
        SpillQueue {
            schema: SchemaRef::clone(schema),
            governor: governor.clone(),
            reservation: governor.reservation(name),
            memory: VecDeque::new(),
            disk: None,
            reader: None,
        }
    }

    /// Appends a batch.
    ///
    /// # Errors
    /// If the disk is full or fails.
    ///
    /// # Panics
    /// If popping has begun.
    pub fn push(&mut self, batch: RecordBatch) -> Result<(), BatchError> {
        assert!(self.reader.is_none(), "a stash is filled before it is emptied");
        if self.disk.is_none() && self.reservation.try_grow(batch_bytes(&batch)) {
            self.memory.push_back(batch);
            return Ok(());
        }
        let disk = match &mut self.disk {
            Some(disk) => disk,
            None => self.disk.insert(SpillWriter::new(&self.governor, &self.schema)?),
        };
        disk.write(&batch)
    }

    /// Takes the first batch.
    ///
    /// # Errors
    /// On a disk error.
    pub fn pop(&mut self) -> Result<Option<RecordBatch>, BatchError> {
        if let Some(batch) = self.memory.pop_front() {
            self.reservation.shrink(batch_bytes(&batch));
            return Ok(Some(batch));
        }
        if let Some(disk) = self.disk.take() {
            self.reader = Some(disk.finish()?.read()?);
        }
        match &mut self.reader {
            Some(reader) => reader.next_batch(),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array};

    use super::*;
    use crate::memory::MemorySettings;

    /// Batches must not change their order between memory and disk.
    #[test]
    fn first_in_first_out_through_memory_and_disk() {
        let settings = MemorySettings { budget_bytes: 20_000, watch_process: false, ..MemorySettings::default() };
        let governor = Governor::new(settings);
        let batch = |n: i64| {
            let column: ArrayRef = std::sync::Arc::new(Int64Array::from(vec![n; 100]));
            RecordBatch::try_from_iter([("n", column)]).unwrap()
        };
        let mut stash = SpillQueue::new(&batch(0).schema(), &governor, "stash");
        (0..50).for_each(|n| stash.push(batch(n)).unwrap());
        assert!(governor.spilled_bytes() > 0 && governor.reserved_bytes() > 10_000);
        (0..50).for_each(|n| assert_eq!(stash.pop().unwrap(), Some(batch(n))));
        assert_eq!(stash.pop().unwrap(), None);
        assert_eq!(governor.reserved_bytes(), 0);
    }
}
