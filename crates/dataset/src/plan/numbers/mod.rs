//! Semantics of numbers that differ from DataFusion's: overflow of a sum or product is an error, all NaNs are equal,
//! and values that have left a window's frame leave no trace.
//!
//! | module       | contents                                                                      |
//! |--------------|-------------------------------------------------------------------------------|
//! | `arithmetic` | `+`, `-` and `*` of integers and decimals                                     |
//! | `sum`        | sums of them, exact for any order of partial sums; `totals` adds them up      |
//! | `mean`       | means of integers, exact however large they are                               |
//! | `extremes`   | minimum and maximum of floats in groups                                       |
//! | `float_keys` | NaNs and zeros in keys, orders and comparisons                                |
//! | `decimals`   | decimals combined with floats, compared as floats                             |
//! | `sliding`    | sums, means and variances of floats in sliding frames                         |

mod arithmetic;
mod decimals;
mod extremes;
mod float_keys;
mod mean;
mod sliding;
mod sum;
mod totals;

use arrow::datatypes::DataType;
use datafusion::logical_expr::{AggregateUDF, ScalarUDF};

pub(crate) use arithmetic::{CheckArithmetic, is_checked};
pub(crate) use decimals::DecimalsAsFloats;
pub(crate) use float_keys::{CompareFloats, beneath};

/// Functions that replace DataFusion's.
pub(crate) fn aggregate_functions() -> impl Iterator<Item = AggregateUDF> {
    let exact = [AggregateUDF::from(sum::ExactSum::default()), AggregateUDF::from(mean::ExactMean::default())];
    exact.into_iter().chain(sliding::functions().map(AggregateUDF::from))
}

/// Scalar functions of numbers.
pub(crate) fn number_functions() -> impl Iterator<Item = ScalarUDF> {
    std::iter::once(ScalarUDF::from(arithmetic::WrappingMul::default()))
}

/// Names of types with a larger range than `data_type`.
fn wider(data_type: &DataType) -> &'static str {
    match data_type {
        DataType::Int64 | DataType::UInt64 => "float64 or decimal(38, 0)",
        of if of.is_integer() => "int64",
        DataType::Decimal32(..) | DataType::Decimal64(..) => "float64 or a decimal of more digits",
        DataType::Duration(_) => "a coarser unit",
        _ => "float64",
    }
}
