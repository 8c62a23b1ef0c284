//! How long the rows of a join are remembered, if it says so: partners are less than that apart, by what tells the time
//! of the streams.
//!
//! A query does not know which columns that are. So in a plan it is a part of the join's condition, a call with all
//! columns of either side that may be, which are there then also if nothing else wants them; the two that are it take
//! their place when the query becomes tasks.

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

/// Puts into a condition what tells the time of both sides, if it says how long rows are remembered. Returns what that
/// says of times.
///
/// # Errors
/// `Unsupported`, when nothing tells the time of a side.
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

/// What is at a place, whose column has this number here.
fn time_of(place: &TimeColumn, column: usize, schema: &SchemaRef) -> Result<Arc<dyn PhysicalExpr>> {
    let whole: Arc<dyn PhysicalExpr> = Arc::new(Column::new(schema.field(column).name(), column));
    place.field.as_ref().map_or(Ok(Arc::clone(&whole)), |name| field_of(&whole, name, schema))
}
