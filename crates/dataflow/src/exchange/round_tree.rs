//! A reduction by [`Rounds`](super::Rounds): the n-th message of every source copy makes the n-th result, which goes on
//! at once. So a reduction of sources without an end has results.
//!
//! Up the same trees as the reduction of all ([`Reduce`](super::Reduce)): a worker merges the rounds of its own copies
//! and of the workers below it. Rounds overlap; a stream that is too far ahead of the slowest waits.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use tidemill_batch::local::{Reduction, RoundEnd, RoundUnit};
use tidemill_checkpoint::{BarrierControl, Mark};

use super::tree::{OUT, UP};
use crate::checkpoint::open_rounds::{RoundNode, RoundSource, RoundTree};
use crate::flow::{EdgeMover, FlowPort, Lowering, StreamElement, TaskFactory, unequal_rounds};
use crate::overlay::Overlay;
use crate::task::Executor;

/// Adds the tree. Returns the output that has the results, at the copy on `root`.
pub(super) fn add_round_tree(
    lowering: &mut Lowering<'_>,
    reduction: &Reduction,
    (overlay, root): (Overlay, u32),
    kind: (RoundEnd, RoundUnit),
) -> FlowPort {
    let source = lowering.sources()[0];
    let schema = SchemaRef::clone(lowering.target_schema());
    let members = lowering.workers_of(source).to_vec();
    let tree = lowering.tree(overlay, root, &members);
    // An input port for each that sends to a worker, so that each can be made to wait by itself.
    let mut sources: Vec<Vec<RoundSource>> = vec![Vec::new(); lowering.workers() as usize];
    let mut port_of_copy = Vec::new();
    for (copy, &worker) in (0..).zip(&members) {
        port_of_copy.push(sources[worker as usize].len());
        sources[worker as usize].push(RoundSource::Copy(copy));
    }
    let mut port_of_worker = vec![None; lowering.workers() as usize];
    for (worker, children) in tree.children.iter().enumerate() {
        for &child in children {
            port_of_worker[child as usize] = Some(sources[worker].len());
            sources[worker].push(RoundSource::Worker(child));
        }
    }
    let ports = sources.iter().map(Vec::len).max().unwrap_or(0);
    let executor = if reduction.is_function() { Executor::Thread } else { Executor::Pool };
    let everywhere: Vec<u32> = (0..lowering.workers()).collect();
    let schemas = vec![SchemaRef::clone(&schema), SchemaRef::clone(&schema)];
    let rounds = RoundTree { sources, root, copies: members.len() as u32 };
    let factory = merge_rounds(reduction, &schema, Arc::new(rounds), kind);
    let stage = lowering.stage("merge rounds", everywhere, ports, schemas, executor, factory);
    lowering.save_rounds(stage);
    for port in 0..ports {
        let of_port = |(&worker, &of): (&u32, &usize)| (of == port).then_some(worker);
        let own: Vec<_> = members.iter().zip(&port_of_copy).map(of_port).collect();
        if own.iter().any(Option::is_some) {
            lowering.connect_messages(source, stage.input(port), own, reduction);
        }
        let up = tree.parent.iter().zip(&port_of_worker).map(|(parent, of)| parent.filter(|_| *of == Some(port)));
        let up: Vec<_> = up.collect();
        if up.iter().any(Option::is_some) {
            lowering.connect(stage.output(UP), stage.input(port), EdgeMover::Map(up));
        }
    }
    stage.output(OUT)
}

/// A copy that leaves says what it has come to: those that others had sent may be needed by who goes on.
fn merge_rounds(
    reduction: &Reduction,
    schema: &SchemaRef,
    tree: Arc<RoundTree>,
    kind: (RoundEnd, RoundUnit),
) -> TaskFactory {
    let (reduction, schema) = (reduction.clone(), SchemaRef::clone(schema));
    Arc::new(move |mut inputs, mut outputs, context| {
        let (reduction, schema, tree) = (reduction.clone(), SchemaRef::clone(&schema), Arc::clone(&tree));
        Box::pin(async move {
            let out = if context.worker() == tree.root { OUT } else { UP };
            let mut node = RoundNode::new(&tree, context.worker(), (&reduction, &schema), kind);
            if let Some(restored) = context.restored() {
                node.restore(restored)?;
            }
            loop {
                while let Some(rows) = node.merge()? {
                    outputs.port(out).send(rows).await?;
                }
                if !outputs.port(out).is_wanted() {
                    break;
                }
                let next = inputs.recv_any_aligning(|port, aligning| node.takes(port, aligning)).await?;
                let Some((port, item)) = next else { break };
                match item {
                    Some(StreamElement::Batch(rows)) => node.push(port, rows)?,
                    Some(StreamElement::Mark(Mark::Barrier(barrier))) => {
                        if let Some(row) = node.end_epoch()? {
                            outputs.port(out).send(row).await?;
                        }
                        if let Some(states) = context.states() {
                            states.save_kept(barrier.epoch, |_| node.snapshot())?;
                        }
                        let stops = barrier.control == BarrierControl::Stop;
                        outputs.mark(&Mark::Barrier(barrier)).await?;
                        if stops {
                            return Ok(());
                        }
                    }
                    Some(StreamElement::Mark(_)) => {}
                    None => node.end(port),
                }
                if let Some((who, rounds)) = node.unequal() {
                    return Err(unequal_rounds(&who, rounds).into());
                }
            }
            if let Some(row) = node.end_epoch()? {
                outputs.port(out).send(row).await?;
            }
            outputs.finish().await?;
            match context.states().filter(|states| !states.at_most_once()) {
                Some(states) => states.end(node.snapshot()?).await,
                None => Ok(()),
            }
        })
    })
}
