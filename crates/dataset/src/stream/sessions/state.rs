//! The sessions of the keys that a copy owns: what comes, what is due, what is saved. It knows no clock and sends nothing.
//!
//! A snapshot has what came since the last one, put together with what was saved when a job goes on; and of buckets of which sessions have
//! been given or forgotten all that is left, so that nothing comes again, not even as part of a session that begins where it ended.
//! That a session has been told of early is saved only by the way: such results may come again.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Int8Array, Int64Array, RecordBatch};
use arrow::compute::{concat, concat_batches, filter_record_batch, not};
use bytes::Bytes;
use datafusion::error::Result;
use tidemill_dataflow::TaskError;
use tidemill_dataflow::checkpoint::{Later, Restored, Snapshot, rows};
use tidemill_dataflow::flow::batch_bytes;

use super::{BEFORE, EARLY, FINAL, FIRST, LAST, NOTHING, SessionAggregation, TOLD, UNTOLD, times, told_of, untold_of};
use crate::stream::groups::batch;
use crate::stream::kept::{self, Saved, buckets_of_key, table_of, tables_of};
use crate::stream::saved::{fired_of, shared, time_of};
use crate::stream::window::Micros;

/// What came since the last snapshot is put together when it is twice as much as it was then, and so many rows more.
const NEWS_MIN: usize = 1 << 13;
/// Of what is handed over: sessions, and the time that their owner had come to.
const SESSIONS: u8 = 0;
const FIRED: u8 = 1;

/// See the module.
pub(super) struct SessionState {
    pub(super) shape: Arc<SessionAggregation>,
    /// Sessions and parts of some; the first are those that were put together last.
    parts: Vec<RecordBatch>,
    /// Before that time none has anything to be told of by itself, or to be forgotten.
    next: Micros,
    /// What ends here or before is over.
    pub(super) fired: Micros,
    /// Whether something has come since it was last asked for early results.
    touched: bool,
    /// What has come since the last snapshot, and how many rows that was when it was put together last.
    news: Vec<RecordBatch>,
    news_rows: usize,
    /// Buckets of which sessions have been given or forgotten since.
    changed: BTreeSet<u32>,
    /// Buckets of which something is saved.
    saved: Saved,
    /// Whether there are snapshots.
    saves: bool,
}

impl SessionState {
    /// # Errors
    /// When what was saved cannot be read.
    pub(super) fn new(
        shape: &Arc<SessionAggregation>,
        saves: bool,
        restored: Option<&Restored>,
    ) -> Result<Self, TaskError> {
        let mut new = SessionState {
            shape: Arc::clone(shape),
            parts: Vec::new(),
            next: Micros::MAX,
            fired: Micros::MIN,
            touched: false,
            news: Vec::new(),
            news_rows: 0,
            changed: BTreeSet::new(),
            saved: Saved::default(),
            saves,
        };
        let Some(restored) = restored else { return Ok(new) };
        let reader = shape.layout().reader(&shape.kept_schema, restored)?;
        new.fired = fired_of(restored)?;
        for part in restored.buckets.values().flatten() {
            new.keep(reader.read(part)?);
        }
        // One part may have several rows of a session, when it is of what came between two snapshots.
        if let Some(all) = (!new.parts.is_empty()).then(|| shape.merged(&new.parts)).transpose()? {
            new.replace(all);
        }
        new.saved.restore(restored);
        Ok(new)
    }

    /// Bytes in memory, about.
    pub(super) fn bytes(&self) -> usize {
        self.parts.iter().chain(&self.news).map(batch_bytes).sum::<u64>() as usize
    }

    /// Which of some rows, or parts of sessions, come too late; `None`: none does.
    pub(super) fn late(
        &mut self,
        keys: &[ArrayRef],
        firsts: &[Micros],
        lasts: &[Micros],
    ) -> Result<Option<BooleanArray>> {
        let (shape, fired) = (Arc::clone(&self.shape), self.fired);
        if !lasts.iter().any(|&last| shape.gone(last) <= fired) {
            return Ok(None);
        }
        self.merge()?;
        let kept =
            self.parts.first().cloned().unwrap_or_else(|| RecordBatch::new_empty(Arc::clone(&shape.kept_schema)));
        let of_key = shape.number(&beside(shape.keys(&kept), keys)?, kept.num_rows() + lasts.len())?;
        let behind = |column: usize, more: &[Micros]| [times(&kept, column), more].concat();
        let of = shape.assign(&of_key, &behind(FIRST, firsts), &behind(LAST, lasts));
        let is_late = |&session: &usize| Some(shape.gone(of.lasts[session]) <= fired);
        let late: BooleanArray = of.sessions[kept.num_rows()..].iter().map(is_late).collect();
        Ok((late.true_count() > 0).then_some(late))
    }

    /// Takes sessions, or parts of some, that are not late: first and last times, keys and states.
    pub(super) fn take(&mut self, columns: Vec<ArrayRef>, count: usize) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let sessions = self.shape.kept(columns, vec![NOTHING; count], vec![0; count])?;
        self.note(sessions.clone())?;
        self.keep(sessions);
        Ok(())
    }

    /// Keeps sessions, or parts of some.
    pub(super) fn keep(&mut self, sessions: RecordBatch) {
        if sessions.num_rows() > 0 {
            self.next = self.next_of(&sessions).min(self.next);
            self.touched = true;
            self.parts.push(sessions);
        }
    }

    /// These are to be in the next snapshot.
    pub(super) fn note(&mut self, sessions: RecordBatch) -> Result<()> {
        if !self.saves {
            return Ok(());
        }
        self.news.push(sessions);
        let rows: usize = self.news.iter().map(RecordBatch::num_rows).sum();
        // Rows of one session come in many batches.
        if rows > 2 * self.news_rows + NEWS_MIN {
            self.news = vec![self.shape.merged(&self.news)?];
            self.news_rows = self.news[0].num_rows();
        }
        Ok(())
    }

    /// In how many batches there is what has come since the last snapshot.
    #[cfg(test)]
    pub(super) fn news_len(&self) -> usize {
        self.news.len()
    }

    fn next_of(&self, sessions: &RecordBatch) -> Micros {
        let next = |(&last, &told): (&Micros, &i8)| match told {
            FINAL => self.shape.gone(last),
            _ => self.shape.end(last),
        };
        times(sessions, LAST).iter().zip(told_of(sessions)).map(next).min().unwrap_or(Micros::MAX)
    }

    /// Puts all parts together.
    fn merge(&mut self) -> Result<()> {
        if self.parts.len() > 1 {
            self.parts = vec![self.shape.merged(&self.parts)?];
        }
        Ok(())
    }

    /// All sessions, which are kept no longer.
    pub(super) fn take_all(&mut self) -> Result<Option<RecordBatch>> {
        self.merge()?;
        Ok(self.parts.pop())
    }

    /// Keeps these, put together, and no others.
    pub(super) fn replace(&mut self, sessions: RecordBatch) {
        self.parts.clear();
        self.next = Micros::MAX;
        self.keep(sessions);
    }

    /// Time has passed. Returns the results of sessions that are over, and have changed since they were given last if they were.
    pub(super) fn fire(&mut self, time: Micros) -> Result<Option<RecordBatch>> {
        self.fired = self.fired.max(time);
        if self.next > self.fired {
            return Ok(None);
        }
        let Some(all) = self.take_all()? else { return Ok(None) };
        let (shape, fired) = (Arc::clone(&self.shape), self.fired);
        let (lasts, told) = (times(&all, LAST), told_of(&all));
        let is_due = |at: usize| told[at] < FINAL && shape.end(lasts[at]) <= fired;
        let due: Vec<bool> = (0..all.num_rows()).map(is_due).collect();
        let gone: Vec<bool> = lasts.iter().map(|&last| shape.gone(last) <= fired).collect();
        let buckets = buckets_of_key(&all, BEFORE, shape.of.keys.len())?;
        self.changed.extend((0..all.num_rows()).filter(|&at| due[at] || gone[at]).map(|at| buckets[at]));
        let given = |(&due, &told): (&bool, &i8)| if due { FINAL } else { told };
        let untold = |(&due, &untold): (&bool, &i64)| if due { 0 } else { untold };
        let rest = with_told(
            &all,
            due.iter().zip(told).map(given).collect(),
            Some(due.iter().zip(untold_of(&all)).map(untold).collect()),
        )?;
        let rest = filter_record_batch(&rest, &not(&BooleanArray::from(gone))?)?;
        self.next = self.next_of(&rest);
        if rest.num_rows() > 0 {
            self.parts.push(rest);
        }
        if !due.contains(&true) {
            return Ok(None);
        }
        Ok(Some(shape.results(&filter_record_batch(&all, &due.into())?, true)?))
    }

    /// Returns results so far of sessions that are not over, and of which nothing has been told as they are.
    pub(super) fn so_far(&mut self) -> Result<Option<RecordBatch>> {
        if !std::mem::take(&mut self.touched) {
            return Ok(None);
        }
        self.merge()?;
        let Some(all) = self.parts.first() else { return Ok(None) };
        let (shape, fired) = (Arc::clone(&self.shape), self.fired);
        let is_new = |(&last, &told): (&Micros, &i8)| told == NOTHING && shape.end(last) > fired;
        let new: Vec<bool> = times(all, LAST).iter().zip(told_of(all)).map(is_new).collect();
        if !new.contains(&true) {
            return Ok(None);
        }
        let told = new.iter().zip(told_of(all)).map(|(&new, &told)| if new { EARLY } else { told }).collect();
        let (told, some) = (with_told(all, told, None)?, filter_record_batch(all, &new.into())?);
        self.parts = vec![told];
        Ok(Some(shape.results(&some, false)?))
    }

    /// Lets go of what is in these buckets, for another copy.
    pub(super) fn release(&mut self, lost: &[u32]) -> Result<Vec<(u32, Bytes)>> {
        let fired = (lost[0], table_of(FIRED, &self.fired.to_le_bytes()));
        let lost: BTreeSet<u32> = lost.iter().copied().collect();
        self.saved.forget(&lost.iter().copied().collect::<Vec<_>>());
        let Some(all) = self.take_all()? else { return Ok(vec![fired]) };
        let of = buckets_of_key(&all, BEFORE, self.shape.of.keys.len())?;
        let stays: BooleanArray = of.iter().map(|bucket| Some(!lost.contains(bucket))).collect();
        let rest = filter_record_batch(&all, &stays)?;
        if rest.num_rows() > 0 {
            self.parts.push(rest);
        }
        let moved = kept::by_bucket(&all, &of, |bucket| lost.contains(&bucket))?;
        let moved = moved.into_iter().map(|(bucket, sessions)| (bucket, table_of(SESSIONS, &sessions)));
        Ok([fired].into_iter().chain(moved).collect())
    }

    /// Takes what another copy has let go of. What is over there is over here: what comes of it would be late.
    pub(super) fn acquire(&mut self, parts: Vec<(u32, Bytes)>) -> Result<(), TaskError> {
        for (_, part) in parts {
            for (kind, table) in tables_of(&part)? {
                match kind {
                    FIRED => self.fired = self.fired.max(time_of(&table)?),
                    SESSIONS => self.keep(rows::decode(&self.shape.kept_schema, &table)?),
                    other => return Err(format!("what another copy handed over has a part of kind {other}").into()),
                }
            }
        }
        Ok(())
    }

    /// What goes into a snapshot.
    pub(super) fn snapshot(&mut self, whole: bool) -> Result<Snapshot> {
        self.merge()?;
        let mut snapshot = shared(self.fired);
        let (news, changed) = (std::mem::take(&mut self.news), std::mem::take(&mut self.changed));
        self.news_rows = 0;
        if !whole && news.is_empty() && changed.is_empty() {
            return Ok(snapshot);
        }
        let (shape, saved) = (Arc::clone(&self.shape), self.saved.clone());
        let all = self.parts.clone();
        snapshot.later = Some(Later(Box::new(move || {
            let dealt = |sessions: &[RecordBatch], wanted: &dyn Fn(u32) -> bool| -> Result<Vec<(u32, Bytes)>> {
                let sessions = concat_batches(&shape.kept_schema, sessions)?;
                kept::by_bucket(&sessions, &buckets_of_key(&sessions, BEFORE, shape.of.keys.len())?, wanted)
            };
            if whole {
                return Ok(saved.parts(dealt(&all, &|_| true)?, true));
            }
            let wholes = dealt(&all, &|bucket| changed.contains(&bucket))?;
            let changes = dealt(&news, &|bucket| !changed.contains(&bucket))?;
            Ok(saved.some_parts(&changed, wholes, changes))
        })));
        Ok(snapshot)
    }
}

/// Keys, and more of them behind.
pub(super) fn beside(keys: &[ArrayRef], more: &[ArrayRef]) -> Result<Vec<ArrayRef>> {
    keys.iter().zip(more).map(|(key, more)| Ok(concat(&[key.as_ref(), more.as_ref()])?)).collect()
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
