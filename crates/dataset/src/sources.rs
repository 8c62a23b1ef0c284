//! The files that a query reads, for its errors: DataFusion says what is wrong with a line, but not of which file.

use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::dataframe::DataFrame;
use datafusion::datasource::listing::ListingTable;
use datafusion::datasource::source_as_provider;
use datafusion::error::DataFusionError;
use datafusion::logical_expr::LogicalPlan;

use crate::error::DataSetError;
use crate::file_table::{Check, CheckedTable, PiecesTable};
use crate::lenient::{UNREAD, told};
use crate::map::MapTable;
use crate::own_files::OwnTable;
use crate::stores::shown;

/// What the readers of CSV and JSON say of a row that they cannot read.
const READERS: [&str; 8] = [
    UNREAD,
    "Csv error",
    "Json error",
    "Error while parsing value",
    "Error parsing column",
    "incorrect number of fields",
    "Cannot cast string",
    "too large to store in a Decimal",
];

/// Files that a message names one by one.
const NAMED_MAX: usize = 3;

/// The files of a query, in no order.
#[derive(Default)]
pub(crate) struct Sources {
    files: Vec<String>,
    checks: Vec<Arc<Check>>,
    /// Whether bad rows of some are left out.
    pub(crate) is_lenient: bool,
}

impl Sources {
    pub(crate) fn of(frame: &DataFrame) -> Self {
        let mut found = Sources::default();
        each_table(frame.logical_plan(), &mut |table| found.see(table));
        found
    }

    /// The error, with the files if they may be at fault and it does not name one.
    pub(crate) fn name_in(&self, error: DataFusionError) -> DataSetError {
        match DataSetError::from(error) {
            // An error that has gone through this before names its file.
            DataSetError::Data(text)
                if !self.files.is_empty() && !self.files.iter().any(|file| text.contains(file)) =>
            {
                let may_be_a_row = READERS.iter().any(|words| text.contains(words));
                let found = may_be_a_row.then(|| self.checks.iter().find_map(|check| check.first_bad())).flatten();
                if let Some(row) = found {
                    return DataSetError::Data(told(&row));
                }
                let shown = self.files.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
                let more = self.files.len().saturating_sub(NAMED_MAX);
                let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
                DataSetError::Data(format!("reading {shown}{rest}: {text}"))
            }
            other => other,
        }
    }

    fn see(&mut self, table: &dyn TableProvider) {
        if let Some(table) = table.downcast_ref::<ListingTable>() {
            self.add(table);
        }
        if let Some(checked) = table.downcast_ref::<CheckedTable>() {
            self.add(&checked.table);
            self.checks.push(Arc::clone(&checked.check));
        }
        if let Some(own) = table.downcast_ref::<OwnTable>() {
            let mine = own.input.as_ref().map(Sources::of).unwrap_or_default();
            self.files.extend(mine.files);
            self.checks.extend(mine.checks);
            self.is_lenient |= own.is_lenient;
        }
        self.is_lenient |= table.downcast_ref::<PiecesTable>().is_some_and(|table| table.is_lenient);
    }

    fn add(&mut self, table: &ListingTable) {
        self.files.extend(table.table_paths().iter().map(|url| {
            let path: &url::Url = url.as_ref();
            path.to_file_path().map_or_else(|()| shown(path), |path| path.display().to_string())
        }));
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
