//! The time of a source: either the event time of its splits' rows, or the machine's clock.
//!
//! The machine's clock never goes back here: neither when someone resets it, nor when a job resumes after running on a
//! machine whose clock was ahead.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, TimestampMicrosecondArray};
use arrow::compute::cast;
use arrow::datatypes::{
    ArrowNumericType, DataType, Date64Type, SchemaRef, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType,
};
use bytes::Bytes;
use tidemill_batch::min_max;
use tidemill_checkpoint::marks::WatermarkMerger;
use tidemill_checkpoint::{EventTime, Mark, RestoredState};

use super::source::{WatermarkOrigin, WatermarkStrategy, time_column};
use crate::error::TaskError;

/// Time is announced no more often than this while rows come, since every mark cuts short what exchanges collect.
const TELL_INTERVAL: Duration = Duration::from_millis(1);
/// How often the machine's clock is announced while no row comes.
const ARRIVAL_INTERVAL: Duration = Duration::from_millis(50);
/// The name under which copies share the clock in checkpoints, so that it does not go back.
const ARRIVAL: &str = "tidemill arrival";

/// Converts a value of a column of event times to microseconds since 1970.
fn microseconds(data_type: &DataType, value: i64) -> i64 {
    match data_type {
        DataType::Timestamp(TimeUnit::Second, _) => value.saturating_mul(1_000_000),
        DataType::Timestamp(TimeUnit::Millisecond, _) | DataType::Date64 => value.saturating_mul(1000),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => value.div_euclid(1000),
        _ => value,
    }
}

/// The latest event time of a column, ignoring nulls and values outside the valid range.
fn latest(column: &ArrayRef) -> Option<EventTime> {
    fn of<T: ArrowNumericType<Native = i64>>(column: &ArrayRef) -> Option<EventTime> {
        let values = column.as_primitive::<T>();
        let time = |value| EventTime(microseconds(column.data_type(), value));
        match min_max(values).map(|(_, latest)| time(latest)) {
            Some(latest) if !latest.is_of_row() => {
                values.iter().flatten().map(time).filter(|time| time.is_of_row()).max()
            }
            latest => latest,
        }
    }
    match column.data_type() {
        DataType::Timestamp(TimeUnit::Second, _) => of::<TimestampSecondType>(column),
        DataType::Timestamp(TimeUnit::Millisecond, _) => of::<TimestampMillisecondType>(column),
        DataType::Timestamp(TimeUnit::Microsecond, _) => of::<TimestampMicrosecondType>(column),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => of::<TimestampNanosecondType>(column),
        DataType::Date32 => latest(&cast(column, &DataType::Date64).ok()?),
        DataType::Date64 => of::<Date64Type>(column),
        _ => None,
    }
}

/// The clock that the module describes.
pub(crate) struct SourceClock {
    times: WatermarkStrategy,
    origin: TimeSource,
    watermarks: WatermarkMerger,
    /// The latest time of all rows.
    latest: EventTime,
    /// Since when each split has had nothing more; idle ones are not checked.
    caught_up: Vec<Option<Instant>>,
    /// Since when the source has had nothing at all. Its earlier reports may be old if rows had to wait for room in
    /// the meantime: rows of a split that seems idle may then wait behind them.
    quiet: Option<Instant>,
    /// Whether the source has told of any split. Its first event makes all of them known.
    has_begun: bool,
    told_at: Option<Instant>,
}

enum TimeSource {
    /// The column with the rows' times, the column that tells how far time has advanced, and how much to subtract from
    /// the latter.
    Rows {
        time: usize,
        told: usize,
        less: i64,
    },
    Arrival(ArrivalClock),
}

/// The machine's clock: its time when the source began, and when that was.
struct ArrivalClock {
    begun: Instant,
    at: EventTime,
    schema: SchemaRef,
}

impl ArrivalClock {
    fn now(&self) -> EventTime {
        EventTime(self.at.0.saturating_add(i64::try_from(self.begun.elapsed().as_micros()).unwrap_or(i64::MAX)))
    }
}

impl SourceClock {
    /// The clock of rows with this schema.
    pub(crate) fn new(
        times: WatermarkStrategy,
        schema: &SchemaRef,
        restored: Option<&RestoredState>,
    ) -> Result<Self, TaskError> {
        let time = time_column(schema, &times.column)?;
        let origin = match &times.origin {
            WatermarkOrigin::Latest => TimeSource::Rows {
                time,
                told: time,
                less: i64::try_from(times.out_of_order.as_micros()).unwrap_or(i64::MAX),
            },
            WatermarkOrigin::Column(told) => TimeSource::Rows { time, told: time_column(schema, told)?, less: 0 },
            WatermarkOrigin::Arrival => {
                let before = restored.and_then(|restored| restored.shared.get(ARRIVAL)).into_iter().flatten();
                let before = before.filter_map(|bytes| bytes.as_ref().try_into().ok().map(i64::from_le_bytes)).max();
                let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_micros() as i64);
                let at = EventTime(now.max(before.unwrap_or(i64::MIN)));
                TimeSource::Arrival(ArrivalClock { begun: Instant::now(), at, schema: Arc::clone(schema) })
            }
        };
        let (watermarks, caught_up) = Default::default();
        let (latest, quiet, has_begun, told_at) = (EventTime::MIN, None, false, None);
        Ok(SourceClock { times, origin, watermarks, latest, caught_up, quiet, has_begun, told_at })
    }

    /// The latest time of all rows.
    pub(crate) fn latest(&self) -> EventTime {
        self.latest
    }

    /// The split that holds time back, the time, and the time of the split that is furthest ahead.
    pub(crate) fn report(&self) -> (Option<u32>, (EventTime, EventTime)) {
        match &self.origin {
            TimeSource::Rows { .. } => {
                let slowest = self.watermarks.slowest().map(|split| split as u32);
                (slowest, (self.watermarks.time(), self.watermarks.ahead()))
            }
            // The machine's clock advances by itself.
            TimeSource::Arrival(_) => (None, (self.latest, self.latest)),
        }
    }

    /// What copies share in checkpoints.
    pub(crate) fn shared(&self) -> Option<(String, Bytes)> {
        let TimeSource::Arrival(arrival) = &self.origin else { return None };
        Some((ARRIVAL.into(), Bytes::copy_from_slice(&arrival.now().0.to_le_bytes())))
    }

    fn split(&mut self, split: u32) -> usize {
        while self.caught_up.len() <= split as usize {
            self.watermarks.add();
            self.caught_up.push(None);
        }
        split as usize
    }

    /// Records rows that have been read; returns them with their times.
    pub(crate) fn rows(&mut self, split: u32, rows: RecordBatch) -> Result<RecordBatch, TaskError> {
        let split = self.split(split);
        self.has_begun = true;
        self.caught_up[split] = None;
        self.quiet = None;
        match &self.origin {
            TimeSource::Rows { time, told, less } => {
                let of_rows = latest(rows.column(*time));
                self.latest = of_rows.unwrap_or(EventTime::MIN).max(self.latest);
                let told = if told == time { of_rows } else { latest(rows.column(*told)) };
                let at = told.map(|at| at.minus(*less));
                // Rows without a time count as activity too: when their split falls silent again, that has to be
                // announced again, so that nobody keeps them back. Without rows nothing changes.
                if at.is_some() || rows.num_rows() > 0 {
                    self.watermarks.advance(split, at.unwrap_or(EventTime::MIN));
                }
                Ok(rows)
            }
            TimeSource::Arrival(arrival) => {
                self.latest = arrival.now();
                let times: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![self.latest.0; rows.num_rows()]));
                let columns = rows.columns().iter().cloned().chain([times]).collect();
                Ok(RecordBatch::try_new(Arc::clone(&arrival.schema), columns)?)
            }
        }
    }

    /// Records that a split had nothing more at some time: when its source looked, which may be a while ago.
    pub(crate) fn note_idle(&mut self, split: u32, at: Instant) {
        let split = self.split(split);
        self.has_begun = true;
        let since = *self.caught_up[split].get_or_insert(at);
        if since + self.times.idle_after <= at {
            self.idle(split);
        }
    }

    /// Records that the source has nothing now, and that everything it had has been delivered.
    pub(crate) fn note_source_idle(&mut self, now: Instant) {
        self.quiet.get_or_insert(now);
    }

    fn idle(&mut self, split: usize) {
        self.caught_up[split] = None;
        self.watermarks.idle(split);
    }

    /// When a split becomes idle, if the source has nothing until then.
    fn idle_at(&self, since: Instant) -> Option<Instant> {
        self.quiet.map(|quiet| quiet.max(since) + self.times.idle_after)
    }

    /// Another copy reads a split from now on, which has these numbers here. Returns how far its time has advanced, and
    /// whether it holds time back.
    pub(crate) fn give_up(&mut self, numbers: &[u32]) -> (EventTime, bool) {
        let splits: Vec<usize> = numbers.iter().map(|&number| self.split(number)).collect();
        let time_of = |&split: &usize| self.watermarks.time_of(split);
        let active = splits.iter().filter(|&&split| self.watermarks.is_active(split)).map(time_of).min();
        let time = active.or_else(|| splits.iter().map(time_of).max()).unwrap_or(EventTime::MIN);
        // Earlier rows are late here too.
        let time = time.max(self.watermarks.time());
        for split in splits {
            self.caught_up[split] = None;
            self.watermarks.leave(split);
        }
        // Of what is not known yet, rows may come.
        (time, active.is_some() || !self.has_begun)
    }

    /// This copy reads a split from now on, which another has given up at this time.
    pub(crate) fn take_over(&mut self, number: u32, (time, is_active): (EventTime, bool)) {
        let split = self.split(number);
        self.watermarks.advance(split, time);
        if !is_active {
            self.watermarks.idle(split);
        }
    }

    /// Announces time again, behind a barrier at which splits have moved; `first` is the earliest time of those that
    /// have come and hold time back.
    pub(crate) fn restate(&mut self, first: Option<EventTime>) {
        let told = self.watermarks.time();
        self.watermarks.restate(first.map_or(told, |first| first.min(told)));
        self.told_at = None;
    }

    /// There is nothing left to read for now, so this copy must not hold time back.
    pub(crate) fn park(&mut self) {
        let split = self.split(self.caught_up.len() as u32);
        self.has_begun = true;
        self.idle(split);
    }

    pub(crate) fn end_split(&mut self, split: u32) {
        let split = self.split(split);
        self.has_begun = true;
        self.caught_up[split] = None;
        self.watermarks.end_stream(split);
    }

    /// When it must be checked even if nothing comes.
    pub(crate) fn due(&self) -> Option<Instant> {
        match &self.origin {
            TimeSource::Rows { .. } => self.idle_at(*self.caught_up.iter().flatten().min()?),
            TimeSource::Arrival(arrival) => Some(self.told_at.unwrap_or(arrival.begun) + ARRIVAL_INTERVAL),
        }
    }

    /// Checks for splits that have become idle.
    pub(crate) fn check_idle(&mut self, now: Instant) {
        for split in 0..self.caught_up.len() {
            if self.caught_up[split].and_then(|since| self.idle_at(since)).is_some_and(|at| at <= now) {
                self.idle(split);
            }
        }
    }

    /// The marks to announce now: none if there was one a moment ago, unless the source is waiting.
    pub(crate) fn next_marks(&mut self, now: Instant, waiting: bool) -> Vec<Mark> {
        if !waiting && self.told_at.is_some_and(|told| now - told < TELL_INTERVAL) {
            return Vec::new();
        }
        let news: Vec<Mark> = match &self.origin {
            // A split that has moved may be known before others, which must not be passed.
            TimeSource::Rows { .. } if !self.has_begun => Vec::new(),
            TimeSource::Rows { .. } => std::iter::from_fn(|| self.watermarks.next_mark()).collect(),
            // Its splits hold nothing back, and their ends change nothing.
            TimeSource::Arrival(arrival) => vec![Mark::Watermark(arrival.now())],
        };
        if !news.is_empty() {
            self.told_at = Some(now);
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use arrow::array::Int64Array;
    use arrow::datatypes::{Field, Schema};

    use super::*;

    fn at(us: i64) -> Mark {
        Mark::Watermark(EventTime(us))
    }

    fn read(times: Vec<Option<i64>>, told: Vec<Option<i64>>) -> RecordBatch {
        let of = |values: Vec<Option<i64>>| Arc::new(TimestampMicrosecondArray::from(values)) as ArrayRef;
        RecordBatch::try_from_iter_with_nullable([("at", of(times), true), ("told", of(told), true)]).unwrap()
    }

    /// If a column tells time, only its non-null values count.
    #[test]
    fn a_column_tells_how_far_time_is() {
        let times = WatermarkStrategy::of("at").origin(WatermarkOrigin::Column("told".into()));
        let mut clock = SourceClock::new(times, &read(vec![], vec![]).schema(), None).unwrap();
        let told = |clock: &mut SourceClock| clock.next_marks(Instant::now(), true);
        clock.rows(0, read(vec![Some(50), Some(10)], vec![None, None])).unwrap();
        assert_eq!(told(&mut clock), []);
        clock.rows(0, read(vec![Some(60), Some(20)], vec![Some(15), None])).unwrap();
        assert_eq!(told(&mut clock), [at(15)]);
        clock.rows(0, read(vec![None], vec![Some(12)])).unwrap();
        assert_eq!((told(&mut clock), clock.latest()), (vec![], EventTime(60)));
    }

    /// One broken record would end all windows, and make every later row late.
    #[test]
    fn times_that_no_row_may_have_tell_nothing() {
        let mut clock = SourceClock::new(WatermarkStrategy::of("at"), &read(vec![], vec![]).schema(), None).unwrap();
        let mut rows = |times: Vec<Option<i64>>| {
            let none = vec![None; times.len()];
            clock.rows(0, read(times, none)).unwrap();
            clock.latest()
        };
        assert_eq!(rows(vec![Some(i64::MIN), Some(-EventTime::FARTHEST_US - 1)]), EventTime::MIN);
        assert_eq!(rows(vec![Some(i64::MAX), None, Some(7), Some(5), Some(i64::MAX - 1)]), EventTime(7));
        assert_eq!(rows(vec![Some(EventTime::FARTHEST_US)]), EventTime(EventTime::FARTHEST_US));
        let seconds: ArrayRef = Arc::new(arrow::array::TimestampSecondArray::from(vec![9, i64::MAX / 2]));
        assert_eq!(latest(&seconds), Some(EventTime(9_000_000)));
    }

    /// Rows without a time, from an idle split, would otherwise stay in windows until something else comes, and be
    /// late.
    #[test]
    fn rows_that_tell_no_time_end_idleness() {
        let begun = Instant::now();
        let times = WatermarkStrategy::of("at").origin(WatermarkOrigin::Column("told".into()));
        let idle_after = times.idle_after;
        let mut clock = SourceClock::new(times, &read(vec![], vec![]).schema(), None).unwrap();
        let silent = |clock: &mut SourceClock, split| {
            clock.note_idle(split, begun);
            clock.note_idle(split, begun + idle_after);
            clock.next_marks(begun, true)
        };
        let rows = |clock: &mut SourceClock, split, told| {
            clock.rows(split, read(vec![Some(50)], vec![told])).unwrap();
            clock.next_marks(begun, true)
        };
        // Even before any time is known.
        for (told, active) in [(None, vec![]), (None, vec![at(i64::MIN)]), (Some(15), vec![at(15)])] {
            assert_eq!(rows(&mut clock, 0, told), active);
            assert_eq!(silent(&mut clock, 0), [Mark::Idle]);
        }
        assert_eq!(rows(&mut clock, 0, None), [at(15)]);
        assert_eq!(silent(&mut clock, 0), [Mark::Idle]);
        clock.rows(0, read(vec![], vec![])).unwrap();
        assert_eq!((clock.next_marks(begun, true), silent(&mut clock, 0)), (vec![], vec![]), "no row has come");
        // It holds back time again while its rows come, and not while it is silent.
        assert_eq!(rows(&mut clock, 1, Some(20)), [at(20)]);
        assert_eq!(rows(&mut clock, 0, None), []);
        assert_eq!(rows(&mut clock, 1, Some(30)), []);
        assert_eq!(silent(&mut clock, 0), [at(30)]);
    }

    /// A split whose rows wait behind others for lack of room must not count as idle, since its rows would be late.
    /// An idle split beside one that always has rows must not hold time back forever.
    #[test]
    fn a_split_is_idle_when_its_source_has_looked() {
        let begun = Instant::now();
        let after = |seconds| begun + Duration::from_secs(seconds);
        let idle_after = Duration::from_secs(10);
        let mut clock =
            SourceClock::new(WatermarkStrategy::of("at").idle_after(idle_after), &read(vec![], vec![]).schema(), None)
                .unwrap();
        let rows = |clock: &mut SourceClock, split, time| {
            clock.rows(split, read(vec![Some(time)], vec![None])).unwrap();
        };
        let told = |clock: &mut SourceClock, now| {
            clock.check_idle(now);
            clock.next_marks(now, true)
        };
        rows(&mut clock, 0, 1);
        rows(&mut clock, 1, 1);
        clock.note_idle(1, after(0));
        rows(&mut clock, 0, 50);
        assert_eq!(told(&mut clock, after(1000)), [at(1)], "nobody has looked again");
        assert_eq!(clock.due(), None);
        rows(&mut clock, 1, 2);
        assert_eq!(told(&mut clock, after(1000)), [at(2)]);
        // The other one continues, and the source reports that this one does not.
        clock.note_idle(1, after(1000));
        clock.note_idle(1, after(1009));
        rows(&mut clock, 0, 60);
        assert_eq!(told(&mut clock, after(2000)), []);
        clock.note_idle(1, after(1010));
        assert_eq!(told(&mut clock, after(2000)), [at(60)]);
        // Or it has nothing at all for this long.
        rows(&mut clock, 1, 61);
        clock.note_idle(1, after(3000));
        clock.note_source_idle(after(3500));
        rows(&mut clock, 0, 70);
        assert_eq!(told(&mut clock, after(4000)), [at(61)]);
        clock.note_source_idle(after(4000));
        clock.note_source_idle(after(4005));
        assert_eq!(told(&mut clock, after(4009)), []);
        assert!(clock.due().is_some_and(|due| due <= after(4010)));
        assert_eq!(told(&mut clock, after(4011)), [at(70)]);
    }

    /// A clock that was set back, or is behind the clock of the machine where the job ran before, would make rows
    /// look late that are not.
    #[test]
    fn arrival_never_goes_back() {
        let numbers = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]));
        let times = WatermarkStrategy::of("arrived").origin(WatermarkOrigin::Arrival);
        let schema = times.schema(&numbers).unwrap();
        assert!(times.schema(&schema).unwrap_err().contains("already exists"));
        let ahead = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros() as i64 + 3_600_000_000;
        let shared = [ahead, 5].map(|at| Bytes::copy_from_slice(&at.to_le_bytes())).to_vec();
        let restored =
            RestoredState { shared: BTreeMap::from([(ARRIVAL.to_owned(), shared)]), ..RestoredState::default() };
        let mut clock = SourceClock::new(times, &schema, Some(&restored)).unwrap();
        let mut last = ahead;
        for split in [0, 1, 0] {
            let rows =
                RecordBatch::try_new(Arc::clone(&numbers), vec![Arc::new(Int64Array::from(vec![1, 2]))]).unwrap();
            let rows = clock.rows(split, rows).unwrap();
            let times = rows.column(1).as_primitive::<TimestampMicrosecondType>();
            assert!(times.values().iter().all(|&at| at >= last), "no row comes before what was told");
            clock.end_split(split);
            clock.check_idle(Instant::now());
            let [Mark::Watermark(told)] = clock.next_marks(Instant::now(), true)[..] else {
                panic!("time goes on without rows")
            };
            assert!(told >= EventTime(times.value(0)));
            last = told.0;
        }
        assert!(
            clock.due().is_some() && i64::from_le_bytes(clock.shared().unwrap().1.as_ref().try_into().unwrap()) >= last
        );
    }
}
