//! Writing on all workers: each writes its partitions into files of its own in one hidden folder, which worker 0 renames when
//! all are done. The folder must be the same for all of them: one host, or a file system that they share.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{RecordBatch, UInt64Array};
use datafusion::datasource::sink::DataSinkExec;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use tidemill_dataflow::{Look, Outputs};

use super::stages::{Kind, Stages};
use super::{ActionError, To, Workers};
use crate::dataset::DataSet;
use crate::engine::Engine;
use crate::error::DataSetError;
use crate::sources::Sources;
use crate::write::{Commit, Output, written};

impl Workers {
    /// [`DataSet::write`] by all workers. Collective.
    ///
    /// # Errors
    /// As for [`DataSet::write`], the same on every worker.
    pub fn write(
        &self,
        engine: &Engine,
        set: &DataSet,
        dir: &str,
        output: &Output,
        partition_by: Vec<String>,
        overwrite: bool,
        look: Look<'_>,
    ) -> std::result::Result<u64, ActionError> {
        self.agree(set.check_columns(&partition_by))?;
        let begun = match self.comm.rank() {
            0 => Commit::begin(Path::new(dir), overwrite).map(Some),
            _ => Ok(None),
        };
        let commit = self.agree(begun)?;
        let hidden = commit.as_ref().map(|commit| commit.hidden.display().to_string());
        let hidden = self.tell(0, hidden.unwrap_or_default())?;
        let rows = self.write_into(engine, set, &PathBuf::from(hidden), output, partition_by, look)?;
        let ended = commit.map_or(Ok(()), |commit| commit.end(rows, output, &set.schema()));
        self.agree(ended)?;
        Ok(rows)
    }

    fn write_into(
        &self,
        engine: &Engine,
        set: &DataSet,
        hidden: &Path,
        output: &Output,
        partition_by: Vec<String>,
        look: Look<'_>,
    ) -> std::result::Result<u64, ActionError> {
        let seen = if hidden.is_dir() {
            set.copy_to(hidden, output, partition_by).and_then(DataSet::new)
        } else {
            let hidden = hidden.display();
            Err(DataSetError::Io(format!(
                "{hidden}, made by worker 0, is not seen here: all workers must share the folder"
            )))
        };
        let copy = self.agree(seen)?;
        let sources = Arc::new(Sources::of(set.frame()));
        let prepared = self.prepare(engine, &copy, &sources)?;
        let context = prepared.state.task_ctx();
        let plan = self.resolve(prepared.plan, &context, &sources, look)?;
        let stages = match plan.downcast_ref::<DataSinkExec>() {
            Some(sink) => {
                // Files take rows in any order, so what was gathered for one writer goes to many.
                let input = match sink.input().downcast_ref::<CoalescePartitionsExec>() {
                    Some(gather) => gather.input(),
                    None => sink.input(),
                };
                let mut stages = Stages::of(input)?;
                if stages.undivided.is_none() {
                    stages.stages[0].kind = Kind::Write(Arc::new(sink.clone()));
                    stages
                } else {
                    Stages::of(&plan)?
                }
            }
            None => Stages::of(&plan)?,
        };
        Ok(written(&self.run(stages, To::All, &context, &sources, look)?))
    }
}

/// Writes one partition of `plan`.
pub(super) async fn run_sink(
    sink: &DataSinkExec,
    plan: &dyn ExecutionPlan,
    partition: usize,
    context: Arc<TaskContext>,
    outputs: Outputs,
) -> Result<()> {
    let mut output = outputs.into_only();
    let rows = sink.sink().write_all(plan.execute(partition, Arc::clone(&context))?, &context).await?;
    let counts = Arc::new(UInt64Array::from(vec![rows]));
    let batch = RecordBatch::try_new(Arc::clone(output.schema()), vec![counts])?;
    output.send(batch).await.map_err(DataFusionError::External)
}
