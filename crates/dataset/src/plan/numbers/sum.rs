//! `sum` of integers, decimals and durations: exact, and an error if the result does not fit its type.
//!
//! Partial sums have a second column that counts their overflows: only the total has to fit. DataFusion handles
//! everything else, such as floats.

use std::mem::{size_of, size_of_val};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int32Array, PrimitiveArray};
use arrow::buffer::NullBuffer;
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{
    DECIMAL128_MAX_PRECISION, DataType, Decimal128Type, Field, FieldRef, Int32Type, Int64Type, UInt64Type,
};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use datafusion::functions_aggregate::sum::sum_udaf;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::{AggregateOrderSensitivity, format_state_name};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Documentation, EmitTo, GroupsAccumulator, ReversedUDAF,
    SetMonotonicity, Signature,
};
use datafusion_functions_aggregate_common::aggregate::groups_accumulator::accumulate::NullState;

use super::sliding;
use super::totals::{SumWord, total};
use super::wider;

/// The function, see the module.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct ExactSum {
    theirs: Arc<AggregateUDF>,
}

impl Default for ExactSum {
    fn default() -> Self {
        ExactSum { theirs: sum_udaf() }
    }
}

/// Whether sums of this type are computed here.
fn is_ours(result: &DataType) -> bool {
    use DataType::*;
    matches!(result, Int64 | UInt64 | Duration(_) | Decimal32(..) | Decimal64(..) | Decimal128(..))
}

/// The type in which sums are accumulated.
fn word_type(result: &DataType) -> DataType {
    match result {
        DataType::Decimal32(_, scale) | DataType::Decimal64(_, scale) | DataType::Decimal128(_, scale) => {
            DataType::Decimal128(DECIMAL128_MAX_PRECISION, *scale)
        }
        DataType::Duration(_) => DataType::Int64,
        other => other.clone(),
    }
}

impl AggregateUDFImpl for ExactSum {
    fn name(&self) -> &str {
        self.theirs.name()
    }

    fn signature(&self) -> &Signature {
        self.theirs.signature()
    }

    fn return_type(&self, of: &[DataType]) -> Result<DataType> {
        self.theirs.return_type(of)
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        if !is_ours(args.return_type()) {
            return self.theirs.accumulator(args);
        }
        let result = SumDisplay::new(&args);
        match args.is_distinct {
            true => Ok(Box::new(DistinctSum { values: self.theirs.accumulator(args)?, result })),
            false => Ok(Box::new(SumAccumulator { sum: 0, rows: 0, result })),
        }
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        if args.is_distinct || !is_ours(args.return_type()) {
            return self.theirs.state_fields(args);
        }
        let sum = Field::new(format_state_name(args.name, "sum"), word_type(args.return_type()), true);
        let beyond = Field::new(format_state_name(args.name, "beyond"), DataType::Int32, true);
        Ok(vec![Arc::new(sum), Arc::new(beyond)])
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        self.theirs.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        let result = SumDisplay::new(&args);
        Ok(match args.return_type() {
            DataType::Int64 | DataType::Duration(_) => Box::new(GroupSums::<Int64Type>::new(result)),
            DataType::UInt64 => Box::new(GroupSums::<UInt64Type>::new(result)),
            other if is_ours(other) => Box::new(GroupSums::<Decimal128Type>::new(result)),
            _ => return self.theirs.create_groups_accumulator(args),
        })
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        match args.return_type() {
            _ if args.is_distinct => self.theirs.create_sliding_accumulator(args),
            DataType::Float64 => Ok(sliding::sum()),
            ours if is_ours(ours) => self.accumulator(args),
            _ => self.theirs.create_sliding_accumulator(args),
        }
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.theirs.documentation()
    }

    fn set_monotonicity(&self, of: &DataType) -> SetMonotonicity {
        self.theirs.inner().set_monotonicity(of)
    }
}

/// A sum in the user's notation.
#[derive(Debug)]
struct SumDisplay {
    name: String,
    data_type: DataType,
}

impl SumDisplay {
    fn new(args: &AccumulatorArgs) -> Self {
        let name = match args.expr_fields {
            // Some arguments are columns made by the optimizer, whose names mean nothing to users.
            [of] if args.name.contains(of.name().as_str()) => format!("the sum of {:?}", of.name()),
            _ => args.name.to_owned(),
        };
        SumDisplay { name, data_type: args.return_type().clone() }
    }

    fn beyond(&self) -> DataFusionError {
        let SumDisplay { name, data_type } = self;
        DataFusionError::Execution(format!(
            "{name} is beyond the range of {data_type}; cast the values to {} first",
            wider(data_type)
        ))
    }

    /// A sum as a word and the number of overflows.
    fn split(&self, sum: i128) -> (ScalarValue, i64) {
        match word_type(&self.data_type) {
            DataType::UInt64 => {
                let (word, carry) = UInt64Type::split(sum);
                (word.into(), carry)
            }
            DataType::Decimal128(precision, scale) => (ScalarValue::Decimal128(Some(sum), precision, scale), 0),
            _ => {
                let (word, carry) = Int64Type::split(sum);
                (word.into(), carry)
            }
        }
    }

    /// The number of overflows of a partial sum, as transmitted.
    fn carried(&self, carry: i64) -> Result<i32> {
        i32::try_from(carry).map_err(|_| self.beyond())
    }

    /// Converts a sum to the result.
    fn one(&self, sum: i128) -> Result<ScalarValue> {
        match self.split(sum) {
            (word, 0) => ScalarValue::try_from_array(&self.whole(&word.to_array()?)?, 0),
            _ => Err(self.beyond()),
        }
    }

    /// Converts words to results.
    fn whole(&self, words: &ArrayRef) -> Result<ArrayRef> {
        if let DataType::Decimal128(precision, _) = self.data_type {
            // A cast between such decimals may skip the range check.
            let words = words.as_primitive::<Decimal128Type>();
            words.validate_decimal_precision(precision).map_err(|_| self.beyond())?;
        }
        let options = CastOptions { safe: false, ..CastOptions::default() };
        cast_with_options(words, &self.data_type, &options).map_err(|_| self.beyond())
    }
}

/// The sum of all rows, or of those of a window's frame.
#[derive(Debug)]
struct SumAccumulator {
    sum: i128,
    rows: usize,
    result: SumDisplay,
}

impl SumAccumulator {
    fn change(&mut self, values: &ArrayRef, change: fn(i128, i128) -> Option<i128>) -> Result<()> {
        let sum = total(values).and_then(|more| change(self.sum, more));
        self.sum = sum.ok_or_else(|| self.result.beyond())?;
        Ok(())
    }
}

fn rows(values: &ArrayRef) -> usize {
    values.len() - values.null_count()
}

impl Accumulator for SumAccumulator {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.rows += rows(&values[0]);
        self.change(&values[0], i128::checked_add)
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.update_batch(states)?;
        let carry: i64 = states[1].as_primitive::<Int32Type>().iter().flatten().map(i64::from).sum();
        match carry {
            0 => Ok(()),
            _ if self.result.data_type.is_decimal() => Err(self.result.beyond()),
            carry => {
                self.sum += i128::from(carry) << 64;
                Ok(())
            }
        }
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.rows -= rows(&values[0]);
        self.change(&values[0], i128::checked_sub)
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let (word, carry) = match self.rows {
            0 => (ScalarValue::try_new_null(&word_type(&self.result.data_type))?, 0),
            _ => self.result.split(self.sum),
        };
        Ok(vec![word, self.result.carried(carry)?.into()])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        match self.rows {
            0 => ScalarValue::try_new_null(&self.result.data_type),
            _ => self.result.one(self.sum),
        }
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }
}

/// The sum of distinct values.
#[derive(Debug)]
struct DistinctSum {
    /// DataFusion's accumulator, which knows the values.
    values: Box<dyn Accumulator>,
    result: SumDisplay,
}

impl Accumulator for DistinctSum {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.values.update_batch(values)
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.values.merge_batch(states)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.values.state()
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let state = self.values.state()?[0].to_array()?;
        let values = state.as_list::<i32>().values();
        match values.len() {
            0 => ScalarValue::try_new_null(&self.result.data_type),
            _ => self.result.one(total(values).ok_or_else(|| self.result.beyond())?),
        }
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.values.size()
    }
}

/// The sums of groups.
struct GroupSums<W: SumWord> {
    words: Vec<W::Native>,
    /// The number of overflows of each of the first groups' sums; usually empty.
    carries: Vec<i64>,
    nulls: NullState,
    result: SumDisplay,
}

impl<W: SumWord> GroupSums<W> {
    fn new(result: SumDisplay) -> Self {
        GroupSums { words: Vec::new(), carries: Vec::new(), nulls: NullState::new(), result }
    }

    /// Adds words to the sums of their groups.
    fn add(&mut self, values: &PrimitiveArray<W>, groups: &[usize], filter: Option<&BooleanArray>, count: usize) {
        self.words.resize(count, W::Native::default());
        let (words, carries) = (&mut self.words, &mut self.carries);
        self.nulls.accumulate(groups, values, filter, count, |group, value| {
            let (sum, carry) = W::add(words[group], value);
            words[group] = sum;
            if carry != 0 {
                carry_over(carries, group, carry);
            }
        });
    }

    fn words_of(&self, values: &ArrayRef) -> Result<PrimitiveArray<W>> {
        let of = word_type(&self.result.data_type);
        let is_word = values.data_type().is_integer() || matches!(values.data_type(), DataType::Decimal128(..));
        let words = if is_word { Arc::clone(values) } else { cast(values, &of)? };
        Ok(words.as_primitive::<W>().clone().with_data_type(of))
    }

    /// Removes and returns the sums of the first groups.
    fn take(&mut self, emit_to: EmitTo) -> (ArrayRef, Vec<i64>) {
        let words = emit_to.take_needed(&mut self.words);
        let carries = match emit_to {
            EmitTo::First(count) if count < self.carries.len() => emit_to.take_needed(&mut self.carries),
            _ => std::mem::take(&mut self.carries),
        };
        let words = PrimitiveArray::<W>::new(words.into(), self.nulls.build(emit_to));
        (Arc::new(words.with_data_type(word_type(&self.result.data_type))), carries)
    }
}

#[cold]
fn carry_over(carries: &mut Vec<i64>, group: usize, carry: i64) {
    if carries.len() <= group {
        carries.resize(group + 1, 0);
    }
    carries[group] += carry;
}

impl<W: SumWord> GroupsAccumulator for GroupSums<W> {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        count: usize,
    ) -> Result<()> {
        let values = self.words_of(&values[0])?;
        self.add(&values, groups, filter, count);
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], count: usize) -> Result<()> {
        self.add(states[0].as_primitive::<W>(), groups, None, count);
        let carries = states[1].as_primitive::<Int32Type>();
        if carries.values().iter().any(|&carry| carry != 0) {
            let carried = groups.iter().zip(carries).filter_map(|(&group, carry)| Some((group, carry?)));
            carried.for_each(|(group, carry)| carry_over(&mut self.carries, group, carry.into()));
        }
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        match self.take(emit_to) {
            (words, carries) if carries.iter().all(|&carry| carry == 0) => self.result.whole(&words),
            _ => Err(self.result.beyond()),
        }
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let (words, carries) = self.take(emit_to);
        let mut carried = vec![0_i32; words.len()];
        for (to, carry) in carried.iter_mut().zip(carries) {
            *to = self.result.carried(carry)?;
        }
        Ok(vec![words, Arc::new(Int32Array::from(carried))])
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let (data_type, words, nulls) = self.words_of(&values[0])?.into_parts();
        let wanted = filter.map(|filter| match filter.nulls() {
            Some(known) => NullBuffer::new(filter.values() & known.inner()),
            None => NullBuffer::new(filter.values().clone()),
        });
        let nulls = NullBuffer::union(nulls.as_ref(), wanted.as_ref());
        let carried = vec![0_i32; words.len()];
        let words = PrimitiveArray::<W>::new(words, nulls).with_data_type(data_type);
        Ok(vec![Arc::new(words), Arc::new(Int32Array::from(carried))])
    }

    fn size(&self) -> usize {
        self.words.capacity() * size_of::<W::Native>() + self.carries.capacity() * size_of::<i64>() + self.nulls.size()
    }
}
