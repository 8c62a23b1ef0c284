//! Date and time functions that replace DataFusion's where those use nanoseconds, which end in 2262: dates such as
//! 9999-12-31, which databases use for "no end", must work like others. Also parses text like Python.

use std::iter::Peekable;
use std::str::Chars;
use std::sync::Arc;

use arrow::array::timezone::Tz;
use arrow::array::{Array, ArrayRef, AsArray, PrimitiveArray};
use arrow::datatypes::{
    ArrowTimestampType, DataType, FieldRef, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType,
};
use arrow::temporal_conversions::as_datetime;
use chrono::format::{Fixed, Item, Parsed, StrftimeItems, parse_and_remainder};
use chrono::offset::LocalResult;
use chrono::{DateTime, Datelike, Days, Months, NaiveDateTime, NaiveTime, Offset, TimeDelta, TimeZone, Timelike};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::types::{NativeType, logical_date, logical_string};
use datafusion::common::{DFSchema, ScalarValue, exec_err, plan_err};
use datafusion::error::Result;
use datafusion::functions::datetime::date_trunc::DateTruncFunc;
use datafusion::logical_expr::expr::BinaryExpr;
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::{
    Coercion, ColumnarValue, Documentation, Expr, ExprSchemable, LogicalPlan, Operator, ReturnFieldArgs,
    ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature, TypeSignatureClass, Volatility, cast,
};
use datafusion::optimizer::AnalyzerRule;

use crate::lossless_cast::is_text;
use crate::plan::rewrite::{compared, rewrite_exprs, rewrite_keys};
use crate::plan::sql::fraction_of;

/// The functions of this module.
pub(crate) fn time_functions() -> [ScalarUDF; 3] {
    [DateTrunc::new().into(), Strptime::new(true).into(), Strptime::new(false).into()]
}

/// Units for truncating times that are not a fixed number of seconds, or not in every time zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CalendarUnit {
    Hour,
    Day,
    Week,
    Month,
    Quarter,
    Year,
}

impl CalendarUnit {
    fn named(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "hour" => CalendarUnit::Hour,
            "day" => CalendarUnit::Day,
            "week" => CalendarUnit::Week,
            "month" => CalendarUnit::Month,
            "quarter" => CalendarUnit::Quarter,
            "year" => CalendarUnit::Year,
            _ => return None,
        })
    }

    /// The start of the unit that contains a time; `None` if it is out of range.
    fn begin(self, time: NaiveDateTime) -> Option<NaiveDateTime> {
        if self == CalendarUnit::Hour {
            return time.date().and_hms_opt(time.hour(), 0, 0);
        }
        let day = time.date();
        let first = match self {
            CalendarUnit::Hour | CalendarUnit::Day => day,
            CalendarUnit::Week => day.checked_sub_days(Days::new(day.weekday().num_days_from_monday().into()))?,
            CalendarUnit::Month => day.with_day(1)?,
            CalendarUnit::Quarter => day.with_day(1)?.checked_sub_months(Months::new(day.month0() % 3))?,
            CalendarUnit::Year => day.with_ordinal(1)?,
        };
        Some(first.and_time(NaiveTime::MIN))
    }
}

/// `date_trunc(unit, time)`: delegates to DataFusion's own for units of a fixed length and times of day.
#[derive(Debug, PartialEq, Eq, Hash)]
struct DateTrunc {
    inner: DateTruncFunc,
    signature: Signature,
}

impl DateTrunc {
    fn new() -> Self {
        let unit = Coercion::new_exact(TypeSignatureClass::Native(logical_string()));
        let time = Coercion::new_implicit(
            TypeSignatureClass::Timestamp,
            vec![TypeSignatureClass::Native(logical_string()), TypeSignatureClass::Native(logical_date())],
            NativeType::Timestamp(TimeUnit::Microsecond, None),
        );
        let of_day = Coercion::new_exact(TypeSignatureClass::Time);
        let signatures =
            vec![TypeSignature::Coercible(vec![unit.clone(), time]), TypeSignature::Coercible(vec![unit, of_day])];
        DateTrunc { inner: DateTruncFunc::new(), signature: Signature::one_of(signatures, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for DateTrunc {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.inner.return_type(types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        self.inner.return_field_from_args(args)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let unit = match &args.args[0] {
            ColumnarValue::Scalar(name) => name.try_as_str().flatten().and_then(CalendarUnit::named),
            ColumnarValue::Array(_) => None,
        };
        let (Some(unit), DataType::Timestamp(of, zone)) = (unit, args.args[1].data_type()) else {
            return self.inner.invoke_with_args(args);
        };
        let zone = zone.map(|zone| zone.parse::<Tz>()).transpose()?;
        let times = args.args[1].to_array(1)?;
        let cut = match of {
            TimeUnit::Second => truncated::<TimestampSecondType>(&times, unit, zone)?,
            TimeUnit::Millisecond => truncated::<TimestampMillisecondType>(&times, unit, zone)?,
            TimeUnit::Microsecond => truncated::<TimestampMicrosecondType>(&times, unit, zone)?,
            TimeUnit::Nanosecond => truncated::<TimestampNanosecondType>(&times, unit, zone)?,
        };
        given_back(&args.args[1], cut)
    }

    fn output_ordering(&self, input: &[ExprProperties]) -> Result<SortProperties> {
        self.inner.output_ordering(input)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }
}

/// A scalar if a scalar was given, else a column.
fn given_back(given: &ColumnarValue, made: ArrayRef) -> Result<ColumnarValue> {
    Ok(match given {
        ColumnarValue::Scalar(_) => ColumnarValue::Scalar(ScalarValue::try_from_array(&made, 0)?),
        ColumnarValue::Array(_) => ColumnarValue::Array(made),
    })
}

fn truncated<T: ArrowTimestampType>(times: &ArrayRef, unit: CalendarUnit, zone: Option<Tz>) -> Result<ArrayRef> {
    let times = times.as_primitive::<T>();
    let cut: PrimitiveArray<T> = times.try_unary(|time| {
        let begin = || {
            let utc = as_datetime::<T>(time)?;
            let Some(zone) = zone else { return T::from_naive_datetime(unit.begin(utc)?, None) };
            let local = zone.from_utc_datetime(&utc);
            T::from_datetime(on_clock(zone, unit.begin(local.naive_local())?, &local)?)
        };
        match begin() {
            Some(begin) => Ok(begin),
            None => exec_err!("the {unit:?} of {time} in {} began before the earliest time of its type", T::DATA_TYPE),
        }
    })?;
    Ok(Arc::new(cut.with_data_type(times.data_type().clone())))
}

/// The time at which the clocks of a zone showed `local`. Out of two candidates, the one with the same offset as `of`,
/// else the first; if clocks skipped the time, the first time after it.
fn on_clock(zone: Tz, local: NaiveDateTime, of: &DateTime<Tz>) -> Option<DateTime<Tz>> {
    match zone.from_local_datetime(&local) {
        LocalResult::Single(time) => Some(time),
        LocalResult::Ambiguous(first, second) => {
            Some(if second.offset().fix() == of.offset().fix() { second } else { first })
        }
        LocalResult::None => {
            // Clocks are moved by whole minutes, and never by more than a day.
            (1..=24 * 60)
                .find_map(|minutes| zone.from_local_datetime(&(local + TimeDelta::minutes(minutes))).earliest())
        }
    }
}

/// `strptime(text, format, ...)`: a time in microseconds, parsed like Python's `datetime.strptime` with the first
/// matching format. Missing parts have their lowest value: the first month, day, hour. With `%z` the time is in UTC.
/// `try_strptime` returns null if no format matches.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Strptime {
    is_strict: bool,
    signature: Signature,
}

impl Strptime {
    fn new(is_strict: bool) -> Self {
        Strptime { is_strict, signature: Signature::user_defined(Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for Strptime {
    fn name(&self) -> &str {
        if self.is_strict { "strptime" } else { "try_strptime" }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, of: &[DataType]) -> Result<Vec<DataType>> {
        let name = self.name();
        let [text, formats @ ..] = of else { return plan_err!("{name} takes a string and at least one format") };
        if formats.is_empty() || formats.iter().any(|format| !is_text(format)) {
            return plan_err!("{name} takes a string and at least one format, all of them strings");
        }
        let text = match text {
            DataType::Dictionary(_, values) => values,
            other => other,
        };
        let text = match text {
            DataType::Null => DataType::Utf8,
            text if is_text(text) => text.clone(),
            other => return plan_err!("{name} takes strings, not {other}"),
        };
        Ok(std::iter::once(text).chain(formats.iter().map(|_| DataType::Utf8)).collect())
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Timestamp(TimeUnit::Microsecond, None))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let name = self.name();
        let mut all = Vec::new();
        for arg in &args.args[1..] {
            let ColumnarValue::Scalar(format) = arg else {
                return exec_err!("{name}: the format must be the same for all rows");
            };
            let Some(format) = format.try_as_str().flatten() else { return exec_err!("{name}: no format was given") };
            all.push(StrptimeFormat::new(format)?);
        }
        let formats = StrptimeFormats { all, is_strict: self.is_strict };
        let texts = args.args[0].to_array(1)?;
        let made: ArrayRef = match texts.data_type() {
            DataType::Utf8 => Arc::new(formats.parsed(texts.as_string::<i32>().iter())?),
            DataType::LargeUtf8 => Arc::new(formats.parsed(texts.as_string::<i64>().iter())?),
            DataType::Utf8View => Arc::new(formats.parsed(texts.as_string_view().iter())?),
            other => return exec_err!("{name}: {other} is not a string"),
        };
        given_back(&args.args[0], made)
    }
}

/// Python's `%z` also accepts `Z`.
fn with_zulu(item: Item<'_>) -> Item<'_> {
    match item {
        Item::Fixed(Fixed::TimezoneOffset) => Item::Fixed(Fixed::TimezoneOffsetZ),
        other => other,
    }
}

/// Formats, of which the first matching one counts.
struct StrptimeFormats<'a> {
    all: Vec<StrptimeFormat<'a>>,
    is_strict: bool,
}

impl StrptimeFormats<'_> {
    fn parsed<'t>(
        &self,
        texts: impl Iterator<Item = Option<&'t str>>,
    ) -> Result<PrimitiveArray<TimestampMicrosecondType>> {
        texts
            .map(|text| {
                let Some(text) = text else { return Ok(None) };
                let mut first = None;
                for format in &self.all {
                    match format.read(text) {
                        Ok(time) => return Ok(Some(time)),
                        Err(why) => _ = first.get_or_insert(why),
                    }
                }
                match (&self.all[..], first) {
                    _ if !self.is_strict => Ok(None),
                    ([format], Some(why)) => exec_err!("{text:?} does not match the format {:?}: {why}", format.text),
                    (all, _) => {
                        let all = all.iter().map(|format| format!("{:?}", format.text)).collect::<Vec<_>>().join(", ");
                        exec_err!("{text:?} does not match any of the formats {all}")
                    }
                }
            })
            .collect()
    }
}

/// A `strptime` format: parts in chrono's notation, with fractions of a second in between, which Python parses
/// differently: `%f` is one to six digits (nine here), starting with tenths.
struct StrptimeFormat<'a> {
    text: &'a str,
    parts: Vec<Vec<Item<'a>>>,
    /// Whether texts may begin with a space: chrono skips it before any number, Python only before days.
    may_begin_blank: bool,
}

impl<'a> StrptimeFormat<'a> {
    fn new(text: &'a str) -> Result<Self> {
        let mut parts = Vec::new();
        for part in without_fractions(text) {
            let items: Vec<Item<'a>> = StrftimeItems::new(part).map(with_zulu).collect();
            if items.contains(&Item::Error) {
                return exec_err!("{text:?} is not a valid format for strptime: what follows a % is unknown");
            }
            parts.push(items);
        }
        let may_begin_blank = text.starts_with(char::is_whitespace)
            || ["%d", "%e", "%k", "%l", "%n", "%t"].iter().any(|padded| text.starts_with(padded));
        Ok(StrptimeFormat { text, parts, may_begin_blank })
    }

    /// Microseconds since 1970.
    fn read(&self, text: &str) -> std::result::Result<i64, String> {
        let told = |error: chrono::ParseError| error.to_string();
        if !self.may_begin_blank && text.starts_with(char::is_whitespace) {
            return Err("it begins with a blank".into());
        }
        let mut parsed = Parsed::new();
        let mut rest = text;
        for (number, items) in self.parts.iter().enumerate() {
            if number > 0 {
                let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
                let digits = digits.min(9);
                let value: i64 = rest[..digits].parse().map_err(|_| "there are no digits for %f".to_owned())?;
                parsed.set_nanosecond(value * 10_i64.pow(9 - digits as u32)).map_err(told)?;
                rest = &rest[digits..];
            }
            rest = parse_and_remainder(&mut parsed, rest, items.iter()).map_err(told)?;
        }
        if !rest.is_empty() {
            return Err(format!("{rest:?} is left over"));
        }
        if parsed.second() == Some(60) {
            return Err("a minute ends with second 59".into());
        }
        begin_of_rest(&mut parsed).map_err(told)?;
        let offset = parsed.offset().unwrap_or(0);
        let local = parsed.to_naive_datetime_with_offset(offset).map_err(told)?;
        Ok(local.and_utc().timestamp_micros() - i64::from(offset) * 1_000_000)
    }
}

/// Parts missing in a format have their lowest value.
fn begin_of_rest(parsed: &mut Parsed) -> chrono::format::ParseResult<()> {
    if parsed.timestamp().is_some() {
        return Ok(());
    }
    // The century of %y as in POSIX and Python; chrono's starts a year later.
    if let (Some(year), None, None) = (parsed.year_mod_100(), parsed.year(), parsed.year_div_100()) {
        parsed.set_year_div_100(if year < 69 { 20 } else { 19 })?;
    }
    let weeks = parsed.week_from_sun().or(parsed.week_from_mon()).or(parsed.isoweek());
    if parsed.ordinal().is_none() && weeks.is_none() {
        if parsed.month().is_none() && parsed.quarter().is_none() {
            parsed.set_month(1)?;
        }
        if parsed.day().is_none() {
            parsed.set_day(1)?;
        }
    }
    if parsed.hour_mod_12().is_some() && parsed.hour_div_12().is_none() {
        parsed.set_ampm(false)?;
    }
    if parsed.hour_div_12().is_none() {
        parsed.set_hour(0)?;
    }
    if parsed.minute().is_none() {
        parsed.set_minute(0)?;
    }
    if parsed.second().is_none() {
        parsed.set_second(0)?;
    }
    Ok(())
}

/// The parts of a format between its `%f`; `%%f` does not count.
fn without_fractions(format: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut begin, mut at) = (0, 0);
    let mut chars: Peekable<Chars<'_>> = format.chars().peekable();
    while let Some(char) = chars.next() {
        at += char.len_utf8();
        if char != '%' {
            continue;
        }
        let Some(kind) = chars.next() else { break };
        at += kind.len_utf8();
        if kind == 'f' {
            parts.push(&format[begin..at - 2]);
            begin = at;
        }
    }
    parts.push(&format[begin..]);
    parts
}

/// Gives values that are combined with a time the unit of that time: dates, as the midnight at their start, texts, and
/// the current time. The rule runs before DataFusion's own, which converts all of them, and columns, to nanoseconds.
#[derive(Debug)]
pub(crate) struct DatesAsTimes;

impl AnalyzerRule for DatesAsTimes {
    fn name(&self) -> &'static str {
        "dates_as_times"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let step = |node: LogicalPlan| {
            rewrite_exprs(node, |_, expr, schema| expr.transform_up(|part| met(part, schema)))?
                .transform_data(|node| Ok(rewrite_keys(node, |keys, schema| as_times(keys, schema, true))))
        };
        Ok(plan.transform_up_with_subqueries(step)?.data)
    }
}

/// `expr` with the operands that it compares or subtracts converted to times.
fn met(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    Ok(match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if op.supports_propagation() || op == Operator::Minus => {
            let (mut left, mut right) = (*left, *right);
            // A text that is subtracted from a time is an interval.
            let changed = as_times([&mut left, &mut right], schema, op != Operator::Minus);
            let met = Expr::BinaryExpr(BinaryExpr::new(Box::new(left), op, Box::new(right)));
            Transformed::new_transformed(met, changed)
        }
        mut one @ (Expr::Between(_) | Expr::InList(_)) => {
            let changed = as_times(compared(&mut one), schema, true);
            Transformed::new_transformed(one, changed)
        }
        other => Transformed::no(other),
    })
}

/// Casts values that are combined with a time to its type; false if there is nothing to do.
fn as_times<'e>(exprs: impl IntoIterator<Item = &'e mut Expr>, schema: &DFSchema, with_texts: bool) -> bool {
    // Expressions without a type yet are reported elsewhere.
    let mut typed: Vec<_> = exprs.into_iter().map(|expr| (expr.get_type(schema).ok(), expr)).collect();
    let mut changed = false;
    let is_nanos = |of: &Option<DataType>| matches!(of, Some(DataType::Timestamp(TimeUnit::Nanosecond, _)));
    if typed.iter().any(|(of, _)| is_nanos(of)) && typed.iter().any(|(_, expr)| is_beyond_nanos(expr)) {
        // Such a time differs from every other value it is compared with, so digits beyond its microseconds do not
        // matter.
        for (of, expr) in &mut typed {
            if let Some(DataType::Timestamp(TimeUnit::Nanosecond, zone)) = of {
                let micros = DataType::Timestamp(TimeUnit::Microsecond, zone.clone());
                **expr = cast(std::mem::take(*expr), micros.clone());
                *of = Some(micros);
                changed = true;
            }
        }
    }
    let time = typed.iter().find_map(|(of, _)| match of {
        Some(DataType::Timestamp(unit, _)) if *unit != TimeUnit::Nanosecond => of.clone(),
        _ => None,
    });
    let Some(time @ DataType::Timestamp(unit, _)) = &time else { return changed };
    for (of, expr) in &mut typed {
        let to = match of {
            Some(DataType::Date32 | DataType::Date64) => time.clone(),
            Some(text) if with_texts && is_text(text) && has_no_more_digits(expr) => time.clone(),
            Some(DataType::Timestamp(TimeUnit::Nanosecond, zone)) if is_the_present(expr) => {
                DataType::Timestamp(*unit, zone.clone())
            }
            _ => continue,
        };
        **expr = cast(std::mem::take(*expr), to);
        changed = true;
    }
    changed
}

/// Whether a text, if known, has no digits that a time in microseconds would lose.
fn has_no_more_digits(expr: &Expr) -> bool {
    match expr {
        Expr::Literal(text, _) => text.try_as_str().flatten().is_none_or(|text| fraction_of(text) <= 6),
        _ => true,
    }
}

fn is_the_present(expr: &Expr) -> bool {
    matches!(expr, Expr::ScalarFunction(call) if call.name() == "now")
}

/// Whether it is a literal date or time outside the range of nanoseconds.
fn is_beyond_nanos(expr: &Expr) -> bool {
    let value = match expr {
        Expr::Literal(value, _) => value.clone(),
        Expr::Cast(of) => match of.expr.as_ref() {
            Expr::Literal(value, _) => match value.cast_to(of.field.data_type()) {
                Ok(value) => value,
                Err(_) => return false,
            },
            _ => return false,
        },
        _ => return false,
    };
    if !matches!(value.data_type(), DataType::Date32 | DataType::Date64 | DataType::Timestamp(..)) {
        return false;
    }
    match value.cast_to(&DataType::Timestamp(TimeUnit::Microsecond, None)) {
        Ok(ScalarValue::TimestampMicrosecond(Some(micros), _)) => micros.checked_mul(1000).is_none(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, format: &str) -> std::result::Result<String, String> {
        let micros = StrptimeFormat::new(format).map_err(|error| error.to_string())?.read(text)?;
        Ok(DateTime::from_timestamp_micros(micros).unwrap().naive_utc().to_string())
    }

    /// The results of `datetime.strptime` in Python 3.11.
    #[test]
    fn texts_are_read_as_python_reads_them() {
        for (text, format, time) in [
            ("2020-02-29 01:02:03.5", "%Y-%m-%d %H:%M:%S.%f", "2020-02-29 01:02:03.500"),
            ("2020-02-29 01:02:03,120", "%Y-%m-%d %H:%M:%S,%f", "2020-02-29 01:02:03.120"),
            ("20200229010203000001", "%Y%m%d%H%M%S%f", "2020-02-29 01:02:03.000001"),
            ("31/12/9999", "%d/%m/%Y", "9999-12-31 00:00:00"),
            ("0001-01", "%Y-%m", "0001-01-01 00:00:00"),
            ("2024 060 7 PM", "%Y %j %I %p", "2024-02-29 19:00:00"),
            ("2020-01-01T00:30+02:00", "%Y-%m-%dT%H:%M%z", "2019-12-31 22:30:00"),
            ("2020-01-01T00:30Z", "%Y-%m-%dT%H:%M%z", "2020-01-01 00:30:00"),
            ("5%f on 1970-01-02", "%H%%f on %Y-%m-%d", "1970-01-02 05:00:00"),
            ("31.12.68", "%d.%m.%y", "2068-12-31 00:00:00"),
            ("1/2/69", "%m/%d/%y", "1969-01-02 00:00:00"),
            (" 5 Jan 24", "%d %b %y", "2024-01-05 00:00:00"),
        ] {
            assert_eq!(read(text, format).as_deref(), Ok(time), "{text} {format}");
        }
    }

    #[test]
    fn texts_that_are_no_times() {
        for (text, format, why) in [
            ("2020-02-30", "%Y-%m-%d", "out of range"),
            ("01:02:03.", "%H:%M:%S.%f", "there are no digits for %f"),
            ("2020-01-01x", "%Y-%m-%d", r#""x" is left over"#),
            ("2020-01-01", "%Y-%Q", "unknown"),
            (" 2020-01-01", "%Y-%m-%d", "begins with a blank"),
            ("2024-06-30 23:59:60", "%Y-%m-%d %H:%M:%S", "second 59"),
        ] {
            let error = read(text, format).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn clocks_that_are_put_on_and_back() {
        let utc = |text: &str| text.parse::<NaiveDateTime>().unwrap().and_utc().timestamp();
        let cut = |unit, zone: &str, time: &str| {
            let times: ArrayRef = Arc::new(PrimitiveArray::<TimestampSecondType>::from(vec![utc(time)]));
            truncated::<TimestampSecondType>(&times, unit, Some(zone.parse().unwrap())).unwrap()
        };
        let first = |of: ArrayRef| of.as_primitive::<TimestampSecondType>().value(0);
        // 02:30 in winter time, an hour after 02:30 in summer time.
        assert_eq!(first(cut(CalendarUnit::Hour, "Europe/Paris", "2020-10-25T01:30:00")), utc("2020-10-25T01:00:00"));
        assert_eq!(first(cut(CalendarUnit::Hour, "Europe/Paris", "2020-10-25T00:30:00")), utc("2020-10-25T00:00:00"));
        assert_eq!(first(cut(CalendarUnit::Hour, "Asia/Kolkata", "2020-10-25T00:45:00")), utc("2020-10-25T00:30:00"));
        // A day without midnight: it begins at one.
        assert_eq!(
            first(cut(CalendarUnit::Day, "America/Sao_Paulo", "2018-11-04T12:00:00")),
            utc("2018-11-04T03:00:00")
        );
    }
}
