//! `min` and `max` of floats in groups: a NaN is larger than all numbers there too, and infinities are numbers. All else is
//! DataFusion's, whose groups begin with the least and the greatest finite number, and lose NaNs or not, as rows happen to come.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::datatypes::{ArrowNativeTypeOp, ArrowPrimitiveType, DataType, Float16Type, Float32Type, Float64Type};
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::functions_aggregate::min_max::{max_udaf, min_udaf};
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Documentation, GroupsAccumulator, ReversedUDAF, SetMonotonicity,
    Signature, StatisticsArgs,
};
use datafusion_functions_aggregate_common::aggregate::groups_accumulator::prim_op::PrimitiveGroupsAccumulator;

/// See the module.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Extreme {
    theirs: Arc<AggregateUDF>,
}

/// Both.
pub(super) fn functions() -> [Extreme; 2] {
    [min_udaf(), max_udaf()].map(|theirs| Extreme { theirs })
}

impl Extreme {
    fn groups<T: ArrowPrimitiveType + Send>(&self, data_type: &DataType) -> Box<dyn GroupsAccumulator>
    where
        T::Native: ArrowNativeTypeOp,
    {
        let (wanted, start) = match self.is_descending() {
            Some(true) => (Ordering::Greater, T::Native::MIN_TOTAL_ORDER),
            _ => (Ordering::Less, T::Native::MAX_TOTAL_ORDER),
        };
        let choose = move |kept: &mut T::Native, value: T::Native| {
            if value.compare(*kept) == wanted {
                *kept = value;
            }
        };
        Box::new(PrimitiveGroupsAccumulator::<T, _>::new(data_type, choose).with_starting_value(start))
    }
}

impl AggregateUDFImpl for Extreme {
    fn name(&self) -> &str {
        self.theirs.name()
    }

    fn signature(&self) -> &Signature {
        self.theirs.signature()
    }

    fn return_type(&self, of: &[DataType]) -> Result<DataType> {
        self.theirs.return_type(of)
    }

    fn coerce_types(&self, of: &[DataType]) -> Result<Vec<DataType>> {
        self.theirs.coerce_types(of)
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        self.theirs.accumulator(args)
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        self.theirs.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(match args.return_type() {
            of @ DataType::Float16 => self.groups::<Float16Type>(of),
            of @ DataType::Float32 => self.groups::<Float32Type>(of),
            of @ DataType::Float64 => self.groups::<Float64Type>(of),
            _ => return self.theirs.create_groups_accumulator(args),
        })
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        self.theirs.create_sliding_accumulator(args)
    }

    fn is_descending(&self) -> Option<bool> {
        self.theirs.inner().is_descending()
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.theirs.order_sensitivity()
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }

    fn value_from_stats(&self, args: &StatisticsArgs) -> Option<ScalarValue> {
        self.theirs.inner().value_from_stats(args)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.theirs.documentation()
    }

    fn set_monotonicity(&self, of: &DataType) -> SetMonotonicity {
        self.theirs.inner().set_monotonicity(of)
    }
}
