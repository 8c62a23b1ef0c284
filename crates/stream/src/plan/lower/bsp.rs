//! Functions that all copies of a task enter together.

use std::sync::Arc;

use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;
use tidemill_dataflow::TaskSpec;
use tidemill_dataflow::task::Executor;
use tidemill_dataset::{DataSetError, Result};

use super::{JobLowering, ROWS, RowFlow, columns_of};
use crate::operators::bsp::spread::RowHash;
use crate::operators::bsp::task::{BspShape, BspTask};
use crate::operators::bsp::{BspExec, BspWindow};
use crate::rows::keyed::KeyedRows;
use crate::time::times::{StreamTimes, TimeColumn, TimeOf};

impl JobLowering<'_> {
    /// A BSP function: rows go to the copy that owns their key, or to any copy, depending on their values.
    pub(super) fn bsp(&mut self, plan: &Arc<dyn ExecutionPlan>, exec: &BspExec) -> Result<RowFlow> {
        let (query, below) = (&exec.query, plan.children()[0]);
        let (rows, behind) = match &query.window {
            BspWindow::Rows(_) if query.time.is_some() => (self.timed(below)?, 0),
            BspWindow::Epochs | BspWindow::Rows(_) => (self.below(below)?, 0),
            BspWindow::Time { column, .. } => {
                let rows = self.timed(below)?;
                let name = rows.schema.field(*column).name().clone();
                let time: Arc<dyn PhysicalExpr> = Arc::new(Column::new(&name, *column));
                let behind = rows.times.behind(&time, &rows.schema).ok_or_else(|| {
                    DataSetError::Unsupported(format!(
                        "{}: a window of {name}, which is not the column that time= of the source names, and does not \
                         follow it; name it in time=",
                        query.name
                    ))
                })?;
                (rows, behind)
            }
        };
        let row_time = match (&query.window, query.time) {
            (BspWindow::Rows(_), Some(_)) => Some(rows.times.places.first().cloned().ok_or_else(|| {
                DataSetError::Unsupported(format!(
                    "{}: time= with a window of rows is the latest time of its rows, but they have none: name a column in \
                     time= of the source, and keep it",
                    query.name
                ))
            })?),
            _ => None,
        };
        let behind = row_time.as_ref().map_or(behind, |of| of.behind);
        let by = match query.by.as_slice() {
            [] => vec![Arc::new(RowHash::new(&rows.schema)) as Arc<dyn PhysicalExpr>],
            by => columns_of(by),
        };
        let keyed = Arc::new(KeyedRows::new(&rows.schema, by, false, None)?);
        let name = self.name("bsp");
        let shape = Arc::new(BspShape {
            exec: exec.clone(),
            keyed: Arc::clone(&keyed),
            rows: Arc::clone(&rows.schema),
            behind,
            row_time: row_time.map(|of| of.place),
            late: self.late.of(&name),
        });
        let (state, sources) = (shape.state()?, rows.sources.clone());
        let copies = query.copies.unwrap_or(self.copies);
        let task = TaskSpec::operator(name.clone(), move |copy| BspTask::new(&shape, copy)).streaming().state(state);
        let task = task.detail(query.name.clone()).input("rows").output(ROWS, plan.schema());
        let task = self.graph.add(task.copies(copies).with_comm().executor(Executor::Thread));
        // Only the program knows the times in the function's results.
        let place = |column| TimeOf { place: TimeColumn::column(column), behind: 0 };
        let untimed = rows.times.untimed;
        let times = StreamTimes {
            places: exec.time_column().map(place).into_iter().collect(),
            untimed,
            lost: !untimed && query.time.is_none(),
        };
        self.keyed(rows, &keyed, task.into(), &name);
        Ok(RowFlow::of(task, copies, plan.schema(), times, sources))
    }
}
