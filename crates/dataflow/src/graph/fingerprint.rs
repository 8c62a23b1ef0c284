//! Every worker builds the graph by itself: these texts and hashes reveal whether the graphs differ.

use twox_hash::XxHash3_64;

use super::Graph;
use crate::flow::CheckedEdge;

/// Each part of a graph as a text that is the same on every worker: tasks in order, then edges.
pub(crate) fn parts(graph: &Graph, edges: &[CheckedEdge]) -> Vec<String> {
    let tasks = graph.tasks.iter().map(|task| {
        let inputs = task.inputs.iter().map(|port| match &port.schema {
            Some(schema) => format!("{} {:?}", port.name, schema.fields()),
            None => port.name.clone(),
        });
        let outputs = task.outputs.iter().map(|port| format!("{} {:?}", port.name, port.schema.fields()));
        let (inputs, outputs): (Vec<_>, Vec<_>) = (inputs.collect(), outputs.collect());
        let settings = (task.parallelism, task.comm, inputs, outputs);
        format!("task \"{}\" {settings:?} {}", task.name, task.detail)
    });
    let edges = edges.iter().map(|edge| {
        let kind = if edge.feedback { "feedback" } else { "edge" };
        format!("{kind} {} {:?}", edge.name, edge.target_schema.fields())
    });
    tasks.chain(edges).collect()
}

/// The hashes of the parts, in the same order.
pub(crate) fn hashes(parts: &[String]) -> Vec<u64> {
    parts.iter().map(|part| XxHash3_64::oneshot(part.as_bytes())).collect()
}
