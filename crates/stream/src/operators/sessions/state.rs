//! The sessions of the keys that a copy owns: what comes, what is due, what is saved. It knows no clock and sends
//! nothing.
//!
//! What comes is kept beside what there is of its key, in memory or on disk, and is put together with it when a result
//! is due: a copy looks at the keys of what comes or is over, and at no others. Rows are kept until the time when their
//! session may be over, or forgotten. One that has become longer meanwhile has another row, which is kept until then.
//!
//! A snapshot has what came since the last one, put together with what was saved when a job goes on; and of buckets of
//! which sessions have been given or forgotten all that is left, so that nothing comes again, not even as part of a
//! session that begins where it ended. That a session has been told of early is saved only by the way: such results may
//! come again.

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

/// What came since the last snapshot is put together when it is twice as much as it was then, and so many rows more.
const NEWS_MIN: u32 = 1 << 13;
/// Sessions that are looked at together: so many, or as many as have so many bytes.
const PORTION: usize = 1 << 13;
const PORTION_BYTES: usize = 4 << 20;
/// Of what is saved or handed over: sessions, and the time that their owner had come to.
const SESSIONS: u8 = 0;
const FIRED: u8 = 1;

/// See the module.
pub(super) struct SessionState {
    pub(super) shape: Arc<SessionAggregation>,
    /// Sessions and parts of some.
    kept: RowLists,
    /// What ends here or before is over.
    pub(super) fired: Micros,
    /// Rows whose time had come by then have been looked at, but for these.
    looked: Micros,
    overdue: Vec<u32>,
    /// Rows that are still to be looked at: whether their sessions are over, or else have early results.
    waiting: VecDeque<u32>,
    ends: bool,
    /// Rows before have been told of early, if they had not before.
    told: u32,
    /// What has come since the last snapshot, and how many rows that was when it was put together last.
    news: ExpiringRows,
    news_rows: u32,
    /// Buckets of which sessions have been given or forgotten since.
    changed: BTreeSet<u32>,
    /// Buckets of which something is saved.
    saved: SavedBuckets,
    /// Whether there are snapshots.
    saves: bool,
    disk: SpillArea,
}

/// What is kept of some keys, and which session each row is part of.
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

    /// What was saved, in tables that are to be [kept](SessionState::keep).
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) fn restore(&mut self, restored: &RestoredState) -> Result<Vec<Bytes>, TaskError> {
        self.fired = fired_of(restored)?;
        self.saved.restore(restored);
        let mut tables = Vec::new();
        for part in restored.buckets.values().flatten() {
            tables.extend(tables_of(part)?.into_iter().map(|(_, table)| table));
        }
        Ok(tables)
    }

    /// Bytes in memory, about.
    pub(super) fn bytes(&self) -> usize {
        let numbers = (self.overdue.capacity() + self.waiting.capacity()) * size_of::<u32>();
        self.kept.bytes() + self.news.bytes() + numbers
    }

    /// Puts on disk what can lie there.
    pub(super) fn spill(&mut self) -> Result<(), TaskError> {
        self.kept.spill()?;
        self.news.spill()
    }

    /// Which of some rows, or parts of sessions, come too late; `None`: none does.
    pub(super) fn late(&self, keys: &[ArrayRef], firsts: &[Micros], lasts: &[Micros]) -> Result<Option<BooleanArray>> {
        let shape = &self.shape;
        let is_late = |last: Micros| shape.gone(last) <= self.fired;
        if !lasts.iter().any(|&last| is_late(last)) {
            return Ok(None);
        }
        // Of keys of which a row may be late, what is known.
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

    /// The newest rows of the keys that some rows have, and which of these they are, of keys that are kept.
    fn newest(&self, keys: &[ArrayRef], rows: Vec<u32>, of: Vec<usize>) -> Result<(Vec<u32>, Vec<usize>)> {
        let (count, rows) = (rows.len(), UInt32Array::from(rows));
        let keys = keys.iter().map(|key| take(key, &rows, None)).collect::<std::result::Result<Vec<_>, _>>()?;
        let found = self.kept.newest(&keys, count)?.into_iter().zip(of);
        Ok(found.filter_map(|(newest, of)| newest.map(|newest| (newest, of))).unzip())
    }

    /// The sessions of some rows' keys, with the numbers of these: `of_key` has those of the rows.
    pub(super) fn sessions_of(&self, keys: &[ArrayRef], of_key: &[usize]) -> Result<(RecordBatch, Vec<usize>)> {
        let mut rows: Vec<Option<u32>> = vec![None; of_key.iter().max().map_or(0, |last| last + 1)];
        (0..).zip(of_key).for_each(|(row, &key)| rows[key] = Some(row));
        let each = (0..rows.len()).collect();
        let (newest, of) = self.newest(keys, rows.into_iter().flatten().collect(), each)?;
        let known = self.known(&newest)?;
        let (sessions, chains) = self.merged(&known, &vec![true; known.of.len()])?;
        Ok((sessions, chains.into_iter().map(|chain| of[chain]).collect()))
    }

    /// What is kept of some keys, by their newest rows.
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

    /// The sessions that are wanted, put together, and of each the chain that it is in.
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

    /// Takes sessions, or parts of some, that are not late: first and last times, keys and states.
    pub(super) fn take(&mut self, columns: Vec<ArrayRef>, count: usize) -> Result<(), TaskError> {
        if count == 0 {
            return Ok(());
        }
        let sessions = self.shape.kept(columns, vec![NOTHING; count], vec![0; count])?;
        self.take_parts(sessions)
    }

    /// The same with what has been told of them.
    pub(super) fn take_parts(&mut self, sessions: RecordBatch) -> Result<(), TaskError> {
        self.note(sessions.clone())?;
        self.keep(sessions)
    }

    /// Keeps sessions, or parts of some.
    pub(super) fn keep(&mut self, sessions: RecordBatch) -> Result<(), TaskError> {
        let long = self.add(sessions)?;
        for newest in long.chunks(self.portion()) {
            self.put_together(newest)?;
        }
        if self.kept.is_wasteful() { self.clear() } else { Ok(()) }
    }

    /// Adds rows to what is kept. Returns the newest rows of the chains that have become long.
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

    /// Makes one row of each session of some keys, given by their newest rows.
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
        // Long or not, they are as short as they can be.
        self.add(sessions).map(|_| ())
    }

    /// These are to be in the next snapshot.
    fn note(&mut self, sessions: RecordBatch) -> Result<(), TaskError> {
        if !self.saves {
            return Ok(());
        }
        self.news.add(sessions, Vec::new())?;
        // Rows of one session come in many batches. What is too much for memory stays as it is.
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

    /// How many rows there are of what has come since the last snapshot, and of all that is kept.
    #[cfg(test)]
    pub(super) fn rows(&self) -> (u32, u32) {
        (self.news.count(), self.kept.count())
    }

    /// How many sessions are looked at together.
    fn portion(&self) -> usize {
        (self.disk.run_bytes().min(PORTION_BYTES) / self.kept.row_bytes().max(1)).clamp(1, PORTION)
    }

    /// Throws out what was removed.
    fn clear(&mut self) -> Result<(), TaskError> {
        let stayed = self.kept.clear()?;
        self.told = renumbered(&stayed, self.told);
        self.overdue.retain(|number| stayed.binary_search(number).is_ok());
        self.overdue.iter_mut().for_each(|number| *number = renumbered(&stayed, *number));
        Ok(())
    }

    /// Time has passed: [`SessionState::go_on`] has the results of sessions that are over, and have changed since they
    /// were given last if they were.
    pub(super) fn fire(&mut self, time: Micros) {
        self.fired = self.fired.max(time);
        let over = self.kept.over(self.looked.saturating_add(1), self.fired.saturating_add(1));
        self.looked = self.fired;
        self.waiting = std::mem::take(&mut self.overdue).into_iter().chain(over).collect();
        self.ends = true;
    }

    /// [`SessionState::go_on`] has results so far of sessions that are not over, and of which nothing has been told as
    /// they are.
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

    /// The results of sessions that are over, of the keys of some rows; these are forgotten, or kept for a while.
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

    /// Results so far of the keys whose newest rows are among some.
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

    /// Lets go of what is in these buckets, for another copy.
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

    /// Takes what another copy has let go of; returns how many rows that is. What is over there is over here: what
    /// comes of it would be late.
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

    /// What goes into a snapshot.
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

/// What has been told of a row as it is now: rows before a number have been told of early since they came.
fn now_told(told: i8, number: u32, before: u32) -> i8 {
    if number < before { told.max(EARLY) } else { told }
}

/// Rows with these numbers, and what has been told of them as they are now.
fn as_told(rows: &RecordBatch, numbers: &[u32], before: u32) -> Result<RecordBatch> {
    let told = numbers.iter().zip(told_of(rows)).map(|(&number, &told)| now_told(told, number, before));
    with_told(rows, told.collect(), None)
}

/// Adds to tables what is of buckets that are wanted. Rows before `told` have been told of early; so many columns are
/// keys.
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

/// The same sessions, of which something else has been told.
fn with_told(kept: &RecordBatch, told: Vec<i8>, untold: Option<Vec<i64>>) -> Result<RecordBatch> {
    let mut columns = kept.columns().to_vec();
    columns[TOLD] = Arc::new(Int8Array::from(told));
    if let Some(untold) = untold {
        columns[UNTOLD] = Arc::new(Int64Array::from(untold));
    }
    batch(&kept.schema(), columns, kept.num_rows())
}
