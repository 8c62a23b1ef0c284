//! The files that a query reads, for its errors: DataFusion says what is wrong with a line, but not in which file.

use std::sync::Arc;

use arrow::error::ArrowError;
use datafusion::catalog::TableProvider;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::dataframe::DataFrame;
use datafusion::datasource::listing::ListingTable;
use datafusion::error::DataFusionError;
use datafusion::logical_expr::expr::BinaryExpr;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, ExprSchemable, Operator};
use tidemill_storage::shown_url;

use crate::error::DataSetError;
use crate::exec::catch_panics::DAMAGED;
use crate::files::file_table::{CheckedTable, FirstBadRow, NamedFiles, PiecesTable};
use crate::files::malformed_rows::UNREAD;
use crate::files::per_host_files::OwnTable;
use crate::lossless_cast::is_text;
use crate::plan::tables::each_table;

/// The start of a cast error, of a reader or of the query.
const CAST: &str = "Cannot cast string";

/// Errors of the CSV and JSON readers for rows that they cannot read.
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

/// Maximum number of files that a message lists.
const NAMED_MAX: usize = 3;

/// The files of a query, in no particular order.
#[derive(Default)]
pub(crate) struct SourceFiles {
    files: Vec<String>,
    checks: Vec<Arc<FirstBadRow>>,
    /// Whether bad rows of some files are skipped.
    pub(crate) is_lenient: bool,
    /// The query, used to name the expression in which a value caused an error.
    query: Option<DataFrame>,
}

impl SourceFiles {
    pub(crate) fn of(frame: &DataFrame) -> Self {
        let mut found = SourceFiles::default();
        each_table(frame.logical_plan(), &mut |table| found.see(table));
        found.query = Some(frame.clone());
        found
    }

    /// The error, with the files added if they may be the cause and it does not name one.
    pub(crate) fn name_in(&self, error: DataFusionError) -> DataSetError {
        let is_computed = is_computed(&error);
        // An error that has passed through here before names its file.
        let is_nameless = |text: &str| !self.files.is_empty() && !self.files.iter().any(|file| text.contains(file));
        match DataSetError::from(error) {
            DataSetError::Data(text) if !is_computed && is_nameless(&text) => {
                if is_of_readers(&text) {
                    if let Some(fault) = self.checks.iter().find_map(|check| check.fault()) {
                        return fault;
                    }
                    if let Some(text) = self.query.as_ref().and_then(|query| blamed(query, &text)) {
                        return DataSetError::Data(text);
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
            DataSetError::Data(text) => match self.query.as_ref().and_then(|query| blamed(query, &text)) {
                Some(text) => DataSetError::Data(text),
                None => DataSetError::Data(text),
            },
            // System errors contain a number; this one is from decompressing a file.
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
        if let Some(named) = table.downcast_ref::<NamedFiles>() {
            self.see(named.table.as_ref());
        }
        if let Some(checked) = table.downcast_ref::<CheckedTable>() {
            self.add(&checked.table);
            self.checks.push(Arc::clone(&checked.check));
        }
        if let Some(own) = table.downcast_ref::<OwnTable>() {
            let mine = own.input.as_ref().map(SourceFiles::of).unwrap_or_default();
            self.files.extend(mine.files);
            self.checks.extend(mine.checks);
            self.is_lenient |= own.is_lenient;
        }
        self.is_lenient |= table.downcast_ref::<PiecesTable>().is_some_and(|table| table.is_lenient);
    }

    fn add(&mut self, table: &ListingTable) {
        self.files.extend(table.table_paths().iter().map(|url| {
            let path: &url::Url = url.as_ref();
            path.to_file_path().map_or_else(|()| shown_url(path), |path| path.display().to_string())
        }));
    }
}

/// Arrow's error for a division by zero.
const DIVISION: &str = "Divide by zero";

/// An error of Arrow about a value, with the expressions of the query that may have caused it; `None` if there are
/// none, or for other errors.
fn blamed(query: &DataFrame, text: &str) -> Option<String> {
    let cast_to = cast_type(text);
    if cast_to.is_none() && !text.contains(DIVISION) || text.contains(BLAMED) {
        return None;
    }
    let (state, plan) = query.clone().into_parts();
    // Implicit casts, as of the sides of a comparison, exist only now.
    let plan = state.analyzer().execute_and_check(plan, state.config_options(), |_, _| {}).ok()?;
    let mut found: Vec<String> = Vec::new();
    let mut add = |what: String| {
        if !found.contains(&what) {
            found.push(what);
        }
    };
    let walked = plan.apply_with_subqueries(|node| {
        let schema = merge_schema(&node.inputs());
        node.apply_expressions(|expr| {
            expr.apply(|part| {
                match (part, &cast_to) {
                    (Expr::Cast(cast), Some((to, of_text))) if cast.field.data_type().to_string().starts_with(to) => {
                        let is_meant = cast.expr.get_type(&schema).is_ok_and(|of| is_text(&of) == *of_text);
                        // Literals are cast when the query is planned.
                        if is_meant && !cast.expr.column_refs().is_empty() {
                            add(shown_expr(part));
                        }
                    }
                    (Expr::BinaryExpr(BinaryExpr { left, op: Operator::Divide | Operator::Modulo, right }), None) => {
                        let is_exact = left.get_type(&schema).is_ok_and(|of| !of.is_floating());
                        if is_exact && (!matches!(right.as_ref(), Expr::Literal(..)) || is_zero(right)) {
                            add(shown_expr(right));
                        }
                    }
                    _ => {}
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    });
    debug_assert!(walked.is_ok(), "looking at a plan cannot fail");
    const SHOWN_MAX: usize = 5;
    let listed = match found.as_slice() {
        [] => return None,
        [one] => one.clone(),
        several if several.len() <= SHOWN_MAX => format!("one of {}", several.join(", ")),
        several => format!("one of {} and {} more", several[..SHOWN_MAX].join(", "), several.len() - SHOWN_MAX),
    };
    Some(match cast_to {
        Some(_) => {
            format!("{text}{BLAMED}{listed}; cast(..., strict=False), or try_cast in SQL, turns such values into null")
        }
        None => format!("{text}{BLAMED}the divisor {listed}; leave out rows where it is 0, or make it null there"),
    })
}

/// Separates an error from the expressions that may have caused it.
const BLAMED: &str = ", in ";

/// An expression in the user's notation.
#[expect(deprecated, reason = "our own operators tell by it how they are written")]
fn shown_expr(expr: &Expr) -> String {
    match expr {
        Expr::Column(column) => column.name.clone(),
        Expr::Alias(alias) => shown_expr(&alias.expr),
        Expr::Cast(cast) => format!("cast({} as {})", shown_expr(&cast.expr), cast.field.data_type()),
        Expr::ScalarFunction(call) => {
            call.func.display_name(&call.args).unwrap_or_else(|_| expr.human_display().to_string())
        }
        other => other.human_display().to_string(),
    }
}

fn is_zero(expr: &Expr) -> bool {
    let Expr::Literal(value, _) = expr else { return false };
    datafusion::common::ScalarValue::new_zero(&value.data_type()).is_ok_and(|zero| zero == *value)
}

/// The start of the name of the type in Arrow's cast error, and whether the value was a string.
fn cast_type(text: &str) -> Option<(String, bool)> {
    let after = |before: &str| text.split_once(before).map(|(_, rest)| rest);
    if text.contains(CAST) {
        let rest = after("' to value of ")?;
        let to = &rest[..rest.rfind(" type")?];
        // For decimals, it names the widest type.
        let to = if to.starts_with("Decimal") { to.split('(').next()? } else { to };
        return Some((to.to_owned(), true));
    }
    if text.contains("Error parsing timestamp from ") {
        return Some(("Timestamp".to_owned(), true));
    }
    if text.contains("Can't cast value") {
        return Some((after(" to type ")?.trim().to_owned(), false));
    }
    let rest = after("Cannot cast to Decimal")?;
    Some((format!("Decimal{}", &rest[..=rest.find(')')?]), false))
}

fn is_of_readers(text: &str) -> bool {
    READERS.iter().any(|words| text.contains(words))
}

/// Whether the error is about values computed by the query, rather than about a file.
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
