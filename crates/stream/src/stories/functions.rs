//! Keyed functions as programs write them.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, TimeUnit, TimestampMicrosecondType};
use tidemill_dataflow::TaskError;
use tidemill_dataset::DataSet;

use crate::{
    KeyContext, KeyLogic, KeyedBatch, KeyedEngine, KeyedFunction, KeyedOptions, KeyedSetup, MakeKeyedFunction, Timer,
    process,
};

/// The time that passes on the machine's clock between two readings.
const CLOCK_STEP_US: i64 = 1000;

thread_local! {
    /// The machine's clock, in microseconds; far in the past, so that every alarm is due by the real one.
    static CLOCK_US: Cell<i64> = const { Cell::new(0) };
}

/// Makes each story start at the same time.
pub(super) fn restart_clock() {
    CLOCK_US.set(0);
}

fn clock_us() -> i64 {
    CLOCK_US.set(CLOCK_US.get() + CLOCK_STEP_US);
    CLOCK_US.get()
}

/// When a function emits the row counts of a key's windows.
#[derive(Clone, Copy)]
pub(super) enum Says {
    /// When the stream's time reaches the window's end.
    AtItsEnd,
    /// For every row, with its number, a moment later by the machine's clock.
    OfEachRow,
}

/// Row counts by the end of their window; with [`Says::OfEachRow`], the numbers of rows yet to be emitted.
type Counts = Vec<(i64, i64)>;

/// Counts the rows of each key in tumbling windows.
struct CountRows {
    length_us: i64,
    says: Says,
    made: Vec<RecordBatch>,
}

fn made_schema() -> SchemaRef {
    let number = |name: &str| Field::new(name, DataType::Int64, false);
    let time = Field::new("window_end", DataType::Timestamp(TimeUnit::Microsecond, None), false);
    Arc::new(Schema::new(vec![number("key"), time, number("rows")]))
}

impl CountRows {
    fn say(&mut self, end: i64, rows: i64, key: &KeyContext<'_, Counts>) -> Result<(), String> {
        let of = key.columns()?.column(0).as_primitive::<Int64Type>().value(0);
        let number = |number: i64| Arc::new(Int64Array::from(vec![number])) as ArrayRef;
        let columns = vec![number(of), Arc::new(TimestampMicrosecondArray::from(vec![end])) as ArrayRef, number(rows)];
        self.made.push(RecordBatch::try_new(made_schema(), columns).map_err(|error| error.to_string())?);
        Ok(())
    }
}

impl KeyLogic for CountRows {
    type State = Counts;

    fn on_rows(
        &mut self,
        batch: &KeyedBatch,
        _number: usize,
        rows: Range<usize>,
        key: &mut KeyContext<'_, Counts>,
    ) -> Result<(), String> {
        let times = batch.rows.column_by_name("ts").ok_or("rows without a time")?;
        let numbers = batch.rows.column_by_name("n").ok_or("rows without a number")?.as_primitive::<Int64Type>();
        for row in rows {
            let at = times.as_primitive::<TimestampMicrosecondType>().value(row);
            let end = at - at.rem_euclid(self.length_us) + self.length_us;
            let counts = key.state.get_or_insert_default();
            match self.says {
                Says::AtItsEnd => {
                    match counts.iter_mut().find(|(of, _)| *of == end) {
                        Some((_, count)) => *count += 1,
                        None => counts.push((end, 1)),
                    }
                    key.set(Timer::Event(end));
                }
                Says::OfEachRow => {
                    counts.push((end, numbers.value(row)));
                    key.set(Timer::Clock(CLOCK_US.get() + 20 * CLOCK_STEP_US));
                }
            }
        }
        Ok(())
    }

    fn on_timer(&mut self, timer: Timer, key: &mut KeyContext<'_, Counts>) -> Result<(), String> {
        // Each batch of rows sets an alarm, and the first alarm emits everything.
        let Some(counts) = key.state.take() else { return Ok(()) };
        let (due, rest): (Counts, Counts) = match timer {
            Timer::Event(at) => counts.into_iter().partition(|(end, _)| *end == at),
            Timer::Clock(_) => (counts, Vec::new()),
        };
        for (end, rows) in due {
            self.say(end, rows, key)?;
        }
        key.state = (!rest.is_empty()).then_some(rest);
        Ok(())
    }

    fn take_rows(&mut self) -> Result<Vec<RecordBatch>, String> {
        Ok(std::mem::take(&mut self.made))
    }

    fn encode(&mut self, state: &Counts, _whole: bool) -> Result<Vec<u8>, String> {
        Ok(state.iter().flat_map(|(end, rows)| [end.to_le_bytes(), rows.to_le_bytes()]).flatten().collect())
    }

    fn saved(&mut self, _: &mut Counts) -> Result<(), String> {
        Ok(())
    }

    fn decode(&mut self, parts: &[Vec<u8>]) -> Result<Counts, String> {
        let (numbers, []) = parts.last().ok_or("a state without bytes")?.as_chunks::<8>() else {
            return Err("a state that is cut short".into());
        };
        let numbers: Vec<i64> = numbers.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect();
        Ok(numbers.as_chunks::<2>().0.iter().map(|&[end, rows]| (end, rows)).collect())
    }

    fn bytes(&mut self, state: &Counts) -> Result<usize, String> {
        Ok(size_of_val(state.as_slice()))
    }
}

/// Counts rows in tumbling windows by a keyed function, which forgets keys after a time to live.
pub(super) fn counts_by_hand(rows: &DataSet, length_us: i64, says: Says, ttl: Option<i64>) -> DataSet {
    let make: MakeKeyedFunction =
        Arc::new(move |setup: &KeyedSetup<'_>| -> Result<Box<dyn KeyedFunction>, TaskError> {
            let logic = CountRows { length_us, says, made: Vec::new() };
            let clock: Box<dyn Fn() -> i64 + Send> = Box::new(clock_us);
            let options = KeyedOptions { keys: Arc::clone(&setup.keys), ttl, clock: Some(clock) };
            Ok(Box::new(KeyedEngine::new(logic, options, setup.context)?))
        });
    process(rows, "count rows", &["key".into()], make, made_schema(), None, true).unwrap()
}
