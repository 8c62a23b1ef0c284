//! The time to live of a join's rows: partners are less than this duration apart, by the event time of the streams.
//!
//! The query does not know which columns tell this time. So in a plan, the ttl is a term of the join's condition: a
//! call with all candidate columns of both sides, which keeps them even if nothing else needs them. When the query is
//! lowered to tasks, the two actual time columns replace them.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::config::ConfigOptions;
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_expr::expressions::{Column, lit as literal};
use datafusion::physical_expr::utils::split_conjunction;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr, conjunction};
use tidemill_dataset::DataSetError;
use tidemill_dataset::extend::JoinTtl;

use super::bounds::{JoinBound, field_of};
use super::{JoinCondition, Side};
use crate::time::times::{StreamTimes, TimeColumn};

/// Binds the ttl in a condition, if there is one, to the time columns of both sides. Returns the resulting bounds.
///
/// # Errors
/// `Unsupported` if a side has no time column.
pub(super) fn bind(
    condition: &mut JoinCondition,
    schemas: &[SchemaRef; 2],
    times: [&StreamTimes; 2],
) -> std::result::Result<Vec<JoinBound>, DataSetError> {
    let parts: Vec<_> = split_conjunction(&condition.expr).into_iter().cloned().collect();
    let Some(ttl) = parts.iter().find_map(JoinTtl::length) else { return Ok(Vec::new()) };
    let place = |side: Side| {
        times[side].places.first().map(|of| &of.place).ok_or_else(|| {
            DataSetError::Unsupported(format!(
                "a join with ttl= on streams whose {} side has rows without event time: set time= on its source, and \
                 keep that column",
                ["left", "right"][side]
            ))
        })
    };
    let places = [place(0)?, place(1)?];
    let [left, right] = [0, 1].map(|side| time_of(places[side], places[side].column, &schemas[side]));
    let (left, right) = (left?, right?);
    let among = |side: Side| {
        let found = condition.columns.iter().position(|&of| of == (side, places[side].column));
        let at =
            found.ok_or_else(|| DataFusionError::Internal(format!("{} without a column of time", JoinTtl::NAME)))?;
        time_of(places[side], at, &condition.schema)
    };
    let arguments = vec![literal(ttl), among(0)?, among(1)?];
    let (function, options) = (Arc::new(JoinTtl::function()), Arc::new(ConfigOptions::default()));
    let within = ScalarFunctionExpr::try_new(function, arguments, condition.schema.as_ref(), options)?;
    let others = parts.into_iter().filter(|part| JoinTtl::length(part).is_none());
    condition.expr = conjunction(others.chain([Arc::new(within) as Arc<dyn PhysicalExpr>]));
    let bound = |side, lesser: &Arc<dyn PhysicalExpr>, greater: &Arc<dyn PhysicalExpr>| JoinBound {
        side,
        lesser: Arc::clone(lesser),
        greater: Arc::clone(greater),
        more: ttl - 1,
    };
    Ok(vec![bound(0, &left, &right), bound(1, &right, &left)])
}

/// The value at a place whose column has this index here.
fn time_of(place: &TimeColumn, column: usize, schema: &SchemaRef) -> Result<Arc<dyn PhysicalExpr>> {
    let whole: Arc<dyn PhysicalExpr> = Arc::new(Column::new(schema.field(column).name(), column));
    place.field.as_ref().map_or(Ok(Arc::clone(&whole)), |name| field_of(&whole, name, schema))
}
