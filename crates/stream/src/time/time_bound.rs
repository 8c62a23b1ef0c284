//! `behind(time, length)`: the unchanged time, with the program's assertion that it is never further behind the
//! stream's time than `length`. It is for columns whose delay nothing else tells.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use datafusion::physical_expr::PhysicalExpr;
use tidemill_dataset::extend::{call_of, said_by};

use crate::time::window::{Micros, interval};

const BEHIND: &str = "behind";

/// The function, as SQL and Python call it.
pub(crate) fn function() -> ScalarUDF {
    ScalarUDF::from(TimeBound { signature: Signature::any(2, Volatility::Immutable) })
}

/// How far behind the expression may be according to the program, if it says so.
pub(crate) fn said(expr: &Arc<dyn PhysicalExpr>) -> Option<Micros> {
    interval(said_by(call_of(expr, BEHIND)?, 1)?).ok()
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct TimeBound {
    signature: Signature,
}

impl ScalarUDFImpl for TimeBound {
    fn name(&self) -> &str {
        BEHIND
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        match &arguments[0] {
            time @ (DataType::Timestamp(..) | DataType::Date32 | DataType::Date64) => Ok(time.clone()),
            other => {
                Err(DataFusionError::Plan(format!("behind takes a timestamp or a date, not {other}; cast the column")))
            }
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match &args.args[1] {
            ColumnarValue::Scalar(length) if interval(length)? >= 0 => Ok(args.args[0].clone()),
            _ => Err(DataFusionError::Plan("behind takes a constant, non-negative length of time".into())),
        }
    }
}
