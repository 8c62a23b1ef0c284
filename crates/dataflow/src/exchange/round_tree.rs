//! A reduction by [`Rounds`](super::Rounds): the n-th message of every source copy makes the n-th result, which goes on
//! at once. So a reduction of sources without an end has results.
//!
//! Up the same trees as the reduction of all ([`Reduce`](super::Reduce)): a worker merges the rounds of its own copies
//! and of the workers below it. Rounds overlap; a stream that is too far ahead of the slowest waits.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use tidemill_batch::local::{Reduction, RoundEnd, RoundMerger};
use tidemill_checkpoint::Mark;

use super::tree::{OUT, UP};
use crate::flow::{EdgeMover, FlowPort, Lowering, StreamElement, TaskFactory, unequal_rounds};
use crate::overlay::Overlay;
use crate::task::Executor;

/// A sender to a worker of the tree: a copy on the same worker, or a worker below.
#[derive(Clone, Copy)]
enum RoundSource {
    Copy(u32),
    Worker(u32),
}

/// Adds the tree. Returns the output that has the results, at the copy on `root`.
pub(super) fn add_round_tree(
    lowering: &mut Lowering<'_>,
    reduction: &Reduction,
    (overlay, root): (Overlay, u32),
    end: RoundEnd,
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
    let factory = merge_rounds(reduction, &schema, Arc::new(sources), root, end);
    let stage = lowering.stage("merge rounds", everywhere, ports, schemas, executor, factory);
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

fn merge_rounds(
    reduction: &Reduction,
    schema: &SchemaRef,
    sources: Arc<Vec<Vec<RoundSource>>>,
    root: u32,
    end: RoundEnd,
) -> TaskFactory {
    let (reduction, schema) = (reduction.clone(), SchemaRef::clone(schema));
    Arc::new(move |mut inputs, outputs, context| {
        let (reduction, schema, sources) = (reduction.clone(), SchemaRef::clone(&schema), Arc::clone(&sources));
        Box::pin(async move {
            let sources = &sources[context.worker() as usize];
            let mut merger = RoundMerger::new(&reduction, &schema, sources.len(), end);
            let mut outputs = outputs.into_ports();
            let output = &mut outputs[if context.worker() == root { OUT } else { UP }];
            while output.is_wanted()
                && let Some((port, item)) = inputs.recv_any(|port| port < sources.len() && merger.takes(port)).await?
            {
                match item {
                    Some(StreamElement::Batch(rows)) => merger.push(port, rows),
                    Some(StreamElement::Mark(Mark::Barrier(_))) => {
                        return Err("a reduction by rounds cannot take part in checkpoints yet".into());
                    }
                    Some(StreamElement::Mark(_)) => {}
                    None => merger.end(port),
                }
                if let Some(short) = merger.unequal() {
                    let who = match sources[short.stream] {
                        RoundSource::Copy(copy) => format!("copy {copy} of its source"),
                        RoundSource::Worker(worker) => format!("worker {worker}, for the copies behind it,"),
                    };
                    let rounds = short.rounds;
                    return Err(unequal_rounds(&who, rounds).into());
                }
                while let Some(rows) = merger.merge()? {
                    output.send(rows).await?;
                }
            }
            Ok(())
        })
    })
}
