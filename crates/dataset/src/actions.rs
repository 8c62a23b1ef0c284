//! Actions: queries that run on the threads of this process.

use std::sync::Arc;

use arrow::record_batch::RecordBatch;

use crate::dataset::DataSet;
use crate::error::Result;
use crate::exec::progress::ReadProgress;
use crate::files::sources::SourceFiles;

impl DataSet {
    /// Whether rows that cannot be read are left out of it.
    pub fn is_lenient(&self) -> bool {
        SourceFiles::of(self.frame()).is_lenient
    }

    /// Runs the query; its batches come in order of the partitions, empty ones are left out. `reading` tells meanwhile
    /// how far it is.
    ///
    /// # Errors
    /// `Data`, `Io`, `Memory`: what went wrong on the way.
    pub async fn collect(self, reading: ReadProgress) -> Result<Vec<RecordBatch>> {
        self.collect_each(None, reading).await
    }

    /// The same, of each partition no more than `rows`.
    async fn collect_each(self, rows: Option<usize>, reading: ReadProgress) -> Result<Vec<RecordBatch>> {
        let sources = SourceFiles::of(self.frame());
        let partitions =
            reading.collect_each(self.frame().clone(), rows).await.map_err(|error| sources.name_in(error))?;
        Ok(partitions.into_iter().flatten().filter(|batch| batch.num_rows() > 0).collect())
    }

    /// Runs the query for its first rows: at least `rows`, if there are so many. Of a source, with rows left out and
    /// columns made anew, they are always the same.
    ///
    /// # Errors
    /// As for [`DataSet::collect`].
    pub async fn collect_first(self, rows: usize, reading: ReadProgress) -> Result<Vec<RecordBatch>> {
        let (heads, each) = self.heads(rows)?;
        heads.collect_each(each, reading).await
    }

    /// What will be done, as text.
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

/// How much [`DataSet::explain`] says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExplainLevel {
    /// The steps as they were written.
    Logical,
    /// The steps after optimization.
    Optimized,
    /// What runs.
    Physical,
    /// What ran, with rows and times.
    Analyze,
}
