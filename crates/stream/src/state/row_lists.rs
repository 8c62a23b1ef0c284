//! Stored rows, chained by key: an index finds the newest row of a key, and each row refers to the one before it. Rows
//! are appended to their chains, and any row may be removed. Removed rows stay until there are many of them; then the
//! others are renumbered. When memory runs out, rows, index and chains move to disk.

use std::collections::HashSet;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::SchemaRef;
use datafusion::error::Result;
use tidemill_dataflow::TaskError;
use tidemill_dataflow::memory::SpillVec;

use crate::state::expiring_rows::ExpiringRows;
use crate::state::groups::batch;
use crate::state::keys::KeyIndex;
use crate::state::operator_memory::SpillArea;
use crate::state::snapshot_codec::together;
use crate::time::window::Micros;

/// A chain with this many rows is long.
pub(crate) const LONG: u32 = 8;
/// Removed rows are dropped when there are at least this many, and as many as others.
const CLEAR_MIN: u32 = 1 << 13;
/// Or at this total size in bytes, since a few rows may be large; it must also have doubled since the last time.
const CLEAR_BYTES_MIN: usize = 4 << 20;
/// A flag next to a chain's remaining room: the row was removed.
const REMOVED: u32 = 1 << 31;

/// Stored rows in chains.
pub(crate) struct RowLists {
    kept: ExpiringRows,
    /// The schema of the key columns.
    key_schema: SchemaRef,
    before_keys: usize,
    index: KeyIndex,
    /// By number: the number of the previous row in the chain plus one. The newest row of a chain may have been
    /// removed.
    before: SpillVec<u32>,
    /// By number: how many more rows can follow before the chain is long.
    room: SpillVec<u32>,
    removed: u32,
    clear_at_bytes: usize,
    disk: SpillArea,
}

/// The rows at one moment, which can be saved while rows are added and removed.
pub(crate) struct FrozenLists {
    schema: SchemaRef,
    rows: Vec<RecordBatch>,
    /// Which rows were not removed; `None`: all.
    left: Option<BooleanArray>,
    disk: SpillArea,
}

impl FrozenLists {
    /// Rows without removed ones.
    pub(crate) fn of(kept: &ExpiringRows, disk: &SpillArea) -> Self {
        FrozenLists { schema: kept.schema(), rows: kept.since(0), left: None, disk: disk.clone() }
    }

    /// Whether there are no rows at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The rows that were not removed, a portion at a time, with their numbers.
    pub(crate) fn some(&self) -> impl Iterator<Item = Result<(Vec<u32>, RecordBatch)>> {
        let mut start = 0;
        together(&self.schema, &self.rows, &self.disk).map(move |rows| {
            let (rows, first) = (rows?, start);
            start += rows.num_rows();
            let numbers = first as u32..start as u32;
            let Some(left) = &self.left else { return Ok((numbers.collect(), rows)) };
            let left = left.slice(first, rows.num_rows());
            let numbers = numbers.zip(left.values()).filter(|(_, left)| *left).map(|(number, _)| number);
            Ok((numbers.collect(), filter_record_batch(&rows, &left)?))
        })
    }
}

/// The chains of some keys.
pub(crate) struct KeyLists {
    /// The row numbers, chain by chain, each from its oldest row on.
    pub numbers: Vec<u32>,
    /// The chain of each row.
    pub of: Vec<usize>,
}

impl RowLists {
    /// A store for rows with this schema, whose key columns follow `before_keys` others.
    pub(crate) fn new(schema: &SchemaRef, key_schema: &SchemaRef, before_keys: usize, disk: &SpillArea) -> Self {
        RowLists {
            kept: ExpiringRows::new(SchemaRef::clone(schema), disk),
            key_schema: SchemaRef::clone(key_schema),
            before_keys,
            index: KeyIndex::behind(before_keys),
            before: SpillVec::default(),
            room: SpillVec::default(),
            removed: 0,
            clear_at_bytes: CLEAR_BYTES_MIN,
            disk: disk.clone(),
        }
    }

    /// The number of the next row.
    pub(crate) fn count(&self) -> u32 {
        self.kept.count()
    }

    /// The number of rows that were not removed.
    pub(crate) fn len(&self) -> u32 {
        self.count() - self.removed
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.kept.bytes() + self.index.bytes() + self.before.bytes() + self.room.bytes()
    }

    /// Approximate size of a row, in memory or on disk.
    pub(crate) fn row_bytes(&self) -> usize {
        self.kept.bytes_anywhere() / (self.count() as usize).max(1)
    }

    pub(crate) fn spill(&mut self) -> Result<(), TaskError> {
        self.kept.spill()?;
        self.before.spill(self.disk.governor())?;
        self.room.spill(self.disk.governor())?;
        self.index.spill(&self.disk)
    }

    /// Adds rows with their expiries. Returns the newest rows of the chains that have become long.
    pub(crate) fn add(&mut self, rows: RecordBatch, until: Vec<Micros>) -> Result<Vec<u32>, TaskError> {
        let (first, keys) = (self.count(), self.key_schema.fields().len());
        let keys = rows.columns()[self.before_keys..self.before_keys + keys].to_vec();
        let follows = self.index.follow(&self.kept, &batch(&self.key_schema, keys, rows.num_rows())?)?;
        self.kept.add(rows, until)?;
        self.before.resize(self.count() as usize)?;
        self.room.resize(self.count() as usize)?;
        let (before, room) = (&mut self.before[..], &mut self.room[..]);
        let (mut long, mut older) = (Vec::new(), HashSet::new());
        for (number, follows) in (first..).zip(follows) {
            let left = follows.map_or(LONG, |newest| room[newest as usize] & !REMOVED).saturating_sub(1);
            room[number as usize] = left;
            before[number as usize] = left_of(follows, before, room).map_or(0, |newest| newest + 1);
            if left == 0 {
                long.push(number);
                older.extend(follows);
            }
        }
        long.retain(|number| !older.contains(number));
        Ok(long)
    }

    /// The newest row of each key, if it has any.
    pub(crate) fn newest(&self, keys: &[ArrayRef], rows: usize) -> Result<Vec<Option<u32>>> {
        let found = self.index.find(&self.kept, &batch(&self.key_schema, keys.to_vec(), rows)?)?;
        let (before, room) = (&self.before[..], &self.room[..]);
        Ok(found.into_iter().map(|newest| left_of(newest, before, room)).collect())
    }

    /// The same for the keys of some rows.
    pub(crate) fn newest_of(&self, numbers: &[u32]) -> Result<Vec<u32>> {
        let keys = (0..self.key_schema.fields().len()).map(|key| self.gather(self.before_keys + key, numbers));
        let found = self.newest(&keys.collect::<Result<Vec<_>>>()?, numbers.len())?;
        Ok(found.into_iter().map(|newest| newest.expect("the key of a row that is kept")).collect())
    }

    /// The chains of some keys, given by their newest rows.
    pub(crate) fn chains(&self, newest: &[u32]) -> KeyLists {
        let (mut numbers, mut of) = (Vec::new(), Vec::new());
        let (before, room) = (&self.before[..], &self.room[..]);
        for (chain, &newest) in newest.iter().enumerate() {
            let start = numbers.len();
            let mut next = newest + 1;
            while next > 0 {
                if room[next as usize - 1] & REMOVED == 0 {
                    numbers.push(next - 1);
                }
                next = before[next as usize - 1];
            }
            numbers[start..].reverse();
            of.resize(numbers.len(), chain);
        }
        KeyLists { numbers, of }
    }

    /// Removes those rows of chains that `goes` selects, and relinks the others.
    pub(crate) fn remove(&mut self, chains: &KeyLists, goes: impl Fn(usize) -> bool) {
        let mut last = None;
        for (at, (&number, &chain)) in chains.numbers.iter().zip(&chains.of).enumerate() {
            self.before[number as usize] = match last {
                Some((of, before)) if of == chain => before + 1,
                _ => 0,
            };
            if goes(at) {
                self.remove_row(number);
            } else {
                last = Some((chain, number));
            }
        }
    }

    /// Removes a row, given that all rows of its key are removed.
    pub(crate) fn remove_row(&mut self, number: u32) {
        self.removed += u32::from(!self.is_removed(number));
        self.room[number as usize] |= REMOVED;
    }

    pub(crate) fn is_removed(&self, number: u32) -> bool {
        self.room[number as usize] & REMOVED > 0
    }

    /// Notes that a chain, given by its newest row, cannot be shortened below this number of rows, so that it is not
    /// long before it has twice as many.
    pub(crate) fn is_short(&mut self, newest: u32, rows: u32) {
        let room = &mut self.room[newest as usize];
        *room = *room & REMOVED | rows.max(LONG);
    }

    /// The rows that were not removed, as they are now.
    pub(crate) fn frozen(&self) -> FrozenLists {
        let left = BooleanArray::new(self.room.iter().map(|room| room & REMOVED == 0).collect(), None);
        FrozenLists { left: Some(left), ..FrozenLists::of(&self.kept, &self.disk) }
    }

    /// Some values of a column.
    pub(crate) fn gather(&self, column: usize, numbers: &[u32]) -> Result<ArrayRef> {
        self.kept.gather(column, numbers)
    }

    /// Some rows.
    pub(crate) fn rows(&self, numbers: &[u32]) -> Result<RecordBatch> {
        let schema = self.kept.schema();
        let columns = (0..schema.fields().len()).map(|column| self.gather(column, numbers));
        batch(&schema, columns.collect::<Result<_>>()?, numbers.len())
    }

    /// The numbers of the rows whose expiry is in `before..time`.
    pub(crate) fn over(&mut self, before: Micros, time: Micros) -> Vec<u32> {
        let mut over = self.kept.over(before, time);
        over.retain(|&number| !self.is_removed(number));
        over
    }

    /// Whether much of the store consists of removed rows.
    pub(crate) fn is_wasteful(&self) -> bool {
        let is_much = self.removed >= CLEAR_MIN || self.kept.bytes_anywhere() >= self.clear_at_bytes;
        is_much && self.removed >= self.len()
    }

    /// Drops removed rows. The others get new numbers, in the same order; returns their old numbers.
    pub(crate) fn clear(&mut self) -> Result<Vec<u32>, TaskError> {
        let (before, room) = (&self.before[..], &self.room[..]);
        let stayed = self.kept.clear(Micros::MIN, |number| room[number as usize] & REMOVED == 0)?;
        let new = |old| renumbered(&stayed, old);
        self.index.renumber_all(stayed.len(), |newest| left_of(Some(newest), before, room).map(new))?;
        // Remaining rows refer only to remaining rows, and no row moves past its old position.
        for (now, &old) in stayed.iter().enumerate() {
            let before = self.before[old as usize];
            self.before[now] = if before == 0 { 0 } else { new(before - 1) + 1 };
            self.room[now] = self.room[old as usize];
        }
        self.before.resize(stayed.len())?;
        self.room.resize(stayed.len())?;
        self.removed = 0;
        self.clear_at_bytes = self.kept.bytes_anywhere().saturating_mul(2).max(CLEAR_BYTES_MIN);
        Ok(stayed)
    }
}

/// The new number of a remaining row; for a dropped row, that of the next one.
pub(crate) fn renumbered(stayed: &[u32], old: u32) -> u32 {
    stayed.partition_point(|&number| number < old) as u32
}

/// The newest row of a chain that was not removed.
fn left_of(newest: Option<u32>, before: &[u32], room: &[u32]) -> Option<u32> {
    let mut next = newest.map_or(0, |newest| newest + 1);
    while next > 0 && room[next as usize - 1] & REMOVED > 0 {
        next = before[next as usize - 1];
    }
    next.checked_sub(1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use arrow::array::{AsArray, Int64Array};
    use arrow::compute::concat_batches;
    use arrow::datatypes::{DataType, Field, Int64Type, Schema};

    use super::*;

    /// The state of a key would lack a row that is in no chain, and a row in the wrong chain would belong to two keys:
    /// checked for random additions, removals and renumberings, in memory and on disk.
    #[test]
    fn chains_have_the_rows_of_their_keys() {
        let number = |name| Field::new(name, DataType::Int64, false);
        let schema = Arc::new(Schema::new(vec![number("value"), number("key")]));
        let key_schema = Arc::new(schema.project(&[1]).unwrap());
        let mut random = 3_u64;
        let mut draw = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((random >> 33) % below) as i64
        };
        for on_disk in [false, true] {
            let disk = if on_disk { SpillArea::with_runs_of(1 << 9) } else { SpillArea::default() };
            let mut chained = RowLists::new(&schema, &key_schema, 1, &disk);
            let mut model: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
            let (mut next, mut were_long) = (0, 0);
            for round in 0..600 {
                let keys: Vec<i64> = (0..draw(60)).map(|_| draw(200)).collect();
                let values: Vec<i64> = (next..next + keys.len() as i64).collect();
                next += keys.len() as i64;
                keys.iter().zip(&values).for_each(|(key, value)| model.entry(*key).or_default().push(*value));
                let columns: Vec<ArrayRef> =
                    vec![Arc::new(Int64Array::from(values)), Arc::new(Int64Array::from(keys.clone()))];
                let rows = RecordBatch::try_new(Arc::clone(&schema), columns).unwrap();
                let long = chained.add(rows, vec![0; keys.len()]).unwrap();
                long.iter().for_each(|&newest| chained.is_short(newest, 0));
                were_long += long.len();
                // A third of some keys' rows is removed, and all rows of others.
                let some: Vec<i64> = (0..20).map(|_| draw(200)).collect();
                let some: ArrayRef = Arc::new(Int64Array::from(some));
                let mut newest: Vec<u32> = chained.newest(&[some], 20).unwrap().into_iter().flatten().collect();
                newest.sort_unstable();
                newest.dedup();
                let chains = chained.chains(&newest);
                let rows = chained.rows(&chains.numbers).unwrap();
                let [values, keys] = [0, 1].map(|column| rows.column(column).as_primitive::<Int64Type>().values());
                let goes = |at: usize| keys[at] % 2 == 0 || values[at] % 3 == round % 3;
                chained.remove(&chains, goes);
                for at in (0..values.len()).filter(|&at| goes(at)) {
                    model.get_mut(&keys[at]).unwrap().retain(|value| *value != values[at]);
                }
                if on_disk && draw(5) == 0 {
                    chained.spill().unwrap();
                }
                if draw(20) == 0 {
                    let stayed = chained.clear().unwrap();
                    assert_eq!(stayed.len(), chained.count() as usize);
                }
                let all: ArrayRef = Arc::new(Int64Array::from_iter_values(0..200));
                let mut found: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
                let newest: Vec<u32> = chained.newest(&[all], 200).unwrap().into_iter().flatten().collect();
                let rows = chained.rows(&chained.chains(&newest).numbers).unwrap();
                let [values, keys] = [0, 1].map(|column| rows.column(column).as_primitive::<Int64Type>().values());
                values.iter().zip(keys).for_each(|(value, key)| found.entry(*key).or_default().push(*value));
                model.retain(|_, values| !values.is_empty());
                assert_eq!(found, model);
                assert_eq!(chained.len() as usize, model.values().map(Vec::len).sum::<usize>());
                let left = chained.frozen().some().map(|some| some.unwrap()).collect::<Vec<_>>();
                let numbers: Vec<u32> = left.iter().flat_map(|(numbers, _)| numbers).copied().collect();
                let rows: Vec<&RecordBatch> = left.iter().map(|(_, rows)| rows).collect();
                assert_eq!(numbers.len(), chained.len() as usize);
                assert!(numbers.iter().all(|&number| !chained.is_removed(number)));
                assert_eq!(concat_batches(&schema, rows).unwrap(), chained.rows(&numbers).unwrap());
            }
            assert!(were_long > 100, "{were_long}");
        }
    }
}
