//! Sinks of streams: rows appear outside when the checkpoint that they belong to is durable, and once, whatever happens
//! between. (Two-phase commit: *prepare* at the barrier, *commit* when the manifest is there. What is prepared is part
//! of the checkpoint, so a job that goes on from it commits first.)
//!
//! Without checkpoints rows are prepared and committed every second: then what a failure interrupts may be lost. At
//! most once, that is done at every barrier, and checkpoints know nothing of it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use tidemill_checkpoint::coordinator::ALL;
use tidemill_checkpoint::{Control, Mark, Moved, Snapshot};
use tokio::time::{Instant, sleep_until};

use crate::error::TaskError;
use crate::flow::{Inputs, Item};
use crate::rebalance::Moves;
use crate::run::TaskContext;

/// How often a row may appear at a sink when its job fails and goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Guarantee {
    /// Not at all, or once.
    AtMostOnce,
    /// Once, or more often.
    AtLeastOnce,
    /// Once, if sources can be read again and the job makes checkpoints.
    ExactlyOnce,
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Guarantee::AtMostOnce => "at most once",
            Guarantee::AtLeastOnce => "at least once",
            Guarantee::ExactlyOnce => "exactly once",
        })
    }
}

/// Between commits without checkpoints.
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);

/// Where streams go. A copy of a sink task has one.
pub trait Sink: Send {
    /// Looks whether it can do what it promises, before it is given anything.
    ///
    /// # Errors
    /// Fails the task.
    fn begin(&mut self) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Takes rows. They need not appear anywhere yet.
    ///
    /// # Errors
    /// Fails the task.
    fn write(&mut self, rows: RecordBatch) -> BoxFuture<'_, Result<(), TaskError>>;

    /// Makes what was written since the last call ready to be committed. Returns what [`Sink::commit`] needs, also in
    /// another process on another host; no bytes, when there is nothing.
    ///
    /// # Errors
    /// Fails the task.
    fn prepare(&mut self, epoch: u64) -> BoxFuture<'_, Result<Bytes, TaskError>>;

    /// Makes what was prepared appear. May be called again with the same, after a failure, perhaps by another copy: the
    /// second time changes nothing.
    ///
    /// # Errors
    /// Fails the task.
    fn commit(&mut self, prepared: Bytes) -> BoxFuture<'_, Result<(), TaskError>>;

    /// What it keeps in memory until the next `prepare`, as a part of what it may. From a half on it is asked for that
    /// soon, and from 1 on it is given no rows that need not come before, or before the end of a checkpoint whose
    /// barrier overtakes rows.
    fn fullness(&self) -> f64 {
        0.0
    }
}

/// Makes the sink of one copy.
pub type MakeSink = Arc<dyn Fn(&TaskContext) -> Result<Box<dyn Sink>, TaskError> + Send + Sync>;

impl Sink for Box<dyn Sink> {
    fn begin(&mut self) -> BoxFuture<'_, Result<(), TaskError>> {
        self.as_mut().begin()
    }

    fn write(&mut self, rows: RecordBatch) -> BoxFuture<'_, Result<(), TaskError>> {
        self.as_mut().write(rows)
    }

    fn prepare(&mut self, epoch: u64) -> BoxFuture<'_, Result<Bytes, TaskError>> {
        self.as_mut().prepare(epoch)
    }

    fn commit(&mut self, prepared: Bytes) -> BoxFuture<'_, Result<(), TaskError>> {
        self.as_mut().commit(prepared)
    }

    fn fullness(&self) -> f64 {
        self.as_ref().fullness()
    }
}

/// What checkpoints call what a copy has prepared at an epoch
/// ([`Restored::split_names`](crate::checkpoint::Restored::split_names)).
pub fn split_name(epoch: u64, copy: u32) -> String {
    format!("{epoch}.{copy}")
}

/// The copy in such a name.
pub(crate) fn origin(split_name: &str) -> Option<u32> {
    split_name.split_once('.')?.1.parse().ok()
}

enum Wake {
    Item(Option<Item>),
    Durable,
    Tick,
    Looked,
}

/// What is prepared and not committed, by epoch, with the name of its split.
type Prepared = BTreeMap<(u64, String), Bytes>;

/// Runs a sink to its end.
pub(crate) async fn drive<S: Sink>(mut sink: S, mut inputs: Inputs, context: &TaskContext) -> Result<(), TaskError> {
    sink.begin().await?;
    let work = context.work(context.task());
    let states = context.states();
    let at_most_once = context.at_most_once();
    let mut prepared = Prepared::new();
    let mut last = 0;
    if let Some(restored) = states.and_then(|states| states.restored()) {
        last = restored.epoch;
        for (name, bytes) in &restored.splits {
            let epoch = name.split('.').next().and_then(|epoch| epoch.parse().ok());
            let epoch = epoch.ok_or_else(|| format!("the checkpoint has a split \"{name}\" that no sink made"))?;
            prepared.insert((epoch, name.clone()), bytes.clone());
        }
        // The checkpoint is durable, or there would be nothing to go on from.
        commit(&mut sink, &mut prepared, ALL).await?;
    }
    let name = |epoch: u64| (epoch, split_name(epoch, context.copy()));
    let mut durable = match states {
        Some(states) => states.durable(),
        None => tokio::sync::watch::Sender::new(0).subscribe(),
    };
    let mut barriers = match states {
        Some(states) => states.barriers(),
        None => tokio::sync::watch::Sender::new(None).subscribe(),
    };
    let mut hurries = match states {
        Some(states) => states.hurries(),
        None => tokio::sync::watch::Sender::new(0).subscribe(),
    };
    let mut tick = Instant::now() + COMMIT_INTERVAL;
    // Behind which epoch a checkpoint was asked for.
    let mut asked = None;
    // The last epoch that is durable.
    let mut done = last;
    loop {
        let fullness = sink.fullness();
        if fullness >= 0.5 && states.is_none() {
            tick = Instant::now();
        }
        // Before that barrier there are only the rows that are on their way already.
        let barrier_comes = barriers.borrow().as_ref().is_some_and(|barrier| barrier.epoch > last);
        if let Some(states) = states.filter(|_| fullness >= 0.5 && !barrier_comes)
            && asked.replace(last) != Some(last)
        {
            states.full(last);
        }
        // Nor does it hold up a checkpoint that is under way, which only needs what is behind its barrier if that has
        // overtaken rows: it comes to those who send when these rows have gone on.
        let may_wait = done >= last || *hurries.borrow() < last;
        let is_full = fullness >= 1.0 && !barrier_comes && may_wait && states.is_some();
        let wake = tokio::select! {
            biased;
            Ok(()) = durable.changed(), if states.is_some() => Wake::Durable,
            () = sleep_until(tick), if states.is_none() => Wake::Tick,
            Ok(()) = barriers.changed(), if is_full => Wake::Looked,
            Ok(()) = hurries.changed(), if is_full => Wake::Looked,
            item = inputs.recv_any(|_| true), if !is_full => Wake::Item(item?.and_then(|(_, item)| item)),
        };
        match wake {
            Wake::Item(Some(Item::Batch(rows))) => {
                let count = rows.num_rows();
                work.time_async(count, sink.write(rows)).await?;
            }
            Wake::Item(Some(Item::Mark(Mark::Barrier(barrier)))) => {
                prepare(&mut sink, &mut prepared, name(barrier.epoch), at_most_once).await?;
                last = barrier.epoch;
                if let Some(states) = states {
                    states.save(barrier.epoch, true, snapshot(&prepared));
                    if barrier.route_of(context.task()).is_some() {
                        // It keeps nothing by key: to know that others come is all.
                        states.moved(&Moves::default(), Moved { epoch: barrier.epoch, ..Moved::default() });
                    }
                }
                if barrier.control == Control::Stop {
                    break;
                }
            }
            Wake::Item(Some(Item::Mark(_))) => {}
            Wake::Item(None) if inputs.is_over() => break,
            Wake::Item(None) | Wake::Looked => {}
            Wake::Durable => {
                done = *durable.borrow_and_update();
                commit(&mut sink, &mut prepared, done).await?;
            }
            Wake::Tick => {
                last += 1;
                prepare(&mut sink, &mut prepared, name(last), true).await?;
                tick = Instant::now() + COMMIT_INTERVAL;
            }
        }
    }
    prepare(&mut sink, &mut prepared, name(last + 1), at_most_once).await?;
    if let Some(states) = states {
        states.end(snapshot(&prepared)).await?;
        // Others may go on for long. A checkpoint of an epoch whose barrier has not come here was made when this end
        // was known, and has it.
        loop {
            let epoch = *durable.borrow_and_update();
            let was_left = !prepared.is_empty();
            commit(&mut sink, &mut prepared, epoch).await?;
            if epoch == ALL {
                return Ok(());
            }
            if was_left && prepared.is_empty() {
                states.has_nothing_left();
            }
            if durable.changed().await.is_err() {
                return Err("the run ended before its last checkpoint".into());
            }
        }
    }
    commit(&mut sink, &mut prepared, ALL).await
}

/// Prepares an epoch, and commits it `at_once` if nothing is to know of it: at most once, what a checkpoint had would
/// be committed again by whoever goes on from it.
async fn prepare(
    sink: &mut impl Sink,
    prepared: &mut Prepared,
    name: (u64, String),
    at_once: bool,
) -> Result<(), TaskError> {
    let bytes = sink.prepare(name.0).await?;
    if bytes.is_empty() {
        return Ok(());
    }
    if at_once {
        return sink.commit(bytes).await;
    }
    prepared.insert(name, bytes);
    Ok(())
}

fn snapshot(prepared: &Prepared) -> Snapshot {
    let splits = prepared.iter().map(|((_, name), bytes)| (name.clone(), bytes.clone())).collect();
    Snapshot { splits, ..Snapshot::default() }
}

/// Commits what belongs to `epoch` and before, in order.
async fn commit(sink: &mut impl Sink, prepared: &mut Prepared, epoch: u64) -> Result<(), TaskError> {
    while let Some(entry) = prepared.first_entry().filter(|entry| entry.key().0 <= epoch) {
        sink.commit(entry.get().clone()).await?;
        entry.remove();
    }
    Ok(())
}
