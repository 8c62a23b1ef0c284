//! Finds all problems of a graph that can be known before it runs, at once.

use arrow::datatypes::SchemaRef;
use tidemill_batch::local::RoundUnit;
use tidemill_batch::schema::fits;

use super::{Graph, GraphEdge, PortRef, TaskId};
use crate::error::{GraphError, GraphErrors};
use crate::exchange::EdgeSignature;
use crate::flow::CheckedEdge;

impl Graph {
    /// Checks everything for a run on `workers` workers.
    ///
    /// # Errors
    /// All problems in one error.
    pub fn check(&self, workers: u32) -> Result<(), GraphErrors> {
        self.checked(workers).map(|_| ())
    }

    pub(crate) fn checked(&self, workers: u32) -> Result<Vec<CheckedEdge>, GraphErrors> {
        let mut errors = Vec::new();
        self.check_names(&mut errors);
        self.check_tasks(workers, &mut errors);
        let edges: Vec<CheckedEdge> =
            self.edges.iter().filter_map(|edge| self.check_edge(edge, workers, &mut errors)).collect();
        // A port whose only edge has a problem is not also reported as unconnected.
        if errors.is_empty() {
            self.check_connected(&edges, &mut errors);
            self.check_loops(&edges, &mut errors);
        }
        self.check_cycles(&edges, &mut errors);
        if errors.is_empty() { Ok(edges) } else { Err(GraphErrors { graph: self.name.clone(), errors }) }
    }

    fn check_names(&self, errors: &mut Vec<GraphError>) {
        let mut duplicates = |what: String, names: Vec<&str>| {
            for (at, name) in names.iter().enumerate() {
                if names[..at].contains(name) {
                    errors.push(GraphError::Duplicate { what: what.clone(), name: (*name).to_owned() });
                }
            }
        };
        duplicates("tasks".into(), self.tasks().collect());
        for task in &self.tasks {
            let ports = |side: &str| format!("{side} ports of task \"{}\"", task.name);
            duplicates(ports("input"), task.inputs.iter().map(|p| p.name.as_str()).collect());
            duplicates(ports("output"), task.outputs.iter().map(|p| p.name.as_str()).collect());
        }
    }

    fn check_tasks(&self, workers: u32, errors: &mut Vec<GraphError>) {
        for task in &self.tasks {
            let copies = task.parallelism.copies(workers);
            let mut wrong = |reason: String| errors.push(GraphError::Task { task: task.name.clone(), reason });
            if copies == 0 {
                wrong("it has no copies".into());
            }
            // Copies that have a communicator may do without.
            if task.inputs.is_empty() && task.outputs.is_empty() && !task.comm {
                wrong("it has no ports".into());
            }
        }
    }

    /// The port that `reference` means, on the side whose port names are given.
    fn port(
        &self,
        reference: &PortRef,
        side: &'static str,
        names: &[&str],
        errors: &mut Vec<GraphError>,
    ) -> Option<usize> {
        let found = match &reference.port {
            Some(name) => names.iter().position(|n| n == name),
            None if names.len() == 1 => Some(0),
            None => None,
        };
        if found.is_none() {
            errors.push(GraphError::NoSuchPort {
                task: self.tasks[reference.task.0].name.clone(),
                side,
                port: reference.port.as_ref().map_or("to choose by itself".into(), |name| format!("\"{name}\"")),
                has: if names.is_empty() { "none".into() } else { names.join(", ") },
            });
        }
        found
    }

    fn check_edge(&self, edge: &GraphEdge, workers: u32, errors: &mut Vec<GraphError>) -> Option<CheckedEdge> {
        let outputs = |task: TaskId| self.tasks[task.0].outputs.iter().map(|p| p.name.as_str()).collect::<Vec<_>>();
        let inputs = |task: TaskId| self.tasks[task.0].inputs.iter().map(|p| p.name.as_str()).collect::<Vec<_>>();
        let sources: Vec<Option<(usize, usize)>> = edge
            .sources
            .iter()
            .map(|s| self.port(s, "output", &outputs(s.task), errors).map(|port| (s.task.0, port)))
            .collect();
        let target = self.port(&edge.target, "input", &inputs(edge.target.task), errors);
        let sources: Vec<(usize, usize)> = sources.into_iter().collect::<Option<_>>()?;
        let target = (edge.target.task.0, target?);
        let name = self.edge_name(&sources, target, edge);
        let source_schemas: Vec<SchemaRef> =
            sources.iter().map(|&(task, port)| SchemaRef::clone(&self.tasks[task].outputs[port].schema)).collect();
        let ends = EdgeSignature {
            schemas: &source_schemas,
            source_copies: sources.iter().map(|&(task, _)| self.tasks[task].parallelism.copies(workers)).collect(),
            target_copies: self.tasks[target.0].parallelism.copies(workers),
        };
        let result = edge.exchange.check(&ends).and_then(|schema| {
            if let Some(wanted) = &self.tasks[target.0].inputs[target.1].schema {
                fits(&schema, wanted)?;
            }
            Ok(schema)
        });
        match result {
            Ok(target_schema) => {
                let (rounds, feedback) = (edge.exchange.rounds(), edge.feedback);
                let round_unit = edge.exchange.round_unit();
                Some(CheckedEdge { sources, target, source_schemas, target_schema, name, rounds, round_unit, feedback })
            }
            Err(reason) => {
                errors.push(GraphError::Edge { edge: name, reason });
                None
            }
        }
    }

    fn edge_name(&self, sources: &[(usize, usize)], target: (usize, usize), edge: &GraphEdge) -> String {
        let from: Vec<String> = sources
            .iter()
            .map(|&(task, port)| format!("{}.{}", self.tasks[task].name, self.tasks[task].outputs[port].name))
            .collect();
        let (task, port) = (&self.tasks[target.0], target.1);
        format!("{} -> {}.{} ({})", from.join(" + "), task.name, task.inputs[port].name, edge.exchange.describe())
    }

    fn check_connected(&self, edges: &[CheckedEdge], errors: &mut Vec<GraphError>) {
        for (at, edge) in edges.iter().enumerate() {
            if let Some(first) = edges[..at].iter().find(|first| first.target == edge.target)
                && let Err(reason) = fits(&edge.target_schema, &first.target_schema)
            {
                let reason = format!("{reason} by edge {}, which leads to the same port", first.name);
                errors.push(GraphError::Edge { edge: edge.name.clone(), reason });
            }
        }
        for (index, task) in self.tasks.iter().enumerate() {
            let mut open = |side, port: &str| {
                errors.push(GraphError::Unconnected { task: task.name.clone(), side, port: port.to_owned() });
            };
            for (port, spec) in task.inputs.iter().enumerate() {
                if !edges.iter().any(|edge| edge.target == (index, port)) {
                    open("input", &spec.name);
                }
            }
            for (port, spec) in task.outputs.iter().enumerate() {
                if !edges.iter().any(|edge| edge.sources.contains(&(index, port))) {
                    open("output", &spec.name);
                }
            }
        }
    }

    /// Checks that edges marked as leading back do so, and that rounds bound everything in transit in a loop.
    fn check_loops(&self, edges: &[CheckedEdge], errors: &mut Vec<GraphError>) {
        let loops = Loops::new(self.tasks.len(), edges);
        for (at, edge) in edges.iter().enumerate() {
            let others = || edges.iter().enumerate().filter(|(other, of)| *other != at && of.target == edge.target);
            let reason = if edge.feedback && !loops.has(edge) {
                let (source, target) = (&self.tasks[edge.sources[0].0].name, &self.tasks[edge.target.0].name);
                format!(
                    "it does not lead back: nothing leads from task \"{target}\" to task \"{source}\"; connect them"
                )
            } else if loops.has(edge) && edge.rounds.is_none() {
                "it is in a loop, where every edge needs an exchange by rounds".into()
            } else if loops.has(edge) && edge.round_unit != RoundUnit::Message {
                "it is in a loop, where a round is a message: use rounds of messages".into()
            } else if edge.feedback && others().next().is_some() {
                "another edge leads to the same port; an edge that leads back needs a separate port".into()
            } else if others().any(|(_, other)| other.rounds.is_some() != edge.rounds.is_some()) {
                "some of the edges to its port use rounds, and some do not".into()
            } else {
                continue;
            };
            errors.push(GraphError::Edge { edge: edge.name.clone(), reason });
        }
    }

    /// Depth first; a task that is reached while it is still on the path closes a cycle.
    fn check_cycles(&self, edges: &[CheckedEdge], errors: &mut Vec<GraphError>) {
        #[derive(Clone, Copy, PartialEq)]
        enum VisitState {
            No,
            OnPath,
            Done,
        }
        let mut next = vec![Vec::new(); self.tasks.len()];
        for edge in edges.iter().filter(|edge| !edge.feedback) {
            edge.sources.iter().for_each(|&(task, _)| next[task].push(edge.target.0));
        }
        let mut seen = vec![VisitState::No; self.tasks.len()];
        for start in 0..self.tasks.len() {
            if seen[start] != VisitState::No {
                continue;
            }
            // The path and, for each task on it, how many of its successors have been visited.
            let mut path = vec![(start, 0)];
            seen[start] = VisitState::OnPath;
            while let Some(top) = path.last_mut() {
                let (task, at) = *top;
                top.1 += 1;
                match next[task].get(at) {
                    None => {
                        seen[task] = VisitState::Done;
                        path.pop();
                    }
                    Some(&to) if seen[to] == VisitState::OnPath => {
                        let from = path.iter().position(|&(t, _)| t == to).expect("it is on the path");
                        let mut tasks: Vec<String> =
                            path[from..].iter().map(|&(t, _)| self.tasks[t].name.clone()).collect();
                        tasks.push(self.tasks[to].name.clone());
                        return errors.push(GraphError::Cycle { tasks });
                    }
                    Some(&to) if seen[to] == VisitState::No => {
                        seen[to] = VisitState::OnPath;
                        path.push((to, 0));
                    }
                    Some(_) => {}
                }
            }
        }
    }
}

/// Which tasks lead to which.
struct Loops {
    reached: Vec<Vec<bool>>,
}

impl Loops {
    fn new(tasks: usize, edges: &[CheckedEdge]) -> Self {
        let reached_from = |start: usize| {
            let (mut reached, mut open) = (vec![false; tasks], vec![start]);
            while let Some(task) = open.pop() {
                let leaves = edges.iter().filter(|edge| edge.sources.iter().any(|&(source, _)| source == task));
                for to in leaves.map(|edge| edge.target.0) {
                    if !std::mem::replace(&mut reached[to], true) {
                        open.push(to);
                    }
                }
            }
            reached
        };
        let is_used = edges.iter().any(|edge| edge.feedback);
        Loops { reached: if is_used { (0..tasks).map(reached_from).collect() } else { Vec::new() } }
    }

    /// Whether what an edge delivers may reach its source again.
    fn has(&self, edge: &CheckedEdge) -> bool {
        !self.reached.is_empty()
            && edge.sources.iter().any(|&(source, _)| edge.target.0 == source || self.reached[edge.target.0][source])
    }
}
