//! Several sources into one port: all rows of all of them, in no order.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use tidemill_batch::schema::fits;

use super::{Direct, EdgeSignature, EdgeWorkers, Exchange};
use crate::flow::Lowering;

/// See the module. Each source's rows move in the same way; directly, unless told.
#[derive(Clone)]
pub struct Union {
    by: Arc<dyn Exchange>,
}

impl Default for Union {
    fn default() -> Self {
        Union::by(Direct)
    }
}

impl Union {
    /// A union of sources each of which moves by `exchange`.
    pub fn by(exchange: impl Exchange + 'static) -> Self {
        Union { by: Arc::new(exchange) }
    }
}

impl Exchange for Union {
    fn describe(&self) -> String {
        format!("union, {}", self.by.describe())
    }

    fn check(&self, ends: &EdgeSignature<'_>) -> Result<SchemaRef, String> {
        let mut first: Option<SchemaRef> = None;
        for (at, schema) in ends.schemas.iter().enumerate() {
            let one = EdgeSignature {
                schemas: std::slice::from_ref(schema),
                source_copies: vec![ends.source_copies[at]],
                target_copies: ends.target_copies,
            };
            let moved = self.by.check(&one)?;
            if let Some(first) = &first {
                fits(&moved, first)?;
            }
            first.get_or_insert(moved);
        }
        first.ok_or_else(|| "a union needs at least one source".into())
    }

    fn explain(&self, ends: &EdgeWorkers<'_>) -> Option<String> {
        self.by.explain(ends)
    }

    fn lower(&self, lowering: &mut Lowering<'_>) {
        lowering.each_source(|one| self.by.lower(one));
    }
}
