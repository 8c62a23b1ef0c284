//! A generator: makes numbered rows at a given rate, or as fast as they are taken.
//!
//! Row i of split s has the number n = i * splits + s. Its key is a hash of the seed and n; its event time is
//! `start_us` plus the time of n rows. So rows that are made again after a failure are the same.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use arrow::array::{ArrayRef, Int64Array, RecordBatch, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use tidemill_dataflow::stream::source::{ReleasedSplit, Source, SourceEvent};
use tidemill_dataflow::{TaskContext, TaskError};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::bad_records::BadRecordPolicy;
use crate::error::ConnectError;
use crate::hash::mix;
use crate::{DeliveryGuarantee, MakeSource, SourceSpec, options};

const NAME: &str = "generator";
/// The minimum time between batches at a given rate; higher rates make larger batches.
const INTERVAL: Duration = Duration::from_millis(2);
/// 2026-01-01, the default start of event time.
const START_US: i64 = 1_767_225_600_000_000;

/// The kind of event times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RateTimes {
    /// Counted from `start_us`.
    #[default]
    Counted,
    /// The time at which a row was made, for measuring latency. A row that is made again gets a new time.
    Clock,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
struct RateOptions {
    /// Total number of rows; unlimited by default.
    rows: Option<u64>,
    /// Rate of all splits together; 0 for as fast as they are taken.
    rows_per_second: f64,
    /// Number of splits, shared among copies; 0 for as many as there are copies, one per thread of every worker.
    splits: u32,
    /// Keys range from 0 to this, exclusive.
    keys: u64,
    /// Different seeds give different keys.
    seed: u64,
    times: RateTimes,
    /// The first row's event time, in microseconds since 1970.
    start_us: i64,
    /// The time between the event times of two rows, in microseconds; derived from the rate by default, or 1.
    step_us: Option<f64>,
    /// Maximum number of rows in a batch.
    batch_rows: u32,
}

impl Default for RateOptions {
    fn default() -> Self {
        RateOptions {
            rows: None,
            rows_per_second: 0.0,
            splits: 0,
            keys: 1000,
            seed: 0,
            times: RateTimes::Counted,
            start_us: START_US,
            step_us: None,
            batch_rows: 8192,
        }
    }
}

impl RateOptions {
    fn step_us(&self) -> f64 {
        let rate = self.rows_per_second;
        self.step_us.unwrap_or(if rate > 0.0 { 1e6 / rate } else { 1.0 })
    }

    /// Number of rows in a split.
    fn rows_of(&self, split: u32) -> u64 {
        let of = |rows: u64| rows.saturating_sub(u64::from(split)).div_ceil(u64::from(self.splits));
        self.rows.map_or(u64::MAX, of)
    }

    fn rows(&self, schema: &SchemaRef, split: u32, from: u64, to: u64) -> Result<RecordBatch, TaskError> {
        let numbers = || (from..to).map(|row| row * u64::from(self.splits) + u64::from(split));
        let now_us = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_micros() as i64);
        let (step_us, seed) = (self.step_us(), mix(self.seed));
        let time = |number: u64| match self.times {
            RateTimes::Counted => self.start_us + (number as f64 * step_us) as i64,
            RateTimes::Clock => now_us,
        };
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from_iter_values(numbers().map(|number| number as i64))),
            Arc::new(TimestampMicrosecondArray::from_iter_values(numbers().map(time))),
            Arc::new(Int64Array::from_iter_values(numbers().map(|number| (mix(seed ^ number) % self.keys) as i64))),
        ];
        Ok(RecordBatch::try_new(SchemaRef::clone(schema), columns)?)
    }
}

pub(crate) fn source(spec: &Value, schema: Option<SchemaRef>) -> Result<SourceSpec, ConnectError> {
    let options: RateOptions = options::read(NAME, spec)?;
    let wrong = |reason: &str| Err(ConnectError::option(NAME, reason));
    let counts = [("keys", options.keys), ("batch_rows", options.batch_rows.into())];
    if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
        return wrong(&format!("`{name}` must be at least 1"));
    }
    if !(options.rows_per_second >= 0.0 && options.rows_per_second.is_finite()) {
        return wrong("`rows_per_second` must be positive, or 0 for as fast as possible");
    }
    if !(options.step_us() >= 0.0 && options.step_us().is_finite()) {
        return wrong("`step_us` must be 0 or more");
    }
    let made = Arc::new(Schema::new(vec![
        Field::new("number", DataType::Int64, false),
        Field::new("time", DataType::Timestamp(TimeUnit::Microsecond, None), false),
        Field::new("key", DataType::Int64, false),
    ]));
    if schema.is_some_and(|schema| schema != made) {
        return wrong("it has its own columns (number int64, time timestamp[us], key int64): omit the schema");
    }
    let (copies_max, schema) = (options.splits, SchemaRef::clone(&made));
    let guarantee = match options.times {
        RateTimes::Counted => DeliveryGuarantee::ExactlyOnce,
        RateTimes::Clock => DeliveryGuarantee::AtMostOnce,
    };
    // There are no bad records.
    let bad = BadRecordPolicy::default();
    let make: MakeSource = Arc::new(move |context| Ok(Box::new(RateSource::new(options.clone(), &made, context)?)));
    Ok(SourceSpec {
        copies_max,
        moves_splits: true,
        ..SourceSpec::new("generator".into(), schema, guarantee, &bad, make)
    })
}

/// The position in a split. Copies number their splits from 0.
struct RateSplit {
    split: u32,
    next: u64,
    /// When this copy began to read it, and its next row then.
    begun: Option<(Instant, u64)>,
    told_end: bool,
    /// Another copy has it now. The number stays taken.
    is_gone: bool,
}

impl RateSplit {
    fn new((split, next): (u32, u64)) -> Self {
        RateSplit { split, next, begun: None, told_end: false, is_gone: false }
    }
}

struct RateSource {
    options: RateOptions,
    schema: SchemaRef,
    splits: Vec<RateSplit>,
    /// The split whose turn it is.
    turn: usize,
    rest: Option<Pin<Box<Sleep>>>,
    /// Rows per batch.
    most: u64,
}

impl RateSource {
    fn new(mut options: RateOptions, schema: &SchemaRef, context: &TaskContext) -> Result<Self, TaskError> {
        let restored = context.restored().filter(|restored| !restored.split_names.is_empty());
        if options.splits == 0 {
            // As many as there were when the job began, because the number of splits determines a row.
            options.splits = restored.map_or(context.copies(), |restored| restored.split_names.len() as u32);
        }
        let places = match restored {
            Some(restored) => {
                let place = |saved| place(saved, options.splits);
                restored.splits.iter().map(place).collect::<Result<Vec<_>, _>>()?
            }
            None => (0..options.splits).filter(|s| context.is_dealt(*s as usize)).map(|s| (s, 0)).collect(),
        };
        let splits: Vec<_> = places.into_iter().map(RateSplit::new).collect();
        // The last split comes first: a receiver that sees it knows that the others exist, and does not let time
        // advance past them.
        let turn = splits.len().saturating_sub(1);
        Ok(RateSource { options, schema: SchemaRef::clone(schema), splits, turn, rest: None, most: u64::MAX })
    }

    /// The position in a split, with the number of splits.
    fn saved(&self, split: &RateSplit) -> Bytes {
        [&split.next.to_le_bytes()[..], &self.options.splits.to_le_bytes()[..]].concat().into()
    }

    /// How far a split may be by now, and when it may continue.
    fn due(&mut self, at: usize, now: Instant) -> (u64, Option<Instant>) {
        let next = self.splits[at].next;
        let (begun, before) = *self.splits[at].begun.get_or_insert((now, next));
        let end = self.options.rows_of(self.splits[at].split);
        if self.options.rows_per_second == 0.0 {
            return (end, None);
        }
        let per_second = self.options.rows_per_second / f64::from(self.options.splits);
        let passed = (now - begun).as_secs_f64();
        let due = before.saturating_add((passed * per_second) as u64).min(end);
        let seconds = ((next + 1).saturating_sub(before)) as f64 / per_second;
        // Capped at a century, which nobody waits for.
        let next = begun + Duration::from_secs_f64(seconds.min(3e9));
        (due, Some(next.max(now + INTERVAL)))
    }
}

/// A split and its next row. The number of splits is saved with it: with a different number, a split would have other
/// rows.
fn place((name, bytes): (&String, &Bytes), splits: u32) -> Result<(u32, u64), TaskError> {
    let parts = bytes.split_first_chunk().and_then(|(next, of)| Some((u64::from_le_bytes(*next), of.try_into().ok()?)));
    match (name.parse(), parts.map(|(next, of)| (next, u32::from_le_bytes(of)))) {
        (Ok(split), Some((next, of))) if split < of => match of == splits {
            true => Ok((split, next)),
            false => {
                Err(format!("the checkpoint has {of} splits, but `splits` is {splits}: it must not change").into())
            }
        },
        _ => Err(format!("the checkpoint has a split \"{name}\" that no generator made").into()),
    }
}

impl Source for RateSource {
    fn limit_rows(&mut self, rows: usize) {
        self.most = rows as u64;
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<SourceEvent, TaskError>> {
        loop {
            if let Some(rest) = &mut self.rest {
                if rest.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
                self.rest = None;
            }
            let now = Instant::now();
            let mut wake = None;
            let mut found = None;
            for step in 0..self.splits.len() {
                let at = (self.turn + step) % self.splits.len();
                if self.splits[at].is_gone {
                    continue;
                }
                let (due, next) = self.due(at, now);
                let rows = u64::from(self.options.batch_rows).min(self.most);
                let split = &mut self.splits[at];
                if split.next >= self.options.rows_of(split.split) {
                    if !split.told_end {
                        split.told_end = true;
                        found = Some(Ok(SourceEvent::SplitEnded { split: at as u32 }));
                        break;
                    }
                } else if due > split.next {
                    let to = due.min(split.next + rows);
                    let rows = self.options.rows(&self.schema, split.split, split.next, to);
                    split.next = to;
                    self.turn = at + 1;
                    found = Some(rows.map(|rows| SourceEvent::rows(at as u32, rows)));
                    break;
                } else if let Some(next) = next {
                    wake = Some(wake.map_or(next, |wake: Instant| wake.min(next)));
                }
            }
            match (found, wake) {
                (Some(found), _) => return Poll::Ready(found),
                (None, Some(wake)) => self.rest = Some(Box::pin(sleep_until(wake))),
                (None, None) => return Poll::Ready(Ok(SourceEvent::End)),
            }
        }
    }

    fn split_name(&self, split: u32) -> String {
        format!("split {}", self.splits.get(split as usize).map_or(split, |of| of.split))
    }

    fn snapshot(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        let saved = |split: &RateSplit| (split.split.to_string(), self.saved(split));
        Ok(self.splits.iter().filter(|split| !split.is_gone).map(saved).collect())
    }

    fn release(&mut self, splits: &BTreeSet<String>) -> Result<Vec<ReleasedSplit>, TaskError> {
        let mut released = Vec::new();
        for at in 0..self.splits.len() {
            let split = &self.splits[at];
            let name = split.split.to_string();
            if !split.is_gone && split.next < self.options.rows_of(split.split) && splits.contains(&name) {
                released.push(ReleasedSplit { name, position: self.saved(split), numbers: vec![at as u32] });
                self.splits[at].is_gone = true;
            }
        }
        Ok(released)
    }

    fn acquire(&mut self, splits: Vec<(String, Bytes)>) -> Result<Vec<u32>, TaskError> {
        self.rest = None;
        let begin = self.splits.len() as u32;
        for (name, saved) in &splits {
            self.splits.push(RateSplit::new(place((name, saved), self.options.splits)?));
        }
        Ok((begin..self.splits.len() as u32).collect())
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::AsArray;
    use arrow::datatypes::Int64Type;
    use serde_json::json;

    use super::*;

    fn options(spec: &Value) -> RateOptions {
        options::read(NAME, spec).unwrap()
    }

    /// Catches splits that overlap or omit rows, for any number of rows.
    #[test]
    fn splits_share_all_rows() {
        for rows in [0, 1, 2, 3, 10, 11] {
            let options = options(&json!({"rows": rows, "splits": 3}));
            let schema = source(&json!({"kind": "rate"}), None).unwrap().schema;
            let mut numbers: Vec<i64> = (0..3)
                .map(|split| options.rows(&schema, split, 0, options.rows_of(split)).unwrap())
                .flat_map(|rows| rows.column(0).as_primitive::<Int64Type>().values().to_vec())
                .collect();
            numbers.sort_unstable();
            assert_eq!(numbers, (0..rows).collect::<Vec<i64>>());
        }
    }

    /// A row that depended on its batch would differ after a restart.
    #[test]
    fn rows_depend_on_their_number_alone() {
        let options = options(&json!({"splits": 2, "keys": 10, "seed": 3, "rows_per_second": 3.0}));
        let schema = source(&json!({"kind": "rate"}), None).unwrap().schema;
        let all = options.rows(&schema, 1, 0, 100).unwrap();
        for (from, to) in [(0, 1), (17, 64), (99, 100)] {
            let some = options.rows(&schema, 1, from, to).unwrap();
            assert_eq!(some, all.slice(from as usize, (to - from) as usize));
        }
        let keys = all.column(2).as_primitive::<Int64Type>();
        assert!(keys.values().iter().all(|key| (0..10).contains(key)));
        let other = RateOptions { seed: 4, ..options };
        assert_ne!(other.rows(&schema, 1, 0, 100).unwrap(), all);
    }

    /// With more or fewer splits, each would have other rows: some would be omitted or come twice.
    #[test]
    fn the_number_of_splits_stays() {
        let saved = |next: u64, of: u32| Bytes::from([&next.to_le_bytes()[..], &of.to_le_bytes()[..]].concat());
        let place =
            |name: &str, bytes, splits| place((&name.to_owned(), &bytes), splits).map_err(|error| error.to_string());
        assert_eq!(place("1", saved(7, 2), 2).unwrap(), (1, 7));
        for splits in [1, 4] {
            assert!(place("1", saved(7, 2), splits).unwrap_err().contains("must not change"));
        }
        for bytes in [saved(7, 1), Bytes::new(), saved(7, 2).slice(1..)] {
            assert!(place("1", bytes, 2).unwrap_err().contains("no generator made"));
        }
    }

    #[test]
    fn wrong_options_are_refused() {
        for spec in [json!({"keys": 0}), json!({"rows_per_second": -1.0}), json!({"step_us": -1.0})] {
            source(&spec, None).unwrap_err();
        }
        let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::Int64, true)]));
        assert!(source(&json!({}), Some(schema)).unwrap_err().to_string().contains("omit the schema"));
    }
}
