//! Marker calls by which a query over streams says how long it remembers rows. DataFusion treats them as ordinary
//! functions.

use std::sync::Arc;

use arrow::array::{BooleanArray, TimestampMicrosecondArray};
use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, lit,
};
use datafusion::physical_expr::PhysicalExpr;

use crate::plan::calls::number_of;
use crate::plan::micros::micros;

/// In a plan, a key that says how long the other keys are remembered.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct DistinctTtl {
    signature: Signature,
}

impl DistinctTtl {
    const NAME: &str = "tidemill_remembered";

    /// The key for a duration of the stream's time, which is in one of these columns. Mentioning the columns keeps them
    /// in the plan even if nothing else needs them.
    pub fn key(ttl: i64, times: impl Iterator<Item = Expr>) -> Expr {
        // Volatile, so that no rule treats it as a constant, which grouping does not need.
        let function = ScalarUDF::from(DistinctTtl { signature: Signature::variadic_any(Volatility::Volatile) });
        function.call(std::iter::once(lit(ttl)).chain(times).collect()).alias("tidemill ttl")
    }

    /// The duration, if the key is such a marker.
    pub fn of(key: &Arc<dyn PhysicalExpr>) -> Option<i64> {
        number_of(key, Self::NAME)
    }
}

impl ScalarUDFImpl for DistinctTtl {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Int64)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Ok(args.args[0].clone())
    }
}

/// Whether two times are less than a length apart; unknown if one of them is missing.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct JoinTtl {
    signature: Signature,
}

impl JoinTtl {
    /// The name of the function.
    pub const NAME: &str = "tidemill_within";

    /// The function.
    pub fn function() -> ScalarUDF {
        // Volatile, so that no rule moves it.
        ScalarUDF::from(JoinTtl { signature: Signature::variadic_any(Volatility::Volatile) })
    }

    /// The condition that matching rows are less than `ttl` apart, according to some of these columns.
    pub fn condition(ttl: i64, columns: impl Iterator<Item = Expr>) -> Expr {
        Self::function().call(std::iter::once(lit(ttl)).chain(columns).collect())
    }

    /// The length of a call.
    pub fn length(expr: &Arc<dyn PhysicalExpr>) -> Option<i64> {
        number_of(expr, Self::NAME)
    }
}

impl ScalarUDFImpl for JoinTtl {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [ColumnarValue::Scalar(ScalarValue::Int64(Some(ttl))), left, right] = args.args.as_slice() else {
            return Err(DataFusionError::Internal(format!("{} without the columns that tell time", Self::NAME)));
        };
        let times = |column: &ColumnarValue| -> Result<TimestampMicrosecondArray> {
            micros(&column.to_array(args.number_rows)?)
        };
        let (left, right) = (times(left)?, times(right)?);
        let within = |(left, right): (Option<i64>, Option<i64>)| Some(left?.abs_diff(right?) < ttl.unsigned_abs());
        Ok(ColumnarValue::Array(Arc::new(left.iter().zip(&right).map(within).collect::<BooleanArray>())))
    }
}
