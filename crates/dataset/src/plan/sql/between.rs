//! BETWEEN over volatile expressions: DataFusion expands it to two comparisons, which evaluate the expression twice.

use std::sync::{Arc, LazyLock};

use arrow::compute::and_kleene;
use arrow::compute::kernels::cmp::{gt_eq, lt_eq};
use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::expr::Between;
use datafusion::logical_expr::{
    ColumnarValue, Expr, LogicalPlan, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

/// The plan with each `volatile BETWEEN low AND high` evaluated once.
pub(super) fn drawn_once(plan: LogicalPlan) -> Result<LogicalPlan> {
    static FUNCTION: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| Arc::new(ScalarUDF::from(IsBetween::default())));
    let expr = |expr: Expr| {
        Ok(match expr {
            Expr::Between(Between { expr, negated, low, high }) if expr.is_volatile() => {
                let is_between = FUNCTION.call(vec![*expr, *low, *high]);
                Transformed::yes(if negated { Expr::Not(Box::new(is_between)) } else { is_between })
            }
            other => Transformed::no(other),
        })
    };
    plan.transform_up_with_subqueries(|step| step.map_expressions(|part| part.transform_up(expr))).data()
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct IsBetween {
    signature: Signature,
}

impl Default for IsBetween {
    fn default() -> Self {
        IsBetween { signature: Signature::comparable(3, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for IsBetween {
    fn name(&self) -> &str {
        "is_between"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let arrays = ColumnarValue::values_to_arrays(&args.args)?;
        let (above, below) = (gt_eq(&arrays[0], &arrays[1])?, lt_eq(&arrays[0], &arrays[2])?);
        Ok(ColumnarValue::Array(Arc::new(and_kleene(&above, &below)?)))
    }
}
