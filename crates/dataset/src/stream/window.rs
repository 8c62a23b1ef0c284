//! Windows of event time: which windows a row belongs to. In a plan a window is a call of a function over the time column,
//! `window(time, how)`, whose value is a struct of start and end; a grouping by it makes a query a windowed one.

use std::any::Any;
use std::hash::Hash;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StructArray, TimestampMicrosecondArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Fields, TimeUnit, TimestampMicrosecondType};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, lit,
};

use crate::error::DataSetError;

/// Microseconds.
pub(crate) type Micros = i64;

/// How rows are put into windows, and how long a window takes more of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Windows {
    /// Which windows there are.
    pub kind: WindowKind,
    /// How long after its end a window takes rows that come late; each lets its result come again, corrected.
    pub lateness: Micros,
}

/// Which windows there are; all in microseconds of event time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowKind {
    /// `[k * slide, k * slide + size)` for every integer k: with `slide == size` they tumble, with less they overlap.
    Sliding {
        /// How long one is.
        size: Micros,
        /// From the start of one to the start of the next.
        slide: Micros,
    },
    /// Of each key: rows that follow each other within `gap`.
    Session {
        /// What ends a session: so long without a row.
        gap: Micros,
    },
}

impl Windows {
    /// Windows one after the other.
    ///
    /// # Errors
    /// `Query` when the size is not positive.
    pub fn tumbling(size: Micros) -> Result<Self, DataSetError> {
        Self::sliding(size, size)
    }

    /// Windows of `size`, one beginning every `slide`.
    ///
    /// # Errors
    /// `Query` when either is not positive, or rows would fall between windows.
    pub fn sliding(size: Micros, slide: Micros) -> Result<Self, DataSetError> {
        if size <= 0 || slide <= 0 {
            return Err(DataSetError::Query("a window's size and slide must be more than zero".into()));
        }
        if slide > size {
            return Err(DataSetError::Query("windows that slide by more than their size would leave rows out".into()));
        }
        Ok(Windows { kind: WindowKind::Sliding { size, slide }, lateness: 0 })
    }

    /// Sessions that end after `gap` without a row.
    ///
    /// # Errors
    /// `Query` when the gap is not positive.
    pub fn session(gap: Micros) -> Result<Self, DataSetError> {
        if gap <= 0 {
            return Err(DataSetError::Query("a session's gap must be more than zero".into()));
        }
        Ok(Windows { kind: WindowKind::Session { gap }, lateness: 0 })
    }

    /// Taking rows that come so much later than a window's end.
    ///
    /// # Errors
    /// `Query` when it is negative.
    pub fn late(self, lateness: Micros) -> Result<Self, DataSetError> {
        if lateness < 0 {
            return Err(DataSetError::Query("allowed lateness must not be negative".into()));
        }
        Ok(Windows { lateness, ..self })
    }

    /// The window of a row with this time, as an expression to group by.
    pub fn of(self, time: Expr) -> Expr {
        let function = Arc::new(ScalarUDF::from(WindowFunction::new()));
        let lateness = self.lateness;
        let how = match self.kind {
            WindowKind::Sliding { size, slide } => format!("sliding {lateness} {size} {slide}"),
            WindowKind::Session { gap } => format!("session {lateness} {gap}"),
        };
        Expr::ScalarFunction(ScalarFunction::new_udf(function, vec![time, lit(how)])).alias(WINDOW)
    }

    /// What [`Windows::of`] wrote into the plan.
    pub(crate) fn parse(how: &str) -> Option<Self> {
        let mut words = how.split(' ');
        let kind = words.next()?;
        let numbers: Vec<Micros> = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
        match (kind, numbers.as_slice()) {
            ("sliding", &[lateness, size, slide]) => {
                Some(Windows { kind: WindowKind::Sliding { size, slide }, lateness })
            }
            ("session", &[lateness, gap]) => Some(Windows { kind: WindowKind::Session { gap }, lateness }),
            _ => None,
        }
    }
}

/// The name of [`WindowFunction`].
const WINDOW: &str = "window";

/// Whether a key is a window.
pub(crate) fn is_window(key: &Expr) -> bool {
    match key {
        Expr::Alias(alias) => is_window(&alias.expr),
        Expr::ScalarFunction(call) => call.func.name() == WINDOW,
        _ => false,
    }
}

/// The value of a window expression.
pub(crate) fn window_fields() -> Fields {
    let time = DataType::Timestamp(TimeUnit::Microsecond, None);
    Fields::from(vec![Field::new("start", time.clone(), false), Field::new("end", time, false)])
}

/// Windows from starts and ends.
pub(crate) fn window_array(starts: Vec<Micros>, ends: Vec<Micros>) -> ArrayRef {
    let (starts, ends) = (TimestampMicrosecondArray::from(starts), TimestampMicrosecondArray::from(ends));
    Arc::new(StructArray::new(window_fields(), vec![Arc::new(starts), Arc::new(ends)], None))
}

/// Times in microseconds, whatever unit or zone they come in.
pub(crate) fn micros(times: &ArrayRef) -> Result<TimestampMicrosecondArray> {
    let cast = cast(times, &DataType::Timestamp(TimeUnit::Microsecond, None))?;
    Ok(cast.as_primitive::<TimestampMicrosecondType>().clone())
}

/// `window(time, how)`. Evaluated by itself it knows tumbling windows only: of the others a row has several, or one that
/// depends on the rows beside it.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct WindowFunction {
    signature: Signature,
}

impl WindowFunction {
    pub(crate) fn new() -> Self {
        // Volatile, so that no rule computes it before the grouping that it belongs to.
        WindowFunction { signature: Signature::any(2, Volatility::Volatile) }
    }
}

impl ScalarUDFImpl for WindowFunction {
    fn name(&self) -> &str {
        WINDOW
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        match arguments.first() {
            Some(DataType::Timestamp(..) | DataType::Date32 | DataType::Date64) => {
                Ok(DataType::Struct(window_fields()))
            }
            other => Err(DataFusionError::Plan(format!(
                "a window needs a timestamp or a date, not {}; cast the column",
                other.map_or("nothing".into(), ToString::to_string)
            ))),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let how = match &args.args[1] {
            ColumnarValue::Scalar(ScalarValue::Utf8(Some(how))) => Windows::parse(how),
            _ => None,
        };
        let size = match how.map(|how| how.kind) {
            Some(WindowKind::Sliding { size, slide }) if size == slide => size,
            _ => {
                return Err(DataFusionError::NotImplemented(
                    "sliding and session windows outside of a group_by of a stream".into(),
                ));
            }
        };
        let times = micros(&args.args[0].to_array(args.number_rows)?)?;
        let starts: Vec<Micros> = times.values().iter().map(|time| time - time.rem_euclid(size)).collect();
        let ends = starts.iter().map(|start| start + size).collect();
        let windows = window_array(starts, ends);
        let windows = windows.as_struct();
        let nulls = times.nulls().cloned();
        let windows = StructArray::new(window_fields(), windows.columns().to_vec(), nulls);
        Ok(ColumnarValue::Array(Arc::new(windows)))
    }
}

impl WindowFunction {
    /// The windows of a call of this function, and its time.
    pub(crate) fn of_call(
        expr: &Arc<dyn datafusion::physical_expr::PhysicalExpr>,
    ) -> Option<(Windows, Arc<dyn datafusion::physical_expr::PhysicalExpr>)> {
        let any: &dyn Any = expr.as_ref();
        let call = any.downcast_ref::<datafusion::physical_expr::ScalarFunctionExpr>()?;
        if call.fun().name() != WINDOW {
            return None;
        }
        let how: &dyn Any = call.args().get(1)?.as_ref();
        let how = how.downcast_ref::<datafusion::physical_expr::expressions::Literal>()?;
        match how.value() {
            ScalarValue::Utf8(Some(how)) => Some((Windows::parse(how)?, Arc::clone(&call.args()[0]))),
            _ => None,
        }
    }
}
