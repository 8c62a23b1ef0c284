//! Positional functions: the number of a row, its rank, and values of rows at an offset.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, UInt32Array, UInt64Array, new_null_array};
use arrow::buffer::{NullBuffer, ScalarBuffer};
use arrow::compute::{concat, interleave, take};
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::functions_window::lead_lag::WindowShift;
use datafusion::functions_window::rank::{dense_rank_udwf, rank_udwf};
use datafusion::functions_window::row_number::row_number_udwf;
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_expr::window::{StandardWindowExpr, WindowExpr};
use datafusion::physical_plan::windows::WindowUDFExpr;

use super::{PeerBounds, RunningFunction, own};

/// Maximum offset of `lag` and `lead`, and thus the maximum number of values to keep.
const SHIFT_MAX: u64 = 1 << 16;
/// A row so far from both ends that any offset shows.
const FAR: usize = 1 << 40;

/// `None` for an unsupported one.
pub(super) fn of(expr: &Arc<dyn WindowExpr>) -> Option<Box<dyn RunningFunction>> {
    let standard = expr.as_any().downcast_ref::<StandardWindowExpr>()?;
    let call = standard.get_standard_func_expr().as_any().downcast_ref::<WindowUDFExpr>()?;
    match call.fun() {
        fun if *fun == row_number_udwf() => Some(Box::new(RowNumber::default())),
        fun if *fun == rank_udwf() => Some(Box::new(SparseRank::default())),
        fun if *fun == dense_rank_udwf() => Some(Box::new(DenseRank::default())),
        fun if fun.inner().is::<WindowShift>() => Some(Box::new(LagLead::of(standard, call)?)),
        _ => None,
    }
}

/// `row_number`.
#[derive(Default)]
struct RowNumber {
    /// The number of the last row.
    number: u64,
}

impl RunningFunction for RowNumber {
    fn values(&mut self, _: Option<&ArrayRef>, places: &PeerBounds, count: usize) -> Result<ArrayRef> {
        let number = |begins: bool| {
            self.number = if begins { 1 } else { self.number + 1 };
            self.number
        };
        Ok(numbers(places.partitions.iter().take(count).map(number)))
    }
}

/// `rank`.
#[derive(Default)]
struct SparseRank {
    number: u64,
    /// The row number of the first of the last row's peers.
    rank: u64,
}

impl RunningFunction for SparseRank {
    fn values(&mut self, _: Option<&ArrayRef>, places: &PeerBounds, count: usize) -> Result<ArrayRef> {
        let rank = |(begins, is_first): (bool, bool)| {
            self.number = if begins { 1 } else { self.number + 1 };
            self.rank = if is_first { self.number } else { self.rank };
            self.rank
        };
        Ok(numbers(places.partitions.iter().zip(&places.peers).take(count).map(rank)))
    }
}

/// `dense_rank`.
#[derive(Default)]
struct DenseRank {
    rank: u64,
}

impl RunningFunction for DenseRank {
    fn values(&mut self, _: Option<&ArrayRef>, places: &PeerBounds, count: usize) -> Result<ArrayRef> {
        let rank = |(begins, is_first): (bool, bool)| {
            self.rank = if begins { 1 } else { self.rank + u64::from(is_first) };
            self.rank
        };
        Ok(numbers(places.partitions.iter().zip(&places.peers).take(count).map(rank)))
    }
}

fn numbers(numbers: impl Iterator<Item = u64>) -> ArrayRef {
    Arc::new(UInt64Array::from_iter_values(numbers))
}

/// `lag` and `lead`.
struct LagLead {
    is_lag: bool,
    /// At least 1.
    by: usize,
    /// The value if there is no such row; one row.
    default: ArrayRef,
    /// The last values, at most `by` of them.
    last: Option<ArrayRef>,
    /// Number of rows of the last row's partition, up to that row.
    number: usize,
}

impl LagLead {
    /// `None` if it ignores nulls, or if its offset is too large.
    fn of(expr: &StandardWindowExpr, call: &WindowUDFExpr) -> Option<Self> {
        let by = match call.args().get(1) {
            None => 1,
            Some(by) => match by.downcast_ref::<Literal>()?.value() {
                ScalarValue::Int64(by) => by.unwrap_or(1),
                ScalarValue::Null => 1,
                _ => return None,
            },
        };
        let by = Some(by.unsigned_abs()).filter(|by| (1..=SHIFT_MAX).contains(by))? as usize;
        let mut evaluator = call_evaluator(expr)?;
        let is_lag = evaluator.is_causal();
        // DataFusion does not expose in another way which rows it looks at: all of them if it ignores nulls.
        let seen = evaluator.get_range(FAR, 2 * FAR).ok()?;
        if seen != if is_lag { FAR - by..FAR + 1 } else { FAR..FAR + by } {
            return None;
        }
        // Within a single row there is no other: this gives the default.
        let field = expr.field().ok()?;
        let default = evaluator.evaluate_all(&[new_null_array(field.data_type(), 1)], 1).ok()?;
        Some(LagLead { is_lag, by, default, last: None, number: 0 })
    }

    /// The values at these places, and the default for missing ones.
    fn picked(&self, values: &ArrayRef, places: &[Option<usize>]) -> Result<ArrayRef> {
        if self.default.is_null(0) {
            let nulls = NullBuffer::from_iter(places.iter().map(Option::is_some));
            let places: ScalarBuffer<u32> = places.iter().map(|place| place.unwrap_or(0) as u32).collect();
            return Ok(take(values, &UInt32Array::new(places, Some(nulls)), None)?);
        }
        let places: Vec<_> = places.iter().map(|place| place.map_or((1, 0), |place| (0, place))).collect();
        Ok(interleave(&[values.as_ref(), self.default.as_ref()], &places)?)
    }

    fn lag(&mut self, arg: &ArrayRef, places: &PeerBounds, count: usize) -> Result<ArrayRef> {
        let own_values = arg.slice(0, count);
        let last = self.last.take();
        let kept = last.as_ref().map_or(0, |last| last.len());
        let values = match &last {
            Some(last) => concat(&[last, &own_values])?,
            None => own_values,
        };
        let from = places.partitions.iter().take(count).enumerate().map(|(row, begins)| {
            self.number = if begins { 1 } else { self.number + 1 };
            // There are enough rows before it.
            (self.number > self.by).then(|| kept + row - self.by)
        });
        let from: Vec<_> = from.collect();
        let keep = self.by.min(values.len());
        self.last = Some(own(&values, values.len() - keep, keep)?);
        self.picked(&values, &from)
    }

    fn lead(&self, arg: &ArrayRef, places: &PeerBounds, count: usize) -> Result<ArrayRef> {
        let ends = places.ends(count);
        let from = ends.iter().enumerate().map(|(row, &end)| Some(row + self.by).filter(|&from| from < end));
        self.picked(arg, &from.collect::<Vec<_>>())
    }
}

fn call_evaluator(expr: &StandardWindowExpr) -> Option<Box<dyn datafusion::logical_expr::PartitionEvaluator>> {
    expr.get_standard_func_expr().create_evaluator().ok()
}

impl RunningFunction for LagLead {
    fn ready(&self, places: &PeerBounds) -> usize {
        if self.is_lag { places.rows } else { places.rows.saturating_sub(self.by) }
    }

    fn values(&mut self, arg: Option<&ArrayRef>, places: &PeerBounds, count: usize) -> Result<ArrayRef> {
        let arg = arg.expect("it is a function of something");
        if self.is_lag { self.lag(arg, places, count) } else { self.lead(arg, places, count) }
    }
}
