//! A graph for people: as text, and as DOT for Graphviz. Pictures are in [`super::svg`].

use std::fmt::Write;

use tidemill_collective::tuner::CostModel;

use super::{PlacementPlan, WorkerInfo};
use crate::error::GraphErrors;
use crate::exchange::EdgeWorkers;
use crate::flow::CheckedEdge;
use crate::graph::Graph;
use crate::overlay::WorkerNetwork;

impl Graph {
    /// The graph as text: every task with its ports; every edge. Given a plan for these workers, and what messages
    /// between them cost, also where copies run, and which overlays edges have there.
    ///
    /// # Errors
    /// When the graph cannot run.
    pub fn explain(
        &self,
        workers: u32,
        placed: Option<(&PlacementPlan, &[WorkerInfo], &CostModel)>,
    ) -> Result<String, GraphErrors> {
        let plan = placed.map(|(plan, ..)| plan);
        let edges = self.checked(workers)?;
        let mut text = format!("graph \"{}\" on {workers} worker{}\n", self.name, if workers == 1 { "" } else { "s" });
        for (index, task) in self.tasks.iter().enumerate() {
            let copies = task.parallelism.copies(workers);
            let plural = if copies == 1 { "copy" } else { "copies" };
            let _ = write!(text, "  {} \"{}\": {copies} {plural}", self.kind(index), task.name);
            if let Some(plan) = plan {
                let _ = write!(text, " on workers {}", ranges(plan.workers_of(index)));
                let _ = self.sharing(index, plan).map_or(Ok(()), |sharing| write!(text, ", {sharing}"));
            }
            let _ = writeln!(text);
            for line in task.detail.lines() {
                let _ = writeln!(text, "    {line}");
            }
        }
        let network = placed.map(|(_, workers, model)| WorkerNetwork { hosts: hosts(workers), model: *model });
        for (checked, edge) in edges.iter().zip(&self.edges) {
            let kind = if checked.feedback { "feedback" } else { "edge" };
            let _ = write!(text, "  {kind} {}: {}", checked.name, columns(checked));
            if let (Some(plan), Some(network)) = (plan, &network) {
                let (sources, targets) = (plan.workers_of(checked.sources[0].0), plan.workers_of(checked.target.0));
                let rounds = checked.rounds.map(|_| checked.round_unit);
                let why = edge.exchange.explain(&EdgeWorkers { sources, targets, network, rounds });
                let _ = why.map_or(Ok(()), |why| write!(text, "; {why}"));
            }
            let _ = writeln!(text);
        }
        Ok(text)
    }

    /// The graph in DOT; `dot -Tsvg` draws it.
    ///
    /// # Errors
    /// When the graph cannot run.
    pub fn to_dot(&self, workers: u32, plan: Option<&PlacementPlan>) -> Result<String, GraphErrors> {
        let edges = self.checked(workers)?;
        let mut text = format!("digraph {} {{\n  rankdir=LR; node [shape=box, fontname=sans];\n", quoted(&self.name));
        for (index, task) in self.tasks.iter().enumerate() {
            let mut label = format!("{}\n{} x {}", task.name, self.kind(index), task.parallelism.copies(workers));
            if let Some(plan) = plan {
                let _ = write!(label, "\nworkers {}", ranges(plan.workers_of(index)));
                let _ = self.sharing(index, plan).map_or(Ok(()), |sharing| write!(label, "\n{sharing}"));
            }
            let _ = writeln!(text, "  t{index} [label={}];", quoted(&label));
        }
        for (checked, edge) in edges.iter().zip(&self.edges) {
            for &(task, _) in &checked.sources {
                let label = quoted(&edge.exchange.describe());
                let style = if edge.feedback { ", style=dashed, constraint=false" } else { "" };
                let _ = writeln!(text, "  t{task} -> t{} [label={label}{style}];", checked.target.0);
            }
        }
        text.push_str("}\n");
        Ok(text)
    }

    /// Whether the group of workers of a task with a communicator is disjoint from those of all others; `None` where it
    /// is the only one, or has none.
    pub(super) fn sharing(&self, task: usize, plan: &PlacementPlan) -> Option<String> {
        let is_program = |&other: &usize| other != task && self.tasks[other].comm;
        let others: Vec<usize> = (0..self.tasks.len()).filter(is_program).collect();
        if !self.tasks[task].comm || others.is_empty() {
            return None;
        }
        let mine = plan.workers_of(task);
        let shares = |&&other: &&usize| plan.workers_of(other).iter().any(|worker| mine.contains(worker));
        let names: Vec<&str> = others.iter().filter(shares).map(|&other| self.tasks[other].name.as_str()).collect();
        Some(if names.is_empty() { "disjoint".into() } else { format!("shared with {}", names.join(", ")) })
    }

    pub(super) fn kind(&self, task: usize) -> &'static str {
        match (self.tasks[task].inputs.is_empty(), self.tasks[task].outputs.is_empty()) {
            (true, _) => "source",
            (_, true) => "sink",
            _ => "task",
        }
    }
}

/// The host of each worker, as the number of the first worker there.
fn hosts(workers: &[WorkerInfo]) -> Vec<u32> {
    let first = |worker: &WorkerInfo| workers.iter().position(|other| other.host == worker.host);
    workers.iter().map(|worker| first(worker).expect("it has its own host") as u32).collect()
}

fn columns(edge: &CheckedEdge) -> String {
    let columns = edge.target_schema.fields().iter().map(|field| format!("{} {}", field.name(), field.data_type()));
    columns.collect::<Vec<_>>().join(", ")
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

/// `0-3, 7` for 0, 1, 2, 3, 7; repeated workers once, with how often: `0 x2, 1 x2`.
pub(super) fn ranges(workers: &[u32]) -> String {
    let mut counts: Vec<(u32, usize)> = Vec::new();
    let mut sorted = workers.to_vec();
    sorted.sort_unstable();
    for worker in sorted {
        match counts.last_mut() {
            Some((last, count)) if *last == worker => *count += 1,
            _ => counts.push((worker, 1)),
        }
    }
    let mut parts: Vec<(u32, u32, usize)> = Vec::new();
    for (worker, count) in counts {
        match parts.last_mut() {
            Some((_, to, n)) if *to + 1 == worker && *n == count => *to = worker,
            _ => parts.push((worker, worker, count)),
        }
    }
    let parts = parts.into_iter().map(|(from, to, count)| {
        let range = if from == to { from.to_string() } else { format!("{from}-{to}") };
        if count == 1 { range } else { format!("{range} x{count}") }
    });
    parts.collect::<Vec<_>>().join(", ")
}
