//! The keys that a copy owns, in memory or on disk: what comes, what it gives, what is saved. A copy looks at the keys of what comes, and at
//! no others.
//!
//! A snapshot has what came since the last one. When that would be more than all there is, all is saved anew.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StructArray, UInt32Array};
use arrow::compute::take;
use bytes::Bytes;
use datafusion::error::Result;
use datafusion::logical_expr::EmitTo;
use tidemill_dataflow::TaskError;
use tidemill_dataflow::checkpoint::{Later, Restored, Snapshot, rows};

use super::{BEFORE, CountAggregation, PANE, Pane, SEEN, numbers};
use crate::stream::chained::{Chained, Frozen, LONG};
use crate::stream::groups::batch;
use crate::stream::held::Disk;
use crate::stream::kept::{Kept, Saved, Tables, buckets_of, tables_of};
use crate::stream::saved::shared;
use crate::stream::window::{Micros, count_fields};

/// Rows that are put together at a time take so much.
const PORTION_BYTES: usize = 16 << 20;
/// Fewer rows are no reason to save all anew.
const SAVED_MIN: u32 = 1 << 12;
/// Of what is saved or handed over: the only kind of tables.
const PANES: u8 = 0;

/// See the module.
pub(super) struct CountState {
    shape: Arc<CountAggregation>,
    /// What is known of panes: of each key in their order.
    kept: Chained,
    /// What has come since the last snapshot; `None`: too much, all is to be saved.
    news: Option<Kept>,
    /// Rows that have been saved, or are in `news`, since all was saved; and those of that.
    saved_rows: u32,
    /// Buckets of which something is saved.
    saved: Saved,
    /// Whether there are snapshots.
    saves: bool,
    disk: Disk,
}

impl CountState {
    pub(super) fn new(shape: &Arc<CountAggregation>, saves: bool, disk: &Disk) -> Self {
        CountState {
            shape: Arc::clone(shape),
            kept: Chained::new(&shape.kept_schema, &shape.of.key_schema, BEFORE, disk),
            news: Some(Kept::new(Arc::clone(&shape.kept_schema), disk)),
            saved_rows: 0,
            saved: Saved::default(),
            saves,
            disk: disk.clone(),
        }
    }

    /// What was saved, in tables that are to be [kept](CountState::keep).
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) fn restore(&mut self, restored: &Restored) -> Result<Vec<Bytes>, TaskError> {
        self.saved.restore(restored);
        tables(restored.buckets.values().flatten())
    }

    /// Bytes in memory, about.
    pub(super) fn bytes(&self) -> usize {
        self.kept.bytes() + self.news.as_ref().map_or(0, Kept::bytes)
    }

    /// Puts on disk what can lie there.
    pub(super) fn spill(&mut self) -> Result<(), TaskError> {
        self.kept.spill()?;
        self.news.as_mut().map_or(Ok(()), Kept::spill)
    }

    /// Takes rows that came with their keys, and gives the results of windows that are complete by them.
    pub(super) fn take(&mut self, rows: &RecordBatch, mut give: impl FnMut(RecordBatch)) -> Result<(), TaskError> {
        let shape = Arc::clone(&self.shape);
        let all = shape.of.arguments(rows)?;
        let of_key = shape.of.number(&all.keys, rows.num_rows())?;
        let mut seen = self.seen(&all.keys, &of_key)?;
        let (mut panes, mut of, mut complete) = (Vec::<Pane>::new(), Vec::new(), Vec::new());
        // Of each key the pane that its last row is in.
        let mut last: Vec<Option<usize>> = vec![None; seen.len()];
        for (row, &key) in (0..).zip(&of_key) {
            let (number, had) = (seen[key] / shape.pane, seen[key] + 1);
            let at = match last[key] {
                Some(at) if panes[at].number == number => at,
                _ => {
                    panes.push(Pane { key, number, seen: had, row });
                    panes.len() - 1
                }
            };
            (seen[key], last[key], panes[at].seen) = (had, Some(at), had);
            of.push(at);
            let windows = shape.complete(had);
            if windows > shape.complete(had - 1) {
                complete.push((key, windows - 1));
            }
        }
        let mut states = Vec::new();
        for mut function in shape.of.updated(&all, &of, panes.len())? {
            states.extend(function.state(EmitTo::All)?);
        }
        let first = self.kept.count();
        let panes = shape.kept(&panes, &all.keys, states)?;
        self.note(&panes)?;
        let mut long = self.kept.add(panes, Vec::new())?;
        // Each by the newest row of its key.
        let newest = |key: usize| first + last[key].expect("a key that has come") as u32;
        let complete: Vec<(u32, i64)> = complete.into_iter().map(|(key, window)| (newest(key), window)).collect();
        for some in complete.chunks(self.portion()) {
            give(self.results(some)?);
        }
        if shape.size == shape.slide {
            // Nothing but the last pane of these is of use any more.
            long.extend(complete.iter().map(|(newest, _)| newest));
        }
        self.put_together(long)
    }

    /// How many rows each key has had, by its number: `of_key` has those of rows.
    fn seen(&self, keys: &[ArrayRef], of_key: &[usize]) -> Result<Vec<i64>> {
        let count = of_key.iter().max().map_or(0, |last| last + 1);
        let mut rows: Vec<u32> = vec![0; count];
        (0..).zip(of_key).for_each(|(row, &key)| rows[key] = row);
        let rows = UInt32Array::from(rows);
        let keys = keys.iter().map(|key| take(key, &rows, None)).collect::<std::result::Result<Vec<_>, _>>()?;
        let newest = self.kept.newest(&keys, count)?;
        let known = self.kept.gather(SEEN, &newest.iter().flatten().copied().collect::<Vec<_>>())?;
        let mut known = numbers(&known).iter();
        let seen = newest.iter().map(|newest| newest.map_or(0, |_| *known.next().expect("one for each that is kept")));
        Ok(seen.collect())
    }

    /// These are to be in the next snapshot.
    fn note(&mut self, panes: &RecordBatch) -> Result<(), TaskError> {
        let Some(news) = self.news.as_mut().filter(|_| self.saves) else { return Ok(()) };
        news.add(panes.clone(), Vec::new())?;
        self.saved_rows = self.saved_rows.saturating_add(panes.num_rows() as u32);
        if self.saved_rows > self.kept.len().saturating_mul(2).saturating_add(SAVED_MIN) {
            self.news = None;
        }
        Ok(())
    }

    /// How many keys are looked at together.
    fn portion(&self) -> usize {
        let rows = self.disk.run_bytes().min(PORTION_BYTES) / self.kept.row_bytes().max(1);
        // A chain is not much longer than twice what a window has of panes.
        let panes = usize::try_from(self.shape.size / self.shape.pane).unwrap_or(usize::MAX);
        (rows / panes.saturating_mul(2).saturating_add(LONG as usize)).max(1)
    }

    /// The results of windows, each given by the newest row of its key and its number.
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
        let states = BEFORE + shape.of.keys.len()..shape.kept_schema.fields().len();
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

    /// Makes one row of each pane of some keys, given by their newest rows, and none of panes that are over.
    fn put_together(&mut self, mut newest: Vec<u32>) -> Result<(), TaskError> {
        newest.sort_unstable();
        newest.dedup();
        for some in newest.chunks(self.portion()) {
            self.put_some_together(some)?;
        }
        if self.kept.is_wasteful() {
            self.kept.clear()?;
        }
        Ok(())
    }

    fn put_some_together(&mut self, newest: &[u32]) -> Result<(), TaskError> {
        let shape = Arc::clone(&self.shape);
        let chains = self.kept.chains(newest);
        let [seen, panes] = [SEEN, PANE].map(|column| self.kept.gather(column, &chains.numbers));
        let (seen, panes) = (seen?, panes?);
        let (seen, panes) = (numbers(&seen), numbers(&panes));
        let (mut goes, mut lefts) = (Vec::new(), Vec::new());
        let (mut made, mut rows, mut of) = (Vec::<Pane>::new(), Vec::new(), Vec::new());
        let mut next = 0;
        for (key, chain) in chains.of.chunk_by(|a, b| a == b).enumerate() {
            let places = next..next + chain.len();
            let last = places.end - 1;
            next = places.end;
            // What is put together comes behind what stays: so all does from the first pane on that has several rows.
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
                    made.push(Pane { key, number, seen: 0, row: rows.len() as u32 });
                    left += 1;
                }
                made.last_mut().expect("just made").seen = seen[at];
                rows.push(chains.numbers[at]);
                of.push(made.len() - 1);
            }
            lefts.push(left);
        }
        let mut together = None;
        if !made.is_empty() {
            let parts = self.kept.rows(&rows)?;
            let (keys, states) = parts.columns()[BEFORE..].split_at(shape.of.keys.len());
            let mut columns = Vec::new();
            for mut function in shape.of.merged(states, &of, made.len())? {
                columns.extend(function.state(EmitTo::All)?);
            }
            together = Some(shape.kept(&made, keys, columns)?);
        }
        self.kept.remove(&chains, |row| goes[row]);
        newest.iter().zip(lefts).for_each(|(&newest, left)| self.kept.is_short(newest, left));
        // Long or not, they are as short as they can be.
        together.map_or(Ok(()), |panes| self.kept.add(panes, Vec::new()).map(|_| ()))
    }

    /// Keeps what was saved, or another copy has let go of.
    pub(super) fn keep(&mut self, panes: RecordBatch) -> Result<(), TaskError> {
        if panes.num_rows() == 0 {
            return Ok(());
        }
        let long = self.kept.add(panes, Vec::new())?;
        self.put_together(long)
    }

    /// What is kept now has been restored, as so many rows.
    pub(super) fn restored(&mut self, rows: usize) {
        self.saved_rows = u32::try_from(rows).unwrap_or(u32::MAX);
    }

    /// Lets go of what is in these buckets, for another copy.
    pub(super) fn release(&mut self, lost: &[u32]) -> Result<Vec<(u32, Bytes)>, TaskError> {
        self.saved.forget(lost);
        let (frozen, keys) = (self.kept.frozen(), self.shape.keys());
        let mut tables = Tables::new(&self.disk);
        for some in frozen.some() {
            let (numbers, panes) = some?;
            let stays = tables.add_some(PANES, &panes, &buckets_of(&panes, &keys)?, lost)?;
            let gone = numbers.into_iter().zip(stays).filter(|(_, stays)| !stays);
            gone.for_each(|(number, _)| self.kept.remove_row(number));
        }
        self.kept.clear()?;
        tables.finish()
    }

    /// Takes what another copy has let go of; returns how many rows that is.
    pub(super) fn acquire(&mut self, part: &Bytes) -> Result<usize, TaskError> {
        let mut count = 0;
        for table in tables([part])? {
            let panes = rows::decode(&self.shape.kept_schema, &table)?;
            count += panes.num_rows();
            self.keep(panes)?;
        }
        Ok(count)
    }

    /// What goes into a snapshot.
    pub(super) fn snapshot(&mut self, whole: bool) -> Snapshot {
        let mut snapshot = shared(Micros::MIN);
        let news = self.news.replace(Kept::new(Arc::clone(&self.shape.kept_schema), &self.disk));
        let whole = whole || news.is_none();
        let frozen = match news {
            Some(news) if !whole => Frozen::of(&news, &self.disk),
            _ => {
                self.saved_rows = self.kept.len();
                self.kept.frozen()
            }
        };
        if !whole && frozen.is_empty() {
            return snapshot;
        }
        let (keys, saved, disk) = (self.shape.keys(), self.saved.clone(), self.disk.clone());
        snapshot.later = Some(Later(Box::new(move || {
            let mut tables = Tables::new(&disk);
            for some in frozen.some() {
                let (_, panes) = some?;
                tables.add(PANES, &panes, &buckets_of(&panes, &keys)?)?;
            }
            tables.parts(whole, &saved)
        })));
        snapshot
    }

    /// How many rows there are of what has come since the last snapshot, and of all that is kept.
    #[cfg(test)]
    pub(super) fn rows(&self) -> (u32, u32) {
        (self.news.as_ref().map_or(0, Kept::count), self.kept.count())
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
