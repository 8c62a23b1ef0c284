//! Sums, means and variances over sliding frames: exactly those of the rows in the frame, whatever has left it.
//!
//! DataFusion subtracts values that leave. With floats that leaves traces: a NaN or infinity never goes away, and small
//! numbers are lost next to 1e16. Here results are only ever combined. New rows go onto one stack. When the oldest row
//! has to leave, they are all moved to a second stack in reverse, where each entry has the combined result of its row
//! and all later ones. So the cost per row does not depend on the length of the frame.
//!
//! The two stacks are from Tangwongsan, Hirzel and Schneider, "Low-latency sliding-window aggregation in worst-case
//! constant time" (2017), section 2. The combination of moments is from Chan, Golub and LeVeque, "Updating formulae and
//! a pairwise algorithm for computing sample variances" (1979).

use std::fmt::Debug;
use std::mem::{size_of, size_of_val};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, FieldRef, Float64Type};
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::functions_aggregate::correlation::corr_udaf;
use datafusion::functions_aggregate::covariance::{covar_pop_udaf, covar_samp_udaf};
use datafusion::functions_aggregate::min_max::{max_udaf, min_udaf};
use datafusion::functions_aggregate::regr;
use datafusion::functions_aggregate::stddev::{stddev_pop_udaf, stddev_udaf};
use datafusion::functions_aggregate::variance::{var_pop_udaf, var_samp_udaf};
use datafusion::logical_expr::function::{AccumulatorArgs, AggregateFunctionSimplification, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Documentation, GroupsAccumulator, ReversedUDAF, SetMonotonicity,
    Signature, StatisticsArgs,
};

use super::extremes;

/// Partial results of some rows, which can be combined.
trait FrameFigures: Copy + Default + Debug + Send + Sync + 'static {
    fn and(self, later: Self) -> Self;
}

#[derive(Clone, Copy, Debug, Default)]
struct FrameSum {
    rows: u64,
    sum: f64,
}

impl FrameFigures for FrameSum {
    fn and(self, later: Self) -> Self {
        FrameSum { rows: self.rows + later.rows, sum: self.sum + later.sum }
    }
}

/// Means of two columns, and the sums of products of deviations from them.
#[derive(Clone, Copy, Debug, Default)]
struct Moments {
    rows: f64,
    means: [f64; 2],
    xx: f64,
    yy: f64,
    xy: f64,
}

impl FrameFigures for Moments {
    fn and(self, later: Self) -> Self {
        if self.rows == 0.0 || later.rows == 0.0 {
            return if self.rows == 0.0 { later } else { self };
        }
        let rows = self.rows + later.rows;
        let [x, y] = [0, 1].map(|of| later.means[of] - self.means[of]);
        let weight = self.rows * later.rows / rows;
        let mean = |of: usize, apart: f64| self.means[of] + apart * (later.rows / rows);
        Moments {
            rows,
            means: [mean(0, x), mean(1, y)],
            xx: self.xx + later.xx + x * x * weight,
            yy: self.yy + later.yy + y * y * weight,
            xy: self.xy + later.xy + x * y * weight,
        }
    }
}

/// The rows of a frame, on two stacks.
#[derive(Debug, Default)]
struct TwoStacks<F> {
    /// The oldest row on top, each with the combined result of all entries below it, which are later.
    old: Vec<F>,
    /// The latest row on top.
    new: Vec<F>,
    of_new: F,
}

impl<F: FrameFigures> TwoStacks<F> {
    fn push(&mut self, row: F) {
        self.new.push(row);
        self.of_new = self.of_new.and(row);
    }

    fn pop(&mut self) {
        if self.old.is_empty() {
            let mut all = F::default();
            while let Some(row) = self.new.pop() {
                all = row.and(all);
                self.old.push(all);
            }
            self.of_new = F::default();
        }
        self.old.pop();
    }

    fn all(&self) -> F {
        self.old.last().map_or(self.of_new, |old| old.and(self.of_new))
    }

    fn bytes(&self) -> usize {
        (self.old.capacity() + self.new.capacity()) * size_of::<F>()
    }
}

/// A function of a frame's combined result.
#[derive(Debug)]
struct SlidingFunction<F> {
    frame: TwoStacks<F>,
    row: fn(&[f64]) -> F,
    result: fn(&F) -> Option<f64>,
}

impl<F: FrameFigures> SlidingFunction<F> {
    /// Calls `each` for every row without nulls.
    fn rows(values: &[ArrayRef], mut each: impl FnMut(&[f64])) {
        let columns: Vec<_> = values.iter().map(|column| column.as_primitive::<Float64Type>()).collect();
        let mut row = vec![0.0; columns.len()];
        for at in 0..columns[0].len() {
            if columns.iter().all(|column| column.is_valid(at)) {
                row.iter_mut().zip(&columns).for_each(|(value, column)| *value = column.value(at));
                each(&row);
            }
        }
    }
}

impl<F: FrameFigures> Accumulator for SlidingFunction<F> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let (frame, row) = (&mut self.frame, self.row);
        Self::rows(values, |values| frame.push(row(values)));
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let frame = &mut self.frame;
        Self::rows(values, |_| frame.pop());
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(ScalarValue::Float64((self.result)(&self.frame.all())))
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.frame.bytes()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        datafusion::common::internal_err!("a frame that slides has no partial result")
    }

    fn merge_batch(&mut self, _: &[ArrayRef]) -> Result<()> {
        datafusion::common::internal_err!("a frame that slides has no partial result")
    }
}

/// `sum` of floats.
pub(super) fn sum() -> Box<dyn Accumulator> {
    of_sums(|all| (all.rows > 0).then_some(all.sum))
}

fn of_sums(result: fn(&FrameSum) -> Option<f64>) -> Box<dyn Accumulator> {
    Box::new(SlidingFunction {
        frame: TwoStacks::default(),
        row: |values| FrameSum { rows: 1, sum: values[0] },
        result,
    })
}

/// The function with this name, for floats.
fn of_floats(name: &str) -> Option<Box<dyn Accumulator>> {
    let result: fn(&Moments) -> Option<f64> = match name {
        "avg" => return Some(of_sums(|all| (all.rows > 0).then(|| all.sum / all.rows as f64))),
        "var" => |all| (all.rows > 1.0).then(|| all.xx / (all.rows - 1.0)),
        "var_pop" => |all| (all.rows > 0.0).then(|| all.xx / all.rows),
        "stddev" => |all| (all.rows > 1.0).then(|| (all.xx / (all.rows - 1.0)).sqrt()),
        "stddev_pop" => |all| (all.rows > 0.0).then(|| (all.xx / all.rows).sqrt()),
        "covar_samp" => |all| (all.rows > 1.0).then(|| all.xy / (all.rows - 1.0)),
        "covar_pop" => |all| (all.rows > 0.0).then(|| all.xy / all.rows),
        "corr" => |all| match all.means.map(f64::is_nan) {
            [true, true] => Some(f64::NAN),
            [false, false] if all.rows > 1.0 && all.xx != 0.0 && all.yy != 0.0 => {
                Some(all.xy / all.xx.sqrt() / all.yy.sqrt())
            }
            _ => None,
        },
        // In these, the second argument is the independent variable.
        "regr_slope" => |all| (all.rows > 1.0 && all.yy != 0.0).then(|| all.xy / all.yy),
        "regr_intercept" => {
            |all| (all.rows > 1.0 && all.yy != 0.0).then(|| all.means[0] - all.xy / all.yy * all.means[1])
        }
        "regr_r2" => {
            |all| (all.rows > 1.0 && all.xx != 0.0 && all.yy != 0.0).then(|| all.xy * all.xy / (all.xx * all.yy))
        }
        "regr_avgx" => |all| (all.rows > 0.0).then_some(all.means[1]),
        "regr_avgy" => |all| (all.rows > 0.0).then_some(all.means[0]),
        "regr_sxx" => |all| (all.rows > 0.0).then_some(all.yy),
        "regr_syy" => |all| (all.rows > 0.0).then_some(all.xx),
        "regr_sxy" => |all| (all.rows > 0.0).then_some(all.xy),
        _ => return None,
    };
    let row = |values: &[f64]| Moments {
        rows: 1.0,
        means: [values[0], values.get(1).copied().unwrap_or(0.0)],
        ..Moments::default()
    };
    Some(Box::new(SlidingFunction { frame: TwoStacks::default(), row, result }))
}

/// A DataFusion function, replaced for floats in sliding frames, and in groups if it is one of [`extremes`].
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct OfFloats(pub(super) Arc<AggregateUDF>);

/// All of them except `avg`, which is [`ExactMean`](super::mean::ExactMean).
pub(super) fn functions() -> impl Iterator<Item = OfFloats> {
    let moments = [var_samp_udaf(), var_pop_udaf(), stddev_udaf(), stddev_pop_udaf()];
    let pairs = [covar_samp_udaf(), covar_pop_udaf(), corr_udaf()];
    let lines = [
        regr::regr_slope_udaf(),
        regr::regr_intercept_udaf(),
        regr::regr_r2_udaf(),
        regr::regr_avgx_udaf(),
        regr::regr_avgy_udaf(),
        regr::regr_sxx_udaf(),
        regr::regr_syy_udaf(),
        regr::regr_sxy_udaf(),
    ];
    moments.into_iter().chain(pairs).chain(lines).chain([min_udaf(), max_udaf()]).map(OfFloats)
}

impl AggregateUDFImpl for OfFloats {
    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let are_floats = args.expr_fields.iter().all(|field| *field.data_type() == DataType::Float64);
        match of_floats(self.name()) {
            Some(ours) if are_floats && !args.is_distinct && *args.return_type() == DataType::Float64 => Ok(ours),
            _ => self.0.create_sliding_accumulator(args),
        }
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn aliases(&self) -> &[String] {
        self.0.aliases()
    }

    fn signature(&self) -> &Signature {
        self.0.signature()
    }

    fn coerce_types(&self, of: &[DataType]) -> Result<Vec<DataType>> {
        extremes::check(self.name(), of)?;
        self.0.coerce_types(of)
    }

    fn return_type(&self, of: &[DataType]) -> Result<DataType> {
        self.0.return_type(of)
    }

    fn return_field(&self, of: &[FieldRef]) -> Result<FieldRef> {
        self.0.return_field(of)
    }

    fn is_nullable(&self) -> bool {
        self.0.is_nullable()
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        self.0.accumulator(args)
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        self.0.state_fields(args)
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        self.0.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        match extremes::groups(self.name(), args.return_type()) {
            Some(ours) => Ok(ours),
            None => self.0.create_groups_accumulator(args),
        }
    }

    fn is_descending(&self) -> Option<bool> {
        self.0.inner().is_descending()
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.0.order_sensitivity()
    }

    fn simplify(&self) -> Option<AggregateFunctionSimplification> {
        self.0.simplify()
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        self.0.reverse_udf()
    }

    fn value_from_stats(&self, statistics: &StatisticsArgs) -> Option<ScalarValue> {
        self.0.value_from_stats(statistics)
    }

    fn default_value(&self, data_type: &DataType) -> Result<ScalarValue> {
        self.0.default_value(data_type)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.0.documentation()
    }

    fn set_monotonicity(&self, of: &DataType) -> SetMonotonicity {
        self.0.inner().set_monotonicity(of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows that come and go in runs of all lengths, and frames that become empty: the results must be those of the
    /// rows in the frame.
    #[test]
    fn equals_the_frame_afresh() {
        let mut state = 5_u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let (mut sums, mut moments, mut rows) =
            (TwoStacks::<FrameSum>::default(), TwoStacks::<Moments>::default(), Vec::new());
        for _ in 0..2000 {
            for _ in 0..next(5) {
                let [x, y] = [0, 1].map(|_| next(100) as f64 / 8.0);
                rows.push([x, y]);
                sums.push(FrameSum { rows: 1, sum: x });
                moments.push(Moments { rows: 1.0, means: [x, y], ..Moments::default() });
            }
            for _ in 0..next(6).min(rows.len() as u64) {
                rows.remove(0);
                sums.pop();
                moments.pop();
            }
            let (count, all) = (rows.len() as f64, moments.all());
            // Multiples of an eighth are summed exactly.
            assert_eq!((sums.all().rows as f64, sums.all().sum), (count, rows.iter().map(|row| row[0]).sum()));
            assert_eq!(all.rows, count);
            if rows.is_empty() {
                continue;
            }
            let mean = |of: usize| rows.iter().map(|row| row[of]).sum::<f64>() / count;
            let product =
                |a: usize, b: usize| rows.iter().map(|row| (row[a] - mean(a)) * (row[b] - mean(b))).sum::<f64>();
            for (found, expected) in [
                (all.means[0], mean(0)),
                (all.means[1], mean(1)),
                (all.xx, product(0, 0)),
                (all.yy, product(1, 1)),
                (all.xy, product(0, 1)),
            ] {
                assert!((found - expected).abs() <= 1e-9 * expected.abs().max(1.0), "{found} for {expected}");
            }
        }
    }
}
