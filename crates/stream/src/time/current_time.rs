//! `now()` in a query over streams. Over a table it is a single moment, the time of the query. A stream has no such
//! moment, so `now()` is the time at which a batch is processed.

use std::sync::Arc;
use std::time::SystemTime;

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::ScalarValue;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, LogicalPlan, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};
use datafusion::optimizer::AnalyzerRule;
use tidemill_dataset::extend::rewrite_exprs;

/// The names of the functions of the current time.
const OF_NOW: [&str; 3] = ["now", "current_date", "current_time"];

/// Replaces functions that are evaluated once per query by functions that are evaluated for each batch.
#[derive(Debug)]
pub(crate) struct NowOfBatch;

impl AnalyzerRule for NowOfBatch {
    fn name(&self) -> &'static str {
        "now_of_batch"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let asked = |node| {
            rewrite_exprs(node, |_, expr, schema| {
                expr.transform_up(|part| {
                    let Expr::ScalarFunction(call) = &part else { return Ok(Transformed::no(part)) };
                    let Some(name) = OF_NOW.into_iter().find(|name| *name == call.func.name()) else {
                        return Ok(Transformed::no(part));
                    };
                    if call.func.signature().volatility == Volatility::Volatile {
                        return Ok(Transformed::no(part));
                    }
                    let of = part.get_type(schema)?;
                    let function =
                        ScalarUDF::from(CurrentTime { name, of, signature: Signature::nullary(Volatility::Volatile) });
                    Ok(Transformed::yes(Expr::ScalarFunction(ScalarFunction::new_udf(function.into(), Vec::new()))))
                })
            })
        };
        Ok(plan.transform_up_with_subqueries(asked)?.data)
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct CurrentTime {
    name: &'static str,
    of: DataType,
    signature: Signature,
}

impl ScalarUDFImpl for CurrentTime {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.of.clone())
    }

    fn return_field_from_args(&self, _: ReturnFieldArgs) -> Result<FieldRef> {
        Ok(Arc::new(Field::new(self.name, self.of.clone(), false)))
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as i64);
        Ok(ColumnarValue::Scalar(ScalarValue::TimestampNanosecond(Some(now), Some("UTC".into())).cast_to(&self.of)?))
    }
}
