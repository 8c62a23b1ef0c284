//! All rows become one, combined on the way: at every copy, then up a tree of workers, whose inner nodes combine what
//! their children send. At its root the result goes to one copy, or down again to all.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use tidemill_batch::local::{Reduction, RoundUnit};

use super::keyed_reduce::{combined, drain, new_reducer, stage, stage_on};
use super::round_tree::add_round_tree;
use super::tree::{OUT, TreeLeaves, UP, add_tree_stage, connect_root};
use super::{EdgeSignature, EdgeWorkers, Exchange};
use crate::flow::TaskFactory;
use crate::flow::{EdgeMover, FlowPort, Lowering};
use crate::overlay::{KeyedTrees, Overlay, OverlayChoice};
use crate::task::Executor;

/// To one copy. What arrives is one row of the reduced columns when all sources have ended, and none if there were no
/// rows; or one for each [round](super::Rounds). By rounds of time it goes up a flat tree, whatever was chosen.
#[derive(Clone)]
pub struct Reduce {
    reduction: Reduction,
    root: u32,
    overlay: OverlayChoice,
}

impl Reduce {
    /// Reduces to copy 0 of the target.
    pub fn new(reduction: Reduction) -> Self {
        Reduce { reduction, root: 0, overlay: OverlayChoice::default() }
    }

    /// To another copy.
    #[must_use]
    pub fn to(mut self, root: u32) -> Self {
        self.root = root;
        self
    }

    /// Along this kind of tree; chosen when it is placed, by default.
    #[must_use]
    pub fn along(self, overlay: Overlay) -> Self {
        Reduce { overlay: OverlayChoice::Set(overlay), ..self }
    }

    /// Along a tree that is chosen for messages of about so many bytes.
    #[must_use]
    pub fn for_messages(self, bytes: u64) -> Self {
        Reduce { overlay: OverlayChoice::ForMessages(bytes), ..self }
    }

    /// Along the tree with the lowest latency for messages of about so many bytes that come at about this rate.
    #[must_use]
    pub fn for_rate(self, bytes: u64, per_s: u64) -> Self {
        Reduce { overlay: OverlayChoice::ForRate { bytes, per_s }, ..self }
    }
}

impl Exchange for Reduce {
    fn describe(&self) -> String {
        format!("reduce to copy {}{}: {}", self.root, self.overlay.describe(), self.reduction.describe())
    }

    fn check(&self, ends: &EdgeSignature<'_>) -> Result<SchemaRef, String> {
        if self.root >= ends.target_copies {
            return Err(format!("no copy {} among {}", self.root, ends.target_copies));
        }
        self.reduction.schema(ends.only()?, &[])
    }

    fn allows_rounds(&self) -> bool {
        true
    }

    fn explain(&self, ends: &EdgeWorkers<'_>) -> Option<String> {
        explain_up(self.overlay, ends.targets[self.root as usize], ends)
    }

    fn lower(&self, lowering: &mut Lowering<'_>) {
        let target = lowering.target();
        let root = lowering.workers_of(target)[self.root as usize];
        let overlay = lowering.overlay_upward(self.overlay, root, lowering.workers_of(lowering.sources()[0]));
        let result = add_tree(lowering, &self.reduction, (overlay, root));
        connect_root(lowering, result, root, self.root);
    }
}

/// To every copy: a reduction up a tree, a broadcast down the same.
#[derive(Clone)]
pub struct AllReduce {
    reduction: Reduction,
    overlay: OverlayChoice,
}

impl AllReduce {
    /// Reduces to every copy of the target.
    pub fn new(reduction: Reduction) -> Self {
        AllReduce { reduction, overlay: OverlayChoice::default() }
    }

    /// Along this kind of tree; chosen when it is placed, by default.
    #[must_use]
    pub fn along(self, overlay: Overlay) -> Self {
        AllReduce { overlay: OverlayChoice::Set(overlay), ..self }
    }

    /// Along a tree that is chosen for messages of about so many bytes.
    #[must_use]
    pub fn for_messages(self, bytes: u64) -> Self {
        AllReduce { overlay: OverlayChoice::ForMessages(bytes), ..self }
    }

    /// Along the tree with the lowest latency for messages of about so many bytes that come at about this rate.
    #[must_use]
    pub fn for_rate(self, bytes: u64, per_s: u64) -> Self {
        AllReduce { overlay: OverlayChoice::ForRate { bytes, per_s }, ..self }
    }
}

impl Exchange for AllReduce {
    fn describe(&self) -> String {
        format!("all-reduce{}: {}", self.overlay.describe(), self.reduction.describe())
    }

    fn check(&self, ends: &EdgeSignature<'_>) -> Result<SchemaRef, String> {
        self.reduction.schema(ends.only()?, &[])
    }

    fn allows_rounds(&self) -> bool {
        true
    }

    fn explain(&self, ends: &EdgeWorkers<'_>) -> Option<String> {
        explain_up(self.overlay, ends.targets[0], ends)
    }

    fn lower(&self, lowering: &mut Lowering<'_>) {
        let target = lowering.target();
        let root = lowering.workers_of(target)[0];
        let overlay = lowering.overlay_upward(self.overlay, root, lowering.workers_of(lowering.sources()[0]));
        let result = add_tree(lowering, &self.reduction, (overlay, root));
        lowering.connect(result, target, EdgeMover::Broadcast(overlay));
    }
}

/// The tree of a reduction, and why.
fn explain_up(overlay: OverlayChoice, root: u32, ends: &EdgeWorkers<'_>) -> Option<String> {
    match ends.rounds {
        Some(RoundUnit::Time(_)) => Some("up flat, as rounds of time do".into()),
        _ => Some(ends.explain_upward(overlay, root, ends.sources)),
    }
}

/// Adds the tree, of all or by rounds. Returns the output that has the result, at the copy on the root.
fn add_tree(lowering: &mut Lowering<'_>, reduction: &Reduction, (overlay, root): (Overlay, u32)) -> FlowPort {
    // What leaves the sources and the tree are rows, one for each round: they need no marks.
    match lowering.take_rounds() {
        None => add_reduce_tree(lowering, reduction, overlay, root),
        Some(end) if matches!(lowering.round_unit(), RoundUnit::Time(_)) => {
            // A slice without rows at a copy is still a round there, so this tree needs marks.
            lowering.set_rounds(end, lowering.round_unit());
            add_slices_tree(lowering, reduction, root)
        }
        Some(end) => add_round_tree(lowering, reduction, (overlay, root), (end, lowering.round_unit())),
    }
}

/// Adds the tree: a stage on every worker that combines its own copies' part, which these have reduced, with those of
/// the workers below. Returns the output that has the result, at the copy on `root`, and nothing at the others.
fn add_reduce_tree(lowering: &mut Lowering<'_>, reduction: &Reduction, overlay: Overlay, root: u32) -> FlowPort {
    let source = lowering.sources()[0];
    let schema = SchemaRef::clone(lowering.target_schema());
    // A person's function may block, or wait for who calls it: it has a stage of its own beside each copy.
    let from = if reduction.is_function() {
        let before = stage(lowering, "reduce before", source, &[], reduction);
        lowering.connect_direct(source, before.input(0));
        TreeLeaves::AsItIs(before.output(0))
    } else {
        TreeLeaves::Reduced(source, reduction)
    };
    let (reduce, of_stage) = (reduction.clone(), SchemaRef::clone(&schema));
    let factory: TaskFactory = Arc::new(move |inputs, outputs, context| {
        let (schema, reduce) = (SchemaRef::clone(&of_stage), reduce.clone());
        Box::pin(async move {
            let mut reducer = new_reducer(&schema, 0, &reduce, &context)?;
            for mut input in inputs.into_ports() {
                drain(&mut input, &mut reducer).await?;
            }
            let mut reduced = reducer.finish()?;
            let mut outputs = outputs.into_ports();
            let output = &mut outputs[if context.worker() == root { OUT } else { UP }];
            while let Some(batch) = reduced.next_batch()? {
                output.send(batch).await?;
            }
            Ok(())
        })
    });
    let executor = if reduction.is_function() { Executor::Thread } else { Executor::Pool };
    add_tree_stage(lowering, "combine", (from, &schema), (overlay, root), executor, factory)
}

/// Adds the stages that reduce rounds of time: at every copy, on every worker and host, and on `root`. Returns the
/// output with a batch for each round, which has one row, or none if no rows came.
fn add_slices_tree(lowering: &mut Lowering<'_>, reduction: &Reduction, root: u32) -> FlowPort {
    let source = lowering.sources()[0];
    let before = stage(lowering, "reduce before", source, &[], reduction);
    lowering.connect_direct(source, before.input(0));
    let mut from = combined(lowering, before.output(0), (&[], reduction));
    let trees = KeyedTrees::new(Overlay::Flat, lowering.workers_of(from), &[root], lowering.hosts());
    for step in 0..trees.steps() {
        let senders = lowering.workers_of(from).to_vec();
        let workers = trees.combining(step);
        let copy_on = |worker: u32| workers.binary_search(&worker).expect("it combines") as u32;
        let map = senders.iter().map(|&worker| Some(copy_on(trees.next(step, worker, root)))).collect();
        let stage = stage_on(lowering, &format!("reduce {}", step + 1), workers, &[], reduction, 1);
        lowering.connect(from, stage.input(0), EdgeMover::Map(map));
        from = stage.output(0);
    }
    from
}
