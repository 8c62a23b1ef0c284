//! Everything to one copy, in order of arrival; the batches of one source copy keep their order.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use tidemill_checkpoint::Mark;

use super::tree::{OUT, TreeLeaves, UP, add_tree_stage, connect_root};
use super::{EdgeSignature, EdgeWorkers, Exchange};
use crate::flow::TaskFactory;
use crate::flow::{EdgeMover, Lowering, StreamElement};
use crate::overlay::{Overlay, OverlayChoice};
use crate::task::Executor;

/// See the module. The other copies of the target get nothing.
///
/// Directly, unless told: each source copy sends to the target by itself, and nothing is handed on. Along a tree a
/// worker hands on what those below it send, small batches together: where many workers on many hosts send little,
/// fewer messages cross, to fewer ends.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gather {
    root: u32,
    overlay: Option<Overlay>,
}

impl Gather {
    /// To copy `root`; 0 by default.
    pub fn to(root: u32) -> Self {
        Gather { root, overlay: None }
    }

    /// Along this kind of tree. Marks do not go along: a graph that makes checkpoints cannot have it.
    #[must_use]
    pub fn along(self, overlay: Overlay) -> Self {
        Gather { overlay: Some(overlay), ..self }
    }
}

impl Exchange for Gather {
    fn describe(&self) -> String {
        let along = self.overlay.map(|overlay| format!(" along {overlay}"));
        format!("gather to copy {}{}", self.root, along.unwrap_or_default())
    }

    fn check(&self, ends: &EdgeSignature<'_>) -> Result<SchemaRef, String> {
        if self.root >= ends.target_copies {
            return Err(format!("no copy {} among {}", self.root, ends.target_copies));
        }
        ends.only().cloned()
    }

    fn allows_rounds(&self) -> bool {
        self.overlay.is_none()
    }

    fn explain(&self, ends: &EdgeWorkers<'_>) -> Option<String> {
        let root = ends.targets[self.root as usize];
        Some(ends.explain_upward(OverlayChoice::Set(self.overlay?), root, ends.sources))
    }

    fn lower(&self, lowering: &mut Lowering<'_>) {
        let (source, target) = (lowering.sources()[0], lowering.target());
        let Some(overlay) = self.overlay else {
            let map = vec![Some(self.root); lowering.workers_of(source).len()];
            return lowering.connect(source, target, EdgeMover::Map(map));
        };
        let root = lowering.workers_of(target)[self.root as usize];
        let schema = SchemaRef::clone(&lowering.source_schemas()[0]);
        let out = add_tree_stage(
            lowering,
            "gather",
            (TreeLeaves::AsItIs(source), &schema),
            (overlay, root),
            Executor::Pool,
            forward_all(root),
        );
        connect_root(lowering, out, root, self.root);
    }
}

/// Sends on all that comes, as long as somebody takes it.
fn forward_all(root: u32) -> TaskFactory {
    Arc::new(move |mut inputs, outputs, context| {
        Box::pin(async move {
            let mut outputs = outputs.into_ports();
            let output = &mut outputs[if context.worker() == root { OUT } else { UP }];
            while output.is_wanted()
                && let Some((_, item)) = inputs.recv_any(|_| true).await?
            {
                match item {
                    Some(StreamElement::Batch(batch)) => output.send(batch).await?,
                    // As where streams end in what knows no barriers: who waits for a checkpoint must not wait for
                    // ever.
                    Some(StreamElement::Mark(Mark::Barrier(_))) => {
                        return Err("a gather along a tree cannot take part in checkpoints: leave `along` out".into());
                    }
                    _ => {}
                }
            }
            Ok(())
        })
    })
}
