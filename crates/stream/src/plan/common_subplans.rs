//! Common parts of several queries of one job: each runs once, and all of these queries get its rows.
//!
//! A part of a plan is common if two queries contain it over the same sources, that is, if both are made from the same
//! DataSet. Each query then reads the part as a table and is planned without it, so that the demands of one query
//! cannot change the rows of another. A single query is left unchanged, even if it contains a part twice.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, TableReference};
use datafusion::datasource::{TableType, provider_as_source, source_as_provider};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, TableScan, TableSource};
use datafusion::physical_plan::ExecutionPlan;
use tidemill_dataset::extend::{StepProvider, StreamStep, StreamStepExec, hidden_in, reads_stream, table_at};

/// The queries, which read their common parts as tables, and these parts. A part reads only parts before it.
pub(crate) struct CommonSubplans {
    pub queries: Vec<LogicalPlan>,
    pub parts: Vec<LogicalPlan>,
}

/// A piece of a plan that may become a part.
struct SubplanPiece {
    plan: LogicalPlan,
    /// The queries that contain it other than inside a larger piece that was already known.
    queries: BTreeSet<usize>,
    part: Option<usize>,
}

/// Finds the common parts of queries.
#[derive(Default)]
struct SubplanFinder {
    pieces: Vec<SubplanPiece>,
    parts: Vec<LogicalPlan>,
}

/// Splits the common parts off queries over streams.
pub(crate) fn share(queries: Vec<LogicalPlan>) -> Result<CommonSubplans> {
    if queries.len() == 1 {
        return Ok(CommonSubplans { queries, parts: Vec::new() });
    }
    let mut finder = SubplanFinder::default();
    for (number, query) in queries.iter().enumerate() {
        finder.look(query, number)?;
    }
    let queries = queries.into_iter().map(|query| finder.cut(query)).collect::<Result<_>>()?;
    Ok(CommonSubplans { queries, parts: finder.parts })
}

impl SubplanFinder {
    fn look(&mut self, plan: &LogicalPlan, query: usize) -> Result<()> {
        if may_be_part(plan) {
            if let Some(piece) = self.pieces.iter_mut().find(|piece| is_same(&piece.plan, plan)) {
                piece.queries.insert(query);
                return Ok(());
            }
            let queries = BTreeSet::from([query]);
            self.pieces.push(SubplanPiece { plan: plan.clone(), queries, part: None });
        }
        let mut look = |below: &LogicalPlan| self.look(below, query).map(|()| TreeNodeRecursion::Continue);
        plan.apply_children(&mut look)?;
        plan.apply_subqueries(&mut look)?;
        below_function(plan).map_or(Ok(()), |input| self.look(&input, query))
    }

    /// The plan with its parts replaced by tables.
    fn cut(&mut self, plan: LogicalPlan) -> Result<LogicalPlan> {
        let common = |piece: &SubplanPiece| piece.queries.len() > 1 && is_same(&piece.plan, &plan);
        let Some(at) = self.pieces.iter().position(common) else { return self.cut_below(plan) };
        let part = match self.pieces[at].part {
            Some(part) => part,
            None => {
                let part = self.cut_below(plan.clone())?;
                self.parts.push(part);
                *self.pieces[at].part.insert(self.parts.len() - 1)
            }
        };
        let schema = Arc::new(plan.schema().as_arrow().clone());
        let table = PartTable { part, plan, schema: Arc::clone(&schema) };
        let name = TableReference::bare(format!("part {part}"));
        // As in every DataSet, columns have unqualified names.
        let columns = schema
            .fields()
            .iter()
            .map(|field| Expr::Column(Column::new(Some(name.clone()), field.name())).alias(field.name()));
        LogicalPlanBuilder::scan(name.clone(), provider_as_source(Arc::new(table)), None)?
            .project(columns.collect::<Vec<_>>())?
            .build()
    }

    fn cut_below(&mut self, plan: LogicalPlan) -> Result<LogicalPlan> {
        let plan = plan.map_children(|input| self.cut(input).map(Transformed::yes))?.data;
        let plan = plan.map_subqueries(|input| self.cut(input).map(Transformed::yes))?.data;
        let LogicalPlan::TableScan(scan) = plan else { return Ok(plan) };
        let table = source_as_provider(&scan.source)?;
        let Some(StepProvider(step)) = table.downcast_ref() else { return Ok(LogicalPlan::TableScan(scan)) };
        let Some(input) = step.input() else { return Ok(LogicalPlan::TableScan(scan)) };
        let Some(over) = step.over(self.cut(input.clone())?) else { return Ok(LogicalPlan::TableScan(scan)) };
        let over = Arc::new(StepProvider(over));
        Ok(LogicalPlan::TableScan(TableScan { source: provider_as_source(over), ..scan }))
    }
}

/// Whether it can be read as a table, which must not refer to a surrounding query.
fn may_be_part(plan: &LogicalPlan) -> bool {
    let named_alone = plan.schema().iter().all(|(qualifier, _)| qualifier.is_none());
    let within = matches!(plan, LogicalPlan::Subquery(_)) || !plan.all_out_ref_exprs().is_empty();
    named_alone && !within && !plan.schema().fields().is_empty() && reads_stream(plan)
}

/// The plan below a function of the program, which a table in the plan hides.
fn below_function(plan: &LogicalPlan) -> Option<LogicalPlan> {
    hidden_in(table_at(plan)?.as_ref()).cloned()
}

/// Whether two plans do the same. Plans compare tables by name, but tables with the same name can differ.
fn is_same(one: &LogicalPlan, other: &LogicalPlan) -> bool {
    let same = |(one, other): (&Arc<dyn TableSource>, &Arc<dyn TableSource>)| Arc::ptr_eq(one, other);
    one == other && tables(one).iter().zip(&tables(other)).all(same)
}

fn tables(plan: &LogicalPlan) -> Vec<Arc<dyn TableSource>> {
    let mut found = Vec::new();
    let seen = plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node {
            found.push(Arc::clone(&scan.source));
        }
        Ok(TreeNodeRecursion::Continue)
    });
    seen.expect("looking at it does not fail");
    found
}

/// A part, as queries read it.
#[derive(Debug)]
pub(crate) struct PartTable {
    part: usize,
    /// The part's plan in the query.
    plan: LogicalPlan,
    schema: SchemaRef,
}

impl PartTable {
    /// The plan of the part that was split off at this node, if any.
    pub(crate) fn cut_at(node: &LogicalPlan) -> Option<LogicalPlan> {
        table_at(node)?.downcast_ref::<PartTable>().map(|part| part.plan.clone())
    }
}

#[async_trait]
impl TableProvider for PartTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    async fn scan(
        &self,
        _session: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        _limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let (schema, projection) = (Arc::clone(&self.schema), projection.cloned());
        Ok(Arc::new(StreamStepExec::new(Arc::new(PartExec { part: self.part, projection, schema }), None)?))
    }
}

/// The part in a query's plan, until it is lowered.
#[derive(Debug)]
pub(crate) struct PartExec {
    pub part: usize,
    pub projection: Option<Vec<usize>>,
    /// The schema before the projection.
    schema: SchemaRef,
}

impl StreamStep for PartExec {
    fn kind(&self) -> &'static str {
        "PartExec"
    }

    fn title(&self) -> String {
        self.part.to_string()
    }

    fn schema(&self, _: Option<SchemaRef>) -> Result<SchemaRef> {
        Ok(match &self.projection {
            Some(columns) => Arc::new(self.schema.project(columns)?),
            None => Arc::clone(&self.schema),
        })
    }

    fn refusal(&self) -> DataFusionError {
        DataFusionError::Internal("a part of a stream's plan is lowered, not run".into())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, RecordBatch, TimestampMicrosecondArray};
    use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
    use datafusion::functions_aggregate::expr_fn::count;
    use datafusion::logical_expr::{col, lit};
    use tidemill_dataflow::stream::source::WatermarkStrategy;
    use tidemill_dataset::{DataSet, Engine, EngineConfig, JoinHow};

    use crate::plan::late_output::LateTo;
    use crate::plan::lower::{JobLowering, JobSinks, LoweredJob, plan};
    use crate::plan::table::{StreamOutput, StreamSink, from_stream};
    use crate::rows::late_rows::LateRows;
    use crate::{WindowRule, sql_functions, table_stream};

    fn engine() -> Engine {
        let config = EngineConfig { threads: 2, workers: 1, memory_bytes: None, spill_dir: None };
        Engine::with_functions(&config, sql_functions()).unwrap()
    }

    fn numbers(engine: &Engine, times: Option<WatermarkStrategy>) -> DataSet {
        let time = DataType::Timestamp(TimeUnit::Microsecond, None);
        let schema = Schema::new(vec![Field::new("n", DataType::Int64, false), Field::new("at", time, false)]);
        let columns: Vec<ArrayRef> =
            vec![Arc::new(Int64Array::from(vec![1, 2, 3])), Arc::new(TimestampMicrosecondArray::from(vec![1, 2, 3]))];
        let rows = RecordBatch::try_new(Arc::new(schema), columns).unwrap();
        let source = table_stream("numbers", rows.schema(), &[rows], times, 10, 0.0);
        from_stream(engine, source).unwrap()
    }

    fn timed(engine: &Engine) -> DataSet {
        numbers(engine, Some(WatermarkStrategy::of("at")))
    }

    fn counts(rows: &DataSet) -> DataSet {
        let window = WindowRule::sliding(1_000_000, 1_000_000).unwrap().of(col("at")).alias("window");
        rows.aggregate(vec![col("n"), window], vec![count(lit(1)).alias("rows")]).unwrap()
    }

    fn joined_with_itself(rows: &DataSet) -> DataSet {
        let on = ["n", "at"].map(|name| (name.to_owned(), name.to_owned()));
        rows.join(rows, &on, JoinHow::Inner, "_right", None, None).unwrap()
    }

    fn lowered(engine: &Engine, queries: &[&DataSet]) -> LoweredJob {
        let outputs: Vec<StreamOutput> = queries.iter().map(|&query| (query.clone(), StreamSink::unknown())).collect();
        let made = engine.run(async move {
            let plans = plan(&outputs, &LateTo::Nowhere).await?;
            let sinks = JobSinks { rows: &outputs, late: &LateTo::Nowhere, left_out: &LateRows::default() };
            JobLowering::graph("job", &plans, &sinks, 2)
        });
        made.unwrap()
    }

    fn names(lowered: &LoweredJob) -> Vec<&str> {
        lowered.graph.tasks().collect()
    }

    /// State is restored by the names of tasks, so adding queries must not change names.
    #[test]
    fn a_query_has_the_tasks_that_it_has_alone() {
        let engine = engine();
        let rows = timed(&engine);
        let (itself, windows) = (joined_with_itself(&rows), counts(&rows));
        let alone = lowered(&engine, &[&itself]);
        assert!(names(&alone).starts_with(&["source numbers 1", "source numbers 2", "join 3"]), "{:?}", names(&alone));
        assert!(alone.shared.is_empty());
        let both = lowered(&engine, &[&itself, &windows]);
        assert!(names(&both).starts_with(&names(&alone)), "{:?}", names(&both));
        assert_eq!(both.sources.len(), 2);
        assert_eq!(both.shared, ["source numbers 1"]);
        assert_eq!(both.sinks.iter().map(|sink| sink.sources.len()).collect::<Vec<_>>(), [2, 1]);
    }

    /// A step that two queries share exists once; different steps with the same name exist twice.
    #[test]
    fn common_subplans_are_lowered_once() {
        let engine = engine();
        let (rows, others) = (timed(&engine), timed(&engine));
        let some = rows.filter(col("n").gt(lit(1_i64))).unwrap();
        let windows = counts(&some);
        let busy = windows.filter(col("rows").gt(lit(5_i64))).unwrap();
        let made = lowered(&engine, &[&windows, &busy, &some, &some, &others]);
        let of = |what: &str| names(&made).into_iter().filter(|name| name.starts_with(what)).collect::<Vec<_>>();
        assert_eq!(of("source").len(), 2);
        assert_eq!(of("window"), ["window 2", "window 2, first half 0"]);
        // For the filter, and for the window, whose start and end become columns.
        assert_eq!(of("shared steps"), ["shared steps", "shared steps, 2"]);
        assert_eq!(made.shared, ["shared steps", "shared steps, 2"]);
        assert_eq!(of("sink").len(), 5);
    }

    /// A step that waits for time may be found after its source was made.
    #[test]
    fn a_source_without_time_lacks_event_time_for_any_query() {
        let engine = engine();
        let rows = numbers(&engine, None);
        let missed = |queries: &[&DataSet]| lowered(&engine, queries).sources[0].lacks_event_time();
        assert!(!missed(&[&rows]));
        assert!(missed(&[&rows, &counts(&rows)]));
    }
}
