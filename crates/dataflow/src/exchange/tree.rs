//! Many to one along a tree of workers, hosts first: what the sources of a worker send comes together there, and goes
//! up with what the workers below have sent. A worker is sent to by few others, and a host by one worker of each other
//! host at most.

use arrow::datatypes::SchemaRef;
use tidemill_batch::local::Reduction;

use crate::flow::TaskFactory;
use crate::flow::{EdgeMover, FlowPort, Lowering};
use crate::overlay::Overlay;
use crate::task::Executor;

/// The outputs of a stage of the tree.
pub(super) const UP: usize = 0;
pub(super) const OUT: usize = 1;

/// What goes into a tree.
pub(super) enum TreeLeaves<'a> {
    /// All that leaves a port.
    AsItIs(FlowPort),
    /// What each of its copies makes of that.
    Reduced(FlowPort, &'a Reduction),
}

/// Adds a stage `label` on every worker that gets what copies on its worker send, on its first input, and what the
/// workers below it send, on its second. It is to send [`UP`], or, on worker `root`, [`OUT`], which is returned: the
/// other copies have nothing for it.
pub(super) fn add_tree_stage(
    lowering: &mut Lowering<'_>,
    label: &str,
    (leaves, schema): (TreeLeaves<'_>, &SchemaRef),
    (overlay, root): (Overlay, u32),
    executor: Executor,
    factory: TaskFactory,
) -> FlowPort {
    let (TreeLeaves::AsItIs(source) | TreeLeaves::Reduced(source, _)) = leaves;
    let members = lowering.workers_of(source).to_vec();
    let tree = lowering.tree(overlay, root, &members);
    let everywhere: Vec<u32> = (0..lowering.workers()).collect();
    let schemas = vec![SchemaRef::clone(schema), SchemaRef::clone(schema)];
    let stage = lowering.stage(label, everywhere, 2, schemas, executor, factory);
    let own = members.iter().map(|&worker| Some(worker)).collect();
    match leaves {
        TreeLeaves::AsItIs(_) => lowering.connect(source, stage.input(0), EdgeMover::Map(own)),
        TreeLeaves::Reduced(_, reduction) => lowering.connect_reduced(source, stage.input(0), own, reduction),
    }
    // An edge from the stage to itself, but never from a copy to itself or back: a tree.
    lowering.connect(stage.output(UP), stage.input(1), EdgeMover::Map(tree.parent));
    stage.output(OUT)
}

/// Connects the output of the tree to one copy of the target, on worker `root`.
pub(super) fn connect_root(lowering: &mut Lowering<'_>, out: FlowPort, root: u32, copy: u32) {
    let map = lowering.workers_of(out).iter().map(|&worker| (worker == root).then_some(copy)).collect();
    lowering.connect(out, lowering.target(), EdgeMover::Map(map));
}
