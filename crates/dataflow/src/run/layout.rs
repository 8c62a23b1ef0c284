//! The locations of a run's copies, for finding out what slows it down.

use std::collections::BTreeSet;

use tidemill_checkpoint::TaskState;
use tidemill_control::{ClusterLayout, HostLayout, TaskLayout, TaskRole};
use tidemill_net::topology::WorkerPlacement;

use crate::checkpoint::CheckpointClient;
use crate::flow::FlowGraph;

/// Why splits stay in a job with this guarantee: rows that their old reader still holds would be behind those of the
/// new one.
pub(crate) const AT_MOST_ONCE: &str =
    "the job guarantees \"at_most_once\", and rows that were read wait beside their source";

/// The part of a layout that does not change during the run.
pub(crate) struct RunLayout {
    fixed: ClusterLayout,
    /// By task: whether its buckets can move.
    movable: Vec<bool>,
}

/// The splits of a task's copies according to a checkpoint; none if it has other copies.
fn splits(task: &TaskLayout, state: &TaskState) -> Vec<Option<Vec<String>>> {
    let copies = task.copy_workers.len() as u32;
    if state.copies != copies {
        return Vec::new();
    }
    let names = |copy: u32| {
        let splits = state.splits.get(&copy).into_iter().flatten();
        (!state.ended.contains(&copy)).then(|| splits.map(|(name, _)| name.clone()).collect())
    };
    (0..copies).map(names).collect()
}

impl RunLayout {
    /// The layout of a flow on these workers. `hosts` gives for each worker the first worker on its host.
    pub(crate) fn new(flow: &FlowGraph, places: &[&WorkerPlacement], hosts: &[u32], spares: &BTreeSet<u32>) -> Self {
        let firsts: Vec<u32> = hosts.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
        let host = |&first: &u32| {
            let here: Vec<_> =
                places.iter().zip(hosts).filter(|(_, on)| **on == first).map(|(place, _)| place).collect();
            let processors: BTreeSet<u32> = here.iter().flat_map(|place| place.processors.iter().copied()).collect();
            let quota = here.iter().filter_map(|place| place.quota).min().unwrap_or(u32::MAX);
            let granted = here.iter().map(|place| place.granted).sum::<Option<u32>>().unwrap_or(u32::MAX);
            let cores = (processors.len() as u32).min(quota).min(granted).max(1);
            HostLayout { name: places[first as usize].hostname.clone(), cores: cores.into(), drained: false }
        };
        let edges = || flow.edges.iter().filter(|edge| !edge.handover && !edge.feedback);
        let task = |(at, task): (usize, &crate::flow::FlowTask)| {
            let inputs: BTreeSet<u32> =
                edges().filter(|edge| edge.target.task == at).map(|edge| edge.source.task as u32).collect();
            let role = match (inputs.is_empty(), edges().any(|edge| edge.source.task == at)) {
                (true, _) => TaskRole::Source,
                (false, true) => TaskRole::Step,
                (false, false) => TaskRole::Sink,
            };
            let (name, copy_workers) = (task.name.clone(), task.workers.clone());
            TaskLayout { name, role, copy_workers, inputs: inputs.into_iter().collect(), ..TaskLayout::default() }
        };
        let fixed = ClusterLayout {
            hosts: firsts.iter().map(host).collect(),
            worker_hosts: hosts.iter().map(|on| firsts.partition_point(|first| first < on) as u32).collect(),
            spares: spares.clone(),
            tasks: flow.tasks.iter().enumerate().map(task).collect(),
        };
        let movable = (0..flow.tasks.len()).map(|task| flow.why_not_movable(task).is_none()).collect();
        let mut fixed = fixed;
        for (at, task) in fixed.tasks.iter_mut().enumerate() {
            task.moves_splits = flow.why_splits_stay(at).is_none();
            task.why_stays = match (task.role, flow.route(at)) {
                (TaskRole::Source, _) => flow.why_splits_stay(at),
                (TaskRole::Step | TaskRole::Sink, Ok(_)) => flow.why_not_movable(at),
                (TaskRole::Step | TaskRole::Sink, Err(_)) => None,
            };
        }
        RunLayout { fixed, movable }
    }

    /// The tasks, without what changes about them.
    pub(crate) fn tasks(&self) -> &[TaskLayout] {
        &self.fixed.tasks
    }

    /// The spare workers when the run began.
    pub(crate) fn spares(&self) -> &BTreeSet<u32> {
        &self.fixed.spares
    }

    /// The current layout. Costs a copy.
    pub(crate) fn now(&self, checkpoints: Option<&CheckpointClient>) -> ClusterLayout {
        let mut layout = self.fixed.clone();
        let Some(client) = checkpoints else { return layout };
        layout.spares = client.spares();
        let (routes, manifest) = (client.routes(), client.last_manifest());
        let manifest = manifest.as_deref();
        for task in layout.tasks.iter_mut().filter(|task| task.moves_splits) {
            task.moves_splits = !client.at_most_once();
            task.why_stays = client.at_most_once().then(|| AT_MOST_ONCE.into());
            let manifest = manifest.filter(|manifest| task.moves_splits && client.is_own(manifest));
            let state = manifest.and_then(|manifest| manifest.tasks.get(&task.name));
            task.splits = state.map(|state| splits(task, state)).unwrap_or_default();
        }
        for (task, _) in layout.tasks.iter_mut().zip(&self.movable).filter(|(_, movable)| **movable) {
            let Some(route) = routes.get(&task.name) else { continue };
            task.owners = (0..route.buckets()).map(|bucket| route.copy(bucket)).collect();
            task.version = route.version();
            let Some(kept) = manifest.and_then(|manifest| manifest.tasks.get(&task.name)) else { continue };
            task.state_bytes = vec![0; task.owners.len()];
            for (&bucket, parts) in &kept.buckets {
                if let Some(bytes) = task.state_bytes.get_mut(bucket as usize) {
                    *bytes = parts.iter().map(|part| part.len).sum();
                }
            }
        }
        layout
    }
}
