//! DataSets over streams: the same expressions and groupings as over tables, and windows of event time.
//!
//! | module      | what is in it                                                          |
//! |-------------|------------------------------------------------------------------------|
//! | `table`     | sources and sinks, as queries know them                                |
//! | `window`    | which windows a row belongs to                                         |
//! | `groups`    | groups and their aggregates under way                                  |
//! | `aggregate` | aggregates of windows                                                  |
//! | `memory`    | tables in memory as streams                                            |
//! | `sessions`  | aggregates of sessions                                                 |
//! | `join`      | joins of two streams                                                   |
//! | `complete`  | groups that are complete when a time has passed                        |
//! | `distinct`  | each key once                                                          |
//! | `process`   | functions of programs over the rows of each key                        |
//! | `keyed`     | rows on their way to the owner of their key                            |
//! | `kept`      | rows that are kept until a time has passed                             |
//! | `times`     | which columns tell time                                                |
//! | `steps`     | what is done with one batch at a time                                  |
//! | `lower`     | a query's plan becomes a graph of tasks                                |

mod aggregate;
mod complete;
mod distinct;
mod groups;
mod join;
mod kept;
mod keyed;
mod lower;
mod memory;
mod process;
mod sessions;
mod steps;
mod table;
mod times;
mod window;

use tidemill_dataflow::checkpoint::CheckpointSettings;
use tidemill_dataflow::placement::RoundRobin;
use tidemill_dataflow::{Look, RunReport};

pub use memory::table_stream;
pub use process::{KeyedBatch, KeyedFunction, MakeKeyedFunction};
pub use table::{MakeSink, MakeSource, StreamSink, StreamSource};
pub use window::{WindowKind, Windows};
pub(crate) use window::{is_window, sql_functions};

use crate::dataset::DataSet;
use crate::distribute::{ActionError, Workers};
use crate::engine::Engine;
use lower::Lower;

/// A job that writes a stream.
pub struct StreamJob {
    /// Its name, in checkpoints and messages.
    pub name: String,
    /// Where its rows go.
    pub sink: StreamSink,
    /// How it makes checkpoints; `None`: what a failure interrupts may be lost.
    pub checkpoints: Option<CheckpointSettings>,
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
        let graph = engine.run(async move {
            let (plan, context) = lower::plan(&set).await?;
            Lower::graph(&name, &plan, context, &sink, copies)
        });
        let graph = self.agree(graph)?;
        let ran = self.runner().run_job(&graph, &RoundRobin, job.checkpoints.as_ref(), look);
        ran.map_err(crate::distribute::failed)
    }
}
