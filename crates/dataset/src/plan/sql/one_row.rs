//! The value of a scalar subquery, which may turn out to have more than one row.

use std::sync::{Arc, LazyLock};

use arrow::array::AsArray;
use arrow::datatypes::{DataType, Int64Type};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

/// `value`, or an error in rows where `count` is more than 1.
pub(super) fn one_row(value: Expr, count: Expr) -> Expr {
    static FUNCTION: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| Arc::new(ScalarUDF::from(OneRow::default())));
    FUNCTION.call(vec![value, count])
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct OneRow {
    signature: Signature,
}

impl Default for OneRow {
    fn default() -> Self {
        OneRow { signature: Signature::any(2, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for OneRow {
    fn name(&self) -> &str {
        "one_row"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(types[0].clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let counts = args.args[1].to_array(args.number_rows)?;
        if counts.as_primitive::<Int64Type>().iter().flatten().any(|count| count > 1) {
            return Err(DataFusionError::Execution(
                "a scalar subquery returned more than one row; aggregate it, or add LIMIT 1 with an ORDER BY".into(),
            ));
        }
        Ok(args.args[0].clone())
    }
}
