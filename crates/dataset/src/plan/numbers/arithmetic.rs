//! `+`, `-` and `*` of integers and decimals: a result out of range is an error, never another number.
//!
//! DataFusion's own operators wrap around. Once types are known, a rule replaces them with functions that look the same
//! in plans, and have the same names.

use std::sync::Arc;

use arrow::array::{ArrayRef, Datum};
use arrow::compute::kernels::numeric::{add, mul, mul_wrapping, sub};
use arrow::datatypes::{DataType, FieldRef};
use arrow::error::ArrowError;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::binary::BinaryTypeCoercer;
use datafusion::logical_expr::expr::{BinaryExpr, ScalarFunction};
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, LogicalPlan, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::physical_expr_common::datum::apply;

use super::wider;
use crate::plan::rewrite::rewrite_exprs;

/// The rule, see the module.
#[derive(Debug)]
pub(crate) struct CheckArithmetic;

impl AnalyzerRule for CheckArithmetic {
    fn name(&self) -> &'static str {
        "check_arithmetic"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let check = |node| rewrite_exprs(node, |_, expr, schema| expr.transform_up(|part| checked(part, schema)));
        Ok(plan.transform_up_with_subqueries(check)?.data)
    }
}

/// Whether a function is an operator that fails if the result is out of range.
pub(crate) fn is_checked(call: &ScalarFunction) -> bool {
    call.func.inner().downcast_ref::<CheckedOperator>().is_some()
}

/// An operator with its operands, or a minus with its operand. Operands have been checked before. What is asked of them
/// takes constant time regardless of their depth; otherwise a sum of a thousand terms would take minutes to plan.
fn checked(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let (op, operands) = match &expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => (*op, vec![left.as_ref(), right.as_ref()]),
        Expr::Negative(of) if !matches!(of.as_ref(), Expr::Literal(..)) => (Operator::Minus, vec![of.as_ref()]),
        _ => return Ok(Transformed::no(expr)),
    };
    if !matches!(op, Operator::Plus | Operator::Minus | Operator::Multiply) {
        return Ok(Transformed::no(expr));
    }
    let types = operands.iter().map(|operand| type_of(operand, schema)).collect::<Result<Vec<_>>>()?;
    // The range of decimals is symmetric around zero.
    let wraps = types.iter().all(DataType::is_integer) || types.len() == 2 && types.iter().all(DataType::is_decimal);
    if !wraps {
        return Ok(Transformed::no(expr));
    }
    let data_type = match types.as_slice() {
        [left, right] => BinaryTypeCoercer::new(left, &op, right).get_result_type()?,
        _ => types[0].clone(),
    };
    let args = match expr {
        Expr::BinaryExpr(BinaryExpr { left, right, .. }) => vec![*left, *right],
        Expr::Negative(of) => vec![*of],
        other => unreachable!("{other} has no operands"),
    };
    let function = CheckedOperator {
        op,
        data_type,
        text: text(op, &args),
        signature: Signature::any(args.len(), Volatility::Immutable),
    };
    Ok(Transformed::yes(Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(ScalarUDF::from(function)), args))))
}

fn type_of(operand: &Expr, schema: &DFSchema) -> Result<DataType> {
    match operand {
        Expr::ScalarFunction(call) => match call.func.inner().downcast_ref::<CheckedOperator>() {
            Some(checked) => Ok(checked.data_type.clone()),
            None => operand.get_type(schema),
        },
        _ => operand.get_type(schema),
    }
}

/// Maximum length of an operator's text; beyond it, the middle is omitted.
const TEXT_MAX: usize = 400;

/// The operator in the user's notation.
fn text(op: Operator, args: &[Expr]) -> String {
    let operand = |arg: &Expr| match arg {
        Expr::ScalarFunction(call) => match call.func.inner().downcast_ref::<CheckedOperator>() {
            Some(checked) => format!("({})", checked.text),
            None => arg.human_display().to_string(),
        },
        Expr::BinaryExpr(_) => format!("({})", arg.human_display()),
        _ => arg.human_display().to_string(),
    };
    let text = match args {
        [left, right] => format!("{} {op} {}", operand(left), operand(right)),
        args => format!("-{}", args.iter().map(operand).collect::<String>()),
    };
    let length = text.chars().count();
    if length <= TEXT_MAX {
        return text;
    }
    let first: String = text.chars().take(TEXT_MAX / 2).collect();
    let last: String = text.chars().skip(length - TEXT_MAX / 2).collect();
    format!("{first} ... {last}")
}

/// An operator that fails where DataFusion's would wrap around.
#[derive(Debug, PartialEq, Eq, Hash)]
struct CheckedOperator {
    op: Operator,
    data_type: DataType,
    /// The text of the whole expression, for the error.
    text: String,
    signature: Signature,
}

impl CheckedOperator {
    fn compute(&self, left: &dyn Datum, right: &dyn Datum) -> Result<ArrayRef, ArrowError> {
        match self.op {
            Operator::Plus => add(left, right),
            Operator::Minus => sub(left, right),
            _ => mul(left, right),
        }
    }

    fn explained(&self, error: DataFusionError, operands: usize) -> DataFusionError {
        let DataFusionError::ArrowError(inner, _) = &error else { return error };
        let ArrowError::ArithmeticOverflow(numbers) = inner.as_ref() else { return error };
        let numbers = numbers.strip_prefix("Overflow happened on: ").unwrap_or(numbers);
        let (text, data_type, what) =
            (&self.text, &self.data_type, if operands == 1 { "it" } else { "one of the two" });
        DataFusionError::Execution(format!(
            "{text} is beyond the range of {data_type} ({numbers}); cast {what} to {} first",
            wider(data_type)
        ))
    }
}

impl ScalarUDFImpl for CheckedOperator {
    fn name(&self) -> &str {
        match self.op {
            Operator::Plus => "+",
            Operator::Minus => "-",
            _ => "*",
        }
    }

    fn display_name(&self, args: &[Expr]) -> Result<String> {
        Ok(text(self.op, args))
    }

    /// The name of DataFusion's operator, which determines column names.
    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        Ok(match args {
            [left, right] => format!("{} {} {}", left.schema_name(), self.op, right.schema_name()),
            args => format!("(- {})", args.iter().map(|arg| arg.schema_name().to_string()).collect::<String>()),
        })
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.data_type.clone())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let nullable = args.arg_fields.iter().any(|field| field.is_nullable());
        Ok(Arc::new(arrow::datatypes::Field::new(self.name(), self.data_type.clone(), nullable)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let (left, right) = match args.args.as_slice() {
            [left, right] => (left.clone(), right.clone()),
            [of] => (ColumnarValue::Scalar(ScalarValue::new_zero(&self.data_type)?), of.clone()),
            other => unreachable!("{} operands", other.len()),
        };
        apply(&left, &right, |left, right| self.compute(left, right))
            .map_err(|error| self.explained(error, args.args.len()))
    }

    fn output_ordering(&self, inputs: &[ExprProperties]) -> Result<SortProperties> {
        Ok(match (self.op, inputs) {
            (Operator::Plus, [left, right]) => left.sort_properties.add(&right.sort_properties),
            (Operator::Minus, [left, right]) => left.sort_properties.sub(&right.sort_properties),
            (Operator::Minus, [of]) => SortProperties::Singleton.sub(&of.sort_properties),
            _ => SortProperties::Unordered,
        })
    }
}

/// `wrapping_mul(a, b)`: a 64-bit product without the higher bits, as used for hashes and random numbers.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct WrappingMul {
    signature: Signature,
}

impl Default for WrappingMul {
    fn default() -> Self {
        WrappingMul { signature: Signature::exact(vec![DataType::Int64; 2], Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for WrappingMul {
    fn name(&self) -> &'static str {
        "wrapping_mul"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Int64)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        apply(&args.args[0], &args.args[1], mul_wrapping)
    }
}
