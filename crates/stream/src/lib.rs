//! DataSets over streams: the same expressions and groupings as over tables, plus windows of event time.
//!
//! Modules, lowest first; each uses only those above it:
//!
//! | module      | contents                                           |
//! |-------------|----------------------------------------------------|
//! | `time`      | event time: windows, and the time columns of plans |
//! | `state`     | the state of operators                             |
//! | `rows`      | processing of rows between operators               |
//! | `operators` | stateful tasks                                     |
//! | `plan`      | lowering of queries to a graph of tasks            |
//! | `stories`   | tests: jobs of queries that crash and resume       |
#![warn(missing_docs)]

mod operators;
mod plan;
mod rows;
mod state;
#[cfg(test)]
mod stories;
mod time;

use std::sync::Arc;

use datafusion::logical_expr::ScalarUDF;
use tidemill_dataflow::checkpoint::CheckpointSettings;
use tidemill_dataflow::placement::RoundRobin;
use tidemill_dataflow::stream::sink::DeliveryGuarantee;
use tidemill_dataflow::{ProgressCallback, RunReport};
use tidemill_dataset::extend::failed;
use tidemill_dataset::{ActionError, DataSet, DataSetError, Engine, WorkerGroup};

pub use operators::bsp::{BspFunction, BspOptions, BspSetup, CallOutput, CallSpan, MakeBspFunction, OnBusy, bsp};
pub use operators::keyed::{
    KeyContext, KeyLogic, KeyOperator, KeyedBatch, KeyedEngine, KeyedEntry, KeyedFunction, KeyedOptions, KeyedSetup,
    Lifetimes, MakeKeyedFunction, Timer,
};
pub use operators::process::process;
pub use plan::late_output::{LateTo, MakeLateSink};
pub use plan::memory::table_stream;
pub use plan::passing::{named, shuffled};
pub use plan::table::{BadTo, StreamOutput, StreamSink, StreamSource, from_stream};
pub use rows::late_rows::LateRows;
pub use time::window::{EarlyResults, WindowKind, WindowRule};
pub use time::window_assigner::ZonedCalendar;

use plan::lower::{JobLowering, JobSinks, SinkTask, SourceTask};

/// Returns the functions that queries over streams need: windows, and `behind` for columns of time. Give them to
/// [`Engine::with_functions`].
pub fn sql_functions() -> Vec<ScalarUDF> {
    time::window::sql_functions().chain([time::time_bound::function()]).collect()
}

/// A job that writes streams to sinks.
pub struct StreamJob {
    /// The job's name, for checkpoints and messages.
    pub name: String,
    /// Checkpoint settings; with `None`, a failure may lose whatever was in progress.
    pub checkpoints: Option<CheckpointSettings>,
    /// The minimum guarantee: the job does not start if it cannot give it.
    pub guarantee: Option<DeliveryGuarantee>,
    /// Where late rows go; late rows without a sink are dropped.
    pub late: LateTo,
    /// Counts dropped late rows.
    pub left_out: Arc<LateRows>,
    /// Checks the sinks before the job starts, and returns the reason if it must not start.
    pub look_at_sinks: Option<LookAtSinks>,
}

/// Checks the specifications of a job's sinks, including those of late rows and bad records, each with the
/// specifications of the sources of its rows. Sinks and sources that were not made from a specification are omitted.
pub type LookAtSinks = Arc<dyn Fn(&[(Arc<str>, Vec<Arc<str>>)]) -> Result<(), String> + Send + Sync>;

impl StreamJob {
    /// Checks whether the job may start.
    fn check(&self, sources: &[SourceTask], sinks: &[SinkTask]) -> Result<(), DataSetError> {
        if let Some(look) = &self.look_at_sinks {
            let of = |task: &SinkTask| {
                let sources = task.sources.iter().filter_map(|&source| sources[source].spec());
                Some((task.sink.spec.clone()?, sources.collect()))
            };
            let described: Vec<_> = sinks.iter().filter_map(of).collect();
            look(&described).map_err(DataSetError::Query)?;
        }
        self.gives(sources, sinks)
    }

    /// Checks the job's guarantee.
    fn gives(&self, sources: &[SourceTask], sinks: &[SinkTask]) -> Result<(), DataSetError> {
        let Some(wanted) = self.guarantee else { return Ok(()) };
        let refused = |why: String| Err(DataSetError::Query(format!("the job cannot give {wanted}: {why}")));
        let Some(checkpoints) = &self.checkpoints else {
            return refused("it makes no checkpoints; set their location with checkpoint=".into());
        };
        if checkpoints.at_most_once && checkpoints.interval.is_zero() {
            return refused(
                "rows wait for checkpoints, and it makes only the last one; set the interval of the Checkpoint".into(),
            );
        }
        if let Some(source) = sources.iter().find(|source| source.guarantee() < wanted) {
            let (source, gives) = (source.name(), source.guarantee());
            return refused(match gives {
                DeliveryGuarantee::AtMostOnce => {
                    format!("what came from {source} since the last checkpoint cannot be read again")
                }
                _ => format!(
                    "{source} may deliver some rows again, and nothing identifies them; id= identifies messages of \
                     RabbitMQ"
                ),
            });
        }
        let folders = sources.iter().find_map(|source| Some((source.name(), source.bad_folder()?)));
        if let (DeliveryGuarantee::ExactlyOnce, Some((source, folder))) = (wanted, folders) {
            let folder = folder.display();
            return refused(format!(
                "{source} may write a bad record into quarantine=\"{folder}\" again after a failure; use a sink that \
                 commits, such as quarantine=tm.stream.to_files(\"{folder}\")"
            ));
        }
        if let Some(StreamSink { name: sink, guarantee: gives, .. }) =
            sinks.iter().map(|task| &task.sink).find(|sink| sink.guarantee < wanted)
        {
            return refused(format!(
                "the sink {sink} gives {gives}; see docs/stream-connectors.md for sinks that give more"
            ));
        }
        Ok(())
    }
}

/// Runs queries over streams, each into its sink, until they end or the job is stopped. Steps that several queries
/// share run once. Collective: every worker calls it with the same queries, all of this engine.
///
/// # Errors
/// The first error, the same on every worker.
pub fn run(
    workers: &WorkerGroup,
    engine: &Engine,
    outputs: &[StreamOutput],
    job: &StreamJob,
    look: ProgressCallback<'_>,
) -> Result<RunReport, ActionError> {
    let copies = workers.partitions() as u32;
    let (outputs, name) = (outputs.to_vec(), job.name.clone());
    let (late, left_out) = (job.late.clone(), Arc::clone(&job.left_out));
    let lowered = engine.run(async move {
        let plans = plan::lower::plan(&outputs, &late).await?;
        let sinks = JobSinks { rows: &outputs, late: &late, left_out: &left_out };
        JobLowering::graph(&name, &plans, &sinks, copies)
    });
    let lowered = lowered.and_then(|lowered| job.check(&lowered.sources, &lowered.sinks).map(|()| lowered));
    let lowered = workers.agree(lowered)?;
    workers.same_folders(lowered.sources.iter().filter_map(SourceTask::files))?;
    let ran = workers.runner().run_job(&lowered.graph, &RoundRobin, job.checkpoints.as_ref(), look);
    ran.map_err(failed)
}

/// Describes the tasks of these queries and what happens to their rows when the job fails and resumes, for each sink
/// that is known. Collective.
///
/// # Errors
/// The same on every worker: a step that streams do not support.
pub fn explain(
    workers: &WorkerGroup,
    engine: &Engine,
    outputs: &[(DataSet, Option<StreamSink>)],
) -> Result<String, ActionError> {
    let copies = workers.partitions() as u32;
    let known: Vec<bool> = outputs.iter().map(|(_, sink)| sink.is_some()).collect();
    let outputs: Vec<StreamOutput> =
        outputs.iter().map(|(set, sink)| (set.clone(), sink.clone().unwrap_or_else(StreamSink::unknown))).collect();
    let lowered = engine.run(async move {
        let plans = plan::lower::plan(&outputs, &LateTo::Nowhere).await?;
        let sinks = JobSinks { rows: &outputs, late: &LateTo::Nowhere, left_out: &LateRows::default() };
        JobLowering::graph("stream", &plans, &sinks, copies)
    });
    let lowered = workers.agree(lowered)?;
    let among = workers.runner().workers().len() as u32;
    let text = lowered.graph.explain(among, None).map_err(|errors| failed(errors.into()))?;
    Ok(text + &plan::explain::promises(&lowered, &known))
}
