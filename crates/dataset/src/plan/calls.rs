//! Calls of marker functions in physical plans, which carry information as literal arguments.

use std::any::Any;
use std::sync::Arc;

use datafusion::common::ScalarValue;
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};

/// The call in an expression, if it is a call of this function.
pub fn call_of<'a>(expr: &'a Arc<dyn PhysicalExpr>, function: &str) -> Option<&'a ScalarFunctionExpr> {
    let any: &dyn Any = expr.as_ref();
    any.downcast_ref::<ScalarFunctionExpr>().filter(|call| call.fun().name() == function)
}

/// The literal in an argument of a call.
pub fn said_by(call: &ScalarFunctionExpr, argument: usize) -> Option<&ScalarValue> {
    let any: &dyn Any = call.args().get(argument)?.as_ref();
    any.downcast_ref::<Literal>().map(Literal::value)
}

/// The number in the first argument of a call of this function, if the expression is one.
pub fn number_of(expr: &Arc<dyn PhysicalExpr>, function: &str) -> Option<i64> {
    match said_by(call_of(expr, function)?, 0)? {
        ScalarValue::Int64(number) => *number,
        _ => None,
    }
}
