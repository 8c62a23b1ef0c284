//! DataSets over streams: the same expressions and groupings as over tables, and windows of event time.
//!
//! | module      | what is in it                                                          |
//! |-------------|------------------------------------------------------------------------|
//! | `table`     | sources and sinks, as queries know them                                |
//! | `window`    | which windows a row belongs to                                         |
//! | `spans`     | the stretches of time that windows are                                 |
//! | `groups`    | groups and their aggregates under way                                  |
//! | `aggregate` | aggregates of windows                                                  |
//! | `memory`    | tables in memory as streams                                            |
//! | `sessions`  | aggregates of sessions                                                 |
//! | `counts`    | aggregates of so many rows of each key                                 |
//! | `triggered` | aggregates of windows with a result after every so many rows           |
//! | `join`      | joins of two streams                                                   |
//! | `complete`  | groups that are complete when a time has passed                        |
//! | `distinct`  | each key once                                                          |
//! | `saved`     | what copies share in checkpoints                                       |
//! | `process`   | functions of programs over the rows of each key                        |
//! | `keyed`     | rows on their way to the owner of their key                            |
//! | `late`      | rows that come too late                                                |
//! | `panes`     | what is held of a stretch of time                                      |
//! | `sorted`    | states on disk                                                         |
//! | `held`      | how much of the worker's memory an operator holds, and the disk beyond |
//! | `keys`      | which keys there are                                                   |
//! | `kept`      | rows that are kept until a time has passed                             |
//! | `chained`   | the same, those of each key in a chain                                 |
//! | `times`     | which columns tell time                                                |
//! | `behind`    | what a program says of columns of time                                 |
//! | `now`       | the time of day                                                        |
//! | `steps`     | what is done with one batch at a time                                  |
//! | `lower`     | a query's plan becomes a graph of tasks                                |

mod aggregate;
mod behind;
mod chained;
mod complete;
mod counts;
mod distinct;
mod groups;
mod held;
mod join;
mod kept;
mod keyed;
mod keys;
mod late;
mod lower;
mod memory;
mod now;
mod panes;
mod process;
mod saved;
mod sessions;
mod sorted;
mod spans;
mod steps;
mod table;
mod times;
mod triggered;
mod window;

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use tidemill_dataflow::checkpoint::CheckpointSettings;
use tidemill_dataflow::placement::RoundRobin;
use tidemill_dataflow::stream::sink::Guarantee;
use tidemill_dataflow::{Look, RunReport};

pub(crate) use behind::function as behind_function;
pub(crate) use distinct::Remembered;
pub use late::{LateRows, MakeLateSink};
pub(crate) use lower::has_stream;
pub use memory::table_stream;
pub use process::{KeyedBatch, KeyedFunction, MakeKeyedFunction};
pub use spans::Calendar;
pub use table::{MakeSink, MakeSource, StreamSink, StreamSource};
pub use window::{Early, WindowKind, Windows};
pub(crate) use window::{sql_functions, window_parts};

use crate::dataset::DataSet;
use crate::distribute::{ActionError, Workers};
use crate::engine::Engine;
use crate::error::DataSetError;
use lower::{Lower, Sinks};

/// A job that writes a stream.
pub struct StreamJob {
    /// Its name, in checkpoints and messages.
    pub name: String,
    /// Where its rows go.
    pub sink: StreamSink,
    /// How it makes checkpoints; `None`: what a failure interrupts may be lost.
    pub checkpoints: Option<CheckpointSettings>,
    /// The least that it must give, else it does not begin.
    pub guarantee: Option<Guarantee>,
    /// Where rows go that come too late for a window; `None`: they are left out.
    pub late: Option<MakeLateSink>,
    /// Counts those that are left out.
    pub left_out: Arc<LateRows>,
}

/// What several give of which a row passes one or all; nothing, where one may lose rows and another double them.
fn together(mut all: impl Iterator<Item = Guarantee> + Clone) -> Option<Guarantee> {
    let doubles = all.clone().any(|gives| gives == Guarantee::AtLeastOnce);
    let loses = all.any(|gives| gives == Guarantee::AtMostOnce);
    match (loses, doubles) {
        (false, false) => Some(Guarantee::ExactlyOnce),
        (false, true) => Some(Guarantee::AtLeastOnce),
        (true, false) => Some(Guarantee::AtMostOnce),
        (true, true) => None,
    }
}

impl StreamJob {
    /// Whether it gives what it must.
    fn check(&self, sources: &[(String, Guarantee)], sinks: &[StreamSink]) -> Result<(), DataSetError> {
        let Some(wanted) = self.guarantee else { return Ok(()) };
        let refused = |why: String| Err(DataSetError::Query(format!("the job cannot give {wanted}: {why}")));
        let Some(checkpoints) = &self.checkpoints else {
            return refused("it makes no checkpoints; say where they lie with checkpoint=".into());
        };
        if checkpoints.at_most_once && checkpoints.interval.is_zero() {
            return refused(
                "rows wait for checkpoints, which it makes none of but the last; say how often with every=".into(),
            );
        }
        if let Some((source, gives)) = sources.iter().find(|(_, gives)| *gives < wanted) {
            return refused(match gives {
                Guarantee::AtMostOnce => {
                    format!("what came from {source} since the last checkpoint cannot be read again")
                }
                _ => format!(
                    "{source} gives some rows again, and nothing tells which; messages of RabbitMQ are told apart by id="
                ),
            });
        }
        if let Some(StreamSink { name: sink, guarantee: gives, .. }) = sinks.iter().find(|sink| sink.guarantee < wanted)
        {
            return refused(format!("the sink {sink} gives {gives}; see docs/streams.md for sinks that give more"));
        }
        Ok(())
    }
}

impl Workers {
    /// Writes a query over streams until they end or the job is stopped. Collective: every worker calls it with the same query.
    ///
    /// # Errors
    /// The same on every worker: what went wrong first.
    pub fn stream(
        &self,
        engine: &Engine,
        set: &DataSet,
        job: &StreamJob,
        look: Look<'_>,
    ) -> Result<RunReport, ActionError> {
        let copies = self.partitions() as u32;
        let set = set.clone();
        let (name, sink) = (job.name.clone(), job.sink.clone());
        let (late, left_out) = (job.late.clone(), Arc::clone(&job.left_out));
        let lowered = engine.run(async move {
            let (plan, context) = lower::plan(&set, late.is_some()).await?;
            let sinks = Sinks { rows: &sink, late: late.as_ref(), left_out: &left_out };
            Lower::graph(&name, &plan, context, sinks, copies)
        });
        let lowered = lowered.and_then(|lowered| job.check(&lowered.sources, &lowered.sinks).map(|()| lowered.graph));
        let graph = self.agree(lowered)?;
        let ran = self.runner().run_job(&graph, &RoundRobin, job.checkpoints.as_ref(), look);
        ran.map_err(crate::distribute::failed)
    }

    /// The tasks that a query over streams becomes, and what becomes of its rows when the job fails and goes on, at the sink
    /// that it is `written_to`, if that is known. Collective.
    ///
    /// # Errors
    /// The same on every worker: a step that a stream cannot have.
    pub fn explain_stream(
        &self,
        engine: &Engine,
        set: &DataSet,
        written_to: Option<&StreamSink>,
    ) -> Result<String, ActionError> {
        let copies = self.partitions() as u32;
        let set = set.clone();
        let nowhere = |_: &SchemaRef| -> MakeSink { Arc::new(|_| Err("explained, not run".into())) };
        let sink = StreamSink {
            name: "of write_stream".into(),
            copies_max: 0,
            guarantee: Guarantee::ExactlyOnce,
            make: Arc::new(nowhere),
        };
        let lowered = engine.run(async move {
            let (plan, context) = lower::plan(&set, false).await?;
            let sinks = Sinks { rows: &sink, late: None, left_out: &LateRows::default() };
            Lower::graph("stream", &plan, context, sinks, copies)
        });
        let lowered = self.agree(lowered)?;
        let workers = self.runner().workers().len() as u32;
        let mut text =
            lowered.graph.explain(workers, None).map_err(|errors| crate::distribute::failed(errors.into()))?;
        for source in &lowered.untimed {
            let why =
                "it has no time=, so steps behind it that wait for time, as windows do, give nothing before it ends";
            text.push_str(&format!("{source}: {why}\n"));
        }
        text.push_str("after a failure, with checkpoint=:\n");
        for (source, gives) in &lowered.sources {
            text.push_str(&match gives {
                Guarantee::ExactlyOnce => format!("  {source}: is read again from where the checkpoint says\n"),
                Guarantee::AtLeastOnce => {
                    format!(
                        "  {source}: gives again what it does not know to have arrived, which may have been taken\n"
                    )
                }
                Guarantee::AtMostOnce => format!("  {source}: what came since the checkpoint is lost\n"),
            });
        }
        let sources = lowered.sources.iter().map(|(_, gives)| *gives);
        let with = |sink: Guarantee| match together(sources.clone().chain([sink])) {
            Some(gives) => format!("has each row {gives}"),
            None => "may have rows not at all, and others more than once".into(),
        };
        text.push_str(&match written_to {
            Some(sink) => format!("  the sink {} {}\n", sink.name, with(sink.guarantee)),
            None => {
                let (commits, function) = (with(Guarantee::ExactlyOnce), with(Guarantee::AtLeastOnce));
                format!("  a sink that commits {commits}, a function {function}\n")
            }
        });
        text.push_str("the same, with guarantee=\"at most once\":\n");
        for (source, gives) in &lowered.sources {
            text.push_str(&match gives {
                Guarantee::ExactlyOnce => format!(
                    "  {source}: is read from where the checkpoint says; what was read before is not read again\n"
                ),
                Guarantee::AtLeastOnce => format!("  {source}: what it gives again is left out\n"),
                Guarantee::AtMostOnce => format!("  {source}: what came before is lost\n"),
            });
        }
        text.push_str("  any sink has each row at most once; what windows and other steps had kept is lost\n");
        Ok(text)
    }
}
