//! Distinct keys: the first row of each group.

use std::sync::Arc;

use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::{ExecutionPlan, displayable};
use tidemill_dataflow::TaskSpec;
use tidemill_dataset::extend::DistinctTtl;
use tidemill_dataset::{DataSetError, Result};

use crate::operators::distinct::{DistinctQuery, DistinctTask};
use crate::plan::lower::{JobLowering, ROWS, RowFlow};
use crate::rows::keyed::KeyedRows;

/// The non-key expressions of an aggregation that takes the first row of each group; `None` for other aggregations.
pub(super) fn firsts(aggregate: &AggregateExec) -> Option<Vec<Arc<dyn PhysicalExpr>>> {
    let first = |(function, filter): (&Arc<AggregateFunctionExpr>, &Option<Arc<dyn PhysicalExpr>>)| {
        let any = function.fun().name() == "first_value" && function.order_bys().is_empty() && filter.is_none();
        function.expressions().into_iter().next().filter(|_| any)
    };
    aggregate.aggr_expr().iter().zip(aggregate.filter_expr()).map(first).collect()
}

impl JobLowering<'_> {
    /// Passes each key once.
    pub(super) fn distinct(
        &mut self,
        plan: &Arc<dyn ExecutionPlan>,
        rows: RowFlow,
        groups: &[Arc<dyn PhysicalExpr>],
        more: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<RowFlow> {
        let gives: Vec<_> = groups.iter().cloned().chain(more).collect();
        let keys: Vec<_> = groups.iter().filter(|key| DistinctTtl::of(key).is_none()).cloned().collect();
        let ttl = groups.iter().find_map(DistinctTtl::of);
        let ttl = match (ttl, rows.times.places.first()) {
            (Some(ttl), Some(time)) => Some((time.clone(), ttl)),
            (Some(_), None) => {
                return Err(DataSetError::Unsupported(
                    "distinct with ttl= on a stream whose rows have no event time: set time= on its source, and keep \
                     that column"
                        .into(),
                ));
            }
            (None, _) => None,
        };
        let of_keys = if ttl.is_some() { Vec::new() } else { rows.times.project(&keys).places };
        let times = rows.times.project(&gives);
        let late = rows.times.places.first().filter(|_| !of_keys.is_empty()).cloned();
        let keyed = Arc::new(KeyedRows::new(&rows.schema, keys, false, late)?);
        let (name, detail) = (self.name("distinct"), displayable(plan.as_ref()).one_line().to_string());
        let untimed = self.late.of(&name);
        let shape =
            DistinctQuery { keyed: Arc::clone(&keyed), times: of_keys, ttl, untimed, gives, output: plan.schema() };
        let shape = Arc::new(shape);
        let (state, sources) = (shape.state(), rows.sources.clone());
        let task =
            TaskSpec::operator(name.clone(), move |copy| DistinctTask::new(&shape, copy)).streaming().state(state);
        let task = task.detail(detail).input("rows").output(ROWS, plan.schema()).copies(self.copies);
        let task = self.graph.add(task);
        self.keyed(rows, &keyed, task.into(), &name);
        Ok(RowFlow::of(task, self.copies, plan.schema(), times, sources))
    }
}
