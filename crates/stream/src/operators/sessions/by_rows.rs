//! Results after every so many rows of a session: a result comes with the row that completes this number of rows not
//! yet in any result. Which row that is depends only on the order of arrival, and a result does not include the rows
//! after it.
//!
//! Rows are added in rounds. In each round, a key gets its rows up to the first that triggers a result, so that the
//! state of its sessions is then exactly what the result covers. A round merges only the sessions of keys that have
//! rows in it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use arrow::array::{BooleanArray, RecordBatch, UInt32Array};
use arrow::compute::{concat_batches, filter_record_batch, take_record_batch};
use tidemill_dataflow::TaskError;

use super::state::SessionState;
use super::{FIRST, LAST, NOTHING, times, untold_of};
use crate::time::window::Micros;

/// A session of a key; its first time is the key of the map.
struct SessionSpan {
    last: Micros,
    /// Rows that are not in any result yet.
    untold: i64,
}

/// Adds a row to its session, merging two sessions if it connects them.
fn join(spans: &mut BTreeMap<Micros, SessionSpan>, time: Micros, gap: Micros) -> &mut SessionSpan {
    let before = spans.range(..=time).next_back().filter(|(_, span)| time.saturating_sub(span.last) < gap);
    let after = spans.range(time.saturating_add(1)..).next().filter(|(first, _)| first.saturating_sub(time) < gap);
    let near = [before, after].map(|found| found.map(|(&first, _)| first));
    let (mut first, mut all) = (time, SessionSpan { last: time, untold: 0 });
    for at in near.into_iter().flatten() {
        if let Some(span) = spans.remove(&at) {
            first = first.min(at);
            all.last = all.last.max(span.last);
            all.untold += span.untold;
        }
    }
    all.untold += 1;
    spans.entry(first).or_insert(all)
}

impl SessionState {
    /// Adds rows that are not late, with their times. Returns the results they trigger, in the order of each key's
    /// rows.
    pub(super) fn add_by_rows(
        &mut self,
        every: i64,
        rows: &RecordBatch,
        at: &[Micros],
    ) -> Result<Option<RecordBatch>, TaskError> {
        let (shape, fired) = (Arc::clone(&self.shape), self.fired);
        let all = shape.of.arguments(rows)?;
        let of_row = shape.of.number(&all.keys, at.len())?;
        // The sessions of keys with remaining rows, and the numbers of these keys.
        let (mut open, mut of_open) = self.sessions_of(&all.keys, &of_row)?;
        let mut spans: HashMap<usize, BTreeMap<Micros, SessionSpan>> = HashMap::new();
        let bounds = times(&open, FIRST).iter().zip(times(&open, LAST)).zip(untold_of(&open));
        for (&key, ((&first, &last), &untold)) in of_open.iter().zip(bounds) {
            spans.entry(key).or_default().insert(first, SessionSpan { last, untold });
        }
        let (mut news, mut results) = (Vec::new(), Vec::new());
        let mut waiting: Vec<u32> = (0..at.len() as u32).collect();
        while !waiting.is_empty() {
            let (mut now, mut later): (Vec<u32>, Vec<u32>) = Default::default();
            // Rows that trigger a result: their index in this round, and the number of rows that are in a result for
            // the first time.
            let mut due: Vec<(usize, i64)> = Vec::new();
            let mut is_due = HashSet::new();
            for row in waiting {
                let key = of_row[row as usize];
                if is_due.contains(&key) {
                    later.push(row);
                    continue;
                }
                let span = join(spans.entry(key).or_default(), at[row as usize], shape.times.gap);
                // Sessions that have ended emit their result by themselves when time advances.
                if span.untold >= every && shape.end(span.last) > fired {
                    due.push((now.len(), std::mem::take(&mut span.untold)));
                    is_due.insert(key);
                }
                now.push(row);
            }
            let keys: Vec<usize> = now.iter().map(|&row| of_row[row as usize]).collect();
            let at: Vec<Micros> = now.iter().map(|&row| at[row as usize]).collect();
            let some = all.take(&UInt32Array::from(now))?;
            let of = shape.assign(&keys, &at, &at);
            let mut untold = vec![0; of.len()];
            of.sessions.iter().for_each(|&session| untold[session] += 1);
            due.iter().for_each(|&(row, had)| untold[of.sessions[row]] -= had);
            let functions = shape.of.updated(&some, &of.sessions, of.len())?;
            let new = shape.kept(shape.columns(&some.keys, &of, functions)?, vec![NOTHING; of.len()], untold)?;
            let before = open.num_rows();
            of_open.extend(of.rows.iter().map(|&row| keys[row as usize]));
            let (joined, into) = shape.joined(&concat_batches(&shape.kept_schema, [&open, &new])?, &of_open)?;
            if !due.is_empty() {
                let wanted = due.iter().map(|&(row, _)| into.sessions[before + of.sessions[row]] as u32);
                let wanted = take_record_batch(&joined, &UInt32Array::from_iter_values(wanted))?;
                results.push(shape.results(&wanted, false)?);
            }
            news.push(new);
            let waits: HashSet<usize> = later.iter().map(|&row| of_row[row as usize]).collect();
            let of_joined: Vec<usize> = into.rows.iter().map(|&row| of_open[row as usize]).collect();
            let goes_on: BooleanArray = of_joined.iter().map(|&key| Some(waits.contains(&key))).collect();
            open = filter_record_batch(&joined, &goes_on)?;
            of_open = of_joined.into_iter().filter(|key| waits.contains(key)).collect();
            waiting = later;
        }
        self.take_parts(shape.merged(&news)?)?;
        match results.is_empty() {
            true => Ok(None),
            false => Ok(Some(concat_batches(&shape.output, &results)?)),
        }
    }
}
