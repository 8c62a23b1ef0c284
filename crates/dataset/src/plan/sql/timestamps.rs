//! TIMESTAMP without a precision has microseconds, as in the standard and in DataSets. DataFusion uses nanoseconds,
//! which cover only 1677 to 2262. A literal with more than six fractional digits keeps them.

use datafusion::sql::sqlparser::ast::{ArrayElemTypeDef, DataType, Expr, TypedString, Value};

const MICROSECONDS: u64 = 6;
const NANOSECONDS: u64 = 9;

/// The same for a single expression; its subexpressions are visited separately.
pub(super) fn in_microseconds(expr: &mut Expr) {
    match expr {
        Expr::Cast { data_type, expr, .. } => {
            let digits = match expr.as_ref() {
                Expr::Value(value) => digits_of(&value.value),
                _ => 0,
            };
            with_precision(data_type, digits);
        }
        Expr::TypedString(TypedString { data_type, value, .. }) => with_precision(data_type, digits_of(&value.value)),
        _ => {}
    }
}

fn with_precision(data_type: &mut DataType, digits: usize) {
    match data_type {
        DataType::Timestamp(precision @ None, _) => {
            *precision = Some(if digits > 6 { NANOSECONDS } else { MICROSECONDS });
        }
        DataType::Array(ArrayElemTypeDef::AngleBracket(of) | ArrayElemTypeDef::SquareBracket(of, _)) => {
            with_precision(of, digits);
        }
        _ => {}
    }
}

/// The number of fractional digits of a text.
fn digits_of(value: &Value) -> usize {
    match value {
        Value::SingleQuotedString(text) => fraction_of(text),
        _ => 0,
    }
}

/// The number of fractional digits of a time.
pub(crate) fn fraction_of(text: &str) -> usize {
    text.split_once('.').map_or(0, |(_, rest)| rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len())
}
