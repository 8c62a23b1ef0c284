//! Everything to every copy, along a tree of workers: a worker receives a batch once however many copies it runs, and a
//! host once however many workers it has. With several source copies it is an all-gather of a stream.

use arrow::datatypes::SchemaRef;

use super::{EdgeSignature, EdgeWorkers, Exchange};
use crate::flow::{EdgeMover, Lowering};
use crate::overlay::{Overlay, OverlayChoice};

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Broadcast {
    /// `None`: to each copy by itself.
    overlay: Option<OverlayChoice>,
}

impl Default for Broadcast {
    fn default() -> Self {
        Broadcast { overlay: Some(OverlayChoice::default()) }
    }
}

impl Broadcast {
    /// Along this kind of tree; chosen when it is placed, by default.
    pub fn along(overlay: Overlay) -> Self {
        Broadcast { overlay: Some(OverlayChoice::Set(overlay)) }
    }

    /// Along a tree that is chosen for messages of about so many bytes.
    pub fn for_messages(bytes: u64) -> Self {
        Broadcast { overlay: Some(OverlayChoice::ForMessages(bytes)) }
    }

    /// Along the tree with the lowest latency for messages of about so many bytes that come at about this rate.
    pub fn for_rate(bytes: u64, per_s: u64) -> Self {
        Broadcast { overlay: Some(OverlayChoice::ForRate { bytes, per_s }) }
    }

    /// To each copy by itself, as other engines do it: a worker receives a batch as often as it runs copies. To compare
    /// the others with.
    pub fn to_copies() -> Self {
        Broadcast { overlay: None }
    }
}

impl Exchange for Broadcast {
    fn describe(&self) -> String {
        match self.overlay {
            Some(choice) => format!("broadcast{}", choice.describe()),
            None => "broadcast to each copy by itself".into(),
        }
    }

    fn check(&self, ends: &EdgeSignature<'_>) -> Result<SchemaRef, String> {
        ends.only().cloned()
    }

    fn allows_rounds(&self) -> bool {
        true
    }

    fn explain(&self, ends: &EdgeWorkers<'_>) -> Option<String> {
        Some(ends.explain_downward(self.overlay?, ends.sources[0], ends.targets))
    }

    fn lower(&self, lowering: &mut Lowering<'_>) {
        let (source, target) = (lowering.sources()[0], lowering.target());
        let mover = match self.overlay {
            None => EdgeMover::Copies,
            Some(choice) => {
                // One overlay for all sources: they are sent to in the same way, from roots of their own.
                let (root, members) = (lowering.workers_of(source)[0], lowering.workers_of(target));
                EdgeMover::Broadcast(lowering.overlay(choice, root, members))
            }
        };
        lowering.connect(source, target, mover);
    }
}
