//! Lowering: turns a checked graph and its plan into a [`FlowGraph`]. Exchanges do their own part through
//! [`Lowering`].

use std::sync::Arc;

use arrow::datatypes::SchemaRef;

use crate::flow::{CheckedEdge, FlowGraph, FlowTask, Lowering};
use crate::graph::Graph;
use crate::overlay::WorkerNetwork;
use crate::placement::PlacementPlan;

/// Creates what runs. The first tasks of the flow are the graph's, with their numbers.
pub(crate) fn lower(graph: &Graph, edges: &[CheckedEdge], plan: &PlacementPlan, network: &WorkerNetwork) -> FlowGraph {
    let mut flow = FlowGraph::default();
    for (index, task) in graph.tasks.iter().enumerate() {
        flow.tasks.push(FlowTask {
            name: task.name.clone(),
            factory: Arc::clone(&task.factory),
            executor: task.executor,
            comm: task.comm,
            streaming: task.streaming,
            saves_rounds: false,
            state: task.state.clone(),
            keeps: task.keeps,
            inputs: task.inputs.len(),
            outputs: task.outputs.iter().map(|port| SchemaRef::clone(&port.schema)).collect(),
            workers: plan.workers_of(index).to_vec(),
        });
    }
    for (at, edge) in graph.edges.iter().enumerate() {
        edge.exchange.lower(&mut Lowering::new(&mut flow, edges, at, network));
    }
    flow
}
