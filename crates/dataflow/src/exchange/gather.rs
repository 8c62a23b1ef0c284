//! Everything to one copy, in order of arrival; the batches of one source copy keep their order.

use arrow::datatypes::SchemaRef;

use super::{Ends, Exchange};
use crate::flow::{Lowering, Mover};

/// See the module. The other copies of the target get nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gather {
    root: u32,
}

impl Gather {
    /// To copy `root`; 0 by default.
    pub fn to(root: u32) -> Self {
        Gather { root }
    }
}

impl Exchange for Gather {
    fn describe(&self) -> String {
        format!("gather to copy {}", self.root)
    }

    fn check(&self, ends: &Ends<'_>) -> Result<SchemaRef, String> {
        if self.root >= ends.target_copies {
            return Err(format!("there is no copy {} among {}", self.root, ends.target_copies));
        }
        ends.only().cloned()
    }

    fn lower(&self, lowering: &mut Lowering<'_>) {
        let source = lowering.sources()[0];
        let map = vec![Some(self.root); lowering.workers_of(source).len()];
        lowering.connect(source, lowering.target(), Mover::Map(map));
    }
}
