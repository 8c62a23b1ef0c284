//! The stage that makes rounds of slices of event time. Beside each copy that sends, it gathers rows into one message
//! for each slice, with or without rows, so that message n is slice n. From there on they are messages like any others.
//!
//! Which rows are late depends only on their order, not on where batches are cut.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch, UInt32Array};
use arrow::compute::{cast, concat_batches, take_record_batch};
use arrow::datatypes::{DataType, SchemaRef, TimeUnit, TimestampMicrosecondType};
use serde::{Deserialize, Serialize};
use tidemill_batch::local::TimeSlices;
use tidemill_checkpoint::{BarrierControl, DeferredShared, EventTime, Mark, RestoredState, Snapshot};

use super::slice_rows::SliceRows;
use crate::checkpoint::{in_flight, open_rounds};
use crate::error::TaskError;
use crate::flow::{Lowering, StreamElement, TaskFactory};
use crate::task::Executor;

/// The largest number of slices that a copy advances at once: a row further ahead is taken for a broken record.
const AHEAD_SLICES_MAX: i64 = 1 << 20;
/// The name of the stage's state among what copies share in checkpoints.
const SLICES: &str = "rounds of time";

/// The name of one of the parts with the rows of open slices.
fn part_name(part: usize) -> String {
    format!("{SLICES} {part}")
}

/// # Errors
/// A description, if there is no such column, or it holds no times.
pub(super) fn check(slices: TimeSlices, schema: &SchemaRef) -> Result<(), String> {
    let field = schema.fields().get(slices.column);
    let field =
        field.ok_or_else(|| format!("no column {} with times among {}", slices.column, schema.fields().len()))?;
    match field.data_type() {
        DataType::Timestamp(..) | DataType::Date32 | DataType::Date64 => Ok(()),
        other => Err(format!("column \"{}\" ({other}) is not a time: cast it to a timestamp", field.name())),
    }
}

/// Adds the stage, and lets the edge begin behind it.
pub(super) fn add_stage(lowering: &mut Lowering<'_>, slices: TimeSlices) {
    let (source, schema) = (lowering.sources()[0], SchemaRef::clone(&lowering.source_schemas()[0]));
    let (workers, outputs) = (lowering.workers_of(source).to_vec(), vec![SchemaRef::clone(&schema)]);
    let stage = lowering.stage("slice", workers, 1, outputs, Executor::Pool, slice(slices, schema));
    lowering.set_streaming(stage);
    lowering.connect_direct(source, stage.input(0));
    lowering.begin_at(stage.output(0));
}

fn slice(slices: TimeSlices, schema: SchemaRef) -> TaskFactory {
    Arc::new(move |inputs, outputs, context| {
        let held = SliceRows::new(&schema, context.governor(), context.reservation());
        let (mut slicer, mut is_idle) = (Slicer::new(slices, &schema, held), false);
        Box::pin(async move {
            let (mut input, mut output) = (inputs.into_only(), outputs.into_only());
            if let Some(restored) = context.restored() {
                slicer.restore(restored, context.copy(), context.copies())?;
            }
            while output.is_wanted()
                && let Some(item) = input.recv().await?
            {
                let wakes = matches!(item, StreamElement::Batch(_) | StreamElement::Mark(Mark::Watermark(_)));
                if wakes && std::mem::take(&mut is_idle) {
                    // Its rows are held until their slice is over, and slices would end without them meanwhile.
                    output.mark(&Mark::Watermark(EventTime::MIN)).await?;
                }
                match item {
                    StreamElement::Batch(rows) => output.note_late(slicer.push(&rows)?),
                    StreamElement::Mark(Mark::Watermark(time)) => slicer.advance(time),
                    StreamElement::Mark(Mark::Idle) => {
                        is_idle = true;
                        output.mark(&Mark::Idle).await?;
                    }
                    StreamElement::Mark(Mark::Barrier(barrier)) => {
                        if let Some(states) = context.states() {
                            states.save_kept(barrier.epoch, |_| Ok(slicer.snapshot(context.copies())))?;
                        }
                        let stops = barrier.control == BarrierControl::Stop;
                        output.mark(&Mark::Barrier(barrier)).await?;
                        if stops {
                            return Ok(());
                        }
                    }
                }
                while let Some(slice) = slicer.take()? {
                    output.send(slice).await?;
                }
            }
            slicer.end();
            while output.is_wanted()
                && let Some(slice) = slicer.take()?
            {
                output.send(slice).await?;
            }
            Ok(())
        })
    })
}

/// What a checkpoint stores of a copy, besides rows.
#[derive(Serialize, Deserialize)]
struct SlicerHeader {
    copies: u32,
    next: i64,
    over: i64,
    latest_us: Option<i64>,
    /// What the rows are made of.
    described: String,
    /// By part with rows, the slices of its batches.
    parts: Vec<Vec<i64>>,
}

/// One copy's rows, by slice.
struct Slicer {
    slices: TimeSlices,
    schema: SchemaRef,
    /// The slice to send next; those before `over` are over.
    next: i64,
    over: i64,
    latest_us: Option<i64>,
    held: SliceRows,
}

impl Slicer {
    fn new(slices: TimeSlices, schema: &SchemaRef, held: SliceRows) -> Self {
        Slicer { slices, schema: SchemaRef::clone(schema), next: 0, over: 0, latest_us: None, held }
    }

    /// Accepts rows. Returns how many of them are left out: late ones, and those without a time.
    fn push(&mut self, rows: &RecordBatch) -> Result<usize, TaskError> {
        let times = cast(rows.column(self.slices.column), &DataType::Timestamp(TimeUnit::Microsecond, None))?;
        let times = times.as_primitive::<TimestampMicrosecondType>();
        let (mut of_slice, mut left_out) = (BTreeMap::<i64, Vec<u32>>::new(), 0);
        for row in 0..times.len() {
            if times.is_null(row) || !EventTime(times.value(row)).is_of_row() {
                left_out += 1;
                continue;
            }
            let time_us = times.value(row);
            let slice = self.slices.slice_of(time_us);
            if slice < self.over {
                left_out += 1;
                continue;
            }
            if slice - self.over > AHEAD_SLICES_MAX {
                return Err(format!(
                    "rounds of time: a row is {} slices ahead of the one that is open; let time slices be longer, begin \
                     later, or leave out rows with such times",
                    slice - self.over
                )
                .into());
            }
            of_slice.entry(slice).or_default().push(row as u32);
            if self.latest_us.is_none_or(|latest| latest < time_us) {
                self.latest_us = Some(time_us);
                if let Some(bound) = self.slices.out_of_order_us {
                    let passed = time_us.saturating_sub(i64::try_from(bound).unwrap_or(i64::MAX));
                    self.over = self.over.max(self.slices.slice_of(passed));
                }
            }
        }
        for (slice, of) in of_slice {
            let rows = if of.len() == rows.num_rows() {
                rows.clone()
            } else {
                take_record_batch(rows, &UInt32Array::from(of))?
            };
            self.held.push(slice, rows)?;
        }
        Ok(left_out)
    }

    /// No row with an earlier time arrives anymore.
    fn advance(&mut self, time: EventTime) {
        // The last watermark lies behind all rows and says nothing of slices; `end` follows.
        if time.is_of_row() {
            self.over = self.over.max(self.slices.slice_of(time.0));
        }
    }

    /// The input has ended, so all slices that have rows are over.
    fn end(&mut self) {
        if let Some(last) = self.held.last() {
            self.over = self.over.max(last + 1);
        }
    }

    /// The rows of the next slice, if it is over.
    fn take(&mut self) -> Result<Option<RecordBatch>, TaskError> {
        if self.next >= self.over {
            return Ok(None);
        }
        let rows = self.held.take(self.next)?;
        self.next += 1;
        Ok(Some(concat_batches(&self.schema, &rows)?))
    }

    /// The state to save, once all slices that are over have been taken. Rows are encoded later.
    fn snapshot(&self, copies: u32) -> Snapshot {
        let mut header = SlicerHeader {
            copies,
            next: self.next,
            over: self.over,
            latest_us: self.latest_us,
            described: in_flight::described(&self.schema),
            parts: Vec::new(),
        };
        let held = self.held.frozen();
        let later = DeferredShared(Box::new(move || {
            let mut shared = Vec::new();
            for (part, (slices, rows)) in held.parts()?.into_iter().enumerate() {
                header.parts.push(slices);
                shared.push((part_name(part), rows));
            }
            shared.push((SLICES.into(), open_rounds::pack(&header, &[])?));
            Ok(shared)
        }));
        Snapshot { later_shared: Some(later), ..Snapshot::default() }
    }

    /// Resumes from the state that the copies saved.
    fn restore(&mut self, restored: &RestoredState, copy: u32, copies: u32) -> Result<(), TaskError> {
        for (then, bytes) in open_rounds::shared(restored, SLICES) {
            let (header, _) = open_rounds::unpack::<SlicerHeader>(&self.schema, bytes)?;
            if header.copies != copies {
                return Err(format!(
                    "{} copies sent by rounds of time at the checkpoint, and {copies} do now: give the task that sends \
                     as many (parallelism=), for each goes on with the slice that it had come to",
                    header.copies
                )
                .into());
            }
            if then != copy {
                continue;
            }
            in_flight::check_described(&self.schema, &header.described)?;
            (self.next, self.over, self.latest_us) = (header.next, header.over, header.latest_us);
            for (part, slices) in header.parts.into_iter().enumerate() {
                let rows = restored.shared_by.get(&copy).and_then(|shared| shared.get(&part_name(part)));
                let rows = rows.ok_or("open rounds of time of the checkpoint are damaged")?;
                self.held.restore(slices, rows.clone())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::TimestampMicrosecondArray;
    use arrow::datatypes::{Field, Schema};
    use bytes::Bytes;
    use proptest::prelude::*;
    use tidemill_batch::memory::{Governor, MemorySettings};

    use super::*;

    fn schema() -> SchemaRef {
        Arc::new(Schema::new(vec![Field::new("t", DataType::Timestamp(TimeUnit::Microsecond, None), true)]))
    }

    fn batch(times: &[Option<i64>]) -> RecordBatch {
        RecordBatch::try_new(schema(), vec![Arc::new(TimestampMicrosecondArray::from(times.to_vec()))]).unwrap()
    }

    fn times(rows: &RecordBatch) -> Vec<i64> {
        rows.column(0).as_primitive::<TimestampMicrosecondType>().values().to_vec()
    }

    fn governor(budget_bytes: u64) -> Governor {
        Governor::new(MemorySettings { budget_bytes, watch_process: false, ..MemorySettings::default() })
    }

    fn slicer_in(governor: &Governor, out_of_order_us: Option<u64>) -> Slicer {
        let slices = TimeSlices { column: 0, start_us: 100, length_us: 10.try_into().unwrap(), out_of_order_us };
        Slicer::new(slices, &schema(), SliceRows::new(&schema(), governor, governor.reservation("slice")))
    }

    fn slicer(out_of_order_us: Option<u64>) -> Slicer {
        slicer_in(&governor(0), out_of_order_us)
    }

    fn saved(slicer: &Slicer, copies: u32) -> BTreeMap<String, Bytes> {
        let DeferredShared(make) = slicer.snapshot(copies).later_shared.unwrap();
        make().unwrap().into_iter().collect()
    }

    fn all(slicer: &mut Slicer) -> Vec<Vec<i64>> {
        std::iter::from_fn(|| slicer.take().unwrap()).map(|rows| times(&rows)).collect()
    }

    proptest! {
        /// Compared with one row at a time: finds a slice with a row of another one, or that depends on where batches
        /// are cut.
        #[test]
        fn slices_are_those_of_one_row_at_a_time(
            rows in prop::collection::vec((0i64..6, -8i64..8), 0..60), cuts in prop::collection::vec(1usize..9, 60),
            bound in 0u64..15,
        ) {
            let mut now = 95;
            let rows: Vec<i64> = rows.into_iter().map(|(step, off)| { now += step; now + off }).collect();
            let (mut expected, mut latest, mut late) = (BTreeMap::<i64, Vec<i64>>::new(), i64::MIN, 0);
            for &time in &rows {
                let over = latest.saturating_sub(bound as i64).saturating_sub(100).div_euclid(10).max(0);
                match (time - 100).div_euclid(10) {
                    slice if slice < over => late += 1,
                    slice => expected.entry(slice).or_default().push(time),
                }
                latest = latest.max(time);
            }
            let end = expected.last_key_value().map_or(0, |(slice, _)| slice + 1);
            let expected: Vec<Vec<i64>> = (0..end).map(|at| expected.get(&at).cloned().unwrap_or_default()).collect();
            let (mut slicer, mut found, mut left_out, mut from) = (slicer(Some(bound)), Vec::new(), 0, 0);
            for cut in cuts {
                let to = (from + cut).min(rows.len());
                let part: Vec<_> = rows[from..to].iter().copied().map(Some).collect();
                left_out += slicer.push(&batch(&part)).unwrap();
                found.extend(all(&mut slicer));
                from = to;
            }
            slicer.end();
            found.extend(all(&mut slicer));
            prop_assert_eq!((found, left_out), (expected, late));
        }
    }

    /// Finds a slice that ends before the watermark passes it, and one without rows that waits.
    #[test]
    fn watermarks_end_slices() {
        let mut slicer = slicer(None);
        assert_eq!(slicer.push(&batch(&[Some(125), None, Some(101), Some(99)])).unwrap(), 2);
        assert!(all(&mut slicer).is_empty());
        slicer.advance(EventTime(119));
        assert_eq!(all(&mut slicer), [vec![101]]);
        assert_eq!(slicer.push(&batch(&[Some(109), Some(111)])).unwrap(), 1);
        slicer.advance(EventTime(145));
        assert_eq!(all(&mut slicer), [vec![111], vec![125], vec![]]);
        slicer.advance(EventTime::MAX);
        slicer.end();
        assert!(all(&mut slicer).is_empty());
        let error = slicer.push(&batch(&[Some(1 << 50)])).unwrap_err().to_string();
        assert!(error.contains("slices ahead of the one that is open"), "{error}");
    }

    /// The held rows are in the checkpoint, and go back to the copy that held them.
    #[test]
    fn slices_that_are_open_go_on() {
        let mut before = slicer(Some(0));
        before.push(&batch(&[Some(103), Some(112), Some(117)])).unwrap();
        assert_eq!(all(&mut before), [vec![103]]);
        let restored = RestoredState { shared_by: [(1, saved(&before, 2))].into(), ..RestoredState::default() };
        let mut after = slicer(Some(0));
        after.restore(&restored, 1, 2).unwrap();
        assert_eq!(after.push(&batch(&[Some(109), Some(121)])).unwrap(), 1, "it is late there, too");
        assert_eq!(all(&mut after), [vec![112, 117]]);
        assert!(slicer(None).restore(&restored, 0, 3).unwrap_err().to_string().contains("2 copies sent"));
        let other: SchemaRef = Arc::new(Schema::new(vec![Field::new("t", DataType::Date32, true)]));
        after.schema = other;
        assert!(after.restore(&restored, 1, 2).unwrap_err().to_string().contains("but the task takes (Date32)"));
    }

    /// Rows of slices that are open count in the budget, and those that are too many go to disk: finds rows that are
    /// held beside the budget, or that come back from disk in another slice or order, also by way of a checkpoint.
    #[test]
    fn rows_beyond_the_budget_wait_on_disk() {
        let (small, large) = (governor(2 << 20), governor(0));
        let mut slicers = [slicer_in(&small, None), slicer_in(&large, None)];
        let mut found = [Vec::new(), Vec::new()];
        for step in 0..60_i64 {
            let rows: Vec<Option<i64>> = (0..20_000).map(|row| Some(100 + 10 * (step / 8) + row * 7 % 80)).collect();
            for (slicer, found) in slicers.iter_mut().zip(&mut found) {
                assert_eq!(slicer.push(&batch(&rows)).unwrap(), 0);
                if step % 8 == 7 {
                    slicer.advance(EventTime(100 + 10 * (step / 8 + 1)));
                }
                found.extend(all(slicer));
            }
            assert!(small.reserved_bytes() <= small.limit_bytes());
            if step == 29 {
                let shared_by = [(0, saved(&slicers[0], 1))].into();
                let restored = RestoredState { shared_by, ..RestoredState::default() };
                slicers[0] = slicer_in(&small, None);
                slicers[0].restore(&restored, 0, 1).unwrap();
            }
        }
        assert!(large.reserved_bytes() > 2 * small.limit_bytes(), "{}", large.reserved_bytes());
        assert!(small.spilled_bytes() > 0);
        for (slicer, found) in slicers.iter_mut().zip(&mut found) {
            slicer.end();
            found.extend(all(slicer));
        }
        assert_eq!((small.reserved_bytes(), large.reserved_bytes()), (0, 0));
        let [small, large] = found;
        assert_eq!(large.iter().map(Vec::len).sum::<usize>(), 60 * 20_000);
        assert!(small == large);
    }
}
