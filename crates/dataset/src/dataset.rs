//! `DataSet`: a lazy table. Each method adds a step to a DataFusion plan; nothing is read before an action runs it.
//!
//! Column names are unqualified and unique at every step, so that a name always means one thing; `join` renames columns
//! that would clash. A wrong column or type is an error of the step that uses it, not of the action.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use arrow::datatypes::{DataType, SchemaRef};
use arrow::record_batch::RecordBatch;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, UnnestOptions};
use datafusion::dataframe::DataFrame;
use datafusion::datasource::MemTable;
use datafusion::datasource::provider_as_source;
use datafusion::functions::core::expr_ext::FieldAccessor;
use datafusion::functions_aggregate::first_last::first_value_udaf;
use datafusion::functions_window::row_number::row_number_udwf;
use datafusion::logical_expr::expr::{Sort, WindowFunction};
use datafusion::logical_expr::expr_rewriter::normalize_sorts;
use datafusion::logical_expr::logical_plan::Sort as SortStep;
use datafusion::logical_expr::utils::{find_aggregate_exprs, find_window_exprs};
use datafusion::logical_expr::{
    Expr, LogicalPlan, LogicalPlanBuilder, Partitioning, Union, WindowFunctionDefinition, cast, lit,
};
use datafusion::prelude::SessionContext;

use crate::engine::Engine;
use crate::error::{DataSetError, Result};
use crate::exec::step::SLICE_ROWS;
use crate::exec::user_function::{BatchFunction, MapTable};
use crate::plan::deep::check_plan;
use crate::plan::expr::{column, count_rows, named, output_name, over};
use crate::plan::markers::DistinctTtl;
use crate::plan::operators::with_operators;
use crate::plan::tables::{StepProvider, reads_stream};
use crate::plan::window_names::window_parts;

/// A lazy table. Cloning is cheap; no method changes `self`.
#[derive(Debug, Clone)]
pub struct DataSet {
    frame: DataFrame,
    /// The cached result of [`DataSet::schema`]: the analyzer takes time, and the schema is needed often.
    schema: Arc<OnceLock<SchemaRef>>,
}

impl DataSet {
    /// Wraps a DataFusion frame.
    ///
    /// # Errors
    /// `Query` if two columns have the same name.
    pub fn new(frame: DataFrame) -> Result<Self> {
        check_plan(frame.logical_plan(), false)?;
        let schema = frame.schema();
        if schema.iter().all(|(qualifier, _)| qualifier.is_none()) {
            return Ok(DataSet { frame, schema: Arc::default() });
        }
        // Qualifiers are useful only within SQL; here they would make `col("a")` ambiguous after a join.
        let mut taken: HashSet<String> = HashSet::new();
        let columns: Vec<Expr> = schema
            .iter()
            .map(|(qualifier, field)| {
                // `SELECT a.*, b.*` may contain a name twice.
                let is_free = |name: &String| {
                    !taken.contains(name) && (name == field.name() || !schema.has_column_with_unqualified_name(name))
                };
                let mut names = std::iter::once(field.name().clone())
                    .chain((1..).map(|number| format!("{}_{number}", field.name())));
                let name = names.find(is_free).expect("numbers do not end");
                taken.insert(name.clone());
                Expr::Column(Column::new(qualifier.cloned(), field.name())).alias(name)
            })
            .collect();
        Ok(DataSet { frame: frame.select(columns)?, schema: Arc::default() })
    }

    /// A table in memory, divided in order into as many partitions as the engine has threads.
    ///
    /// # Errors
    /// `Data` if a batch does not have the schema.
    pub fn from_batches(engine: &Engine, schema: SchemaRef, batches: &[RecordBatch]) -> Result<Self> {
        let partitions_max = engine.partitions();
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        // Small tables have fewer partitions, of equal size.
        let rows_each = rows.div_ceil(rows.div_ceil(SLICE_ROWS).clamp(1, partitions_max)).max(1);
        let mut partitions = vec![Vec::new()];
        let mut filled = 0;
        for batch in batches {
            let mut start = 0;
            while start < batch.num_rows() {
                if filled >= rows_each {
                    partitions.push(Vec::new());
                    filled = 0;
                }
                let length = SLICE_ROWS.min(batch.num_rows() - start).min(rows_each - filled);
                partitions.last_mut().expect("never empty").push(batch.slice(start, length));
                start += length;
                filled += length;
            }
        }
        let table = MemTable::try_new(schema, partitions)?;
        DataSet::new(engine.context().read_table(Arc::new(table))?)
    }

    /// Whether the order of its rows is independent of the worker that makes them: the order of a source, with rows
    /// dropped and columns computed, or that of a sort.
    pub fn is_in_order(&self) -> bool {
        matches!(self.origin(), LogicalPlan::TableScan(_) | LogicalPlan::Sort(_) | LogicalPlan::Values(_))
    }

    /// The step that determines the order of its rows.
    fn origin(&self) -> &LogicalPlan {
        let mut plan = self.frame.logical_plan();
        loop {
            plan = match plan {
                LogicalPlan::Projection(step) => &step.input,
                LogicalPlan::Filter(step) => &step.input,
                LogicalPlan::SubqueryAlias(step) => &step.input,
                LogicalPlan::Limit(step) => &step.input,
                other => return other,
            }
        }
    }

    /// The frame with its partitions in source order, if [`DataSet::is_in_order`]. The rows of files would have no
    /// order if they were distributed over threads, or if idle threads took over files.
    pub(crate) fn undealt(&self) -> Result<Self> {
        let (mut state, plan) = self.frame.clone().into_parts();
        let options = state.config_mut().options_mut();
        options.optimizer.enable_round_robin_repartition = false;
        options.execution.enable_file_stream_work_stealing = false;
        DataSet::new(DataFrame::new(state, plan))
    }

    /// The first rows, at most `rows` of each partition. For a source, they are its first rows, regardless of the
    /// number of partitions.
    pub(crate) fn heads(&self, rows: usize) -> Result<(Self, Option<usize>)> {
        match self.origin() {
            LogicalPlan::TableScan(_) => Ok((self.undealt()?, Some(rows))),
            // A sort with a limit does not keep more rows.
            _ => Ok((self.limit(0, Some(rows))?, None)),
        }
    }

    /// The DataFusion frame.
    pub fn frame(&self) -> &DataFrame {
        &self.frame
    }

    /// Names and types of the columns.
    ///
    /// # Errors
    /// `Query` for incompatible types.
    pub fn schema(&self) -> Result<SchemaRef> {
        if let Some(schema) = self.schema.get() {
            return Ok(Arc::clone(schema));
        }
        // For a union, the plan itself has the types of the first branch; the analyzer determines types that fit all
        // branches.
        let (state, plan) = self.frame.clone().into_parts();
        let plan = state.analyzer().execute_and_check(plan, state.config_options(), |_, _| {})?;
        Ok(Arc::clone(self.schema.get_or_init(|| Arc::clone(plan.schema().inner()))))
    }

    /// Names of the columns.
    pub fn names(&self) -> Vec<String> {
        self.frame.schema().fields().iter().map(|field| field.name().clone()).collect()
    }

    pub(crate) fn check_column(&self, name: &str) -> Result<()> {
        if self.frame.schema().has_column_with_unqualified_name(name) {
            return Ok(());
        }
        Err(DataSetError::unknown_column(name, self.names()))
    }

    /// Selects these columns and no others. If any of them aggregates, all must, over the whole table.
    ///
    /// # Errors
    /// `UnknownColumn`; `Query` for types that do not fit or a duplicate name.
    pub fn select(&self, exprs: Vec<Expr>) -> Result<Self> {
        if exprs.is_empty() {
            return Err(DataSetError::Query("select needs at least one column".into()));
        }
        check_names(&exprs)?;
        let functions = find_aggregate_exprs(&exprs);
        if let Some(aggregate) = functions.first() {
            if let Some(rows) = exprs.iter().find_map(|expr| beside(expr, &functions)) {
                return Err(DataSetError::Query(format!(
                    "select: {} has one value for all rows, but {rows:?} has one per row; give the former a window \
                     with over(), or reduce the latter to one value, such as with first()",
                    aggregate.human_display()
                )));
            }
            return self.aggregate(Vec::new(), exprs);
        }
        let exprs = self.with_operators(exprs)?;
        let frame = self.frame.clone().select(exprs.into_iter().map(named).collect::<Vec<_>>())?;
        DataSet::new(frame)
    }

    /// All columns plus these; a column with an existing name replaces it.
    ///
    /// # Errors
    /// As for [`DataSet::select`].
    pub fn with_columns(&self, exprs: Vec<Expr>) -> Result<Self> {
        refuse_aggregates(&exprs)?;
        let mut columns: Vec<Expr> = self.names().iter().map(|name| column(name)).collect();
        let mut places: std::collections::HashMap<String, usize> =
            self.names().into_iter().enumerate().map(|(place, name)| (name, place)).collect();
        for expr in exprs {
            let name = output_name(&expr);
            match places.get(&name) {
                Some(&place) => columns[place] = named(expr),
                None => {
                    places.insert(name, columns.len());
                    columns.push(named(expr));
                }
            }
        }
        self.select(columns)
    }

    /// All columns except these.
    ///
    /// # Errors
    /// `UnknownColumn`; `Query` if no column would be left.
    pub fn drop_columns(&self, names: &[String]) -> Result<Self> {
        names.iter().try_for_each(|name| self.check_column(name))?;
        self.select(self.names().iter().filter(|name| !names.contains(name)).map(|name| column(name)).collect())
    }

    /// The same columns with some renamed, given as pairs (old, new).
    ///
    /// # Errors
    /// `UnknownColumn`; `Query` for a duplicate name.
    pub fn rename(&self, pairs: &[(String, String)]) -> Result<Self> {
        pairs.iter().try_for_each(|(old, _)| self.check_column(old))?;
        let renamed = |name: String| match pairs.iter().find(|(old, _)| *old == name) {
            Some((_, new)) => column(&name).alias(new.clone()),
            None => column(&name),
        };
        self.select(self.names().into_iter().map(renamed).collect())
    }

    /// The rows for which `predicate` is true; rows for which it is null are dropped, too.
    ///
    /// # Errors
    /// `UnknownColumn`; `Query` if the predicate is not boolean.
    pub fn filter(&self, predicate: Expr) -> Result<Self> {
        refuse_aggregates([&predicate])?;
        if find_window_exprs([&predicate]).is_empty() {
            let predicate = with_operators(predicate, self.frame.schema())?;
            return DataSet::new(self.frame.clone().filter(predicate)?);
        }
        // A filter in a plan cannot contain windows: their values become a temporary column.
        const KEPT: &str = "tidemill kept";
        let columns = self.names().iter().map(|name| column(name)).collect();
        self.with_columns(vec![predicate.alias(KEPT)])?.filter(column(KEPT))?.select(columns)
    }

    /// One row for each distinct value of `keys`, with `aggregates` over its rows; without keys, one row for the whole
    /// table.
    ///
    /// # Errors
    /// `UnknownColumn`; `Query` for an expression that is neither an aggregate nor a key.
    pub fn aggregate(&self, keys: Vec<Expr>, aggregates: Vec<Expr>) -> Result<Self> {
        let keys: Vec<Expr> = self.with_operators(keys)?.into_iter().map(named).collect();
        let aggregates = self.with_operators(aggregates)?;
        let functions = find_aggregate_exprs(&aggregates);
        // Two aggregates that differ only by a cast would have the same name.
        let named: Vec<(String, &Expr)> = functions
            .iter()
            .enumerate()
            .map(|(at, function)| {
                let name = function.schema_name().to_string();
                let is_first = functions[..at].iter().all(|other| other.schema_name().to_string() != name);
                (if is_first { name } else { format!("{name} {at}") }, function)
            })
            .collect();
        let functions_named = named.iter().map(|(name, function)| match *name == function.schema_name().to_string() {
            true => (*function).clone(),
            false => (*function).clone().alias(name.clone()),
        });
        let plan = LogicalPlanBuilder::from(self.frame.logical_plan().clone())
            .aggregate(keys.clone(), functions_named.collect::<Vec<_>>())?
            .build()?;
        // The plan's node computes only bare functions; the expressions around them are computed afterwards.
        let output = |key: &Expr| match window_parts(key) {
            [] => vec![column(&output_name(key))],
            // The window as columns, because users want to see its start and end.
            parts => {
                let part = |part: &&str| column(&output_name(key)).field(*part).alias(format!("window_{part}"));
                parts.iter().map(part).collect()
            }
        };
        let mut outputs: Vec<Expr> = keys.iter().flat_map(output).collect();
        for expr in aggregates {
            let name = output_name(&expr);
            let rest = expr.transform_down(|node| {
                Ok(match named.iter().find(|(_, function)| **function == node) {
                    Some((name, _)) => {
                        Transformed::new(Expr::Column(Column::from_name(name.clone())), true, TreeNodeRecursion::Jump)
                    }
                    None => Transformed::no(node),
                })
            })?;
            outputs.push(rest.data.unalias().alias(name));
        }
        let (state, _) = self.frame.clone().into_parts();
        DataSet::new(DataFrame::new(state, plan).select(outputs)?)
    }

    /// Sorted rows.
    ///
    /// # Errors
    /// `UnknownColumn`; `Query` for a type without an order.
    pub fn sort(&self, mut by: Vec<Sort>) -> Result<Self> {
        refuse_aggregates(by.iter().map(|key| &key.expr))?;
        for key in &mut by {
            key.expr = with_operators(std::mem::take(&mut key.expr), self.frame.schema())?.unalias();
        }
        // Not `DataFrame::sort`: it may replace a selected column with the one that it was computed from, if that had
        // the key's name.
        let (state, plan) = self.frame.clone().into_parts();
        let expr = normalize_sorts(by, &plan)?;
        let sorted = LogicalPlan::Sort(SortStep { expr, input: Arc::new(plan), fetch: None });
        DataSet::new(DataFrame::new(state, sorted))
    }

    /// The rows with a number as the first column, counting from `first`: in the order of `by`, else in that of a sort
    /// that was the last step (apart from a limit), else in any order.
    ///
    /// # Errors
    /// `UnknownColumn`; `Query` if there already is a column with this name.
    pub fn with_row_index(&self, name: &str, first: i64, mut by: Vec<Sort>) -> Result<Self> {
        if self.frame.schema().has_column_with_unqualified_name(name) {
            return Err(DataSetError::Query(format!(
                "with_row_index: column {name:?} already exists; choose another name="
            )));
        }
        for key in &mut by {
            key.expr = with_operators(std::mem::take(&mut key.expr), self.frame.schema())?.unalias();
        }
        let mut plan = self.frame.logical_plan();
        while let LogicalPlan::Limit(step) = plan {
            plan = &step.input;
        }
        if let (true, LogicalPlan::Sort(sort)) = (by.is_empty(), plan) {
            by = sort.expr.clone();
        }
        let number =
            Expr::from(WindowFunction::new(WindowFunctionDefinition::WindowUDF(row_number_udwf()), Vec::new()));
        let number = over(number, &[], &by, None)?;
        let number = cast(number, DataType::Int64) + lit(first - 1);
        let columns = std::iter::once(number.alias(name)).chain(self.names().into_iter().map(|name| column(&name)));
        let numbered = self.select(columns.collect())?;
        // In the order of the numbers, if the input was ordered.
        match by.is_empty() {
            true => Ok(numbered),
            false => numbered.sort(vec![column(name).sort(true, false)]),
        }
    }

    fn with_operators(&self, exprs: Vec<Expr>) -> Result<Vec<Expr>> {
        exprs.into_iter().map(|expr| with_operators(expr, self.frame.schema())).collect()
    }

    /// At most `count` rows after skipping `skip`: the first ones of a sorted table, otherwise any.
    ///
    /// # Errors
    /// None known.
    pub fn limit(&self, skip: usize, count: Option<usize>) -> Result<Self> {
        DataSet::new(self.frame.clone().limit(skip, count)?)
    }

    /// Distinct rows; with `subset`, one arbitrary row for each distinct value of those columns.
    ///
    /// # Errors
    /// `UnknownColumn`; `Query` for types without equality.
    pub fn distinct(&self, subset: &[String]) -> Result<Self> {
        if subset.is_empty() {
            return DataSet::new(self.frame.clone().distinct()?);
        }
        subset.iter().try_for_each(|name| self.check_column(name))?;
        let all = self.names().iter().map(|name| column(name)).collect();
        DataSet::new(self.frame.clone().distinct_on(subset.iter().map(|name| column(name)).collect(), all, None)?)
    }

    /// For a stream: as [`DataSet::distinct`], but also passes a row that is at least `ttl` microseconds later than the
    /// last one of its kind that was passed.
    ///
    /// # Errors
    /// `UnknownColumn`; `Query` for types without equality, or if it is not a stream.
    pub fn distinct_for(&self, subset: &[String], ttl: i64) -> Result<Self> {
        if !self.is_stream() || ttl <= 0 {
            return Err(DataSetError::Query("distinct takes a positive ttl, for rows of streams".into()));
        }
        subset.iter().try_for_each(|name| self.check_column(name))?;
        let (names, mut keys, mut rest) = (self.names(), Vec::new(), Vec::new());
        for name in &names {
            match subset.is_empty() || subset.contains(name) {
                true => keys.push(column(name)),
                false => rest.push(first_value_udaf().call(vec![column(name)]).alias(name)),
            }
        }
        let fields = self.frame.schema().fields().iter();
        let times = fields.filter(|field| field.data_type().is_temporal() || field.data_type().is_nested());
        keys.push(DistinctTtl::key(ttl, times.map(|field| column(field.name()))));
        let made = self.frame.clone().aggregate(keys, rest)?;
        DataSet::new(made.select(names.iter().map(|name| column(name)).collect::<Vec<_>>())?)
    }

    /// The rows of both tables, which must have the same columns, in any column order.
    ///
    /// # Errors
    /// `Query` if a column exists only in one table, or has incompatible types.
    pub fn union(&self, other: &DataSet) -> Result<Self> {
        let (ours, theirs) = (self.names(), other.names());
        let only = |a: &[String], b: &[String]| a.iter().filter(|name| !b.contains(name)).cloned().collect::<Vec<_>>();
        let (missing, extra) = (only(&ours, &theirs), only(&theirs, &ours));
        if !missing.is_empty() || !extra.is_empty() {
            return Err(DataSetError::Query(format!(
                "union needs the same columns: only the first has {missing:?}, only the second has {extra:?}"
            )));
        }
        // A union of many tables is a single step, however it is built up: nested unions take longer to plan with each
        // level.
        if let LogicalPlan::Union(union) = self.frame.logical_plan()
            && self.frame.schema().fields() == other.frame.schema().fields()
        {
            let (state, plan) = other.frame.clone().into_parts();
            let more = match plan {
                LogicalPlan::Union(more) => more.inputs,
                plan => vec![Arc::new(plan)],
            };
            let inputs = union.inputs.iter().cloned().chain(more).collect();
            let schema = Arc::clone(&union.schema);
            return DataSet::new(DataFrame::new(state, LogicalPlan::Union(Union { inputs, schema })));
        }
        DataSet::new(self.frame.clone().union_by_name(other.frame.clone())?)
    }

    /// Redistributes the rows into `partitions`: by the hash of `by`, or evenly if `by` is empty.
    ///
    /// # Errors
    /// `UnknownColumn`; `Query` for zero partitions.
    pub fn repartition(&self, partitions: usize, by: Vec<Expr>) -> Result<Self> {
        if partitions == 0 {
            return Err(DataSetError::Query("repartition needs at least one partition".into()));
        }
        refuse_aggregates(&by)?;
        let how =
            if by.is_empty() { Partitioning::RoundRobinBatch(partitions) } else { Partitioning::Hash(by, partitions) };
        DataSet::new(self.frame.clone().repartition(how)?)
    }

    /// One row for each element of the lists in `names`, and none for an empty list or null; the other columns are
    /// repeated.
    ///
    /// # Errors
    /// `UnknownColumn`; `Query` if a column does not contain lists.
    pub fn explode(&self, names: &[String]) -> Result<Self> {
        names.iter().try_for_each(|name| self.check_column(name))?;
        let columns = names.iter().map(Column::from_name).collect();
        let plan = LogicalPlanBuilder::from(self.frame.logical_plan().clone())
            .unnest_columns_with_options(columns, UnnestOptions::new().with_preserve_nulls(false))?
            .build()?;
        let (state, _) = self.frame.clone().into_parts();
        DataSet::new(DataFrame::new(state, plan))
    }

    /// Applies `function` to each batch of rows. It may return any number of batches with `schema`. `name` identifies
    /// it in plans and errors.
    ///
    /// # Errors
    /// None known; a failure of the function is an error of the action.
    pub fn map_batches(&self, name: &str, function: BatchFunction, schema: SchemaRef) -> Result<Self> {
        let (state, input) = self.frame().clone().into_parts();
        let table = StepProvider(Arc::new(MapTable::new(input, function, name, schema)));
        let plan = LogicalPlanBuilder::scan(name, provider_as_source(Arc::new(table)), None)?.build()?;
        DataSet::new(DataFrame::new(state, plan))
    }

    /// Whether its rows come from a stream.
    pub fn is_stream(&self) -> bool {
        reads_stream(self.frame.logical_plan())
    }

    /// The number of rows, as a one-row table.
    ///
    /// # Errors
    /// None known.
    pub fn counted(&self) -> Result<Self> {
        let (state, _) = self.frame.clone().into_parts();
        let rows = count_rows(&SessionContext::new_with_state(state))?;
        self.aggregate(Vec::new(), vec![rows.alias("rows")])
    }
}

/// Checks that columns have different names.
fn check_names(exprs: &[Expr]) -> Result<()> {
    let mut seen = std::collections::HashSet::new();
    match exprs.iter().map(output_name).find(|name| !seen.insert(name.clone())) {
        Some(name) => Err(DataSetError::Query(format!(
            "two columns would be named {name:?}; rename one of them with name=expression or alias()"
        ))),
        None => Ok(()),
    }
}

/// A column that appears in `expr`, but in none of the aggregates.
fn beside(expr: &Expr, aggregates: &[Expr]) -> Option<String> {
    let mut found = None;
    let walked = expr.apply(|node| {
        Ok(match node {
            node if aggregates.contains(node) => TreeNodeRecursion::Jump,
            Expr::Column(column) => {
                found = Some(column.name.clone());
                TreeNodeRecursion::Stop
            }
            _ => TreeNodeRecursion::Continue,
        })
    });
    debug_assert!(walked.is_ok(), "looking at an expression cannot fail");
    found
}

/// For steps that need a value for each row.
pub(crate) fn refuse_aggregates<'e>(exprs: impl IntoIterator<Item = &'e Expr>) -> Result<()> {
    match find_aggregate_exprs(exprs).first() {
        Some(aggregate) => Err(DataSetError::Query(format!(
            "{} has one value for many rows; give it a window with over(), or use select or agg",
            aggregate.human_display()
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineConfig;
    use crate::exec::progress::ReadProgress;
    use crate::plan::expr::{aggregate, binary};
    use arrow::array::{Array, Float64Array, Int64Array};

    fn engine() -> Engine {
        Engine::new(&EngineConfig { threads: 3, workers: 1, memory_bytes: None, spill_dir: None }).unwrap()
    }

    fn numbers(engine: &Engine, rows: i64) -> DataSet {
        let values: Arc<dyn Array> = Arc::new(Int64Array::from_iter_values(0..rows));
        let batch = RecordBatch::try_from_iter([("x", Arc::clone(&values)), ("k", values)]).unwrap();
        DataSet::from_batches(engine, batch.schema(), &[batch]).unwrap()
    }

    fn column_of(batches: &[RecordBatch], place: usize) -> Vec<i64> {
        let values =
            |batch: &RecordBatch| batch.column(place).as_any().downcast_ref::<Int64Array>().unwrap().values().to_vec();
        batches.iter().flat_map(values).collect()
    }

    /// Partitions are collected in order, so a table comes back unchanged for any number of threads.
    #[test]
    fn tables_keep_their_order() {
        let engine = engine();
        for rows in [0, 1, SLICE_ROWS as i64, 100_000] {
            let batches = engine.run(numbers(&engine, rows).collect(ReadProgress::default())).unwrap();
            assert_eq!(column_of(&batches, 0), (0..rows).collect::<Vec<_>>());
        }
    }

    /// Aggregates inside other expressions are computed first, and the surrounding expressions afterwards.
    #[test]
    fn expressions_of_aggregates() {
        let engine = engine();
        let context = engine.context();
        let sum = aggregate(context, "sum", vec![column("x")], false, None, Vec::new()).unwrap();
        let mean = binary("/", sum, count_rows(context).unwrap()).unwrap().alias("mean");
        let parity = binary("%", column("k"), lit(2i64)).unwrap();
        let data = numbers(&engine, 10).aggregate(vec![parity], vec![mean]).unwrap();
        let sorted = data.sort(vec![column("k").sort(true, false)]).unwrap();
        let batches = engine.run(sorted.collect(ReadProgress::default())).unwrap();
        assert_eq!(column_of(&batches, 0), [0, 1]);
        let means = batches[0].column(1).as_any().downcast_ref::<Float64Array>().unwrap();
        assert_eq!(means.values().as_ref(), [4.0, 5.0]);
    }

    /// A wrong name is an error of the step that uses it, without running anything.
    #[test]
    fn steps_check_names() {
        let engine = engine();
        let data = numbers(&engine, 1);
        let error = data.select(vec![column("y")]).unwrap_err();
        assert!(matches!(error, DataSetError::UnknownColumn { ref name, .. } if name == "y"), "{error}");
        assert!(data.rename(&[("x".into(), "k".into())]).is_err());
        assert!(data.drop_columns(&["x".into(), "k".into()]).is_err());
    }
}
