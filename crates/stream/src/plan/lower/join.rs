//! Joins: of a stream with a table, batch by batch, and of two streams.

use std::sync::Arc;

use arrow::array::Array;
use datafusion::common::JoinType;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{is_not_null, lit};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{HashJoinExec, HashJoinExecBuilder, PartitionMode};
use tidemill_dataflow::TaskSpec;
use tidemill_dataset::Result;
use tidemill_dataset::extend::{has_stream, with_given_names};

use super::source::in_memory;
use super::{JobLowering, ROWS, RowFlow, columns_of, until_the_end};
use crate::operators::join::{JoinTask, StreamJoin};
use crate::plan::late_output::JOIN;

/// SQL's NOT IN: the rows of a stream whose key is not in a table, made of joins that build the table first. A null in
/// the table could equal any key, so then no key is known to be missing; a null in the stream could be any key, so it
/// passes only if the table is empty.
fn not_in(join: &HashJoinExec) -> Result<Arc<dyn ExecutionPlan>> {
    let [(of_stream, of_table)] = join.on() else { return Err(until_the_end("NOT IN with several columns")) };
    if join.filter().is_some() {
        return Err(until_the_end("NOT IN with a query that refers to the stream's rows; use NOT EXISTS"));
    }
    let (mut rows, mut nulls) = (0, 0);
    for batch in in_memory(join.right())? {
        let keys = of_table.evaluate(&batch)?.into_array(batch.num_rows())?;
        (rows, nulls) = (rows + keys.len(), nulls + keys.logical_null_count());
    }
    let wanted: Arc<dyn PhysicalExpr> = match (rows, nulls) {
        (0, _) => lit(true),
        (_, 0) => is_not_null(Arc::clone(of_stream))?,
        _ => lit(false),
    };
    let stream = Arc::new(FilterExec::try_new(wanted, Arc::clone(join.left()))?);
    let join = join.builder().with_null_aware(false).with_new_children(vec![stream, Arc::clone(join.right())])?;
    Ok(join.build()?.swap_inputs(PartitionMode::CollectLeft)?)
}

impl JobLowering<'_> {
    /// A join of a stream with a table, batch by batch (the table is the side that is built once), or of two streams.
    pub(super) fn join(&mut self, plan: &Arc<dyn ExecutionPlan>, join: &HashJoinExec) -> Result<RowFlow> {
        let refused = |what: &str| Err(until_the_end(what));
        match (has_stream(join.left()), has_stream(join.right())) {
            (true, false) if join.null_aware => return self.node(&not_in(join)?),
            (true, true) => return self.stream_join(plan, join),
            (true, false) => return self.node(&join.swap_inputs(PartitionMode::CollectLeft)?),
            _ => {}
        }
        let keeps_table_rows = !matches!(
            join.join_type(),
            JoinType::Inner | JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark
        );
        if keeps_table_rows || join.null_aware {
            return refused("a join that gives rows of the table that have no match");
        }
        let sides = vec![Arc::clone(join.left()), Arc::clone(join.right())];
        let builder = HashJoinExecBuilder::from(join).with_partition_mode(PartitionMode::CollectLeft);
        let built = builder.with_new_children(sides)?.recompute_properties().build_exec()?;
        let mut rows = self.node(join.right())?;
        rows.from.iter_mut().for_each(|branch| branch.steps.add_plan(&built, join.right(), &self.context));
        let before = match join.join_type() {
            JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => 0,
            _ => join.left().schema().fields().len(),
        };
        rows.times.places.iter_mut().for_each(|of| of.place.column += before);
        if let Some(chosen) = &join.projection {
            rows.times = rows.times.project(&columns_of(chosen));
        }
        rows.schema = plan.schema();
        Ok(rows)
    }

    fn stream_join(&mut self, plan: &Arc<dyn ExecutionPlan>, join: &HashJoinExec) -> Result<RowFlow> {
        let (left, right) = (self.timed(join.left())?, self.timed(join.right())?);
        let sources = left.sources.union(&right.sources).copied().collect();
        let (join, times) = StreamJoin::new(join, [&left.times, &right.times])?;
        let join = Arc::new(join);
        let name = self.name(JOIN);
        let of = Arc::clone(&join);
        let task = TaskSpec::operator(name.clone(), move |copy| JoinTask::new(&of, copy)).streaming();
        let task =
            task.state(join.state()).detail(join.detail()).input("left").input("right").output(ROWS, plan.schema());
        let task = self.graph.add(task.copies(self.copies));
        for (side, (port, rows)) in [("left", left), ("right", right)].into_iter().enumerate() {
            let (keyed, step) = (&join.sides[side], format!("{name} {port}"));
            if keyed.has_late() {
                self.late_steps.push(step.clone());
            }
            let late = (keyed.has_late() && self.late_to.takes(&step)).then(|| with_given_names(&rows.schema));
            self.keyed_with_late(rows, keyed, task.port(port), &step, late);
        }
        Ok(RowFlow::of(task, self.copies, plan.schema(), times, sources))
    }
}
