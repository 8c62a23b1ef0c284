//! Routing of rows without a key: by all their values, so that a repeated row goes to the same copy.

use std::fmt;
use std::sync::Arc;

use arrow::array::{RecordBatch, UInt64Array};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::error::Result;
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use tidemill_dataflow::keys::KeyHasher;

/// The hash of a row's columns, except those whose types cannot be keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RowHash {
    columns: Vec<usize>,
}

impl RowHash {
    /// For rows with this schema.
    pub(crate) fn new(rows: &SchemaRef) -> Self {
        let columns = rows.fields().iter().enumerate().filter(|(_, field)| !field.data_type().is_nested());
        RowHash { columns: columns.map(|(column, _)| column).collect() }
    }
}

impl fmt::Display for RowHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("hash of the row")
    }
}

impl PhysicalExpr for RowHash {
    fn data_type(&self, _: &Schema) -> Result<DataType> {
        Ok(DataType::UInt64)
    }

    fn nullable(&self, _: &Schema) -> Result<bool> {
        Ok(false)
    }

    fn evaluate(&self, rows: &RecordBatch) -> Result<ColumnarValue> {
        let mut hashes = Vec::new();
        KeyHasher::new(self.columns.clone()).hash(rows, &mut hashes)?;
        Ok(ColumnarValue::Array(Arc::new(UInt64Array::from(hashes))))
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        Vec::new()
    }

    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn PhysicalExpr>>) -> Result<Arc<dyn PhysicalExpr>> {
        Ok(self)
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
