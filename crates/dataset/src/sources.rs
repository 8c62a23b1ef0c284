//! The files that a query reads, for its errors: DataFusion says what is wrong with a line, but not of which file.

use datafusion::catalog::TableProvider;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::dataframe::DataFrame;
use datafusion::datasource::listing::ListingTable;
use datafusion::datasource::source_as_provider;
use datafusion::error::DataFusionError;
use datafusion::logical_expr::LogicalPlan;

use crate::error::DataSetError;
use crate::map::MapTable;

/// Files that a message names one by one.
const NAMED_MAX: usize = 3;

/// The files of a query, in no order.
pub(crate) struct Sources(Vec<String>);

impl Sources {
    pub(crate) fn of(frame: &DataFrame) -> Self {
        let mut files = Vec::new();
        each_table(frame.logical_plan(), &mut |table| {
            if let Some(table) = table.downcast_ref::<ListingTable>() {
                files.extend(table.table_paths().iter().map(|url| {
                    let path: &url::Url = url.as_ref();
                    path.to_file_path().map_or_else(|()| url.to_string(), |path| path.display().to_string())
                }));
            }
        });
        Sources(files)
    }

    /// The error, with the files if they may be at fault and it does not name one.
    pub(crate) fn name_in(&self, error: DataFusionError) -> DataSetError {
        match DataSetError::from(error) {
            DataSetError::Data(text) if !self.0.is_empty() && !self.0.iter().any(|file| text.contains(file)) => {
                let shown = self.0.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
                let more = self.0.len().saturating_sub(NAMED_MAX);
                let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
                DataSetError::Data(format!("reading {shown}{rest}: {text}"))
            }
            other => other,
        }
    }
}

/// Calls `visit` with every table that a plan reads, in its order, those below functions too.
pub(crate) fn each_table(plan: &LogicalPlan, visit: &mut dyn FnMut(&dyn TableProvider)) {
    let walked = plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node
            && let Ok(provider) = source_as_provider(&scan.source)
        {
            visit(provider.as_ref());
            if let Some(table) = provider.downcast_ref::<MapTable>() {
                each_table(&table.input, visit);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    });
    debug_assert!(walked.is_ok(), "looking at a plan cannot fail");
}
