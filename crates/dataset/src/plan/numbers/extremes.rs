//! Minimum and maximum. For floats in groups, a NaN is larger than all numbers here as well, and infinities are
//! numbers. DataFusion's groups start with the smallest and largest finite numbers, and lose NaNs or not, depending on
//! the order of rows.

use std::cmp::Ordering;

use arrow::datatypes::{ArrowNativeTypeOp, ArrowPrimitiveType, DataType, Float16Type, Float32Type, Float64Type};
use datafusion::common::plan_err;
use datafusion::error::Result;
use datafusion::logical_expr::GroupsAccumulator;
use datafusion_functions_aggregate_common::aggregate::groups_accumulator::prim_op::PrimitiveGroupsAccumulator;

/// `min` or `max` by name, for groups of floats; `None` for other types and functions.
pub(super) fn groups(name: &str, data_type: &DataType) -> Option<Box<dyn GroupsAccumulator>> {
    let wanted = match name {
        "min" => Ordering::Less,
        "max" => Ordering::Greater,
        _ => return None,
    };
    match data_type {
        DataType::Float16 => Some(of::<Float16Type>(wanted, data_type)),
        DataType::Float32 => Some(of::<Float32Type>(wanted, data_type)),
        DataType::Float64 => Some(of::<Float64Type>(wanted, data_type)),
        _ => None,
    }
}

/// Rejects `min` and `max` of values without an order, which would otherwise fail in the middle of the query.
pub(super) fn check(name: &str, of: &[DataType]) -> Result<()> {
    match of {
        [kind] if matches!(name, "min" | "max") && !has_order(kind) => plan_err!(
            "there is no {name} of {kind}, because nested lists, lists of structs and maps cannot be ordered; take \
             one of their values, or their length, first"
        ),
        _ => Ok(()),
    }
}

fn has_order(kind: &DataType) -> bool {
    match kind {
        DataType::List(of) | DataType::LargeList(of) | DataType::FixedSizeList(of, _) => !of.data_type().is_nested(),
        DataType::Struct(fields) => fields.iter().all(|field| match field.data_type() {
            DataType::Struct(_) => has_order(field.data_type()),
            other => !other.is_nested(),
        }),
        other => !other.is_nested(),
    }
}

fn of<T: ArrowPrimitiveType + Send>(wanted: Ordering, data_type: &DataType) -> Box<dyn GroupsAccumulator>
where
    T::Native: ArrowNativeTypeOp,
{
    let start = match wanted {
        Ordering::Greater => T::Native::MIN_TOTAL_ORDER,
        _ => T::Native::MAX_TOTAL_ORDER,
    };
    let choose = move |kept: &mut T::Native, value: T::Native| {
        if value.compare(*kept) == wanted {
            *kept = value;
        }
    };
    Box::new(PrimitiveGroupsAccumulator::<T, _>::new(data_type, choose).with_starting_value(start))
}
