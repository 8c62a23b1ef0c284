//! A graph for people: as text, and as DOT for Graphviz. Pictures are in [`super::svg`].

use std::fmt::Write;

use super::PlacementPlan;
use crate::error::GraphErrors;
use crate::flow::CheckedEdge;
use crate::graph::Graph;

impl Graph {
    /// The graph as text: every task with its ports and, given a plan, where its copies run; every edge.
    ///
    /// # Errors
    /// When the graph cannot run.
    pub fn explain(&self, workers: u32, plan: Option<&PlacementPlan>) -> Result<String, GraphErrors> {
        let edges = self.checked(workers)?;
        let mut text = format!("graph \"{}\" on {workers} worker{}\n", self.name, if workers == 1 { "" } else { "s" });
        for (index, task) in self.tasks.iter().enumerate() {
            let copies = task.parallelism.copies(workers);
            let plural = if copies == 1 { "copy" } else { "copies" };
            let _ = write!(text, "  {} \"{}\": {copies} {plural}", self.kind(index), task.name);
            if let Some(plan) = plan {
                let _ = write!(text, " on workers {}", ranges(plan.workers_of(index)));
            }
            let _ = writeln!(text);
            for line in task.detail.lines() {
                let _ = writeln!(text, "    {line}");
            }
        }
        for edge in &edges {
            let kind = if edge.feedback { "feedback" } else { "edge" };
            let _ = writeln!(text, "  {kind} {}: {}", edge.name, columns(edge));
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

    pub(super) fn kind(&self, task: usize) -> &'static str {
        match (self.tasks[task].inputs.is_empty(), self.tasks[task].outputs.is_empty()) {
            (true, _) => "source",
            (_, true) => "sink",
            _ => "task",
        }
    }
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
