//! Each copy to the copy with its number. Where both are on one worker a batch is handed over as it is.

use arrow::datatypes::SchemaRef;

use super::{EdgeSignature, Exchange};
use crate::flow::Lowering;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Direct;

impl Exchange for Direct {
    fn describe(&self) -> String {
        "direct".into()
    }

    fn check(&self, ends: &EdgeSignature<'_>) -> Result<SchemaRef, String> {
        let schema = ends.only()?;
        if ends.source_copies[0] != ends.target_copies {
            return Err(format!(
                "{} copies cannot be joined one to one to {}; give both tasks the same number, or partition, \
                 broadcast or gather",
                ends.source_copies[0], ends.target_copies
            ));
        }
        Ok(SchemaRef::clone(schema))
    }

    fn allows_rounds(&self) -> bool {
        true
    }

    fn lower(&self, lowering: &mut Lowering<'_>) {
        lowering.connect_direct(lowering.sources()[0], lowering.target());
    }
}
