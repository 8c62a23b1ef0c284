//! Windows of a number of rows of a key.

use std::sync::Arc;

use tidemill_dataflow::TaskSpec;
use tidemill_dataset::Result;

use super::window_query::WindowQuery;
use crate::operators::count_windows::{CountAggregation, CountTask, KeyTtl};
use crate::plan::lower::{JobLowering, ROWS, RowFlow};
use crate::time::times::StreamTimes;
use crate::time::window::Micros;

impl JobLowering<'_> {
    /// Depends on event time only with `ttl`, after which a key is forgotten.
    pub(super) fn count_windows(
        &mut self,
        query: WindowQuery<'_>,
        lengths: (i64, i64),
        ttl: Option<Micros>,
    ) -> Result<RowFlow> {
        let (input, ttl) = match ttl {
            None => (self.below(query.aggregate.input())?, None),
            Some(ttl) => {
                let input = self.timed(query.aggregate.input())?;
                let behind = query.behind(&input)?;
                (input, Some(KeyTtl { time: Arc::clone(&query.time), behind, ttl }))
            }
        };
        let keyed = query.keyed_rows(&input.schema)?;
        let of = query.groups(query.keys(), &input.schema)?;
        let copies = if of.keys.is_empty() { 1 } else { self.copies };
        let name = self.name("window");
        let output = query.plan.schema();
        let untimed = self.late.of(&name);
        let of_windows = (Arc::clone(&output), query.window_at);
        let shape = Arc::new(CountAggregation::new(of, lengths, ttl, keyed, of_windows, untimed));
        let (keyed, state) = (Arc::clone(&shape.keyed), shape.state());
        let task = TaskSpec::operator(name.clone(), move |copy| CountTask::new(&shape, copy)).streaming().state(state);
        let task = task.detail(query.detail()).input("rows").output(ROWS, Arc::clone(&output)).copies(copies);
        let task = self.graph.add(task);
        // The times of the rows in a window are unknown.
        let times = StreamTimes { places: Vec::new(), untimed: input.times.untimed, lost: !input.times.untimed };
        let sources = input.sources.clone();
        self.keyed(input, &keyed, task.into(), &name);
        Ok(RowFlow::of(task, copies, output, times, sources))
    }
}
