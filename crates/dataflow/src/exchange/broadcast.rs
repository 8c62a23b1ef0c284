//! Everything to every copy, along a tree of workers: a worker receives a batch once however many copies it runs, and a
//! host once however many workers it has. With several source copies it is an all-gather of a stream.

use arrow::datatypes::SchemaRef;

use super::{EdgeSignature, Exchange};
use crate::flow::{EdgeMover, Lowering};
use crate::overlay::Overlay;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Broadcast {
    overlay: Overlay,
}

impl Broadcast {
    /// Along this kind of tree; binomial by default.
    pub fn along(overlay: Overlay) -> Self {
        Broadcast { overlay }
    }
}

impl Exchange for Broadcast {
    fn describe(&self) -> String {
        format!("broadcast along {:?}", self.overlay).to_lowercase()
    }

    fn check(&self, ends: &EdgeSignature<'_>) -> Result<SchemaRef, String> {
        ends.only().cloned()
    }

    fn allows_rounds(&self) -> bool {
        true
    }

    fn lower(&self, lowering: &mut Lowering<'_>) {
        lowering.connect(lowering.sources()[0], lowering.target(), EdgeMover::Broadcast(self.overlay));
    }
}
