//! Elementwise reduction of arrays with NumPy's semantics, without calling NumPy.

use std::sync::Arc;

use tidemill_collective::reduce::reduce_right;
use tidemill_collective::{DType, ReduceOp};
use tidemill_dataflow::TaskError;
use tidemill_dataset::datafusion::arrow::array::{AsArray, LargeBinaryArray, RecordBatch, UInt32Array};
use tidemill_dataset::datafusion::arrow::buffer::{Buffer, OffsetBuffer};
use tidemill_dataset::datafusion::arrow::compute::take;

use super::message::dtype_and_shape;

/// The operation with this NumPy name; `None` for others.
pub fn op(name: &str) -> Option<ReduceOp> {
    Some(match name {
        "sum" => ReduceOp::Sum,
        "product" => ReduceOp::Prod,
        "min" => ReduceOp::Min,
        "max" => ReduceOp::Max,
        _ => return None,
    })
}

/// The element type of a NumPy `dtype.str`, if it is native and operations are defined for it.
fn dtype(text: &str) -> Option<DType> {
    Some(match text {
        "|b1" => DType::Bool,
        "|i1" => DType::I8,
        "<i2" => DType::I16,
        "<i4" => DType::I32,
        "<i8" => DType::I64,
        "|u1" => DType::U8,
        "<u2" => DType::U16,
        "<u4" => DType::U32,
        "<u8" => DType::U64,
        "<f2" => DType::F16,
        "<f4" => DType::F32,
        "<f8" => DType::F64,
        "<c8" => DType::C64,
        "<c16" => DType::C128,
        _ => return None,
    })
}

/// Reduces the arrays of each of `count` groups, given as rows of a port of arrays, in order. `None` if
/// NumPy's rules for arrays of different types or shapes are needed, or for types that are not numbers.
///
/// # Errors
/// If Arrow cannot build the result.
pub fn fold(
    op: &ReduceOp,
    batch: &RecordBatch,
    groups: &[u32],
    count: usize,
) -> Result<Option<RecordBatch>, TaskError> {
    let Some(dtype) = alike(batch) else { return Ok(None) };
    let data = batch.column(0).as_binary::<i64>();
    let bytes = data.value(0).len();
    if data.iter().flatten().any(|array| array.len() != bytes) {
        return Ok(None);
    }
    let mut first = vec![u32::MAX; count];
    let mut folded = vec![0u8; bytes * count];
    for (row, &group) in groups.iter().enumerate() {
        let into = &mut folded[group as usize * bytes..][..bytes];
        if first[group as usize] == u32::MAX {
            first[group as usize] = row as u32;
            into.copy_from_slice(data.value(row));
        } else if reduce_right(op, dtype, into, data.value(row)).is_err() {
            return Ok(None);
        }
    }
    let offsets = OffsetBuffer::from_repeated_length(bytes, count);
    let folded = LargeBinaryArray::new(offsets, Buffer::from_vec(folded), None);
    let forms = take(batch.column(1), &UInt32Array::from(first), None)?;
    Ok(Some(RecordBatch::try_new(batch.schema(), vec![Arc::new(folded), forms])?))
}

/// The common element type of all arrays, if their types and shapes are equal.
fn alike(batch: &RecordBatch) -> Option<DType> {
    let forms = batch.column(1).as_string::<i32>();
    let first = forms.iter().next().flatten()?;
    forms.iter().all(|form| form == Some(first)).then(|| dtype(dtype_and_shape(first).0)).flatten()
}
