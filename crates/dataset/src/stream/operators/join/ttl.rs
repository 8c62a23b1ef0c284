//! How long the rows of a join are remembered, if it says so: partners are less than that apart, by what tells the time of the streams.
//!
//! A query does not know which columns that are. So in a plan it is a part of the join's condition, a call with all columns of either side
//! that may be, which are there then also if nothing else wants them; the two that are it take their place when the query becomes tasks.

use std::sync::Arc;

use arrow::array::{BooleanArray, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::ScalarValue;
use datafusion::config::ConfigOptions;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, lit,
};
use datafusion::physical_expr::expressions::{Column, lit as literal};
use datafusion::physical_expr::utils::split_conjunction;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr, conjunction};

use super::bounds::{Bound, field_of};
use super::{Condition, Side};
use crate::error::DataSetError;
use crate::stream::time::calls::number_of;
use crate::stream::time::times::{Place, Times};
use crate::stream::time::window::{Micros, micros};

const WITHIN: &str = "tidemill_within";

/// Whether two times are less than a length apart; without one of them nobody knows.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Within {
    signature: Signature,
}

impl Within {
    fn function() -> ScalarUDF {
        // Volatile, lest a rule moves it.
        ScalarUDF::from(Within { signature: Signature::variadic_any(Volatility::Volatile) })
    }

    /// That partners are less than `ttl` apart, by some of these columns.
    pub(crate) fn condition(ttl: Micros, columns: impl Iterator<Item = Expr>) -> Expr {
        Self::function().call(std::iter::once(lit(ttl)).chain(columns).collect())
    }

    /// The length of a call.
    fn length(expr: &Arc<dyn PhysicalExpr>) -> Option<Micros> {
        number_of(expr, WITHIN)
    }
}

impl ScalarUDFImpl for Within {
    fn name(&self) -> &str {
        WITHIN
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [ColumnarValue::Scalar(ScalarValue::Int64(Some(ttl))), left, right] = args.args.as_slice() else {
            return Err(DataFusionError::Internal(format!("{WITHIN} without the columns that tell time")));
        };
        let times = |column: &ColumnarValue| -> Result<TimestampMicrosecondArray> {
            micros(&column.to_array(args.number_rows)?)
        };
        let (left, right) = (times(left)?, times(right)?);
        let within =
            |(left, right): (Option<Micros>, Option<Micros>)| Some(left?.abs_diff(right?) < ttl.unsigned_abs());
        Ok(ColumnarValue::Array(Arc::new(left.iter().zip(&right).map(within).collect::<BooleanArray>())))
    }
}

/// Puts into a condition what tells the time of both sides, if it says how long rows are remembered. Returns what that says of times.
///
/// # Errors
/// `Unsupported`, when nothing tells the time of a side.
pub(super) fn bind(
    condition: &mut Condition,
    schemas: &[SchemaRef; 2],
    times: [&Times; 2],
) -> std::result::Result<Vec<Bound>, DataSetError> {
    let parts: Vec<_> = split_conjunction(&condition.expr).into_iter().cloned().collect();
    let Some(ttl) = parts.iter().find_map(Within::length) else { return Ok(Vec::new()) };
    let place = |side: Side| {
        times[side].places.first().map(|of| &of.place).ok_or_else(|| {
            DataSetError::Unsupported(format!(
                "a join with ttl= of streams of which the {} one has rows that do not tell time: give its source time=, and keep that \
                 column",
                ["left", "right"][side]
            ))
        })
    };
    let places = [place(0)?, place(1)?];
    let [left, right] = [0, 1].map(|side| time_of(places[side], places[side].column, &schemas[side]));
    let (left, right) = (left?, right?);
    let among = |side: Side| {
        let found = condition.columns.iter().position(|&of| of == (side, places[side].column));
        let at = found.ok_or_else(|| DataFusionError::Internal(format!("{WITHIN} without a column of time")))?;
        time_of(places[side], at, &condition.schema)
    };
    let arguments = vec![literal(ttl), among(0)?, among(1)?];
    let (function, options) = (Arc::new(Within::function()), Arc::new(ConfigOptions::default()));
    let within = ScalarFunctionExpr::try_new(function, arguments, condition.schema.as_ref(), options)?;
    let others = parts.into_iter().filter(|part| Within::length(part).is_none());
    condition.expr = conjunction(others.chain([Arc::new(within) as Arc<dyn PhysicalExpr>]));
    let bound = |side, lesser: &Arc<dyn PhysicalExpr>, greater: &Arc<dyn PhysicalExpr>| Bound {
        side,
        lesser: Arc::clone(lesser),
        greater: Arc::clone(greater),
        more: ttl - 1,
    };
    Ok(vec![bound(0, &left, &right), bound(1, &right, &left)])
}

/// What is at a place, whose column has this number here.
fn time_of(place: &Place, column: usize, schema: &SchemaRef) -> Result<Arc<dyn PhysicalExpr>> {
    let whole: Arc<dyn PhysicalExpr> = Arc::new(Column::new(schema.field(column).name(), column));
    place.field.as_ref().map_or(Ok(Arc::clone(&whole)), |name| field_of(&whole, name, schema))
}
