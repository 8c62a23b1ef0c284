//! The memory that retained batches use: columns of one frame share one allocation, and batches share dictionaries.

use std::collections::HashMap;

use arrow::array::{Array, ArrayData, RecordBatch};
use arrow::buffer::Buffer;

/// The allocations that some batches refer to, by start address, with the bytes counted of each.
#[derive(Default)]
pub struct AllocationSet(HashMap<usize, usize>);

impl AllocationSet {
    /// Bytes that `batch` refers to beyond those of the batches added before. Those batches must stay alive: otherwise
    /// a new allocation could have the address of an old one.
    pub fn add(&mut self, batch: &RecordBatch) -> u64 {
        batch.columns().iter().map(|column| self.add_data(&column.to_data())).sum()
    }

    fn add_data(&mut self, data: &ArrayData) -> u64 {
        let nulls = data.nulls().map(|nulls| nulls.buffer());
        let own: u64 = data.buffers().iter().chain(nulls).map(|buffer| self.add_buffer(buffer)).sum();
        own + data.child_data().iter().map(|child| self.add_data(child)).sum::<u64>()
    }

    fn add_buffer(&mut self, buffer: &Buffer) -> u64 {
        let counted = self.0.entry(buffer.data_ptr().as_ptr() as usize).or_default();
        let more = buffer.len().min(buffer.capacity().saturating_sub(*counted));
        *counted += more;
        more as u64
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, DictionaryArray, Int64Array, StringArray};
    use arrow::datatypes::Int32Type;

    use super::*;

    /// Shared memory must count once, however many columns, slices and batches refer to it; unshared memory counts each
    /// time.
    #[test]
    fn what_is_shared_counts_once() {
        let whole: Buffer = (0..4000_i64).collect();
        let column = |from: usize| Arc::new(Int64Array::new(whole.slice(from * 8).into(), None)) as ArrayRef;
        let numbers = || column(0).slice(0, 1000);
        let mut values = StringArray::from_iter_values((0..1000).map(|i| format!("{i:100}")));
        values.shrink_to_fit();
        let values: ArrayRef = Arc::new(values);
        let coded = |seed: i32| {
            let keys = (0..1000).map(|row| (row + seed) % 1000).collect();
            Arc::new(DictionaryArray::<Int32Type>::new(keys, Arc::clone(&values))) as ArrayRef
        };
        let batch = |seed| {
            let columns = [("a", numbers()), ("b", column(1000).slice(0, 1000)), ("c", coded(seed))];
            RecordBatch::try_from_iter(columns).unwrap()
        };
        let (first, second) = (batch(1), batch(2));
        let mut seen = AllocationSet::default();
        assert!((120_000..130_000).contains(&seen.add(&first)));
        assert!((4000..21_000).contains(&seen.add(&second)), "but for values and numbers");
        assert!(seen.add(&batch(3)) < 21_000);
        assert!((0..9).map(|_| seen.add(&first)).sum::<u64>() < 1000, "only the rounding of allocations");
    }
}
