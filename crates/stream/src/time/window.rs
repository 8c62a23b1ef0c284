//! Windows of event time: which windows a row belongs to. In a plan, a window is a function call on the time column,
//! `window(time, how)`, whose value is a struct of start and end. Grouping by it makes a query windowed.

use std::any::Any;
use std::hash::Hash;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, StructArray, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Fields, IntervalUnit, TimeUnit};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, lit,
};
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use tidemill_dataset::DataSetError;
pub(crate) use tidemill_dataset::extend::micros;
use tidemill_dataset::extend::window_names::{
    COUNT_WINDOW, COUNTING, EARLY, EARLY_TIME, EARLY_WINDOW, IN_SQL, LATE, WINDOW, is_window_name,
};

use crate::time::window_assigner::{WindowAssigner, ZonedCalendar};

/// Microseconds.
pub(crate) type Micros = i64;

/// How rows are assigned to windows, and how long a window accepts them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WindowRule {
    /// The kind of windows.
    pub kind: WindowKind,
    /// How long after its end a window accepts late rows; each makes it emit a corrected result.
    pub lateness: Micros,
    /// When a window emits early results.
    pub early: EarlyResults,
}

/// When windows emit results before they end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EarlyResults {
    /// Only at the end.
    #[default]
    Never,
    /// At this interval by the machine's clock, for windows that have changed.
    Every(Micros),
    /// Each time this much event time has passed since the window's start, for keys with new rows.
    Time(Micros),
    /// For each key, after every so many rows.
    Rows(i64),
}

impl EarlyResults {
    /// The form in plans.
    fn text(self) -> String {
        match self {
            EarlyResults::Never => "never".into(),
            EarlyResults::Every(every) => format!("every:{every}"),
            EarlyResults::Time(step) => format!("time:{step}"),
            EarlyResults::Rows(rows) => format!("rows:{rows}"),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        match text.split_once(':') {
            None => (text == "never").then_some(EarlyResults::Never),
            Some(("every", every)) => every.parse().ok().map(EarlyResults::Every),
            Some(("time", step)) => step.parse().ok().map(EarlyResults::Time),
            Some(("rows", rows)) => rows.parse().ok().map(EarlyResults::Rows),
            Some(_) => None,
        }
    }
}

/// The kinds of windows; all durations are in microseconds of event time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum WindowKind {
    /// `[k * slide, k * slide + size)` for every integer k: tumbling if `slide == size`, overlapping if it is less.
    Sliding {
        /// The length of a window.
        size: Micros,
        /// The distance between the starts of successive windows.
        slide: Micros,
    },
    /// Successive days, weeks, months or years.
    Calendar(ZonedCalendar),
    /// For each key, its rows `[k * slide, k * slide + size)` for every k, in order of arrival.
    Count {
        /// The number of rows in a window.
        size: i64,
        /// The number of rows from the start of a window to the start of the next.
        slide: i64,
        /// How long a key is remembered after its last row, by event time; `None`: forever.
        ttl: Option<Micros>,
    },
    /// For each key, rows that follow each other within `gap`.
    Session {
        /// The time without rows that ends a session.
        gap: Micros,
    },
}

impl WindowRule {
    /// Tumbling windows.
    ///
    /// # Errors
    /// `Query` if the size is not positive.
    pub fn tumbling(size: Micros) -> Result<Self, DataSetError> {
        Self::sliding(size, size)
    }

    /// Windows of `size`, starting every `slide`.
    ///
    /// # Errors
    /// `Query` if either is not positive, or if rows would fall between windows.
    pub fn sliding(size: Micros, slide: Micros) -> Result<Self, DataSetError> {
        if size <= 0 || slide <= 0 {
            return Err(DataSetError::Query("a window's size and slide must be positive".into()));
        }
        if slide > size {
            return Err(DataSetError::Query("windows that slide by more than their size would skip rows".into()));
        }
        Ok(WindowRule { kind: WindowKind::Sliding { size, slide }, lateness: 0, early: EarlyResults::Never })
    }

    /// Sessions, which end after `gap` without a row.
    ///
    /// # Errors
    /// `Query` if the gap is not positive.
    pub fn session(gap: Micros) -> Result<Self, DataSetError> {
        if gap <= 0 {
            return Err(DataSetError::Query("a session's gap must be positive".into()));
        }
        Ok(WindowRule { kind: WindowKind::Session { gap }, lateness: 0, early: EarlyResults::Never })
    }

    /// Successive windows of a calendar.
    pub fn calendar(calendar: ZonedCalendar) -> Self {
        WindowRule { kind: WindowKind::Calendar(calendar), lateness: 0, early: EarlyResults::Never }
    }

    /// Windows of `size` rows of a key, starting every `slide` rows.
    ///
    /// # Errors
    /// `Query` if either is not positive, or if rows would fall between windows.
    pub fn count(size: i64, slide: i64) -> Result<Self, DataSetError> {
        let WindowRule { lateness, early, .. } = Self::sliding(size, slide)?;
        Ok(WindowRule { kind: WindowKind::Count { size, slide, ttl: None }, lateness, early })
    }

    /// Count windows that forget keys: a row that is at least `ttl` later than the last one of its key starts the key
    /// anew.
    ///
    /// # Errors
    /// `Query` if `ttl` is not positive, or for other than count windows.
    pub fn remembered_for(self, ttl: Micros) -> Result<Self, DataSetError> {
        match self.kind {
            WindowKind::Count { size, slide, .. } if ttl > 0 => {
                Ok(WindowRule { kind: WindowKind::Count { size, slide, ttl: Some(ttl) }, ..self })
            }
            _ => Err(DataSetError::Query("windows of rows need a positive ttl; other windows take none".into())),
        }
    }

    /// Accepts rows that are late by up to `lateness` after a window's end.
    ///
    /// # Errors
    /// `Query` if it is negative.
    pub fn late(self, lateness: Micros) -> Result<Self, DataSetError> {
        if lateness < 0 {
            return Err(DataSetError::Query("allowed lateness must not be negative".into()));
        }
        Ok(WindowRule { lateness, ..self })
    }

    /// Emits early results at this interval while a window changes. Results then say whether they are final.
    ///
    /// # Errors
    /// `Query` if it is less than a millisecond.
    pub fn early(self, every: Micros) -> Result<Self, DataSetError> {
        if every < 1000 {
            return Err(DataSetError::Query("early results need an interval of at least a millisecond".into()));
        }
        self.with_early(EarlyResults::Every(every))
    }

    /// Emits early results for keys with new rows, each time `step` of a window's event time has passed. Results then
    /// say whether they are final.
    ///
    /// # Errors
    /// `Query` if it is not positive.
    pub fn early_time(self, step: Micros) -> Result<Self, DataSetError> {
        if step <= 0 {
            return Err(DataSetError::Query("early results by event time need a positive step".into()));
        }
        self.with_early(EarlyResults::Time(step))
    }

    /// Emits an early result for a key after every `rows` of its rows. Results then say whether they are final.
    ///
    /// # Errors
    /// `Query` if the number is not positive.
    pub fn early_rows(self, rows: i64) -> Result<Self, DataSetError> {
        if rows <= 0 {
            return Err(DataSetError::Query("early results by rows need a positive number of rows".into()));
        }
        self.with_early(EarlyResults::Rows(rows))
    }

    fn with_early(self, early: EarlyResults) -> Result<Self, DataSetError> {
        match self.early {
            EarlyResults::Never => Ok(WindowRule { early, ..self }),
            _ => Err(DataSetError::Query(
                "early results of windows come by the clock, by event time or by rows; choose one".into(),
            )),
        }
    }

    /// The window of a row with this time, as an expression to group by. Count windows ignore the time.
    pub fn of(self, time: Expr) -> Expr {
        let name = match self.kind {
            WindowKind::Count { .. } => COUNT_WINDOW,
            _ if self.early != EarlyResults::Never => EARLY_WINDOW,
            _ => WINDOW,
        };
        let function = Arc::new(ScalarUDF::from(WindowFunction::new(name)));
        let WindowRule { lateness, early, kind } = self;
        let early = early.text();
        let how = match kind {
            WindowKind::Calendar(calendar) => format!("calendar {lateness} {early} {}", calendar.text()),
            WindowKind::Sliding { size, slide } => format!("sliding {lateness} {early} {size} {slide}"),
            WindowKind::Count { size, slide, ttl } => {
                let ttl = ttl.map_or(String::new(), |ttl| format!(" {ttl}"));
                format!("count {lateness} {early} {size} {slide}{ttl}")
            }
            WindowKind::Session { gap } => format!("session {lateness} {early} {gap}"),
        };
        Expr::ScalarFunction(ScalarFunction::new_udf(function, vec![time, lit(how)])).alias(WINDOW)
    }

    /// Parses an expression made by [`WindowRule::of`] into the windows and their time; `None` for other expressions.
    pub(crate) fn in_call(expr: &Expr) -> Option<(Self, &Expr)> {
        let expr = match expr {
            Expr::Alias(alias) => alias.expr.as_ref(),
            expr => expr,
        };
        let Expr::ScalarFunction(call) = expr else { return None };
        match call.args.as_slice() {
            [time, Expr::Literal(ScalarValue::Utf8(Some(how)), _)] if is_window_name(call.name()) => {
                Some((WindowRule::parse(how)?, time))
            }
            _ => None,
        }
    }

    /// Parses the text that [`WindowRule::of`] writes into the plan.
    pub(crate) fn parse(how: &str) -> Option<Self> {
        let mut words = how.split(' ');
        let (kind, lateness, early) = (words.next()?, words.next()?.parse().ok()?, EarlyResults::parse(words.next()?)?);
        let words: Vec<&str> = words.collect();
        let number = |word: &str| word.parse::<Micros>().ok();
        let kind = match (kind, words.as_slice()) {
            ("calendar", &[count, unit, zone]) => {
                WindowKind::Calendar(ZonedCalendar::new(count.parse().ok()?, unit, zone).ok()?)
            }
            ("sliding", &[size, slide]) => WindowKind::Sliding { size: number(size)?, slide: number(slide)? },
            ("count", &[size, slide, ref ttl @ ..]) if ttl.len() < 2 => {
                let ttl = ttl.first().map(|&ttl| number(ttl).ok_or(())).transpose().ok()?;
                WindowKind::Count { size: number(size)?, slide: number(slide)?, ttl }
            }
            ("session", &[gap]) => WindowKind::Session { gap: number(gap)? },
            _ => return None,
        };
        Some(WindowRule { kind, lateness, early })
    }
}

/// The window functions of SQL.
pub(crate) fn sql_functions() -> impl Iterator<Item = ScalarUDF> {
    IN_SQL.into_iter().map(|name| ScalarUDF::from(WindowFunction::new(name)))
}

/// A duration in SQL: an interval, or a string that contains one.
pub(crate) fn interval(value: &ScalarValue) -> Result<Micros> {
    let wrong =
        || DataFusionError::Plan(format!("a length of time must be an interval such as '10 seconds', not {value}"));
    let value = value.cast_to(&DataType::Interval(IntervalUnit::MonthDayNano)).map_err(|_| wrong())?;
    match value {
        ScalarValue::IntervalMonthDayNano(Some(length)) if length.months == 0 => {
            Ok(i64::from(length.days) * 86_400_000_000 + length.nanoseconds / 1000)
        }
        _ => Err(wrong()),
    }
}

/// The length of a calendar window in SQL.
fn calendar(length: &ScalarValue, zone: &str) -> Result<ZonedCalendar> {
    let wrong = || {
        DataFusionError::Plan(format!(
            "a calendar's length must be a string such as '1 month' or '2 weeks', not {length}"
        ))
    };
    let (count, unit) = length.try_as_str().flatten().and_then(|text| text.trim().split_once(' ')).ok_or_else(wrong)?;
    let unit = match unit.trim().to_lowercase().trim_end_matches('s') {
        "day" => "d",
        "week" => "w",
        "month" => "mo",
        "year" => "y",
        _ => return Err(wrong()),
    };
    Ok(ZonedCalendar::new(count.parse().map_err(|_| wrong())?, unit, zone)?)
}

/// A number of rows in SQL.
fn number(value: &ScalarValue) -> Result<i64> {
    let cast = value.cast_to(&DataType::Int64).ok();
    match cast {
        Some(ScalarValue::Int64(Some(number))) if value.data_type().is_integer() => Ok(number),
        _ => Err(DataFusionError::Plan(format!("counting takes integer numbers of rows, not {value}"))),
    }
}

/// Windows, modified by the function around their call.
fn with(name: &str, windows: WindowRule, length: &ScalarValue) -> Result<WindowRule> {
    if matches!(windows.kind, WindowKind::Count { .. }) {
        return Err(DataFusionError::Plan(format!(
            "{name} takes windows of time, but windows of rows do not use time"
        )));
    }
    Ok(match name {
        LATE => windows.late(interval(length)?)?,
        EARLY_TIME => windows.early_time(interval(length)?)?,
        _ if length.data_type().is_integer() => windows.early_rows(number(length)?)?,
        _ => windows.early(interval(length)?)?,
    })
}

/// The windows that a function's arguments after the time describe.
fn windows_of(name: &str, arguments: &[&ScalarValue]) -> Result<WindowRule> {
    let made = match (name, arguments) {
        (WINDOW | EARLY_WINDOW | COUNT_WINDOW, [ScalarValue::Utf8(Some(how))]) => {
            return WindowRule::parse(how).ok_or_else(|| DataFusionError::Internal(format!("window \"{how}\"")));
        }
        ("tumble", [size]) => WindowRule::tumbling(interval(size)?),
        ("hop", [slide, size]) => WindowRule::sliding(interval(size)?, interval(slide)?),
        ("session", [gap]) => WindowRule::session(interval(gap)?),
        ("calendar", [length]) => Ok(WindowRule::calendar(calendar(length, "UTC")?)),
        ("calendar", [length, ScalarValue::Utf8(Some(zone))]) => Ok(WindowRule::calendar(calendar(length, zone)?)),
        ("calendar", _) => {
            return Err(DataFusionError::Plan(
                "calendar takes a time, a length such as '1 month', and a time zone".into(),
            ));
        }
        ("hop", _) => return Err(DataFusionError::Plan("hop takes a time, a slide and a size".into())),
        (name, _) => return Err(DataFusionError::Plan(format!("{name} takes a time and one length of time"))),
    };
    Ok(made?)
}

/// Count windows in SQL; `is_timed` says whether the first argument is a time.
fn counting(is_timed: bool, arguments: &[ScalarValue]) -> Result<WindowRule> {
    let (lengths, ttl) = match (is_timed, arguments) {
        (true, [lengths @ .., ttl]) => (lengths, Some(ttl)),
        (_, lengths) => (lengths, None),
    };
    let windows = match lengths {
        [size] => WindowRule::count(number(size)?, number(size)?)?,
        [size, slide] => WindowRule::count(number(size)?, number(slide)?)?,
        _ => {
            return Err(DataFusionError::Plan(
                "counting takes the number of rows in a window and the number of rows until the next one begins, as \
                 in counting(100, 10); with a time in front, also how long to remember keys, as in counting(time, \
                 100, 10, '1 hour')"
                    .into(),
            ));
        }
    };
    Ok(match ttl {
        Some(ttl) => windows.remembered_for(interval(ttl)?)?,
        None => windows,
    })
}

/// The fields of a window's value.
fn window_fields(early: bool) -> Fields {
    let time = DataType::Timestamp(TimeUnit::Microsecond, None);
    let mut fields = vec![Field::new("start", time.clone(), false), Field::new("end", time, false)];
    if early {
        fields.push(Field::new("final", DataType::Boolean, false));
    }
    Fields::from(fields)
}

/// The fields of a count window's value.
pub(crate) fn count_fields() -> Fields {
    Fields::from(["start", "end"].map(|end| Field::new(end, DataType::Int64, false)).to_vec())
}

/// Windows from starts and ends. `last` says whether these results are final, for windows with early results.
pub(crate) fn window_array(starts: Vec<Micros>, ends: Vec<Micros>, last: Option<bool>) -> StructArray {
    let count = starts.len();
    let (starts, ends) = (TimestampMicrosecondArray::from(starts), TimestampMicrosecondArray::from(ends));
    let mut columns: Vec<ArrayRef> = vec![Arc::new(starts), Arc::new(ends)];
    columns.extend(last.map(|last| Arc::new(BooleanArray::from(vec![last; count])) as ArrayRef));
    StructArray::new(window_fields(last.is_some()), columns, None)
}

/// A window's call in a plan.
pub(crate) struct WindowCall {
    pub windows: WindowRule,
    pub time: Arc<dyn PhysicalExpr>,
    /// The columns of late rows, if they are wanted.
    pub late: Vec<Arc<dyn PhysicalExpr>>,
}

/// A row's window as a function of its time and constants. Evaluated by itself, it supports only tumbling windows: with
/// other kinds, a row has several windows, or one that depends on the rows around it.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct WindowFunction {
    name: &'static str,
    signature: Signature,
}

impl WindowFunction {
    fn new(name: &'static str) -> Self {
        // Volatile, so that no rule computes it before the grouping that it belongs to.
        WindowFunction { name, signature: Signature::variadic_any(Volatility::Volatile) }
    }
}

impl ScalarUDFImpl for WindowFunction {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        // Three arguments are the time, the window's number of rows, and the ttl of keys.
        let is_timed = self.name == COUNTING && arguments.len() > 2;
        if let (COUNT_WINDOW | COUNTING, false) = (self.name, is_timed) {
            return Ok(DataType::Struct(count_fields()));
        }
        if let LATE | EARLY | EARLY_TIME = self.name {
            let early = window_fields(true);
            return match arguments.first() {
                Some(DataType::Struct(fields)) if *fields == early => Ok(DataType::Struct(early)),
                Some(DataType::Struct(fields)) if *fields == window_fields(false) => {
                    Ok(DataType::Struct(window_fields(self.name != LATE)))
                }
                _ => Err(DataFusionError::Plan(format!(
                    "{0} takes a window of time and a length of time, as in {0}(tumble(time, '1 hour'), '1 minute')",
                    self.name
                ))),
            };
        }
        match arguments.first() {
            Some(DataType::Timestamp(..) | DataType::Date32 | DataType::Date64) => {
                Ok(DataType::Struct(match is_timed {
                    true => count_fields(),
                    false => window_fields(self.name == EARLY_WINDOW),
                }))
            }
            other => Err(DataFusionError::Plan(format!(
                "a window needs a timestamp or a date, not {}; cast the column",
                other.map_or("nothing".into(), ToString::to_string)
            ))),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let constant = |argument: &ColumnarValue| match argument {
            ColumnarValue::Scalar(value) => Ok(value.clone()),
            ColumnarValue::Array(_) => Err(DataFusionError::Plan("a window's length must be a constant".into())),
        };
        if let LATE | EARLY | EARLY_TIME = self.name {
            // Over a table no row is late, and every result is final.
            let windows = args.args[0].to_array(args.number_rows)?;
            let windows = windows.as_struct();
            return Ok(ColumnarValue::Array(match self.name != LATE && windows.num_columns() == 2 {
                true => {
                    let last = Arc::new(BooleanArray::from(vec![true; args.number_rows])) as ArrayRef;
                    let columns = windows.columns().iter().cloned().chain([last]).collect();
                    Arc::new(StructArray::new(window_fields(true), columns, windows.nulls().cloned()))
                }
                false => Arc::new(windows.clone()),
            }));
        }
        let elsewhere = || {
            let which = "sliding, session and count windows outside of a group_by of a stream";
            Err(DataFusionError::NotImplemented(which.into()))
        };
        if self.name == COUNTING {
            return elsewhere();
        }
        let lengths = args.args[1..].iter().map(constant).collect::<Result<Vec<_>>>()?;
        let spans = match windows_of(self.name, &lengths.iter().collect::<Vec<_>>())?.kind {
            WindowKind::Sliding { size, slide } if size == slide => WindowAssigner::sliding(size, slide),
            WindowKind::Calendar(calendar) => WindowAssigner::calendar(calendar)?,
            _ => return elsewhere(),
        };
        let times = micros(&args.args[0].to_array(args.number_rows)?)?;
        let mut of = (0, 0);
        let mut pane = |&time: &Micros| {
            // Usually the window of the row before.
            if !(of.0..of.1).contains(&time) {
                of = spans.pane(time);
            }
            of
        };
        let (starts, ends) = times.values().iter().map(&mut pane).unzip();
        let (fields, columns, _) = window_array(starts, ends, (self.name == EARLY_WINDOW).then_some(true)).into_parts();
        let windows = StructArray::new(fields, columns, times.nulls().cloned());
        Ok(ColumnarValue::Array(Arc::new(windows)))
    }
}

impl WindowFunction {
    /// The windows of a call of such a function.
    ///
    /// # Errors
    /// If its lengths are not valid.
    pub(crate) fn of_call(expr: &Arc<dyn PhysicalExpr>) -> Result<Option<WindowCall>> {
        let any: &dyn Any = expr.as_ref();
        let Some(call) = any.downcast_ref::<ScalarFunctionExpr>() else { return Ok(None) };
        let name = call.fun().name();
        if !is_window_name(name) {
            return Ok(None);
        }
        let constant = |argument: &Arc<dyn PhysicalExpr>| {
            let any: &dyn Any = argument.as_ref();
            any.downcast_ref::<Literal>().map(|literal| literal.value().clone())
        };
        let [time, rest @ ..] = call.args() else {
            return Err(DataFusionError::Plan(format!("{name} has no arguments")));
        };
        if name == COUNTING {
            let is_timed = constant(time).is_none();
            let lengths = call.args()[usize::from(is_timed)..].iter().map(constant).collect::<Option<Vec<_>>>();
            let lengths =
                lengths.ok_or_else(|| DataFusionError::Plan("a window's length must be a constant".into()))?;
            let windows = counting(is_timed, &lengths)?;
            return Ok(Some(WindowCall { windows, time: Arc::clone(time), late: Vec::new() }));
        }
        // Columns of late rows follow the constants.
        let lengths: Vec<_> = rest.iter().map_while(constant).collect();
        let late = rest[lengths.len()..].to_vec();
        if lengths.is_empty() {
            return Err(DataFusionError::Plan("a window's length must be a constant".into()));
        }
        if let LATE | EARLY | EARLY_TIME = name {
            let Some(inner) = Self::of_call(time)? else {
                return Err(DataFusionError::Plan(format!(
                    "{name} takes the call of a window, such as tumble(time, '1 hour')"
                )));
            };
            let [length] = lengths.as_slice() else {
                return Err(DataFusionError::Plan(format!("{name} takes a window and one length of time")));
            };
            return Ok(Some(WindowCall { windows: with(name, inner.windows, length)?, late, ..inner }));
        }
        let windows = windows_of(name, &lengths.iter().collect::<Vec<_>>())?;
        Ok(Some(WindowCall { windows, time: Arc::clone(time), late }))
    }
}
