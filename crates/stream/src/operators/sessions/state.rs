//! The sessions of the keys that a copy owns: new rows, due results, and snapshots. It has no clock and sends nothing.
//!
//! New rows are stored next to earlier ones of their key, in memory or on disk, and merged when a result is due: a copy
//! looks up only the keys of new rows and of sessions that end. A row is scheduled for when its session may end or be
//! forgotten. If the session grows meanwhile, it has another row, which is scheduled later.
//!
//! A snapshot contains what came since the last one, which is merged with earlier snapshots when a job resumes. For
//! buckets with sessions that were emitted or forgotten, it contains everything that is left, so that nothing is
//! emitted again, not even as part of a session that begins where another ended. Early results are saved only
//! incidentally, so they may be repeated.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, Int8Array, Int64Array, RecordBatch, UInt32Array};
use arrow::compute::{filter_record_batch, take};
use arrow::datatypes::{Int8Type, TimestampMicrosecondType};
use bytes::Bytes;
use datafusion::error::Result;
use tidemill_dataflow::TaskError;
use tidemill_dataflow::checkpoint::{DeferredPart, RestoredState, Snapshot, rows};

use super::{
    BEFORE, EARLY, FINAL, FIRST, LAST, NOTHING, SessionAggregation, SessionAssignment, TOLD, UNTOLD, times, told_of,
};
use crate::state::expiring_rows::ExpiringRows;
use crate::state::groups::batch;
use crate::state::operator_memory::SpillArea;
use crate::state::row_lists::{FrozenLists, KeyLists, RowLists, renumbered};
use crate::state::snapshot_codec::{SavedBuckets, SnapshotTables, buckets_of_key, table_of, tables_of};
use crate::state::state_layout::{fired_of, shared, time_of};
use crate::time::window::Micros;

/// Rows since the last snapshot are merged when there are twice as many as after the last merge, plus this number.
const NEWS_MIN: u32 = 1 << 13;
/// Sessions that are processed together: at most this number, and at most as many as have this size in bytes.
const PORTION: usize = 1 << 13;
const PORTION_BYTES: usize = 4 << 20;
/// The kinds of saved or handed-over parts: sessions, and the time that their owner had reached.
const SESSIONS: u8 = 0;
const FIRED: u8 = 1;

/// The sessions of a copy.
pub(super) struct SessionState {
    pub(super) shape: Arc<SessionAggregation>,
    /// Sessions and parts of sessions.
    kept: RowLists,
    /// Sessions that end by then have ended.
    pub(super) fired: Micros,
    /// Rows scheduled by then have been checked, except the `overdue` ones.
    looked: Micros,
    overdue: Vec<u32>,
    /// Rows that are yet to be checked: for the end of their sessions (if `ends`), or else for early results.
    waiting: VecDeque<u32>,
    ends: bool,
    /// Rows with smaller numbers have been in an early result at least.
    told: u32,
    /// Rows since the last snapshot, and their number after the last merge.
    news: ExpiringRows,
    news_rows: u32,
    /// Buckets in which sessions were emitted or forgotten since then.
    changed: BTreeSet<u32>,
    /// Buckets for which something is saved.
    saved: SavedBuckets,
    /// Whether the job makes snapshots.
    saves: bool,
    disk: SpillArea,
}

/// The stored rows of some keys, and the session of each.
struct KeySessions {
    chains: KeyLists,
    of: SessionAssignment,
    told: Vec<i8>,
}

impl SessionState {
    pub(super) fn new(shape: &Arc<SessionAggregation>, saves: bool, disk: &SpillArea) -> Self {
        SessionState {
            shape: Arc::clone(shape),
            kept: RowLists::new(&shape.kept_schema, &shape.of.key_schema, BEFORE, disk),
            fired: Micros::MIN,
            looked: Micros::MIN,
            overdue: Vec::new(),
            waiting: VecDeque::new(),
            ends: true,
            told: 0,
            news: ExpiringRows::new(Arc::clone(&shape.kept_schema), disk),
            news_rows: 0,
            changed: BTreeSet::new(),
            saved: SavedBuckets::default(),
            saves,
            disk: disk.clone(),
        }
    }

    /// Returns the saved tables, which are then to be [added](SessionState::keep).
    ///
    /// # Errors
    /// If they cannot be read.
    pub(super) fn restore(&mut self, restored: &RestoredState) -> Result<Vec<Bytes>, TaskError> {
        self.fired = fired_of(restored)?;
        self.saved.restore(restored);
        let mut tables = Vec::new();
        for part in restored.buckets.values().flatten() {
            tables.extend(tables_of(part)?.into_iter().map(|(_, table)| table));
        }
        Ok(tables)
    }

    /// Approximate bytes in memory.
    pub(super) fn bytes(&self) -> usize {
        let numbers = (self.overdue.capacity() + self.waiting.capacity()) * size_of::<u32>();
        self.kept.bytes() + self.news.bytes() + numbers
    }

    /// Moves to disk what can be there.
    pub(super) fn spill(&mut self) -> Result<(), TaskError> {
        self.kept.spill()?;
        self.news.spill()
    }

    /// Which of some rows, or parts of sessions, are late; `None`: none.
    pub(super) fn late(&self, keys: &[ArrayRef], firsts: &[Micros], lasts: &[Micros]) -> Result<Option<BooleanArray>> {
        let shape = &self.shape;
        let is_late = |last: Micros| shape.gone(last) <= self.fired;
        if !lasts.iter().any(|&last| is_late(last)) {
            return Ok(None);
        }
        // Look up the stored rows of keys that may have a late row.
        let of_key = shape.of.number(keys, lasts.len())?;
        let mut row_of = vec![None; of_key.iter().max().map_or(0, |last| last + 1)];
        for (row, &key) in of_key.iter().enumerate().filter(|(row, _)| is_late(lasts[*row])) {
            row_of[key] = Some(row as u32);
        }
        let (asked, rows): (Vec<usize>, Vec<u32>) =
            row_of.iter().enumerate().filter_map(|(key, row)| row.map(|row| (key, row))).unzip();
        let (newest, asked) = self.newest(keys, rows, asked)?;
        let chains = self.kept.chains(&newest);
        let known = chains.of.iter().map(|&chain| asked[chain]);
        let of_key: Vec<usize> = known.chain(of_key).collect();
        let times = |column: usize, more: &[Micros]| -> Result<Vec<Micros>> {
            let known = self.kept.gather(column, &chains.numbers)?;
            Ok([known.as_primitive::<TimestampMicrosecondType>().values(), more].concat())
        };
        let of = shape.assign(&of_key, &times(FIRST, firsts)?, &times(LAST, lasts)?);
        let late = of.sessions[chains.numbers.len()..].iter().map(|&session| Some(is_late(of.lasts[session])));
        let late: BooleanArray = late.collect();
        Ok((late.true_count() > 0).then_some(late))
    }

    /// The newest stored rows of the keys of some rows, and which of these each belongs to; omits keys without any.
    fn newest(&self, keys: &[ArrayRef], rows: Vec<u32>, of: Vec<usize>) -> Result<(Vec<u32>, Vec<usize>)> {
        let (count, rows) = (rows.len(), UInt32Array::from(rows));
        let keys = keys.iter().map(|key| take(key, &rows, None)).collect::<std::result::Result<Vec<_>, _>>()?;
        let found = self.kept.newest(&keys, count)?.into_iter().zip(of);
        Ok(found.filter_map(|(newest, of)| newest.map(|newest| (newest, of))).unzip())
    }

    /// The sessions of some rows' keys, with the numbers of these keys. `of_key` is the key number of each row.
    pub(super) fn sessions_of(&self, keys: &[ArrayRef], of_key: &[usize]) -> Result<(RecordBatch, Vec<usize>)> {
        let mut rows: Vec<Option<u32>> = vec![None; of_key.iter().max().map_or(0, |last| last + 1)];
        (0..).zip(of_key).for_each(|(row, &key)| rows[key] = Some(row));
        let each = (0..rows.len()).collect();
        let (newest, of) = self.newest(keys, rows.into_iter().flatten().collect(), each)?;
        let known = self.known(&newest)?;
        let (sessions, chains) = self.merged(&known, &vec![true; known.of.len()])?;
        Ok((sessions, chains.into_iter().map(|chain| of[chain]).collect()))
    }

    /// The stored rows of some keys, given by their newest rows.
    fn known(&self, newest: &[u32]) -> Result<KeySessions> {
        let chains = self.kept.chains(newest);
        let of_rows = |column: usize| self.kept.gather(column, &chains.numbers);
        let (firsts, lasts, tolds) = (of_rows(FIRST)?, of_rows(LAST)?, of_rows(TOLD)?);
        let times = |column: &ArrayRef| column.as_primitive::<TimestampMicrosecondType>().values().clone();
        let of = self.shape.assign(&chains.of, &times(&firsts), &times(&lasts));
        let mut told = vec![FINAL; of.len()];
        let tolds = tolds.as_primitive::<Int8Type>().values().iter();
        for ((&session, &number), &part) in of.sessions.iter().zip(&chains.numbers).zip(tolds) {
            told[session] = told[session].min(now_told(part, number, self.told));
        }
        Ok(KeySessions { chains, of, told })
    }

    /// Merges the sessions that are wanted, and returns the chain of each.
    fn merged(&self, known: &KeySessions, wanted: &[bool]) -> Result<(RecordBatch, Vec<usize>)> {
        let rows = known.of.sessions.iter().enumerate().filter(|(_, session)| wanted[**session]);
        let (numbers, chains): (Vec<u32>, Vec<usize>) =
            rows.map(|(row, _)| (known.chains.numbers[row], known.chains.of[row])).unzip();
        if numbers.is_empty() {
            return Ok((RecordBatch::new_empty(Arc::clone(&self.shape.kept_schema)), Vec::new()));
        }
        let parts = self.kept.rows(&numbers)?;
        let (sessions, of) = self.shape.joined(&as_told(&parts, &numbers, self.told)?, &chains)?;
        Ok((sessions, of.rows.iter().map(|&row| chains[row as usize]).collect()))
    }

    /// Adds sessions, or parts of sessions, that are not late: first and last times, keys and states.
    pub(super) fn take(&mut self, columns: Vec<ArrayRef>, count: usize) -> Result<(), TaskError> {
        if count == 0 {
            return Ok(());
        }
        let sessions = self.shape.kept(columns, vec![NOTHING; count], vec![0; count])?;
        self.take_parts(sessions)
    }

    /// The same, including what has been emitted of them.
    pub(super) fn take_parts(&mut self, sessions: RecordBatch) -> Result<(), TaskError> {
        self.note(sessions.clone())?;
        self.keep(sessions)
    }

    /// Stores sessions, or parts of sessions.
    pub(super) fn keep(&mut self, sessions: RecordBatch) -> Result<(), TaskError> {
        let long = self.add(sessions)?;
        for newest in long.chunks(self.portion()) {
            self.put_together(newest)?;
        }
        if self.kept.is_wasteful() { self.clear() } else { Ok(()) }
    }

    /// Stores rows. Returns the newest rows of the chains that have become long.
    fn add(&mut self, sessions: RecordBatch) -> Result<Vec<u32>, TaskError> {
        if sessions.num_rows() == 0 {
            return Ok(Vec::new());
        }
        let next = |(&last, &told): (&Micros, &i8)| match told {
            FINAL => self.shape.gone(last),
            _ => self.shape.end(last),
        };
        let until: Vec<Micros> = times(&sessions, LAST).iter().zip(told_of(&sessions)).map(next).collect();
        let overdue = (self.kept.count()..).zip(&until).filter(|(_, until)| **until <= self.looked);
        self.overdue.extend(overdue.map(|(number, _)| number));
        self.kept.add(sessions, until)
    }

    /// Merges the rows of each session of some keys, given by their newest rows.
    fn put_together(&mut self, newest: &[u32]) -> Result<(), TaskError> {
        let known = self.known(newest)?;
        let mut parts = vec![0; known.of.len()];
        known.of.sessions.iter().for_each(|&session| parts[session] += 1);
        let several: Vec<bool> = parts.into_iter().map(|parts| parts > 1).collect();
        let (sessions, _) = self.merged(&known, &several)?;
        let mut left = vec![0; newest.len()];
        known.of.rows.iter().for_each(|&row| left[known.chains.of[row as usize]] += 1);
        self.kept.remove(&known.chains, |row| several[known.of.sessions[row]]);
        newest.iter().zip(left).for_each(|(&newest, left)| self.kept.is_short(newest, left));
        // Even if these chains are long, they cannot be shortened further.
        self.add(sessions).map(|_| ())
    }

    /// Adds these rows to the next snapshot.
    fn note(&mut self, sessions: RecordBatch) -> Result<(), TaskError> {
        if !self.saves {
            return Ok(());
        }
        self.news.add(sessions, Vec::new())?;
        // Rows of one session come in many batches. If there are too many for memory, they are not merged.
        let bytes = self.news.bytes_anywhere();
        let in_memory = bytes == self.news.bytes() && bytes <= self.disk.run_bytes();
        if in_memory && self.news.count() > 2 * self.news_rows + NEWS_MIN {
            let merged = self.shape.merged(&self.news.since(0))?;
            self.news = ExpiringRows::new(Arc::clone(&self.shape.kept_schema), &self.disk);
            self.news_rows = merged.num_rows() as u32;
            self.news.add(merged, Vec::new())?;
        }
        Ok(())
    }

    /// The numbers of rows since the last snapshot, and of all stored rows.
    #[cfg(test)]
    pub(super) fn rows(&self) -> (u32, u32) {
        (self.news.count(), self.kept.count())
    }

    /// The number of sessions that are processed together.
    fn portion(&self) -> usize {
        (self.disk.run_bytes().min(PORTION_BYTES) / self.kept.row_bytes().max(1)).clamp(1, PORTION)
    }

    /// Compacts the store after rows were removed.
    fn clear(&mut self) -> Result<(), TaskError> {
        let stayed = self.kept.clear()?;
        self.told = renumbered(&stayed, self.told);
        self.overdue.retain(|number| stayed.binary_search(number).is_ok());
        self.overdue.iter_mut().for_each(|number| *number = renumbered(&stayed, *number));
        Ok(())
    }

    /// Time has passed: [`SessionState::go_on`] returns the results of sessions that have ended, if they have changed
    /// since they were last emitted.
    pub(super) fn fire(&mut self, time: Micros) {
        self.fired = self.fired.max(time);
        let over = self.kept.over(self.looked.saturating_add(1), self.fired.saturating_add(1));
        self.looked = self.fired;
        self.waiting = std::mem::take(&mut self.overdue).into_iter().chain(over).collect();
        self.ends = true;
    }

    /// [`SessionState::go_on`] returns early results of open sessions, if they have changed since they were last
    /// emitted.
    pub(super) fn so_far(&mut self) {
        self.waiting = (self.told..self.kept.count()).filter(|&number| !self.kept.is_removed(number)).collect();
        self.ends = false;
    }

    /// More results, until there are none.
    pub(super) fn go_on(&mut self) -> Result<Option<RecordBatch>, TaskError> {
        while !self.waiting.is_empty() {
            let some = self.waiting.drain(..self.waiting.len().min(self.portion()));
            let mut some: Vec<u32> = some.filter(|&number| !self.kept.is_removed(number)).collect();
            some.sort_unstable();
            let results = if self.ends { self.end(&some)? } else { self.early(&some)? };
            if results.is_some() {
                return Ok(results);
            }
        }
        if !self.ends {
            (self.told, self.ends) = (self.kept.count(), true);
        }
        if self.kept.is_wasteful() {
            self.clear()?;
        }
        Ok(None)
    }

    /// The results of ended sessions of some rows' keys. These sessions are then forgotten, or kept for their lateness.
    fn end(&mut self, numbers: &[u32]) -> Result<Option<RecordBatch>, TaskError> {
        let (shape, fired) = (Arc::clone(&self.shape), self.fired);
        let mut newest = self.kept.newest_of(numbers)?;
        newest.sort_unstable();
        newest.dedup();
        let known = self.known(&newest)?;
        let lasts = &known.of.lasts;
        let is_due = |(&last, &told): (&Micros, &i8)| told < FINAL && shape.end(last) <= fired;
        let due: Vec<bool> = lasts.iter().zip(&known.told).map(is_due).collect();
        let gone: Vec<bool> = lasts.iter().map(|&last| shape.gone(last) <= fired).collect();
        if self.saves {
            let rows = known.of.rows.iter().zip(due.iter().zip(&gone)).filter(|(_, (due, gone))| **due || **gone);
            let rows: Vec<u32> = rows.map(|(&row, _)| known.chains.numbers[row as usize]).collect();
            let keys = shape.of.keys.len();
            let columns = (BEFORE..BEFORE + keys).map(|key| self.kept.gather(key, &rows)).collect::<Result<_>>()?;
            self.changed.extend(buckets_of_key(&batch(&shape.of.key_schema, columns, rows.len())?, 0, keys)?);
        }
        let (sessions, _) = self.merged(&known, &due)?;
        self.kept.remove(&known.chains, |row| {
            let session = known.of.sessions[row];
            due[session] || gone[session]
        });
        let count = sessions.num_rows();
        if count == 0 {
            return Ok(None);
        }
        let stays: BooleanArray = times(&sessions, LAST).iter().map(|&last| Some(shape.gone(last) > fired)).collect();
        let told = with_told(&sessions, vec![FINAL; count], Some(vec![0; count]))?;
        self.add(filter_record_batch(&told, &stays)?)?;
        Ok(Some(shape.results(&sessions, true)?))
    }

    /// Early results of the keys whose newest rows are among these.
    fn early(&self, numbers: &[u32]) -> Result<Option<RecordBatch>, TaskError> {
        let newest = self.kept.newest_of(numbers)?;
        let newest: Vec<u32> =
            newest.iter().zip(numbers).filter(|(newest, row)| newest == row).map(|(row, _)| *row).collect();
        let known = self.known(&newest)?;
        let is_new = |(&last, &told): (&Micros, &i8)| told == NOTHING && self.shape.end(last) > self.fired;
        let new: Vec<bool> = known.of.lasts.iter().zip(&known.told).map(is_new).collect();
        let (sessions, _) = self.merged(&known, &new)?;
        Ok((sessions.num_rows() > 0).then(|| self.shape.results(&sessions, false)).transpose()?)
    }

    /// Hands over these buckets to another copy.
    pub(super) fn release(&mut self, lost: &[u32]) -> Result<Vec<(u32, Bytes)>, TaskError> {
        let fired = (lost[0], table_of(FIRED, &self.fired.to_le_bytes()));
        self.saved.forget(lost);
        let (frozen, keys) = (self.kept.frozen(), self.shape.of.keys.len());
        let mut tables = SnapshotTables::new(&self.disk);
        for some in frozen.some() {
            let (numbers, rows) = some?;
            let rows = as_told(&rows, &numbers, self.told)?;
            let stays = tables.add_some(SESSIONS, &rows, &buckets_of_key(&rows, BEFORE, keys)?, lost)?;
            let gone = numbers.into_iter().zip(stays).filter(|(_, stays)| !stays);
            gone.for_each(|(number, _)| self.kept.remove_row(number));
        }
        self.clear()?;
        Ok([fired].into_iter().chain(tables.finish()?).collect())
    }

    /// Adds a part that another copy has handed over; returns its number of rows. Sessions that have ended there have
    /// ended here, too: further rows would be late.
    pub(super) fn acquire(&mut self, part: &Bytes) -> Result<usize, TaskError> {
        let mut count = 0;
        for (kind, table) in tables_of(part)? {
            match kind {
                FIRED => self.fired = self.fired.max(time_of(&table)?),
                SESSIONS => {
                    let sessions = rows::decode(&self.shape.kept_schema, &table)?;
                    count += sessions.num_rows();
                    self.keep(sessions)?;
                }
                other => {
                    return Err(format!("state handed over by another copy has a part of unknown kind {other}").into());
                }
            }
        }
        Ok(count)
    }

    /// Makes a snapshot.
    pub(super) fn snapshot(&mut self, whole: bool) -> Result<Snapshot, TaskError> {
        let mut snapshot = shared(self.fired);
        let news =
            std::mem::replace(&mut self.news, ExpiringRows::new(Arc::clone(&self.shape.kept_schema), &self.disk));
        let changed = std::mem::take(&mut self.changed);
        self.news_rows = 0;
        if !whole && news.count() == 0 && changed.is_empty() {
            return Ok(snapshot);
        }
        let (saved, disk) = (self.saved.clone(), self.disk.clone());
        let all = (whole || !changed.is_empty()).then(|| self.kept.frozen());
        let (news, told, keys) = (FrozenLists::of(&news, &disk), self.told, self.shape.of.keys.len());
        snapshot.later = Some(DeferredPart(Box::new(move || {
            let (mut wholes, mut changes) = (SnapshotTables::new(&disk), SnapshotTables::new(&disk));
            if let Some(all) = all {
                deal(&all, keys, told, &mut wholes, |bucket| whole || changed.contains(&bucket))?;
            }
            if whole {
                return wholes.parts(true, &saved);
            }
            deal(&news, keys, 0, &mut changes, |bucket| !changed.contains(&bucket))?;
            Ok(saved.some_parts(&changed, wholes.finish()?, changes.finish()?))
        })));
        Ok(snapshot)
    }
}

/// What has been emitted of a row by now: rows with numbers before `before` have been in an early result since they
/// came.
fn now_told(told: i8, number: u32, before: u32) -> i8 {
    if number < before { told.max(EARLY) } else { told }
}

/// The rows with these numbers, updated with what has been emitted of them.
fn as_told(rows: &RecordBatch, numbers: &[u32], before: u32) -> Result<RecordBatch> {
    let told = numbers.iter().zip(told_of(rows)).map(|(&number, &told)| now_told(told, number, before));
    with_told(rows, told.collect(), None)
}

/// Adds the rows of wanted buckets to tables. Rows with numbers before `told` have been in an early result; `keys` is
/// the number of key columns.
fn deal(
    frozen: &FrozenLists,
    keys: usize,
    told: u32,
    tables: &mut SnapshotTables,
    wanted: impl Fn(u32) -> bool,
) -> Result<(), TaskError> {
    for some in frozen.some() {
        let (numbers, rows) = some?;
        let rows = as_told(&rows, &numbers, told)?;
        tables.add_wanted(SESSIONS, &rows, &buckets_of_key(&rows, BEFORE, keys)?, &wanted)?;
    }
    Ok(())
}

/// The same sessions, with another record of what has been emitted.
fn with_told(kept: &RecordBatch, told: Vec<i8>, untold: Option<Vec<i64>>) -> Result<RecordBatch> {
    let mut columns = kept.columns().to_vec();
    columns[TOLD] = Arc::new(Int8Array::from(told));
    if let Some(untold) = untold {
        columns[UNTOLD] = Arc::new(Int64Array::from(untold));
    }
    batch(&kept.schema(), columns, kept.num_rows())
}
