//! An exchange by rounds: the n-th message of every source copy makes the n-th round, and what arrives arrives round by
//! round. So sources need no end, and a task can send its results back to one that comes before it
//! ([`Graph::feedback`](crate::Graph::feedback)).
//!
//! A message is one call of [`Output::send`](crate::Output::send), with or without rows. Behind it goes a mark with the
//! number of its round to every target copy; a copy puts rounds together from what its streams bring between marks. A
//! reduction of all rows needs none: a message becomes a row on its way, and the n-th row is of round n. A round may
//! also be a number of rows of each copy, what comes between two barriers, or the rows of a slice of event time
//! ([`RoundUnit`]).
//!
//! In a job that makes checkpoints a copy that waits for a barrier reads on however far a stream is ahead: the barrier
//! may lie behind messages of rounds that others come to only behind theirs. Then rounds that are complete go on, and
//! the barrier behind them; those that are open are part of the snapshot.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use tidemill_checkpoint::{BarrierControl, Mark, Snapshot};

use super::{EdgeSignature, EdgeWorkers, Exchange, RoundEnd, RoundUnit, time_slices};
use crate::error::TaskError;
use crate::flow::{Input, Lowering, Output, StreamElement};
use crate::task::TaskContext;

/// See the module.
///
/// The target gets one batch for each round, which may be empty, with rows in the order of the source copies. From
/// [`Reduce`](super::Reduce) and [`AllReduce`](super::AllReduce) it gets one row for each round, and a batch may hold
/// several rounds; they ignore messages without rows. With rounds of time they, too, deliver one batch for each round,
/// which is empty if there were no rows.
#[derive(Clone)]
pub struct Rounds<E> {
    exchange: E,
    end: RoundEnd,
    unit: RoundUnit,
}

impl<E: Exchange> Rounds<E> {
    /// `exchange` by rounds; `end` says what happens when a source copy ends before the others.
    pub fn new(exchange: E, end: RoundEnd) -> Self {
        Rounds { exchange, end, unit: RoundUnit::Message }
    }

    /// With another unit than a message. Of [`RoundUnit::Epoch`] each checkpoint makes a round, so that all copies have
    /// equally many; without checkpoints all that comes is one. Of [`RoundUnit::Time`] a copy that ends never holds up
    /// others, whatever [`RoundEnd`] says: it has no rows in later slices.
    #[must_use]
    pub fn of(self, unit: RoundUnit) -> Self {
        Rounds { unit, ..self }
    }
}

impl<E: Exchange> Exchange for Rounds<E> {
    fn describe(&self) -> String {
        let rounds = match self.end {
            RoundEnd::Strict => "rounds",
            RoundEnd::Partial => "partial rounds",
        };
        let unit = match self.unit {
            RoundUnit::Message => String::new(),
            RoundUnit::Rows(rows) => format!(" of {rows} rows"),
            RoundUnit::Epoch => " of checkpoints".into(),
            RoundUnit::Time(slices) => format!(" of {} s", slices.length_us.get() as f64 / 1e6),
        };
        format!("{} by {rounds}{unit}", self.exchange.describe())
    }

    fn check(&self, ends: &EdgeSignature<'_>) -> Result<SchemaRef, String> {
        if !self.exchange.allows_rounds() {
            return Err(format!(
                "\"{}\" cannot go by rounds; direct, broadcast, gather, partition by key or function, and reductions can",
                self.exchange.describe()
            ));
        }
        if let RoundUnit::Time(slices) = self.unit {
            time_slices::check(slices, ends.only()?)?;
        }
        self.exchange.check(ends)
    }

    fn rounds(&self) -> Option<RoundEnd> {
        Some(self.end)
    }

    fn round_unit(&self) -> RoundUnit {
        self.unit
    }

    fn explain(&self, ends: &EdgeWorkers<'_>) -> Option<String> {
        self.exchange.explain(ends)
    }

    fn lower(&self, lowering: &mut Lowering<'_>) {
        match self.unit {
            RoundUnit::Time(slices) => {
                time_slices::add_stage(lowering, slices);
                lowering.set_rounds(RoundEnd::Partial, self.unit);
            }
            unit => lowering.set_rounds(self.end, unit),
        }
        self.exchange.lower(lowering);
    }
}

/// The loop of a stage that makes something of each round by itself, and keeps nothing.
pub(super) async fn map_rounds(
    mut input: Input,
    mut output: Output,
    context: &TaskContext,
    mut map: impl FnMut(RecordBatch) -> Result<RecordBatch, TaskError>,
) -> Result<(), TaskError> {
    while output.is_wanted()
        && let Some(item) = input.recv().await?
    {
        match item {
            StreamElement::Batch(round) => output.send(map(round)?).await?,
            StreamElement::Mark(Mark::Barrier(barrier)) => {
                if let Some(states) = context.states() {
                    states.save_kept(barrier.epoch, |_| Ok(Snapshot::default()))?;
                }
                let stops = barrier.control == BarrierControl::Stop;
                output.mark(&Mark::Barrier(barrier)).await?;
                if stops {
                    return Ok(());
                }
            }
            // That nothing comes for now, and that it comes again.
            StreamElement::Mark(mark) => output.mark(&mark).await?,
        }
    }
    Ok(())
}
