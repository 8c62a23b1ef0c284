//! Time columns of a stream: columns in which future rows have no small values. After a watermark `w`, every row has
//! `value + behind >= w`, so state that was stored for smaller values is no longer needed.

use std::any::Any;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, SchemaRef, TimeUnit};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, CastExpr, Column, Literal};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};

use crate::time::time_bound;
use crate::time::window::{Micros, micros};

/// A column, or a field of one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TimeColumn {
    pub column: usize,
    pub field: Option<String>,
}

/// A place in the rows that tells time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TimeOf {
    pub place: TimeColumn,
    /// How far its values may lie behind the watermark; negative if they are always ahead of it.
    pub behind: Micros,
}

/// The time columns in the rows of a stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamTimes {
    pub places: Vec<TimeOf>,
    /// No source has event time, so there is no watermark before the end.
    pub untimed: bool,
    /// Future rows may have any time, because a step has held them back for an unknown time.
    pub lost: bool,
}

/// An expression that follows a place: its value exceeds the place's by between `low` and `high`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TimeOffset {
    pub place: TimeColumn,
    pub low: Micros,
    pub high: Micros,
}

impl TimeColumn {
    pub(crate) fn column(column: usize) -> Self {
        TimeColumn { column, field: None }
    }

    /// The values, in microseconds.
    pub(crate) fn values(&self, batch: &RecordBatch) -> Result<TimestampMicrosecondArray> {
        let column = batch.column(self.column);
        let Some(field) = &self.field else { return micros(column) };
        let found = column.as_struct_opt().and_then(|column| Some((column, column.column_by_name(field)?)));
        let (column, values) =
            found.ok_or_else(|| DataFusionError::Internal(format!("no field {field} of a column of times")))?;
        let nulls = arrow::buffer::NullBuffer::union(column.nulls(), values.nulls());
        let times = micros(values)?;
        Ok(TimestampMicrosecondArray::new(times.values().clone(), nulls))
    }
}

impl TimeOffset {
    /// Whether it is the unchanged place, or the whole struct that has the place as a field.
    pub(crate) fn is_place(&self, place: &TimeColumn) -> bool {
        let whole = self.place.column == place.column && self.place.field.is_none();
        (self.low, self.high) == (0, 0) && (self.place == *place || whole)
    }
}

impl StreamTimes {
    /// The times of a source with at most one time column.
    pub(crate) fn of_source(column: Option<usize>) -> Self {
        let place = |column| TimeOf { place: TimeColumn::column(column), behind: 0 };
        StreamTimes { places: column.map(place).into_iter().collect(), untimed: column.is_none(), lost: false }
    }

    /// How far future values of an expression may lie behind the watermark, if known.
    pub(crate) fn behind(&self, expr: &Arc<dyn PhysicalExpr>, schema: &SchemaRef) -> Option<Micros> {
        if self.untimed {
            return is_time(&expr.data_type(schema).ok()?).then_some(0);
        }
        if let Some(behind) = said(expr) {
            return Some(behind);
        }
        let follows = following(expr)?;
        let of = self.places.iter().find(|of| of.place == follows.place)?;
        Some(of.behind.saturating_sub(follows.low))
    }

    /// The times after a projection.
    pub(crate) fn project(&self, exprs: &[Arc<dyn PhysicalExpr>]) -> Self {
        let mut places = Vec::new();
        for (column, expr) in exprs.iter().enumerate() {
            if let Some(behind) = said(expr) {
                places.push(TimeOf { place: TimeColumn::column(column), behind });
            }
            let Some(follows) = following(expr) else { continue };
            for of in self.places.iter().filter(|of| of.place.column == follows.place.column) {
                if of.place == follows.place {
                    let behind = of.behind.saturating_sub(follows.low);
                    places.push(TimeOf { place: TimeColumn::column(column), behind });
                } else if follows.place.field.is_none() {
                    // The whole struct.
                    let place = TimeColumn { column, field: of.place.field.clone() };
                    places.push(TimeOf { place, behind: of.behind });
                }
            }
        }
        StreamTimes { places, untimed: self.untimed, lost: self.lost }
    }

    /// The times of the rows of both streams together.
    pub(crate) fn union(self, other: &StreamTimes) -> Self {
        if self.untimed {
            return other.clone();
        }
        if other.untimed {
            return self;
        }
        let both = |of: TimeOf| {
            let theirs = other.places.iter().find(|theirs| theirs.place == of.place)?;
            Some(TimeOf { behind: of.behind.max(theirs.behind), ..of })
        };
        let places = self.places.into_iter().filter_map(both).collect();
        StreamTimes { places, untimed: false, lost: self.lost || other.lost }
    }
}

fn is_time(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Timestamp(..) | DataType::Date32 | DataType::Date64)
}

/// What an expression is derived from: its value exceeds that of `of` by between `low` and `high`.
struct ShiftedTime<'e> {
    of: &'e Arc<dyn PhysicalExpr>,
    low: Micros,
    high: Micros,
}

impl ShiftedTime<'_> {
    fn by(self, low: Micros, high: Micros) -> Self {
        ShiftedTime { low: self.low.saturating_add(low), high: self.high.saturating_add(high), ..self }
    }
}

/// Strips additions and subtractions of constant durations, and rounding down.
fn shifted(expr: &Arc<dyn PhysicalExpr>) -> ShiftedTime<'_> {
    let any: &dyn Any = expr.as_ref();
    let itself = ShiftedTime { of: expr, low: 0, high: 0 };
    let rounded = |time, length: Micros| shifted(time).by(1 - length, 0);
    if let Some(cast) = any.downcast_ref::<CastExpr>() {
        return match cast.cast_type() {
            DataType::Timestamp(_, Some(zone)) if !matches!(zone.as_ref(), "UTC" | "+00:00") => itself,
            DataType::Timestamp(TimeUnit::Second, _) => rounded(cast.expr(), 1_000_000),
            DataType::Timestamp(TimeUnit::Millisecond, _) => rounded(cast.expr(), 1000),
            DataType::Timestamp(..) => shifted(cast.expr()),
            DataType::Date32 | DataType::Date64 => rounded(cast.expr(), 86_400_000_000),
            _ => itself,
        };
    }
    if let Some(call) = any.downcast_ref::<ScalarFunctionExpr>() {
        let (time, cut) = match (call.fun().name(), call.args()) {
            ("date_trunc", [unit, time]) => {
                (time, constant(unit).and_then(|unit| unit_length(unit, call.return_type())))
            }
            ("date_bin", [stride, time, ..]) => (time, length(stride)),
            _ => return itself,
        };
        return cut.filter(|&cut| cut > 0).map_or(itself, |cut| rounded(time, cut));
    }
    let Some(sum) = any.downcast_ref::<BinaryExpr>() else { return itself };
    let (of, more) = match (sum.op(), length(sum.left()), length(sum.right())) {
        (Operator::Plus, _, Some(more)) => (sum.left(), more),
        (Operator::Plus, Some(more), _) => (sum.right(), more),
        (Operator::Minus, _, Some(less)) => (sum.left(), -less),
        _ => return itself,
    };
    shifted(of).by(more, more)
}

/// The place that an expression follows: a column, or a field of one.
pub(crate) fn following(expr: &Arc<dyn PhysicalExpr>) -> Option<TimeOffset> {
    let ShiftedTime { of, low, high } = shifted(expr);
    let any: &dyn Any = of.as_ref();
    let place = match (any.downcast_ref::<Column>(), any.downcast_ref::<ScalarFunctionExpr>()) {
        (Some(column), _) => TimeColumn::column(column.index()),
        (None, Some(call)) => {
            let [of, name] = call.args() else { return None };
            let of: &dyn Any = of.as_ref();
            let field = constant(name)?.try_as_str().flatten().filter(|_| call.fun().name() == "get_field")?;
            TimeColumn { column: of.downcast_ref::<Column>()?.index(), field: Some(field.to_owned()) }
        }
        (None, None) => return None,
    };
    Some(TimeOffset { place, low, high })
}

/// How far an expression may lie behind the watermark according to the program, if it says so.
fn said(expr: &Arc<dyn PhysicalExpr>) -> Option<Micros> {
    let ShiftedTime { of, low, .. } = shifted(expr);
    time_bound::said(of).map(|behind| behind.saturating_sub(low))
}

/// The maximum length of a unit of `date_trunc`, for times of a type.
fn unit_length(unit: &ScalarValue, of: &DataType) -> Option<Micros> {
    const HOUR: Micros = 3_600_000_000;
    let length = match unit.try_as_str().flatten()?.to_ascii_lowercase().as_str() {
        "microsecond" => 1,
        "millisecond" => 1000,
        "second" => 1_000_000,
        "minute" => 60_000_000,
        "hour" => HOUR,
        "day" => 24 * HOUR,
        "week" => 7 * 24 * HOUR,
        "month" => 31 * 24 * HOUR,
        "quarter" => 92 * 24 * HOUR,
        "year" => 366 * 24 * HOUR,
        _ => return None,
    };
    // When clocks are set back, the unit is longer.
    let more = if matches!(of, DataType::Timestamp(_, Some(_))) && length >= HOUR { 2 * HOUR } else { 0 };
    Some(length + more)
}

fn constant(expr: &Arc<dyn PhysicalExpr>) -> Option<&ScalarValue> {
    let any: &dyn Any = expr.as_ref();
    any.downcast_ref::<Literal>().map(Literal::value)
}

/// A constant duration. Months have no constant length.
pub(crate) fn length(expr: &Arc<dyn PhysicalExpr>) -> Option<Micros> {
    let any: &dyn Any = expr.as_ref();
    if let Some(cast) = any.downcast_ref::<CastExpr>() {
        return match cast.cast_type() {
            DataType::Interval(_) | DataType::Duration(_) => length(cast.expr()),
            _ => None,
        };
    }
    match constant(expr)? {
        ScalarValue::IntervalMonthDayNano(Some(length)) if length.months == 0 => {
            Some(i64::from(length.days) * 86_400_000_000 + whole_micros(length.nanoseconds)?)
        }
        ScalarValue::IntervalDayTime(Some(length)) => {
            Some(i64::from(length.days) * 86_400_000_000 + i64::from(length.milliseconds) * 1000)
        }
        ScalarValue::DurationSecond(Some(length)) => length.checked_mul(1_000_000),
        ScalarValue::DurationMillisecond(Some(length)) => length.checked_mul(1000),
        ScalarValue::DurationMicrosecond(Some(length)) => Some(*length),
        ScalarValue::DurationNanosecond(Some(length)) => whole_micros(*length),
        _ => None,
    }
}

fn whole_micros(nanoseconds: i64) -> Option<Micros> {
    (nanoseconds % 1000 == 0).then_some(nanoseconds / 1000)
}

/// When rows expire: the minimum of some times, each plus a duration. Without times, never.
#[derive(Clone, Default)]
pub(crate) struct ExpiryTime(pub Vec<(Arc<dyn PhysicalExpr>, Micros)>);

impl ExpiryTime {
    /// The expiry of each row; a row without a time has already expired.
    pub(crate) fn of(&self, batch: &RecordBatch) -> Result<Vec<Micros>> {
        let mut until = vec![Micros::MAX; batch.num_rows()];
        for (expr, more) in &self.0 {
            let times: ArrayRef = expr.evaluate(batch)?.into_array(batch.num_rows())?;
            let times = micros(&times)?;
            lower(&mut until, &times, *more);
        }
        Ok(until)
    }
}

/// Limits each expiry to the row's time plus `more`; rows without a time expire immediately.
fn lower(until: &mut [Micros], times: &TimestampMicrosecondArray, more: Micros) {
    for (until, time) in until.iter_mut().zip(times) {
        *until = time.map_or(Micros::MIN, |time| time.saturating_add(more)).min(*until);
    }
}

/// The expiry of rows whose keys tell time: a group is complete once one of its times has passed.
pub(crate) fn until_of(times: &[TimeOf], rows: &RecordBatch) -> Result<Vec<Micros>> {
    let mut until = vec![Micros::MAX; rows.num_rows()];
    for of in times {
        lower(&mut until, &of.place.values(rows)?, of.behind);
    }
    Ok(until)
}
