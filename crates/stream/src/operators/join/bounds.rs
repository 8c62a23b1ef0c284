//! The bounds that a join's condition sets on the times of partners.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::logical_expr::Operator as Compare;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, lit};
use datafusion::physical_expr::utils::{collect_columns, split_conjunction};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::joins::HashJoinExec;

use super::{JoinCondition, JoinOutput, Side};
use crate::time::times::{StreamTimes, TimeColumn, TimeOf, following, length};
use crate::time::window::Micros;

/// A bound between times: future values of `lesser` on `side` do not exceed `greater`, from the other side, plus
/// `more`.
pub(super) struct JoinBound {
    pub side: Side,
    pub lesser: Arc<dyn PhysicalExpr>,
    pub greater: Arc<dyn PhysicalExpr>,
    /// The duration added to `greater`.
    pub more: Micros,
}

/// The bounds in a join's condition: every comparison of the two sides.
pub(super) fn bounds(join: &HashJoinExec, condition: Option<&JoinCondition>) -> Vec<JoinBound> {
    let schemas = [join.left().schema(), join.right().schema()];
    let mut found = Vec::new();
    for (left, right) in join.on() {
        for (side, lesser, greater) in [(0, left, right), (1, right, left)] {
            found.push(JoinBound { side, lesser: Arc::clone(lesser), greater: Arc::clone(greater), more: 0 });
            // If structs such as windows are equal, so are all of their fields.
            found.extend(fields_of(side, lesser, greater, &schemas));
        }
    }
    let Some(condition) = condition else { return found };
    for part in split_conjunction(&condition.expr) {
        let any: &dyn Any = part.as_ref();
        let Some(compare) = any.downcast_ref::<BinaryExpr>() else { continue };
        let (mut left, mut right) = (Arc::clone(compare.left()), Arc::clone(compare.right()));
        let (mut add, op) = (0, *compare.op());
        // `a - b <= length` means `a <= b + length`, and `length <= a - b` means `b + length <= a`.
        let difference = |expr: &Arc<dyn PhysicalExpr>| {
            let any: &dyn Any = expr.as_ref();
            let minus = any.downcast_ref::<BinaryExpr>().filter(|minus| *minus.op() == Compare::Minus)?;
            length(minus.right()).is_none().then(|| (Arc::clone(minus.left()), Arc::clone(minus.right())))
        };
        if let (Some((a, b)), Some(more)) = (difference(&left), length(&right)) {
            (left, right, add) = (a, b, more);
        } else if let (Some(more), Some((a, b))) = (length(&left), difference(&right)) {
            (left, right, add) = (b, a, -more);
        }
        // `left op right + add`
        let pairs = match op {
            Compare::LtEq => vec![(&left, &right, add)],
            Compare::Lt => vec![(&left, &right, add - 1)],
            Compare::GtEq => vec![(&right, &left, -add)],
            Compare::Gt => vec![(&right, &left, -add - 1)],
            Compare::Eq => vec![(&left, &right, add), (&right, &left, -add)],
            _ => continue,
        };
        for (lesser, greater, more) in pairs {
            let (Some((side, lesser)), Some((other, greater))) =
                (of_side(lesser, condition), of_side(greater, condition))
            else {
                continue;
            };
            if side != other {
                found.push(JoinBound { side, lesser, greater, more });
            }
        }
    }
    found
}

/// The equality of the fields of two structs.
fn fields_of(
    side: Side,
    lesser: &Arc<dyn PhysicalExpr>,
    greater: &Arc<dyn PhysicalExpr>,
    schemas: &[SchemaRef; 2],
) -> Vec<JoinBound> {
    let Ok(DataType::Struct(fields)) = lesser.data_type(&schemas[side]) else { return Vec::new() };
    let bound = |name: &String| {
        let lesser = field_of(lesser, name, &schemas[side]).ok()?;
        let greater = field_of(greater, name, &schemas[1 - side]).ok()?;
        Some(JoinBound { side, lesser, greater, more: 0 })
    };
    fields.iter().filter_map(|field| bound(field.name())).collect()
}

/// A field of a struct.
pub(super) fn field_of(of: &Arc<dyn PhysicalExpr>, name: &str, schema: &SchemaRef) -> Result<Arc<dyn PhysicalExpr>> {
    let call = datafusion::functions::core::get_field();
    let options = Arc::new(ConfigOptions::default());
    Ok(Arc::new(ScalarFunctionExpr::try_new(call, vec![Arc::clone(of), lit(name)], schema.as_ref(), options)?))
}

/// The side that an expression of a condition refers to, and the expression over that side's rows.
fn of_side(expr: &Arc<dyn PhysicalExpr>, condition: &JoinCondition) -> Option<(Side, Arc<dyn PhysicalExpr>)> {
    let columns = collect_columns(expr);
    let mut sides = columns.iter().map(|column| condition.columns[column.index()].0);
    let side = sides.next()?;
    if sides.any(|other| other != side) {
        return None;
    }
    let transformed = Arc::clone(expr).transform_down(|expr| {
        let any: &dyn Any = expr.as_ref();
        Ok(match any.downcast_ref::<Column>() {
            Some(column) => {
                let place = condition.columns[column.index()].1;
                Transformed::yes(Arc::new(Column::new(column.name(), place)) as Arc<dyn PhysicalExpr>)
            }
            None => Transformed::no(expr),
        })
    });
    Some((side, transformed.ok()?.data))
}

/// The time columns of each side in joined rows, including ones that did not tell time before. A stored row is emitted
/// with a partner that arrives now, so its times are known only as far as the bounds with its partner go. Starting from
/// the arriving row of either side, bounds imply others (`a.at <= b.at` and `b.at <= a.ends` transfer what is known of
/// `a.at` to `a.ends`). A row without a partner is emitted when its bounds have passed.
pub(super) fn told(
    bounds: &[JoinBound],
    schemas: &[SchemaRef; 2],
    times: [&StreamTimes; 2],
    gives: JoinOutput,
) -> [Vec<TimeOf>; 2] {
    let known = |arrives: Side| {
        let places = times[arrives].places.iter().map(|of| ((arrives, of.place.clone()), of.behind));
        let mut known: HashMap<(Side, TimeColumn), Micros> = places.collect();
        // As many times as a chain of bounds can be long.
        for _ in bounds {
            for bound in bounds {
                let (Some(less), Some(more)) = (following(&bound.lesser), following(&bound.greater)) else { continue };
                let Some(&behind) = known.get(&(bound.side, less.place.clone())) else { continue };
                let behind = behind.saturating_add(bound.more).saturating_add(more.high).saturating_sub(less.low);
                let of = known.entry((1 - bound.side, more.place)).or_insert(behind);
                *of = behind.min(*of);
            }
        }
        known
    };
    // Rows of a side without a time before its end come before there is any watermark.
    let mut cases: Vec<_> = (0..2).filter(|&side| !times[side].untimed).map(known).collect();
    for side in (0..2).filter(|&side| gives.waits(side)) {
        let mut alone = HashMap::new();
        for bound in bounds.iter().filter(|bound| bound.side != side) {
            let Some(follows) = following(&bound.greater) else { continue };
            if let Some(behind) = times[bound.side].behind(&bound.lesser, &schemas[bound.side]) {
                let behind = behind.saturating_add(bound.more).saturating_add(follows.high);
                let of = alone.entry((side, follows.place)).or_insert(behind);
                *of = behind.min(*of);
            }
        }
        // The other side's columns are null in this case.
        let others = cases.iter().flat_map(HashMap::keys).filter(|(of, _)| *of != side).cloned();
        alone.extend(others.collect::<Vec<_>>().into_iter().map(|place| (place, Micros::MIN)));
        cases.push(alone);
    }
    [0, 1].map(|side| {
        let all = cases.first().into_iter().flat_map(HashMap::keys).filter(|(of, _)| *of == side);
        let mut told: Vec<TimeOf> = all
            .filter_map(|of| {
                let behind = cases.iter().map(|case| case.get(of).copied()).collect::<Option<Vec<_>>>()?;
                Some(TimeOf { place: of.1.clone(), behind: behind.into_iter().max()? })
            })
            .collect();
        // The order must be the same on every worker.
        told.sort_by(|a, b| (a.place.column, &a.place.field).cmp(&(b.place.column, &b.place.field)));
        told
    })
}
