//! Splits strings into rows in one step: `explode` of a `split`, which would otherwise copy the parts into lists and
//! take these apart again. A part is a view of its original string.

use std::fmt;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanBufferBuilder, RecordBatch, StringViewArray, UInt32Array, make_view,
};
use arrow::buffer::NullBuffer;
use arrow::compute::{cast, take};
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::execution_plan::ReplaceChildrenOptions;
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::unnest::UnnestExec;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties, SendableRecordBatchStream,
};
use futures::{StreamExt, TryStreamExt};
use memchr::memmem::Finder;

use crate::exec::step::SLICE_ROWS;
use crate::exec::step::{unordered, with_new_children};

/// Strings up to this length are stored in their views (Arrow's format).
const INLINE_MAX: usize = 12;

/// Makes a row for each part of a string, and repeats the other columns.
pub struct SplitExec {
    input: Arc<dyn ExecutionPlan>,
    /// The expressions of the output columns; at position `split`, that of the string.
    columns: Arc<Vec<Arc<dyn PhysicalExpr>>>,
    split: usize,
    by: Arc<str>,
    /// Whether a null string gives one row.
    keeps_nulls: bool,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl SplitExec {
    pub(crate) fn try_replace(node: &Arc<dyn ExecutionPlan>) -> Option<Self> {
        let unnest = node.downcast_ref::<UnnestExec>()?;
        let [list] = unnest.list_column_indices() else { return None };
        let projection = unnest.input().downcast_ref::<ProjectionExec>()?;
        let mut columns: Vec<_> = projection.expr().iter().map(|column| Arc::clone(&column.expr)).collect();
        let split = list.index_in_input_schema;
        let function = columns[split].downcast_ref::<ScalarFunctionExpr>()?;
        let [text, by] = function.args() else { return None };
        let by = match by.downcast_ref::<Literal>()?.value() {
            ScalarValue::Utf8(Some(by)) | ScalarValue::Utf8View(Some(by)) | ScalarValue::LargeUtf8(Some(by)) => by,
            _ => return None,
        };
        let is_plain = list.depth == 1 && unnest.struct_column_indices().is_empty();
        if !is_plain || by.is_empty() || function.fun().name() != "string_to_array" {
            return None;
        }
        let (by, text) = (Arc::from(by.as_str()), Arc::clone(text));
        columns[split] = text;
        let (input, keeps_nulls) = (Arc::clone(projection.input()), unnest.options().preserve_nulls());
        Some(SplitExec::new(input, Arc::new(columns), split, by, keeps_nulls, unnest.schema()))
    }

    fn new(
        input: Arc<dyn ExecutionPlan>,
        columns: Arc<Vec<Arc<dyn PhysicalExpr>>>,
        split: usize,
        by: Arc<str>,
        keeps_nulls: bool,
        schema: SchemaRef,
    ) -> Self {
        let partitions = input.output_partitioning().partition_count();
        let properties = unordered(schema, partitions);
        let metrics = ExecutionPlanMetricsSet::new();
        SplitExec { input, columns, split, by, keeps_nulls, properties, metrics }
    }
}

impl fmt::Debug for SplitExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SplitExec").field("by", &self.by).finish_non_exhaustive()
    }
}

impl DisplayAs for SplitExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SplitExec: {} by {:?}", self.columns[self.split], self.by)
    }
}

impl ExecutionPlan for SplitExec {
    fn name(&self) -> &'static str {
        "SplitExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        see: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        for column in self.columns.iter() {
            if see(column)? == TreeNodeRecursion::Stop {
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let input = children.pop().ok_or_else(|| DataFusionError::Internal("a split has one input".into()))?;
        let (columns, by) = (Arc::clone(&self.columns), Arc::clone(&self.by));
        Ok(Arc::new(SplitExec::new(input, columns, self.split, by, self.keeps_nulls, self.schema())))
    }

    with_new_children!(Recompute);

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let input = self.input.execute(partition, context)?;
        let (columns, split, schema) = (Arc::clone(&self.columns), self.split, self.schema());
        let (finder, keeps_nulls) = (Finder::new(self.by.as_bytes()).into_owned(), self.keeps_nulls);
        let metrics = BaselineMetrics::new(&self.metrics, partition);
        let parts = input.map(move |batch| {
            let _timed = metrics.elapsed_compute().timer();
            let rows = parts_of(&batch?, &columns, split, &finder, keeps_nulls, &schema)?;
            metrics.record_output(rows.num_rows());
            // Small enough to stay in the cache until the next step has read them.
            let slices = (0..rows.num_rows()).step_by(SLICE_ROWS);
            let slices: Vec<_> = slices.map(|at| Ok(rows.slice(at, SLICE_ROWS.min(rows.num_rows() - at)))).collect();
            Ok::<_, DataFusionError>(futures::stream::iter(slices))
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), parts.try_flatten())))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

fn parts_of(
    batch: &RecordBatch,
    columns: &[Arc<dyn PhysicalExpr>],
    split: usize,
    by: &Finder<'_>,
    keeps_nulls: bool,
    schema: &SchemaRef,
) -> Result<RecordBatch> {
    let value = |column: &Arc<dyn PhysicalExpr>| column.evaluate(batch)?.into_array(batch.num_rows());
    let texts = cast(&value(&columns[split])?, &DataType::Utf8View)?;
    // The row that a part comes from matters only if there are other columns.
    let mut rows = (columns.len() > 1).then(Vec::new);
    let parts: ArrayRef = Arc::new(parts(texts.as_string_view(), by, keeps_nulls, rows.as_mut()));
    let rows = rows.map(UInt32Array::from);
    let column = |(at, column): (usize, &Arc<dyn PhysicalExpr>)| -> Result<ArrayRef> {
        match &rows {
            Some(rows) if at != split => Ok(take(&value(column)?, rows, None)?),
            _ => Ok(cast(&parts, schema.field(at).data_type())?),
        }
    };
    let values = columns.iter().enumerate().map(column).collect::<Result<Vec<_>>>()?;
    Ok(RecordBatch::try_new(SchemaRef::clone(schema), values)?)
}

/// The parts of all strings, concatenated; an empty string has none. `rows` receives the row number of each part's
/// string.
fn parts(
    texts: &StringViewArray,
    by: &Finder<'_>,
    keeps_nulls: bool,
    mut rows: Option<&mut Vec<u32>>,
) -> StringViewArray {
    let mut views: Vec<u128> = Vec::with_capacity(8 * texts.len());
    let mut nulls: Vec<usize> = Vec::new();
    for (row, &view) in texts.views().iter().enumerate() {
        if texts.is_null(row) {
            if keeps_nulls {
                nulls.push(views.len());
                views.push(0);
            }
        } else if view as u32 > 0 {
            cut(texts, view, by, &mut views);
        }
        if let Some(rows) = &mut rows {
            rows.resize(views.len(), row as u32);
        }
    }
    let nulls = (!nulls.is_empty()).then(|| {
        let mut valid = BooleanBufferBuilder::new(views.len());
        valid.append_n(views.len(), true);
        nulls.iter().for_each(|&at| valid.set_bit(at, false));
        NullBuffer::new(valid.finish())
    });
    // SAFETY: each view refers to bytes of one of `texts`, in its block and at its position, or contains them itself;
    // and UTF-8 that is cut before and after a complete UTF-8 string is UTF-8. Benefit: the parts are not validated
    // again.
    unsafe { StringViewArray::new_unchecked(views.into(), texts.data_buffers().to_vec(), nulls) }
}

/// Appends views of the parts of one non-empty string.
fn cut(texts: &StringViewArray, view: u128, by: &Finder<'_>, views: &mut Vec<u128>) {
    let len = view as u32 as usize;
    let short = view.to_le_bytes();
    // A long string lies in a block, where its view points to; a short one lies in its view, and so do its parts.
    let (block, bytes, start) = match len {
        0..=INLINE_MAX => (0, &short[..], 4),
        _ => {
            let block = (view >> 64) as u32;
            (block, texts.data_buffers()[block as usize].as_slice(), (view >> 96) as u32 as usize)
        }
    };
    let (end, delimiter) = (start + len, by.needle().len());
    let mut from = start;
    let mut part = |to: usize| {
        views.push(view_of(bytes, from, to, block));
        from = to + delimiter;
    };
    if let [byte] = by.needle() {
        for at in (start..end).step_by(64) {
            let mut found = found_in(bytes, at, *byte);
            if end - at < 64 {
                found &= (1 << (end - at)) - 1;
            }
            while found != 0 {
                part(at + found.trailing_zeros() as usize);
                found &= found - 1;
            }
        }
    } else {
        by.find_iter(&bytes[start..end]).for_each(|at| part(start + at));
    }
    part(end);
}

/// A bit mask of which of the 64 bytes from `at` on equal `byte`. Parts of strings are too short for one search per
/// part.
#[inline]
fn found_in(bytes: &[u8], at: usize, byte: u8) -> u64 {
    const LOW: u64 = u64::from_le_bytes([0x7f; 8]);
    let mut tail = [0; 64];
    let bytes: &[u8; 64] = match bytes.get(at..at + 64) {
        Some(bytes) => bytes.try_into().expect("64 bytes"),
        None => {
            let rest = &bytes[at..];
            tail[..rest.len()].copy_from_slice(rest);
            &tail
        }
    };
    let mut found = 0;
    for (i, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
        let other = u64::from_le_bytes(*word) ^ u64::from_le_bytes([byte; 8]);
        // The top bit of exactly those bytes that are zero; then these bits side by side.
        let zero = !(((other & LOW) + LOW) | other | LOW);
        found |= ((zero >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) << (8 * i);
    }
    found
}

/// The view of a part: `make_view` without its dispatch on thirteen lengths.
#[inline]
fn view_of(bytes: &[u8], from: usize, to: usize, block: u32) -> u128 {
    let len = to - from;
    match bytes.get(from..from + 16) {
        Some(word) if len <= INLINE_MAX => {
            let word = u128::from_le_bytes(word.try_into().expect("16 bytes"));
            ((word & ((1 << (8 * len)) - 1)) << 32) | len as u128
        }
        _ => make_view(&bytes[from..to], block, from as u32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(texts: Vec<Option<&str>>, by: &str, keeps_nulls: bool) -> (Vec<Option<String>>, Vec<u32>) {
        let (texts, mut rows) = (StringViewArray::from(texts), Vec::new());
        // Also a slice: views stay the same, positions change.
        let texts = texts.slice(1, texts.len() - 1);
        let found = parts(&texts, &Finder::new(by), keeps_nulls, Some(&mut rows));
        found.to_data().validate_full().unwrap();
        (found.iter().map(|part| part.map(str::to_owned)).collect(), rows)
    }

    /// Like the functions that it replaces: an empty string has no parts, and a null counts as one if it is kept.
    #[test]
    fn parts_of_texts() {
        let long = "a text that is longer, and in many parts  of which some are themselves longer-than-twelve-bytes";
        for by in [" ", ", ", "é", "e", "not there"] {
            let texts =
                vec![Some("left out"), Some(""), None, Some("a"), Some(" "), Some("été"), Some(long), None, Some(long)];
            for keeps_nulls in [false, true] {
                let mut expected = (Vec::new(), Vec::new());
                for (row, text) in texts[1..].iter().enumerate() {
                    let parts: Vec<_> = match text {
                        Some("") => Vec::new(),
                        Some(text) => text.split(by).map(|part| Some(part.to_owned())).collect(),
                        None if keeps_nulls => vec![None],
                        None => Vec::new(),
                    };
                    expected.1.extend(parts.iter().map(|_| row as u32));
                    expected.0.extend(parts);
                }
                assert_eq!(split(texts.clone(), by, keeps_nulls), expected, "by {by:?}, nulls kept: {keeps_nulls}");
            }
        }
    }
}
