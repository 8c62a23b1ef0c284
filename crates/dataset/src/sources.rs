//! The files that a query reads, for its errors: DataFusion says what is wrong with a line, but not of which file.

use std::sync::Arc;

use arrow::error::ArrowError;
use datafusion::catalog::TableProvider;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::dataframe::DataFrame;
use datafusion::datasource::listing::ListingTable;
use datafusion::datasource::source_as_provider;
use datafusion::error::DataFusionError;
use datafusion::logical_expr::LogicalPlan;

use crate::caught::DAMAGED;
use crate::error::DataSetError;
use crate::file_table::{Check, CheckedTable, PiecesTable};
use crate::lenient::UNREAD;
use crate::own_files::OwnTable;
use crate::stores::shown;
use crate::stream::hidden_in;

/// What a cast says, of a reader or of the query.
const CAST: &str = "Cannot cast string";

/// What the readers of CSV and JSON say of a row that they cannot read.
const READERS: [&str; 9] = [
    DAMAGED,
    UNREAD,
    "Csv error",
    "Json error",
    "Error while parsing value",
    "Error parsing column",
    "incorrect number of fields",
    CAST,
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
        let is_computed = is_computed(&error);
        // An error that has gone through this before names its file.
        let is_nameless = |text: &str| !self.files.is_empty() && !self.files.iter().any(|file| text.contains(file));
        match DataSetError::from(error) {
            DataSetError::Data(text) if !is_computed && is_nameless(&text) => {
                if is_of_readers(&text) {
                    if let Some(fault) = self.checks.iter().find_map(|check| check.fault()) {
                        return fault;
                    }
                    if text.contains(CAST) && !self.checks.is_empty() {
                        return DataSetError::Data(text);
                    }
                }
                let shown = self.files.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
                let more = self.files.len().saturating_sub(NAMED_MAX);
                let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
                DataSetError::Data(format!("reading {shown}{rest}: {text}"))
            }
            // What the system says has its number; this is of who expands a file.
            DataSetError::Io(text) if is_nameless(&text) && !text.contains("os error") => {
                let mut compressed = self.checks.iter().filter(|check| check.is_compressed());
                compressed.find_map(|check| check.fault()).unwrap_or(DataSetError::Io(text))
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

fn is_of_readers(text: &str) -> bool {
    READERS.iter().any(|words| text.contains(words))
}

/// Whether it is of what a query makes of values, and of no file.
fn is_computed(error: &DataFusionError) -> bool {
    match error.find_root() {
        DataFusionError::Execution(text) => !is_of_readers(text),
        DataFusionError::ArrowError(error, _) => {
            matches!(error.as_ref(), ArrowError::ArithmeticOverflow(_) | ArrowError::DivideByZero)
        }
        // Our own readers name their files.
        DataFusionError::External(error) => {
            error.downcast_ref::<DataSetError>().is_some_and(|ours| !is_of_readers(&ours.to_string()))
        }
        _ => false,
    }
}

/// The table that a node of a plan reads, if it reads one.
pub(crate) fn table_at(node: &LogicalPlan) -> Option<Arc<dyn TableProvider>> {
    let LogicalPlan::TableScan(scan) = node else { return None };
    source_as_provider(&scan.source).ok()
}

/// Calls `visit` with every table that a plan reads, in its order, those below functions too.
pub(crate) fn each_table(plan: &LogicalPlan, visit: &mut dyn FnMut(&dyn TableProvider)) {
    let walked = plan.apply_with_subqueries(|node| {
        if let Some(table) = table_at(node) {
            visit(table.as_ref());
            if let Some(hidden) = hidden_in(table.as_ref()) {
                each_table(hidden, visit);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    });
    debug_assert!(walked.is_ok(), "looking at a plan cannot fail");
}
