//! A running stream as worker 0's program sees it: the owners of keys, and requests to change them.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tidemill_dataflow::rebalance::{MoveReport, PendingRebalance};
use tidemill_dataflow::{RouteMap, RunProgress};

/// Passed to the `watch` of `write_stream`. Requests are forwarded when the function has returned.
#[pyclass(frozen, module = "tidemill._tidemill")]
#[derive(Default)]
pub struct NativeRunning {
    routes: Mutex<BTreeMap<String, RouteMap>>,
    asked: Mutex<Vec<BTreeMap<String, Vec<u32>>>>,
    outcomes: Mutex<Vec<RebalanceOutcome>>,
}

struct RebalanceOutcome {
    tasks: Vec<String>,
    /// `None` if the request had no valid owners, and was not forwarded.
    rebalancing: Option<PendingRebalance>,
}

impl RebalanceOutcome {
    fn result(&mut self) -> Option<Result<MoveReport, String>> {
        match &mut self.rebalancing {
            Some(rebalancing) => rebalancing.outcome(),
            None => Some(Err("a map needs an owner for each bucket".into())),
        }
    }
}

/// Tasks, why their buckets cannot move, and the outcome of the move.
type BucketReport<'py> = (Vec<String>, Option<String>, Option<Bound<'py, PyDict>>);

#[pymethods]
impl NativeRunning {
    /// The copy that owns each bucket, by task.
    fn owners(&self) -> BTreeMap<String, Vec<u32>> {
        self.routes.lock().iter().map(|(task, route)| (task.clone(), route.copies().collect())).collect()
    }

    /// Requests other owners of tasks' buckets, all at one checkpoint.
    fn rebalance(&self, owners: BTreeMap<String, Vec<u32>>) -> PyResult<usize> {
        let routes = self.routes.lock();
        if let Some(task) = owners.keys().find(|task| !routes.contains_key(*task)) {
            let known: Vec<_> = routes.keys().map(|name| format!("{name:?}")).collect();
            return Err(PyKeyError::new_err(format!("no task {task:?} with keys; the tasks are {}", known.join(", "))));
        }
        let mut asked = self.asked.lock();
        asked.push(owners);
        Ok(self.outcomes.lock().len() + asked.len() - 1)
    }

    /// The outcomes of the requests, in order: `None` while one is in progress, an error's text, or what has moved.
    fn outcomes<'py>(&self, py: Python<'py>) -> PyResult<Vec<BucketReport<'py>>> {
        let outcome = |outcome: &mut RebalanceOutcome| {
            let moved = |moved: MoveReport| {
                let dict = PyDict::new(py);
                dict.set_item("epoch", moved.epoch)?;
                dict.set_item("buckets", moved.buckets)?;
                dict.set_item("bytes", moved.bytes)?;
                dict.set_item("waited_s", moved.waited.as_secs_f64())?;
                Ok::<_, PyErr>(dict)
            };
            Ok(match outcome.result() {
                None => (outcome.tasks.clone(), None, None),
                Some(Err(reason)) => (outcome.tasks.clone(), Some(reason), None),
                Some(Ok(done)) => (outcome.tasks.clone(), None, Some(moved(done)?)),
            })
        };
        self.outcomes.lock().iter_mut().map(outcome).collect()
    }
}

impl NativeRunning {
    /// Updates the state of the run.
    pub fn look(&self, run: &RunProgress) {
        *self.routes.lock() = run.routes();
    }

    /// Forwards requests.
    pub fn pass_on(&self, run: &RunProgress) {
        for asked in std::mem::take(&mut *self.asked.lock()) {
            let tasks = asked.keys().cloned().collect();
            let is_whole = asked.values().all(|owners| !owners.is_empty());
            let next = |(task, owners): (String, Vec<u32>)| {
                let version = run.route(&task).map_or(1, |route| route.version() + 1);
                (task, RouteMap::new(version, owners))
            };
            let rebalancing = is_whole.then(|| run.rebalance(asked.into_iter().map(next).collect()));
            self.outcomes.lock().push(RebalanceOutcome { tasks, rebalancing });
        }
    }
}
