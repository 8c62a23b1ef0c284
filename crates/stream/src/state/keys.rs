//! An index of keys by hash, which can be on disk, as can the keys themselves, which are in stored rows.
//!
//! The index is a table of numbers with open addressing. One half of each is the number of the row with the key, the
//! other is part of its hash. The position in the table is given by the high bits of the hash, so that growing the
//! table reads it in order and also writes the larger one in order.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, UInt32Array, make_comparator};
use arrow::compute::{SortOptions, take, take_record_batch};
use arrow::datatypes::SchemaRef;
use datafusion::error::Result;
use datafusion::logical_expr::EmitTo;
use datafusion::physical_plan::aggregates::group_values::GroupValues;
use tidemill_dataflow::TaskError;
use tidemill_dataflow::keys::KeyHasher;
use tidemill_dataflow::memory::SpillVec;
use tidemill_dataset::extend::group_values;

use crate::state::expiring_rows::ExpiringRows;
use crate::state::groups::batch;
use crate::state::operator_memory::SpillArea;

/// The size of the smallest table, as a power of two.
const BITS_MIN: u32 = 8;

/// A table of keys' rows by hash. The low half of a cell is a row's number plus one; an empty cell is zero.
#[derive(Default)]
pub(crate) struct HashIndex {
    cells: SpillVec<u64>,
    bits: u32,
    count: usize,
}

/// The half of a hash that is used. It is scrambled first, since the high bits determine a key's bucket, and are
/// similar for all keys of a copy.
fn half(hash: u64) -> u32 {
    (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

impl HashIndex {
    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.cells.bytes()
    }

    /// The number of keys.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Moves the table to disk, where it stays.
    pub(crate) fn spill(&mut self, disk: &SpillArea) -> Result<(), TaskError> {
        Ok(self.cells.spill(disk.governor())?)
    }

    fn place(&self, half: u32) -> usize {
        (half >> (32 - self.bits)) as usize
    }

    /// Makes room for this many more keys.
    fn reserve(&mut self, more: usize) -> Result<(), TaskError> {
        let mut bits = self.bits.max(BITS_MIN);
        while bits < 32 && (self.count + more) * 2 > 1 << bits {
            bits += 1;
        }
        if bits == self.bits {
            return Ok(());
        }
        let old = std::mem::take(&mut self.cells);
        if let Some(governor) = old.governor() {
            self.cells.spill(governor)?;
        }
        self.cells.resize(1 << bits)?;
        self.bits = bits;
        for &cell in old.iter().filter(|&&cell| cell != 0) {
            self.put((cell >> 32) as u32, cell as u32);
        }
        Ok(())
    }

    fn put(&mut self, half: u32, number_and_one: u32) {
        let mut at = self.place(half);
        let cells = &mut self.cells[..];
        while cells[at] != 0 {
            at = (at + 1) & (cells.len() - 1);
        }
        cells[at] = u64::from(half) << 32 | u64::from(number_and_one);
    }

    /// Adds keys that are not in the table, whose rows have these numbers.
    pub(crate) fn add(
        &mut self,
        hashes: impl ExactSizeIterator<Item = u64>,
        numbers: impl IntoIterator<Item = u32>,
    ) -> Result<(), TaskError> {
        self.reserve(hashes.len())?;
        self.count += hashes.len();
        hashes.zip(numbers).for_each(|(hash, number)| self.put(half(hash), number + 1));
        Ok(())
    }

    /// Changes the row number of a key in the table.
    fn replace(&mut self, hash: u64, old: u32, new: u32) {
        let half = half(hash);
        let mut at = self.place(half);
        let cells = &mut self.cells[..];
        while cells[at] != u64::from(half) << 32 | u64::from(old + 1) {
            assert!(cells[at] != 0, "a key that has a number is in the index");
            at = (at + 1) & (cells.len() - 1);
        }
        cells[at] = u64::from(half) << 32 | u64::from(new + 1);
    }

    /// As [`KeyIndex::renumber_all`].
    pub(crate) fn renumber_all(&mut self, most: usize, new: impl Fn(u32) -> Option<u32>) -> Result<(), TaskError> {
        let old = std::mem::take(self);
        if let Some(governor) = old.cells.governor() {
            self.cells.spill(governor)?;
        }
        self.reserve(most.min(old.count))?;
        for &cell in old.cells.iter().filter(|&&cell| cell != 0) {
            if let Some(number) = new(cell as u32 - 1) {
                self.put((cell >> 32) as u32, number + 1);
                self.count += 1;
            }
        }
        Ok(())
    }

    /// The row of each key, if it has one. `gather` returns a column of the rows with given numbers.
    pub(crate) fn find(
        &self,
        keys: &[ArrayRef],
        hashes: &[u64],
        gather: impl Fn(usize, &[u32]) -> Result<ArrayRef>,
    ) -> Result<Vec<Option<u32>>> {
        let mut found = vec![None; hashes.len()];
        if self.count == 0 {
            return Ok(found);
        }
        let cells = &self.cells[..];
        // By key: the position where the search continues.
        let mut left: Vec<(u32, usize)> = (0..).zip(hashes).map(|(row, &hash)| (row, self.place(half(hash)))).collect();
        while !left.is_empty() {
            let (mut rows, mut numbers) = (Vec::with_capacity(left.len()), Vec::with_capacity(left.len()));
            left.retain_mut(|(row, at)| {
                let half = half(hashes[*row as usize]);
                while cells[*at] != 0 && (cells[*at] >> 32) as u32 != half {
                    *at = (*at + 1) & (cells.len() - 1);
                }
                let there = cells[*at] != 0;
                if there {
                    rows.push(*row);
                    numbers.push(cells[*at] as u32 - 1);
                }
                there
            });
            let rows = UInt32Array::from(rows);
            let mut equal = vec![true; numbers.len()];
            for (column, values) in keys.iter().enumerate().filter(|_| !numbers.is_empty()) {
                let compare =
                    make_comparator(&take(values, &rows, None)?, &gather(column, &numbers)?, SortOptions::default())?;
                equal.iter_mut().enumerate().for_each(|(at, equal)| *equal &= compare(at, at) == Ordering::Equal);
            }
            let mut looked = equal.into_iter().zip(&numbers);
            left.retain_mut(|(row, at)| {
                let (equal, &number) = looked.next().expect("one for each that is left");
                if equal {
                    found[*row as usize] = Some(number);
                }
                *at = (*at + 1) & (cells.len() - 1);
                !equal
            });
        }
        Ok(found)
    }
}

/// An index of rows stored elsewhere, by their key columns: the first columns, or those after `before` others.
#[derive(Default)]
pub(crate) struct KeyIndex {
    index: HashIndex,
    before: usize,
}

/// The keys of a batch, and which are new.
pub(crate) struct InternedKeys {
    /// The first row of each new key, in order.
    pub new: UInt32Array,
    /// The number of each row's key.
    pub numbers: Vec<u32>,
}

/// The distinct keys of a batch.
struct DistinctKeys {
    /// The index of each row's key.
    of: Vec<usize>,
    /// The first row of each key.
    firsts: UInt32Array,
    keys: RecordBatch,
    hashes: Vec<u64>,
}

impl DistinctKeys {
    fn of(keys: &RecordBatch) -> Result<Self> {
        let (mut of, mut count) = (vec![0; keys.num_rows()], keys.num_rows().min(1));
        if keys.num_columns() > 0 {
            let mut once = group_values(&keys.schema())?;
            once.intern(keys.columns(), &mut of)?;
            count = once.len();
        }
        let mut firsts = vec![u32::MAX; count];
        (0..).zip(&of).for_each(|(row, &key): (u32, &usize)| firsts[key] = firsts[key].min(row));
        let firsts = UInt32Array::from(firsts);
        let columns = keys.columns().iter().map(|column| take(column, &firsts, None));
        let keys = batch(&keys.schema(), columns.collect::<std::result::Result<_, _>>()?, count)?;
        let hashes = hashes(&keys)?;
        Ok(DistinctKeys { of, firsts, keys, hashes })
    }
}

impl KeyIndex {
    /// An index for rows whose key columns follow `before` others.
    pub(crate) fn behind(before: usize) -> Self {
        KeyIndex { index: HashIndex::default(), before }
    }

    /// Numbers the keys of a batch. Stored keys have their numbers; new ones get the next numbers, and must then be
    /// stored.
    pub(crate) fn intern(&mut self, kept: &ExpiringRows, keys: &RecordBatch) -> Result<InternedKeys, TaskError> {
        let DistinctKeys { of, firsts, keys, hashes } = DistinctKeys::of(keys)?;
        let found = self.find_hashed(kept, &keys, &hashes)?;
        let mut new: Vec<(u32, usize)> =
            (0..found.len()).filter(|&key| found[key].is_none()).map(|key| (firsts.value(key), key)).collect();
        new.sort_unstable();
        let mut number_of: Vec<u32> = found.into_iter().map(|number| number.unwrap_or(0)).collect();
        new.iter().zip(kept.count()..).for_each(|((_, key), number)| number_of[*key] = number);
        self.index.add(new.iter().map(|(_, key)| hashes[*key]), kept.count()..)?;
        let new = new.into_iter().map(|(row, _)| row).collect::<Vec<_>>().into();
        Ok(InternedKeys { new, numbers: of.into_iter().map(|key| number_of[key]).collect() })
    }

    /// Records that all rows with these keys will be stored next, with the next numbers; a key refers to its last row.
    /// Returns the previous last row of each row's key.
    pub(crate) fn follow(&mut self, kept: &ExpiringRows, keys: &RecordBatch) -> Result<Vec<Option<u32>>, TaskError> {
        let DistinctKeys { of, keys, hashes, .. } = DistinctKeys::of(keys)?;
        let known = self.find_hashed(kept, &keys, &hashes)?;
        let mut newest = known.clone();
        let before = (kept.count()..).zip(of).map(|(number, key)| newest[key].replace(number)).collect();
        let (mut new, mut numbers) = (Vec::new(), Vec::new());
        for ((hash, known), newest) in hashes.into_iter().zip(known).zip(newest.into_iter().flatten()) {
            match known {
                Some(known) => self.index.replace(hash, known, newest),
                None => {
                    new.push(hash);
                    numbers.push(newest);
                }
            }
        }
        self.index.add(new.into_iter(), numbers)?;
        Ok(before)
    }

    /// The row number of each key, if it has one.
    pub(crate) fn find(&self, kept: &ExpiringRows, keys: &RecordBatch) -> Result<Vec<Option<u32>>> {
        self.find_hashed(kept, keys, &hashes(keys)?)
    }

    fn find_hashed(&self, kept: &ExpiringRows, keys: &RecordBatch, hashes: &[u64]) -> Result<Vec<Option<u32>>> {
        self.index.find(keys.columns(), hashes, |column, numbers| kept.gather(self.before + column, numbers))
    }

    /// Records that the rows of these keys, with old numbers `old`, now have the numbers from `first` on.
    pub(crate) fn renumber(&mut self, keys: &RecordBatch, old: &[u32], first: u32) -> Result<(), TaskError> {
        let all = hashes(keys)?.into_iter().zip(old).zip(first..);
        all.for_each(|((hash, &old), new)| self.index.replace(hash, old, new));
        Ok(())
    }

    /// Changes all row numbers: `new` returns the new number of each row, or `None`, which removes its key. At most
    /// `most` rows have one.
    pub(crate) fn renumber_all(&mut self, most: usize, new: impl Fn(u32) -> Option<u32>) -> Result<(), TaskError> {
        self.index.renumber_all(most, new)
    }

    /// Rebuilds the index from all stored rows, which have distinct keys in their first columns.
    pub(crate) fn rebuild(&mut self, kept: &ExpiringRows, columns: usize) -> Result<(), TaskError> {
        let on_disk = self.index.cells.governor().cloned();
        self.index = HashIndex::default();
        if let Some(governor) = on_disk {
            self.index.cells.spill(&governor)?;
        }
        self.index.reserve(kept.count() as usize)?;
        let mut first = 0;
        for keys in kept.since(0) {
            let of = keys.project(&(0..columns).collect::<Vec<_>>())?;
            self.index.add(hashes(&of)?.into_iter(), first..)?;
            first += keys.num_rows() as u32;
        }
        Ok(())
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.index.bytes()
    }

    pub(crate) fn spill(&mut self, disk: &SpillArea) -> Result<(), TaskError> {
        self.index.spill(disk)
    }
}

fn hashes(keys: &RecordBatch) -> Result<Vec<u64>> {
    let mut hashes = Vec::new();
    KeyHasher::new((0..keys.num_columns()).collect()).hash(keys, &mut hashes)?;
    Ok(hashes)
}

/// Distinct keys, numbered in the order of arrival.
pub(crate) struct NumberedKeys {
    schema: SchemaRef,
    disk: SpillArea,
    /// DataFusion's table, which is faster, as long as everything is in memory.
    memory: Option<Box<dyn GroupValues>>,
    kept: ExpiringRows,
    index: KeyIndex,
}

impl NumberedKeys {
    pub(crate) fn new(schema: SchemaRef, disk: &SpillArea) -> Result<Self> {
        let memory = Some(group_values(&schema)?);
        let kept = ExpiringRows::new(Arc::clone(&schema), disk);
        Ok(NumberedKeys { kept, memory, schema, disk: disk.clone(), index: KeyIndex::default() })
    }

    /// Removes all keys. New ones are on disk if these were, or in memory if they are `few`.
    pub(crate) fn clear(&mut self, few: bool) -> Result<(), TaskError> {
        let on_disk = self.memory.is_none() && !few;
        *self = NumberedKeys::new(Arc::clone(&self.schema), &self.disk)?;
        if on_disk { self.spill() } else { Ok(()) }
    }

    /// The number of each row's key.
    pub(crate) fn intern(&mut self, keys: &[ArrayRef], rows: usize) -> Result<Vec<usize>, TaskError> {
        if let Some(memory) = &mut self.memory {
            let mut of = Vec::new();
            memory.intern(keys, &mut of)?;
            return Ok(of);
        }
        let keys = batch(&self.schema, keys.to_vec(), rows)?;
        let InternedKeys { new, numbers } = self.index.intern(&self.kept, &keys)?;
        if !new.is_empty() {
            self.kept.add(take_record_batch(&keys, &new)?, Vec::new())?;
        }
        Ok(numbers.into_iter().map(|number| number as usize).collect())
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.size()) + self.kept.bytes() + self.index.bytes()
    }

    pub(crate) fn spill(&mut self) -> Result<(), TaskError> {
        if let Some(mut memory) = self.memory.take() {
            let count = memory.len();
            let keys = memory.emit(EmitTo::All)?;
            self.kept.add(batch(&self.schema, keys, count)?, Vec::new())?;
            self.index.rebuild(&self.kept, self.schema.fields().len())?;
        }
        self.kept.spill()?;
        self.index.spill(&self.disk)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use arrow::array::{Int64Array, StringArray};
    use arrow::datatypes::{DataType, Field, Schema};

    use super::*;

    /// With two numbers, a key would be joined with only half of its rows; with one number, two keys would be joined
    /// with each other's rows. Checked in memory and on disk, in the same batch or later, with nulls or without.
    #[test]
    fn keys_have_one_number_each() {
        let fields = vec![Field::new("n", DataType::Int64, true), Field::new("s", DataType::Utf8, true)];
        let disk = SpillArea::with_runs_of(1 << 12);
        let mut keys = NumberedKeys::new(Arc::new(Schema::new(fields)), &disk).unwrap();
        let mut known: HashMap<(Option<i64>, Option<String>), usize> = HashMap::new();
        let mut random = 1_u64;
        for round in 0..60 {
            if round == 20 || round == 40 {
                keys.spill().unwrap();
                assert_eq!(keys.index.bytes(), 0);
            }
            let mut draw = || {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) as i64 % 5000
            };
            let rows: Vec<(Option<i64>, Option<String>)> = (0..round * 7)
                .map(|_| {
                    let n = draw();
                    ((n % 11 != 0).then_some(n), (n % 7 != 0).then(|| format!("text {}", n / 2)))
                })
                .collect();
            let n: Int64Array = rows.iter().map(|(n, _)| *n).collect();
            let s: StringArray = rows.iter().map(|(_, s)| s.clone()).collect();
            let numbers = keys.intern(&[Arc::new(n), Arc::new(s)], rows.len()).unwrap();
            for (row, number) in rows.into_iter().zip(numbers) {
                let next = known.len();
                assert_eq!(*known.entry(row).or_insert(next), number);
            }
        }
        assert!(known.len() > 2000);
        assert!(keys.memory.is_none());
        let mut again = KeyIndex::default();
        again.rebuild(&keys.kept, 2).unwrap();
        for rows in keys.kept.since(0) {
            assert_eq!(again.intern(&keys.kept, &rows).unwrap().new.len(), 0);
        }
    }
}
