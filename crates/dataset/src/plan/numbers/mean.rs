//! `avg` of integers: their sum in 128 bits, divided once.
//!
//! DataFusion converts them to floats first, which loses digits beyond 2^53: the mean of the smallest and largest
//! `int64` and 7 would be 0 instead of 2. DataFusion handles everything else (floats, decimals, durations).

use std::collections::HashSet;
use std::mem::{size_of, size_of_val};
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Decimal128Array, Float64Array, PrimitiveArray, UInt64Array,
};
use arrow::datatypes::{
    ArrowPrimitiveType, DECIMAL128_MAX_PRECISION, DataType, Decimal128Type, Field, FieldRef, Int64Type, UInt64Type,
};
use datafusion::common::utils::SingleRowListArrayBuilder;
use datafusion::common::{ScalarValue, plan_err};
use datafusion::error::Result;
use datafusion::functions_aggregate::average::avg_udaf;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::{AggregateOrderSensitivity, format_state_name};
use datafusion::logical_expr::{
    Accumulator, AggregateUDFImpl, Documentation, EmitTo, GroupsAccumulator, ReversedUDAF, Signature, Volatility,
};
use datafusion_functions_aggregate_common::aggregate::groups_accumulator::accumulate::accumulate;

use super::sliding::OfFloats;
use super::totals::total;

/// The function, see the module.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct ExactMean {
    of_others: OfFloats,
    signature: Signature,
}

impl Default for ExactMean {
    fn default() -> Self {
        ExactMean { of_others: OfFloats(avg_udaf()), signature: Signature::user_defined(Volatility::Immutable) }
    }
}

/// Partial sums: a decimal without a fraction has room for 10^19 values of 64 bits.
fn sum_type() -> DataType {
    DataType::Decimal128(DECIMAL128_MAX_PRECISION, 0)
}

fn is_whole(kind: &DataType) -> bool {
    matches!(kind, DataType::Int64 | DataType::UInt64)
}

/// The nearest float, or its neighbor if the sum has more than 53 bits.
fn divided(sum: i128, rows: u64) -> f64 {
    const EXACT: u128 = 1 << 53;
    if sum.unsigned_abs() <= EXACT {
        return sum as f64 / rows as f64;
    }
    let rows_wide = i128::from(rows);
    (sum / rows_wide) as f64 + (sum % rows_wide) as f64 / rows as f64
}

impl AggregateUDFImpl for ExactMean {
    fn name(&self) -> &str {
        self.of_others.name()
    }

    fn aliases(&self) -> &[String] {
        self.of_others.aliases()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, of: &[DataType]) -> Result<Vec<DataType>> {
        let [of] = of else { return plan_err!("avg takes one argument, not {}", of.len()) };
        let values = match of {
            DataType::Dictionary(_, values) => values,
            other => other,
        };
        Ok(vec![match values {
            DataType::UInt64 => DataType::UInt64,
            whole if whole.is_integer() => DataType::Int64,
            float if float.is_floating() || float.is_null() => DataType::Float64,
            other if other.is_decimal() || matches!(other, DataType::Duration(_)) => other.clone(),
            other => return plan_err!("there is no avg of {other}; cast it to a type that has one"),
        }])
    }

    fn return_type(&self, of: &[DataType]) -> Result<DataType> {
        self.of_others.return_type(of)
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        match is_whole(args.expr_fields[0].data_type()) {
            true if args.is_distinct => Ok(Box::new(DistinctMean::default())),
            true => Ok(Box::new(MeanAccumulator::default())),
            false => self.of_others.accumulator(args),
        }
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        match is_whole(args.expr_fields[0].data_type()) {
            true => self.accumulator(args),
            false => self.of_others.create_sliding_accumulator(args),
        }
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        if !is_whole(args.input_fields[0].data_type()) {
            return self.of_others.state_fields(args);
        }
        if args.is_distinct {
            let name = format_state_name(args.name, "avg distinct");
            return Ok(vec![Arc::new(Field::new_list(name, Field::new_list_field(sum_type(), true), true))]);
        }
        let rows = Field::new(format_state_name(args.name, "count"), DataType::UInt64, true);
        Ok(vec![Arc::new(rows), Arc::new(Field::new(format_state_name(args.name, "sum"), sum_type(), true))])
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        self.of_others.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(match args.expr_fields[0].data_type() {
            DataType::Int64 => Box::new(GroupMeans::<Int64Type>::default()),
            DataType::UInt64 => Box::new(GroupMeans::<UInt64Type>::default()),
            _ => return self.of_others.create_groups_accumulator(args),
        })
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.of_others.documentation()
    }
}

/// The mean of all rows, or of those in a window's frame.
#[derive(Debug, Default)]
struct MeanAccumulator {
    sum: i128,
    rows: u64,
}

fn sum_of(values: &ArrayRef) -> i128 {
    total(values).expect("64-bit numbers need more rows than there are to go beyond 128 bits")
}

fn rows_of(values: &ArrayRef) -> u64 {
    (values.len() - values.null_count()) as u64
}

impl Accumulator for MeanAccumulator {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.sum += sum_of(&values[0]);
        self.rows += rows_of(&values[0]);
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.sum -= sum_of(&values[0]);
        self.rows -= rows_of(&values[0]);
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.rows += states[0].as_primitive::<UInt64Type>().iter().flatten().sum::<u64>();
        self.sum += sum_of(&states[1]);
        Ok(())
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let sum = ScalarValue::Decimal128(Some(self.sum), DECIMAL128_MAX_PRECISION, 0);
        Ok(vec![ScalarValue::UInt64(Some(self.rows)), sum])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(ScalarValue::Float64((self.rows > 0).then(|| divided(self.sum, self.rows))))
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }
}

/// The mean of distinct values.
#[derive(Debug, Default)]
struct DistinctMean {
    values: HashSet<i128>,
}

impl Accumulator for DistinctMean {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        match values[0].data_type() {
            DataType::UInt64 => {
                self.values.extend(values[0].as_primitive::<UInt64Type>().iter().flatten().map(i128::from));
            }
            _ => self.values.extend(values[0].as_primitive::<Int64Type>().iter().flatten().map(i128::from)),
        }
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        for values in states[0].as_list::<i32>().iter().flatten() {
            self.values.extend(values.as_primitive::<Decimal128Type>().iter().flatten());
        }
        Ok(())
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let values = Decimal128Array::from_iter_values(self.values.iter().copied()).with_data_type(sum_type());
        Ok(vec![SingleRowListArrayBuilder::new(Arc::new(values)).build_list_scalar()])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let rows = self.values.len() as u64;
        Ok(ScalarValue::Float64((rows > 0).then(|| divided(self.values.iter().sum(), rows))))
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.values.capacity() * size_of::<i128>()
    }
}

/// The means of groups, by the type of their values.
struct GroupMeans<T> {
    sums: Vec<i128>,
    rows: Vec<u64>,
    of: std::marker::PhantomData<T>,
}

impl<T> Default for GroupMeans<T> {
    fn default() -> Self {
        GroupMeans { sums: Vec::new(), rows: Vec::new(), of: std::marker::PhantomData }
    }
}

impl<T> GroupMeans<T> {
    fn resize(&mut self, count: usize) {
        self.sums.resize(count, 0);
        self.rows.resize(count, 0);
    }

    /// Removes and returns the row counts and sums of the first groups.
    fn take(&mut self, emit_to: EmitTo) -> (Vec<u64>, Vec<i128>) {
        (emit_to.take_needed(&mut self.rows), emit_to.take_needed(&mut self.sums))
    }
}

fn states(rows: Vec<u64>, sums: Vec<i128>) -> Vec<ArrayRef> {
    let sums = Decimal128Array::from_iter_values(sums).with_data_type(sum_type());
    vec![Arc::new(UInt64Array::from(rows)), Arc::new(sums)]
}

impl<T: ArrowPrimitiveType<Native: Into<i128>> + Send> GroupsAccumulator for GroupMeans<T> {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        count: usize,
    ) -> Result<()> {
        self.resize(count);
        let (rows, sums) = (&mut self.rows, &mut self.sums);
        let values: &PrimitiveArray<T> = values[0].as_primitive();
        accumulate(groups, values, filter, |group, value| {
            rows[group] += 1;
            sums[group] += value.into();
        });
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], count: usize) -> Result<()> {
        self.resize(count);
        let (rows, sums) = (&mut self.rows, &mut self.sums);
        accumulate(groups, states[0].as_primitive::<UInt64Type>(), None, |group, more| rows[group] += more);
        accumulate(groups, states[1].as_primitive::<Decimal128Type>(), None, |group, more| sums[group] += more);
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let (rows, sums) = self.take(emit_to);
        let means = rows.iter().zip(&sums).map(|(&rows, &sum)| (rows > 0).then(|| divided(sum, rows)));
        Ok(Arc::new(means.collect::<Float64Array>()))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let (rows, sums) = self.take(emit_to);
        Ok(states(rows, sums))
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let values: &PrimitiveArray<T> = values[0].as_primitive();
        let (mut rows, mut sums) = (vec![0; values.len()], vec![0; values.len()]);
        let each: Vec<usize> = (0..values.len()).collect();
        accumulate(&each, values, filter, |row, value| {
            rows[row] = 1;
            sums[row] = value.into();
        });
        Ok(states(rows, sums))
    }

    fn size(&self) -> usize {
        self.sums.capacity() * size_of::<i128>() + self.rows.capacity() * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Partial sums come from other workers, and rows leave a frame: the mean must be that of the rows that are there.
    #[test]
    fn exact_however_it_comes_together() {
        let (least, most) = (i64::MIN, i64::MAX);
        let column = |values: &[i64]| -> ArrayRef { Arc::new(PrimitiveArray::<Int64Type>::from(values.to_vec())) };
        let mut one = MeanAccumulator::default();
        one.update_batch(&[column(&[least, most, 7, 5])]).unwrap();
        one.retract_batch(&[column(&[5])]).unwrap();
        assert_eq!(one.evaluate().unwrap(), ScalarValue::Float64(Some(2.0)));
        let mut other = MeanAccumulator::default();
        let state = one.state().unwrap().iter().map(|part| part.to_array().unwrap()).collect::<Vec<_>>();
        other.merge_batch(&state).unwrap();
        other.update_batch(&[column(&[2])]).unwrap();
        assert_eq!(other.evaluate().unwrap(), ScalarValue::Float64(Some(2.0)));

        let mut groups = GroupMeans::<Int64Type>::default();
        groups.update_batch(&[column(&[least, most, 1, 7])], &[0, 0, 2, 0], None, 3).unwrap();
        let halves = groups.state(EmitTo::All).unwrap();
        let mut whole = GroupMeans::<Int64Type>::default();
        let single = whole.convert_to_state(&[column(&[2, 4])], None).unwrap();
        whole.merge_batch(&halves, &[0, 1, 2], 3).unwrap();
        whole.merge_batch(&single, &[0, 2], 3).unwrap();
        let means = whole.evaluate(EmitTo::All).unwrap();
        assert_eq!(
            means.as_primitive::<arrow::datatypes::Float64Type>().iter().collect::<Vec<_>>(),
            [Some(2.0), None, Some(2.5)]
        );
        assert_eq!(divided(i128::from(most) * 3 + 3, 3), most as f64 + 1.0);
    }
}
