//! Actions: run queries on the threads of this process.

use std::sync::Arc;

use arrow::record_batch::RecordBatch;

use crate::dataset::DataSet;
use crate::error::Result;
use crate::exec::progress::ReadProgress;
use crate::files::sources::SourceFiles;

impl DataSet {
    /// Whether unreadable rows are skipped.
    pub fn is_lenient(&self) -> bool {
        SourceFiles::of(self.frame()).is_lenient
    }

    /// Runs the query. Batches come in the order of the partitions, without empty ones. `reading` shows the progress
    /// meanwhile.
    ///
    /// # Errors
    /// `Data`, `Io`, `Memory`: whatever fails during the run.
    pub async fn collect(self, reading: ReadProgress) -> Result<Vec<RecordBatch>> {
        self.collect_each(None, reading).await
    }

    /// The same, with at most `rows` rows per partition.
    async fn collect_each(self, rows: Option<usize>, reading: ReadProgress) -> Result<Vec<RecordBatch>> {
        let sources = SourceFiles::of(self.frame());
        let partitions =
            reading.collect_each(self.frame().clone(), rows).await.map_err(|error| sources.name_in(error))?;
        Ok(partitions.into_iter().flatten().filter(|batch| batch.num_rows() > 0).collect())
    }

    /// Runs the query for its first rows: at least `rows`, if there are that many. For a source, with rows dropped and
    /// columns computed, they are always the same.
    ///
    /// # Errors
    /// As for [`DataSet::collect`].
    pub async fn collect_first(self, rows: usize, reading: ReadProgress) -> Result<Vec<RecordBatch>> {
        let (heads, each) = self.heads(rows)?;
        heads.collect_each(each, reading).await
    }

    /// The plan, as text.
    ///
    /// # Errors
    /// `Query` if no plan can be made; with `Analyze`, which runs the query, as for [`DataSet::collect`].
    pub async fn explain(self, how: ExplainLevel) -> Result<String> {
        let plan = match how {
            ExplainLevel::Logical => return Ok(self.frame().logical_plan().display_indent().to_string()),
            ExplainLevel::Optimized => {
                return Ok(self.frame().clone().into_optimized_plan()?.display_indent().to_string());
            }
            ExplainLevel::Physical | ExplainLevel::Analyze => self.frame().clone().create_physical_plan().await?,
        };
        if how == ExplainLevel::Physical {
            return Ok(datafusion::physical_plan::displayable(plan.as_ref()).indent(false).to_string());
        }
        let context = Arc::new(self.frame().task_ctx());
        datafusion::physical_plan::collect_partitioned(Arc::clone(&plan), context).await?;
        Ok(datafusion::physical_plan::display::DisplayableExecutionPlan::with_metrics(plan.as_ref())
            .indent(false)
            .to_string())
    }
}

/// The level of detail of [`DataSet::explain`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExplainLevel {
    /// The steps as written.
    Logical,
    /// The steps after optimization.
    Optimized,
    /// The physical plan.
    Physical,
    /// The plan that ran, with rows and times.
    Analyze,
}
