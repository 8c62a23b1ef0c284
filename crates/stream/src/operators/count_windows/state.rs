//! The keys that a copy owns, in memory or on disk: their rows, results and snapshots. A copy looks up only the keys of
//! its input.
//!
//! A snapshot contains the changes since the last one, or everything if that is less. Until then it still contains
//! forgotten keys: a job that resumes forgets them again, unless they were restarted.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, StructArray, UInt32Array};
use arrow::compute::{filter_record_batch, is_not_null, take};
use bytes::Bytes;
use datafusion::error::Result;
use datafusion::logical_expr::EmitTo;
use tidemill_dataflow::TaskError;
use tidemill_dataflow::checkpoint::{DeferredPart, RestoredState, Snapshot, rows};

use super::{ANEW, CountAggregation, CountPane, KeyTtl, PANE, SEEN, UNTIL, numbers};
use crate::state::expiring_rows::ExpiringRows;
use crate::state::groups::{AggregateArguments, batch};
use crate::state::operator_memory::SpillArea;
use crate::state::row_lists::{FrozenLists, LONG, RowLists, renumbered};
use crate::state::snapshot_codec::{SavedBuckets, SnapshotTables, buckets_of, tables_of};
use crate::state::state_layout::{fired_of, shared};
use crate::time::window::{Micros, count_fields, micros};

/// Approximate size of rows that are merged at a time.
const PORTION_BYTES: usize = 16 << 20;
/// Below this number of rows, changes do not cause a full snapshot.
const SAVED_MIN: u32 = 1 << 12;
/// The only kind of table in saved parts and handovers.
const PANES: u8 = 0;

/// The state of a copy.
pub(super) struct CountState {
    shape: Arc<CountAggregation>,
    /// The stored rows, in each key's chain in the order of panes.
    kept: RowLists,
    /// Rows since the last snapshot; `None` if they are too many, and the next snapshot is full.
    news: Option<ExpiringRows>,
    /// The number of rows saved, or in `news`, since and including the last full snapshot.
    saved_rows: u32,
    /// Buckets for which something is saved.
    saved: SavedBuckets,
    /// The stream's time.
    now: Micros,
    /// Keys that expire by then were forgotten, except those of the `overdue` rows.
    looked: Micros,
    overdue: Vec<u32>,
    /// Whether the job makes snapshots.
    saves: bool,
    disk: SpillArea,
}

/// Rows to add to windows: their keys' numbers, and what is known of the keys, by these numbers.
struct CountedRows<'a> {
    all: &'a AggregateArguments,
    of_key: &'a [usize],
    /// When their keys expire after each row, if keys are forgotten.
    until: &'a [Micros],
    /// The number of rows of each key so far.
    seen: &'a mut [i64],
}

impl CountState {
    pub(super) fn new(shape: &Arc<CountAggregation>, saves: bool, disk: &SpillArea) -> Self {
        CountState {
            shape: Arc::clone(shape),
            kept: RowLists::new(&shape.kept_schema, &shape.of.key_schema, shape.before(), disk),
            news: Some(ExpiringRows::new(Arc::clone(&shape.kept_schema), disk)),
            saved_rows: 0,
            saved: SavedBuckets::default(),
            now: Micros::MIN,
            looked: Micros::MIN,
            overdue: Vec::new(),
            saves,
            disk: disk.clone(),
        }
    }

    /// Returns the saved tables, which are then to be [added](CountState::keep).
    ///
    /// # Errors
    /// If they cannot be read.
    pub(super) fn restore(&mut self, restored: &RestoredState) -> Result<Vec<Bytes>, TaskError> {
        self.now = fired_of(restored)?;
        self.saved.restore(restored);
        tables(restored.buckets.values().flatten())
    }

    /// Approximate bytes in memory.
    pub(super) fn bytes(&self) -> usize {
        let overdue = self.overdue.capacity() * size_of::<u32>();
        self.kept.bytes() + self.news.as_ref().map_or(0, ExpiringRows::bytes) + overdue
    }

    /// Moves to disk what can be there.
    pub(super) fn spill(&mut self) -> Result<(), TaskError> {
        self.kept.spill()?;
        self.news.as_mut().map_or(Ok(()), ExpiringRows::spill)
    }

    /// Adds rows with their keys, and emits the results of windows that they complete.
    pub(super) fn take(&mut self, rows: &RecordBatch, mut give: impl FnMut(RecordBatch)) -> Result<(), TaskError> {
        let shape = Arc::clone(&self.shape);
        let Some(ttl) = &shape.ttl else {
            let all = shape.of.arguments(rows)?;
            let of_key = shape.of.number(&all.keys, rows.num_rows())?;
            let newest = self.newest(&all.keys, &of_key)?;
            let mut seen = self.known(SEEN, &newest)?.into_iter().map(Option::unwrap_or_default).collect::<Vec<_>>();
            let rows = CountedRows { all: &all, of_key: &of_key, until: &[], seen: &mut seen };
            return self.take_some(rows, &mut give);
        };
        let times = |rows: &RecordBatch| micros(&ttl.time.evaluate(rows)?.into_array(rows.num_rows())?);
        let (mut rows, mut known) = (rows.clone(), times(rows)?);
        if known.null_count() > 0 {
            shape.untimed.add_untimed(known.null_count());
            rows = filter_record_batch(&rows, &is_not_null(&known)?)?;
            known = times(&rows)?;
        }
        let all = shape.of.arguments(&rows)?;
        let of_key = shape.of.number(&all.keys, rows.num_rows())?;
        let (rounds, until) = self.rounds(&all.keys, &of_key, known.values(), ttl)?;
        for (anew, round) in rounds.into_iter().enumerate().filter(|(_, round)| !round.is_empty()) {
            let of_key: Vec<usize> = round.iter().map(|&row| of_key[row as usize]).collect();
            let until: Vec<Micros> = round.iter().map(|&row| until[row as usize]).collect();
            let all = all.take(&UInt32Array::from(round))?;
            let newest = self.newest(&all.keys, &of_key)?;
            let mut seen = vec![0; newest.len()];
            if anew > 0 {
                self.forget(newest.into_iter().flatten().collect());
            } else {
                let known = self.known(SEEN, &newest)?.into_iter().map(Option::unwrap_or_default);
                seen = known.collect();
            }
            let rows = CountedRows { all: &all, of_key: &of_key, until: &until, seen: &mut seen };
            self.take_some(rows, &mut give)?;
        }
        Ok(())
    }

    /// Divides rows into rounds, given their keys, the keys' numbers and the rows' times: first the rows that continue
    /// their keys, then those of keys that they restart, and so on. Also returns when the key expires after each row.
    fn rounds(
        &self,
        keys: &[ArrayRef],
        of_key: &[usize],
        times: &[Micros],
        ttl: &KeyTtl,
    ) -> Result<(Vec<Vec<u32>>, Vec<Micros>)> {
        let mut until = self.known(UNTIL, &self.newest(keys, of_key)?)?;
        let (mut round, over) = (vec![0; until.len()], self.over(ttl));
        let (mut rounds, mut untils) = (vec![Vec::new()], Vec::new());
        for (row, (&key, &time)) in (0..).zip(of_key.iter().zip(times)) {
            if until[key].is_some_and(|until| time >= until || until <= over) {
                round[key] += 1;
                until[key] = None;
            }
            let now = until[key].unwrap_or(Micros::MIN).max(time.saturating_add(ttl.ttl));
            until[key] = Some(now);
            rounds.resize(rounds.len().max(round[key] + 1), Vec::new());
            rounds[round[key]].push(row);
            untils.push(now);
        }
        Ok((rounds, untils))
    }

    /// Keys that expire by this time are forgotten: a row that is not late is not earlier, so it restarts its key.
    fn over(&self, ttl: &KeyTtl) -> Micros {
        self.now.saturating_sub(ttl.behind)
    }

    /// Forgets keys as time passes.
    pub(super) fn pass(&mut self, now: Micros) -> Result<(), TaskError> {
        self.now = self.now.max(now);
        let shape = Arc::clone(&self.shape);
        let Some(over) = shape.ttl.as_ref().map(|ttl| self.over(ttl)).filter(|over| *over > self.looked) else {
            return Ok(());
        };
        let rows = self.kept.over(self.looked.saturating_add(1), over.saturating_add(1));
        self.looked = over;
        let rows: Vec<u32> = std::mem::take(&mut self.overdue).into_iter().chain(rows).collect();
        for some in rows.chunks(self.portion()) {
            let left: Vec<u32> = some.iter().copied().filter(|&row| !self.kept.is_removed(row)).collect();
            let mut newest = self.kept.newest_of(&left)?;
            newest.sort_unstable();
            newest.dedup();
            let until = self.kept.gather(UNTIL, &newest)?;
            let gone = newest.into_iter().zip(numbers(&until)).filter(|(_, until)| **until <= over);
            self.forget(gone.map(|(newest, _)| newest).collect());
        }
        if self.kept.is_wasteful() { self.clear() } else { Ok(()) }
    }

    /// Forgets keys, given by their newest rows.
    fn forget(&mut self, newest: Vec<u32>) {
        let chains = self.kept.chains(&newest);
        self.kept.remove(&chains, |_| true);
    }

    /// Adds rows whose keys continue from what is stored.
    fn take_some(&mut self, rows: CountedRows<'_>, give: &mut impl FnMut(RecordBatch)) -> Result<(), TaskError> {
        let shape = Arc::clone(&self.shape);
        let CountedRows { all, of_key, until, seen } = rows;
        let (mut panes, mut of, mut complete) = (Vec::<CountPane>::new(), Vec::new(), Vec::new());
        // By key: the pane of its last row.
        let mut last: Vec<Option<usize>> = vec![None; seen.len()];
        for (row, &key) in (0..).zip(of_key) {
            let (number, had) = (seen[key] / shape.pane, seen[key] + 1);
            let at = match last[key] {
                Some(at) if panes[at].number == number => at,
                _ => {
                    panes.push(CountPane { key, number, seen: had, until: Micros::MAX, anew: had == 1, row });
                    panes.len() - 1
                }
            };
            (seen[key], last[key], panes[at].seen) = (had, Some(at), had);
            panes[at].until = until.get(row as usize).copied().unwrap_or(Micros::MAX);
            of.push(at);
            let windows = shape.complete(had);
            if windows > shape.complete(had - 1) {
                complete.push((key, windows - 1));
            }
        }
        let mut states = Vec::new();
        for mut function in shape.of.updated(all, &of, panes.len())? {
            states.extend(function.state(EmitTo::All)?);
        }
        let first = self.kept.count();
        let panes = shape.kept(&panes, &all.keys, states)?;
        self.note(&panes)?;
        let mut long = self.add(panes)?;
        // Each window by the newest row of its key.
        let newest = |key: usize| first + last[key].expect("a key that has come") as u32;
        let complete: Vec<(u32, i64)> = complete.into_iter().map(|(key, window)| (newest(key), window)).collect();
        for some in complete.chunks(self.portion()) {
            give(self.results(some)?);
        }
        if shape.size == shape.slide {
            // Only the last pane of these keys is still needed.
            long.extend(complete.iter().map(|(newest, _)| newest));
        }
        self.put_together(long)
    }

    /// Stores panes. Returns the newest rows of the chains that have become long.
    fn add(&mut self, panes: RecordBatch) -> Result<Vec<u32>, TaskError> {
        if self.shape.ttl.is_none() {
            return self.kept.add(panes, Vec::new());
        }
        let until = numbers(panes.column(UNTIL)).to_vec();
        let overdue = (self.kept.count()..).zip(&until).filter(|(_, until)| **until <= self.looked);
        self.overdue.extend(overdue.map(|(number, _)| number));
        self.kept.add(panes, until)
    }

    /// The newest stored row of each key, by number, if any. `of_key` is the key number of each row.
    fn newest(&self, keys: &[ArrayRef], of_key: &[usize]) -> Result<Vec<Option<u32>>> {
        let count = of_key.iter().max().map_or(0, |last| last + 1);
        // For a number without a row, this yields that of an arbitrary row, which is filtered out below.
        let mut rows: Vec<u32> = vec![0; count];
        (0..).zip(of_key).for_each(|(row, &key)| rows[key] = row);
        let mut has_rows = vec![false; count];
        of_key.iter().for_each(|&key| has_rows[key] = true);
        let rows = UInt32Array::from(rows);
        let keys = keys.iter().map(|key| take(key, &rows, None)).collect::<std::result::Result<Vec<_>, _>>()?;
        let newest = self.kept.newest(&keys, count)?.into_iter().zip(has_rows);
        Ok(newest.map(|(newest, has_rows)| newest.filter(|_| has_rows)).collect())
    }

    /// The value of a column in the newest row of each key.
    fn known(&self, column: usize, newest: &[Option<u32>]) -> Result<Vec<Option<i64>>> {
        let known = self.kept.gather(column, &newest.iter().flatten().copied().collect::<Vec<_>>())?;
        let mut known = numbers(&known).iter();
        Ok(newest.iter().map(|newest| newest.map(|_| *known.next().expect("one for each that is kept"))).collect())
    }

    /// Adds panes to the next snapshot.
    fn note(&mut self, panes: &RecordBatch) -> Result<(), TaskError> {
        let Some(news) = self.news.as_mut().filter(|_| self.saves) else { return Ok(()) };
        news.add(panes.clone(), Vec::new())?;
        self.saved_rows = self.saved_rows.saturating_add(panes.num_rows() as u32);
        if self.saved_rows > self.kept.len().saturating_mul(2).saturating_add(SAVED_MIN) {
            self.news = None;
        }
        Ok(())
    }

    /// The number of keys that are processed together.
    fn portion(&self) -> usize {
        let rows = self.disk.run_bytes().min(PORTION_BYTES) / self.kept.row_bytes().max(1);
        // A chain is not much longer than twice the number of panes of a window.
        let panes = usize::try_from(self.shape.size / self.shape.pane).unwrap_or(usize::MAX);
        (rows / panes.saturating_mul(2).saturating_add(LONG as usize)).max(1)
    }

    /// The results of windows, each given by the newest row of its key and by its number.
    fn results(&self, windows: &[(u32, i64)]) -> Result<RecordBatch> {
        let shape = &self.shape;
        let mut newest: Vec<u32> = windows.iter().map(|(newest, _)| *newest).collect();
        newest.sort_unstable();
        newest.dedup();
        let chains = self.kept.chains(&newest);
        let panes = self.kept.gather(PANE, &chains.numbers)?;
        let panes = numbers(&panes);
        let (mut rows, mut of, mut firsts) = (Vec::new(), Vec::new(), Vec::new());
        for (at, (newest_row, window)) in windows.iter().enumerate() {
            let chain = newest.partition_point(|row| row < newest_row);
            let start = chains.of.partition_point(|&of| of < chain);
            let chain = &panes[start..chains.of.partition_point(|&of| of <= chain)];
            let first = window * shape.slide / shape.pane;
            let behind = first + shape.size / shape.pane;
            let place = |pane: i64| start + chain.partition_point(|&other| other < pane);
            let found = &chains.numbers[place(first)..place(behind)];
            firsts.push(found[0]);
            rows.extend_from_slice(found);
            of.resize(rows.len(), at);
        }
        let states = shape.before() + shape.of.keys.len()..shape.kept_schema.fields().len();
        let states = states.map(|column| self.kept.gather(column, &rows)).collect::<Result<Vec<_>>>()?;
        let keys = shape.keys().into_iter().map(|key| self.kept.gather(key, &firsts));
        let mut columns = keys.collect::<Result<Vec<_>>>()?;
        let starts = windows.iter().map(|(_, window)| window * shape.slide);
        let ends = starts.clone().map(|start| start + shape.size);
        let bounds: Vec<ArrayRef> =
            vec![Arc::new(Int64Array::from_iter_values(starts)), Arc::new(Int64Array::from_iter_values(ends))];
        columns.insert(shape.window_at, Arc::new(StructArray::new(count_fields(), bounds, None)));
        for mut function in shape.of.merged(&states, &of, windows.len())? {
            columns.push(function.evaluate(EmitTo::All)?);
        }
        batch(&shape.output, columns, windows.len())
    }

    /// Merges the rows of each pane of some keys, given by their newest rows, and removes panes that are no longer
    /// needed.
    fn put_together(&mut self, mut newest: Vec<u32>) -> Result<(), TaskError> {
        newest.sort_unstable();
        newest.dedup();
        for some in newest.chunks(self.portion()) {
            self.put_some_together(some)?;
        }
        if self.kept.is_wasteful() { self.clear() } else { Ok(()) }
    }

    /// Compacts the store after rows were removed.
    fn clear(&mut self) -> Result<(), TaskError> {
        let stayed = self.kept.clear()?;
        self.overdue.retain(|number| stayed.binary_search(number).is_ok());
        self.overdue.iter_mut().for_each(|number| *number = renumbered(&stayed, *number));
        Ok(())
    }

    fn put_some_together(&mut self, newest: &[u32]) -> Result<(), TaskError> {
        let shape = Arc::clone(&self.shape);
        let chains = self.kept.chains(newest);
        let column = |column: usize| self.kept.gather(column, &chains.numbers);
        let (seen, panes) = (column(SEEN)?, column(PANE)?);
        let (seen, panes) = (numbers(&seen), numbers(&panes));
        let until = shape.ttl.as_ref().map(|_| column(UNTIL)).transpose()?;
        let (mut goes, mut lefts) = (Vec::new(), Vec::new());
        let (mut made, mut rows, mut of) = (Vec::<CountPane>::new(), Vec::new(), Vec::new());
        let mut next = 0;
        for (key, chain) in chains.of.chunk_by(|a, b| a == b).enumerate() {
            let places = next..next + chain.len();
            let last = places.end - 1;
            next = places.end;
            // Merged rows are appended, after the remaining ones. So all rows move from the first pane on that has
            // several.
            let from = (places.start..last).find(|&at| panes[at] == panes[at + 1]).unwrap_or(places.end);
            let mut left = 0;
            for at in places {
                let number = panes[at];
                let over = number < panes[last] && shape.over(number, seen[last]);
                goes.push(over || at >= from);
                if over {
                    continue;
                }
                if at < from {
                    left += 1;
                    continue;
                }
                if made.last().is_none_or(|pane| (pane.key, pane.number) != (key, number)) {
                    let row = rows.len() as u32;
                    // Merged rows contain all that is stored of the key, whether or not it was restarted.
                    made.push(CountPane { key, number, seen: 0, until: Micros::MAX, anew: false, row });
                    left += 1;
                }
                let pane = made.last_mut().expect("just made");
                pane.seen = seen[at];
                pane.until = until.as_ref().map_or(Micros::MAX, |until| numbers(until)[at]);
                rows.push(chains.numbers[at]);
                of.push(made.len() - 1);
            }
            lefts.push(left);
        }
        let mut together = None;
        if !made.is_empty() {
            let parts = self.kept.rows(&rows)?;
            let (keys, states) = parts.columns()[shape.before()..].split_at(shape.of.keys.len());
            let mut columns = Vec::new();
            for mut function in shape.of.merged(states, &of, made.len())? {
                columns.extend(function.state(EmitTo::All)?);
            }
            together = Some(shape.kept(&made, keys, columns)?);
        }
        self.kept.remove(&chains, |row| goes[row]);
        newest.iter().zip(lefts).for_each(|(&newest, left)| self.kept.is_short(newest, left));
        // Even if these chains are long, they cannot be shortened further.
        together.map_or(Ok(()), |panes| self.add(panes).map(|_| ()))
    }

    /// Adds state that was saved, or that another copy has handed over.
    pub(super) fn keep(&mut self, panes: RecordBatch) -> Result<(), TaskError> {
        if panes.num_rows() == 0 {
            return Ok(());
        }
        let long = self.add(panes.clone())?;
        if self.shape.ttl.is_some() {
            self.begin_anew(&panes)?;
        }
        self.put_together(long)
    }

    /// Removes the rows before a restart, for keys restarted in the given rows.
    fn begin_anew(&mut self, panes: &RecordBatch) -> Result<(), TaskError> {
        let anew = panes.column(ANEW).as_boolean();
        if !anew.has_true() {
            return Ok(());
        }
        let some = filter_record_batch(panes, anew)?;
        let keys = &some.columns()[self.shape.before()..][..self.shape.of.keys.len()];
        let mut newest: Vec<u32> = self.kept.newest(keys, some.num_rows())?.into_iter().flatten().collect();
        newest.sort_unstable();
        newest.dedup();
        let chains = self.kept.chains(&newest);
        let anew = self.kept.gather(ANEW, &chains.numbers)?;
        let anew = anew.as_boolean();
        let mut goes = vec![false; chains.numbers.len()];
        let mut end = goes.len();
        for chain in chains.of.chunk_by(|a, b| a == b).rev() {
            let places = end - chain.len()..end;
            end = places.start;
            let first = places.clone().rev().find(|&at| anew.value(at)).unwrap_or(places.start);
            goes[places.start..first].fill(true);
        }
        self.kept.remove(&chains, |row| goes[row]);
        Ok(())
    }

    /// The current state was restored from this many rows.
    pub(super) fn restored(&mut self, rows: usize) {
        self.saved_rows = u32::try_from(rows).unwrap_or(u32::MAX);
    }

    /// Hands over these buckets to another copy.
    pub(super) fn release(&mut self, lost: &[u32]) -> Result<Vec<(u32, Bytes)>, TaskError> {
        self.saved.forget(lost);
        let (frozen, keys) = (self.kept.frozen(), self.shape.keys());
        let mut tables = SnapshotTables::new(&self.disk);
        for some in frozen.some() {
            let (numbers, panes) = some?;
            let stays = tables.add_some(PANES, &panes, &buckets_of(&panes, &keys)?, lost)?;
            let gone = numbers.into_iter().zip(stays).filter(|(_, stays)| !stays);
            gone.for_each(|(number, _)| self.kept.remove_row(number));
        }
        self.clear()?;
        tables.finish()
    }

    /// Adds a part that another copy has handed over; returns its number of rows.
    pub(super) fn acquire(&mut self, part: &Bytes) -> Result<usize, TaskError> {
        let mut count = 0;
        for table in tables([part])? {
            let panes = rows::decode(&self.shape.kept_schema, &table)?;
            count += panes.num_rows();
            self.keep(panes)?;
        }
        Ok(count)
    }

    /// Makes a snapshot.
    pub(super) fn snapshot(&mut self, whole: bool) -> Snapshot {
        let mut snapshot = shared(self.now);
        let news = self.news.replace(ExpiringRows::new(Arc::clone(&self.shape.kept_schema), &self.disk));
        let whole = whole || news.is_none();
        let frozen = match news {
            Some(news) if !whole => FrozenLists::of(&news, &self.disk),
            _ => {
                self.saved_rows = self.kept.len();
                self.kept.frozen()
            }
        };
        if !whole && frozen.is_empty() {
            return snapshot;
        }
        let (keys, saved, disk) = (self.shape.keys(), self.saved.clone(), self.disk.clone());
        snapshot.later = Some(DeferredPart(Box::new(move || {
            let mut tables = SnapshotTables::new(&disk);
            for some in frozen.some() {
                let (_, panes) = some?;
                tables.add(PANES, &panes, &buckets_of(&panes, &keys)?)?;
            }
            tables.parts(whole, &saved)
        })));
        snapshot
    }

    /// The number of rows that were not removed.
    #[cfg(test)]
    pub(super) fn left(&self) -> u32 {
        self.kept.len()
    }

    /// The numbers of rows since the last snapshot, and of all stored rows.
    #[cfg(test)]
    pub(super) fn rows(&self) -> (u32, u32) {
        (self.news.as_ref().map_or(0, ExpiringRows::count), self.kept.count())
    }
}

/// The tables of parts.
fn tables<'a>(parts: impl IntoIterator<Item = &'a Bytes>) -> Result<Vec<Bytes>, TaskError> {
    let mut tables = Vec::new();
    for part in parts {
        tables.extend(tables_of(part)?.into_iter().map(|(_, table)| table));
    }
    Ok(tables)
}
