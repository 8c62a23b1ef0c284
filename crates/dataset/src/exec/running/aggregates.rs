//! Aggregates over the rows from the partition's first to the current one, or to the last of its peers.

use std::marker::PhantomData;
use std::mem::discriminant;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, PrimitiveArray, downcast_primitive};
use arrow::buffer::{BooleanBuffer, NullBuffer, ScalarBuffer};
use arrow::datatypes::{
    ArrowNativeType, ArrowNativeTypeOp, DataType, Decimal128Type, DecimalType, Float64Type, Int64Type, Schema,
    UInt64Type,
};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{WindowFrameBound, WindowFrameUnits};
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::window::{PlainAggregateWindowExpr, WindowExpr};
use tidemill_dataflow::floats::{FloatEquality, with_same};

use super::{PeerBounds, RunningFunction};

/// `None` for an unsupported one.
pub(super) fn of(expr: &Arc<dyn WindowExpr>, input: &Schema) -> Option<Box<dyn RunningFunction>> {
    let window = expr.as_any().downcast_ref::<PlainAggregateWindowExpr>()?;
    let frame = expr.get_window_frame();
    let by_peers = match frame.units {
        WindowFrameUnits::Rows => false,
        WindowFrameUnits::Range | WindowFrameUnits::Groups => true,
    };
    let runs = frame.start_bound.is_unbounded() && matches!(frame.end_bound, WindowFrameBound::CurrentRow);
    // DataFusion does not expose in another way whether there is a filter.
    let has_filter = !format!("{window:?}").ends_with(", filter: None }");
    let aggregate = window.get_aggregate_expr();
    let has_order = !by_peers || !expr.order_by().is_empty();
    if !runs || !has_order || has_filter || aggregate.is_distinct() || !aggregate.order_bys().is_empty() {
        return None;
    }
    let args = expr.expressions();
    let [arg] = args.as_slice() else { return None };
    let (arg, result) = (arg.data_type(input).ok()?, expr.field().ok()?.data_type().clone());
    // A sum with more digits still has the same type.
    let has_same_type = arg == result || (arg.is_decimal() && discriminant(&arg) == discriminant(&result));
    match aggregate.fun().name() {
        "count" if result == DataType::Int64 => Some(Box::new(RowCount { by_peers, count: 0 })),
        "sum" if has_same_type => sum(aggregate, result, by_peers),
        "min" if arg == result => extreme::<false>(aggregate, result, by_peers),
        "max" if arg == result => extreme::<true>(aggregate, result, by_peers),
        _ => None,
    }
}

/// The number of leading rows whose frames are complete.
fn ready(by_peers: bool, places: &PeerBounds) -> usize {
    if by_peers { places.last_peers() } else { places.rows }
}

/// Gives all peers the value of the last one.
fn share<T: Copy>(values: &mut [T], peers: &BooleanBuffer) {
    for row in (1..values.len()).rev() {
        if !peers.value(row) {
            values[row - 1] = values[row];
        }
    }
}

/// `count`.
struct RowCount {
    by_peers: bool,
    count: i64,
}

impl RunningFunction for RowCount {
    fn ready(&self, places: &PeerBounds) -> usize {
        ready(self.by_peers, places)
    }

    fn is_shared(&self) -> bool {
        self.by_peers
    }

    fn values(&mut self, arg: Option<&ArrayRef>, places: &PeerBounds, count: usize) -> Result<ArrayRef> {
        let nulls = arg.and_then(|arg| arg.logical_nulls());
        let counts = places.partitions.iter().take(count).enumerate().map(|(row, begins)| {
            let counts = nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row));
            self.count = if begins { 0 } else { self.count } + i64::from(counts);
            self.count
        });
        let mut counts: Vec<i64> = counts.collect();
        if self.by_peers {
            share(&mut counts, &places.peers);
        }
        Ok(Arc::new(PrimitiveArray::<Int64Type>::new(counts.into(), None)))
    }
}

/// How a total is computed from consecutive values.
trait TotalFold: Sized + Send + 'static {
    type Of: ArrowPrimitiveType;
    type Total: Copy + Default + Send;

    fn start(value: Native<Self>) -> Self::Total;
    /// `None` if the total overflows.
    fn add(total: Self::Total, value: Native<Self>) -> Option<Self::Total>;
    /// `None` if it does not fit the type.
    fn result(total: Self::Total, of: &DataType) -> Option<Native<Self>>;
}

type Native<F> = <<F as TotalFold>::Of as ArrowPrimitiveType>::Native;

/// A total of the values in a frame.
struct FoldedTotal<F: TotalFold> {
    by_peers: bool,
    /// The total of the last row; `None` if there has been no value.
    total: Option<F::Total>,
    result: DataType,
    /// The aggregate, for error messages about sums that overflow.
    aggregate: AggregateFunctionExpr,
}

impl<F: TotalFold> FoldedTotal<F> {
    fn of(aggregate: &AggregateFunctionExpr, result: DataType, by_peers: bool) -> Option<Box<dyn RunningFunction>> {
        Some(Box::new(FoldedTotal::<F> { by_peers, total: None, result, aggregate: aggregate.clone() }))
    }

    /// The function's own error for an overflow.
    fn beyond(&self) -> DataFusionError {
        let greatest = match self.result {
            DataType::Decimal128(precision, _) => Native::<F>::usize_as(10).pow_wrapping(precision.into()),
            _ => Native::<F>::MAX_TOTAL_ORDER,
        };
        let values = PrimitiveArray::<F::Of>::from_iter_values([greatest, greatest]);
        let told = self.aggregate.create_accumulator().and_then(|mut accumulator| {
            accumulator.update_batch(&[Arc::new(values.with_data_type(self.result.clone()))])?;
            accumulator.evaluate()
        });
        let otherwise = || DataFusionError::Execution(format!("{} is beyond its range", self.aggregate.name()));
        told.err().unwrap_or_else(otherwise)
    }

    /// The total of each frame, and which frames have a value.
    fn totals(&mut self, values: &PrimitiveArray<F::Of>, places: &PeerBounds, count: usize) -> Option<Totals<F>> {
        let begins = places.partitions.iter().take(count);
        let Some(nulls) = values.nulls().filter(|nulls| nulls.null_count() > 0) else {
            let totals = begins.zip(values.values()).map(|(begins, &value)| {
                let total = match self.total {
                    Some(total) if !begins => F::add(total, value)?,
                    _ => F::start(value),
                };
                self.total = Some(total);
                Some(total)
            });
            return Some((totals.collect::<Option<_>>()?, None));
        };
        let mut has_value = Vec::with_capacity(count);
        let totals = begins.zip(values.values()).zip(nulls).map(|((begins, &value), is_valid)| {
            let before = self.total.filter(|_| !begins);
            self.total = match before {
                _ if !is_valid => before,
                Some(total) => Some(F::add(total, value)?),
                None => Some(F::start(value)),
            };
            has_value.push(self.total.is_some());
            Some(self.total.unwrap_or_default())
        });
        Some((totals.collect::<Option<_>>()?, Some(has_value)))
    }
}

type Totals<F> = (Vec<<F as TotalFold>::Total>, Option<Vec<bool>>);

impl<F: TotalFold> RunningFunction for FoldedTotal<F> {
    fn ready(&self, places: &PeerBounds) -> usize {
        ready(self.by_peers, places)
    }

    fn is_shared(&self) -> bool {
        self.by_peers
    }

    fn values(&mut self, arg: Option<&ArrayRef>, places: &PeerBounds, count: usize) -> Result<ArrayRef> {
        let arg = with_same(arg.expect("it is a function of something"), FloatEquality::NaNs)?;
        let totals = self.totals(arg.as_primitive::<F::Of>(), places, count);
        let (mut totals, mut has_value) = totals.ok_or_else(|| self.beyond())?;
        if self.by_peers {
            share(&mut totals, &places.peers);
            has_value.iter_mut().for_each(|has_value| share(has_value, &places.peers));
        }
        let results = totals.into_iter().map(|total| F::result(total, &self.result)).collect::<Option<Vec<_>>>();
        let results = ScalarBuffer::from(results.ok_or_else(|| self.beyond())?);
        let results = PrimitiveArray::<F::Of>::new(results, has_value.map(NullBuffer::from));
        Ok(Arc::new(results.with_data_type(self.result.clone())))
    }
}

/// The sum of integers. Only sums that are output have to fit.
struct IntegerSum<T>(PhantomData<fn() -> T>);

impl<T: ArrowPrimitiveType> TotalFold for IntegerSum<T>
where
    T::Native: Into<i128> + TryFrom<i128>,
{
    type Of = T;
    type Total = i128;

    fn start(value: T::Native) -> i128 {
        value.into()
    }

    fn add(total: i128, value: T::Native) -> Option<i128> {
        total.checked_add(value.into())
    }

    fn result(total: i128, _: &DataType) -> Option<T::Native> {
        total.try_into().ok()
    }
}

/// The sum of decimals.
struct DecimalSum;

impl TotalFold for DecimalSum {
    type Of = Decimal128Type;
    type Total = i128;

    fn start(value: i128) -> i128 {
        value
    }

    fn add(total: i128, value: i128) -> Option<i128> {
        total.checked_add(value)
    }

    fn result(total: i128, of: &DataType) -> Option<i128> {
        let DataType::Decimal128(precision, scale) = of else { return None };
        Decimal128Type::validate_decimal_precision(total, *precision, *scale).is_ok().then_some(total)
    }
}

/// The sum of floats.
struct FloatSum;

impl TotalFold for FloatSum {
    type Of = Float64Type;
    type Total = f64;

    fn start(value: f64) -> f64 {
        0.0 + value
    }

    fn add(total: f64, value: f64) -> Option<f64> {
        Some(total + value)
    }

    fn result(total: f64, _: &DataType) -> Option<f64> {
        Some(total)
    }
}

/// The minimum or maximum.
struct RunningExtreme<T, const GREATEST: bool>(PhantomData<fn() -> T>);

impl<T: ArrowPrimitiveType, const GREATEST: bool> TotalFold for RunningExtreme<T, GREATEST> {
    type Of = T;
    type Total = T::Native;

    fn start(value: T::Native) -> T::Native {
        value
    }

    fn add(total: T::Native, value: T::Native) -> Option<T::Native> {
        let replaces = if GREATEST { value.is_gt(total) } else { value.is_lt(total) };
        Some(if replaces { value } else { total })
    }

    fn result(total: T::Native, _: &DataType) -> Option<T::Native> {
        Some(total)
    }
}

fn sum(aggregate: &AggregateFunctionExpr, result: DataType, by_peers: bool) -> Option<Box<dyn RunningFunction>> {
    match result {
        DataType::Int64 => FoldedTotal::<IntegerSum<Int64Type>>::of(aggregate, result, by_peers),
        DataType::UInt64 => FoldedTotal::<IntegerSum<UInt64Type>>::of(aggregate, result, by_peers),
        DataType::Float64 => FoldedTotal::<FloatSum>::of(aggregate, result, by_peers),
        DataType::Decimal128(..) => FoldedTotal::<DecimalSum>::of(aggregate, result, by_peers),
        _ => None,
    }
}

fn extreme<const GREATEST: bool>(
    aggregate: &AggregateFunctionExpr,
    result: DataType,
    by_peers: bool,
) -> Option<Box<dyn RunningFunction>> {
    macro_rules! of {
        ($t:ty) => {
            FoldedTotal::<RunningExtreme<$t, GREATEST>>::of(aggregate, result.clone(), by_peers)
        };
    }
    match result {
        DataType::Interval(_) => None,
        _ => downcast_primitive! {
            result => (of),
            _ => None
        },
    }
}
