//! Formats that several sources share: their names in options, their layouts, and the schemas of their rows.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use serde::Deserialize;

use crate::decode::RecordLayout;
use crate::error::ConnectError;
use crate::options;

/// The format of messages, each of which is a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MessageFormat {
    #[default]
    Json,
    Text,
    /// Bytes, unchanged.
    Raw,
}

impl MessageFormat {
    pub(crate) fn layout(self) -> RecordLayout {
        match self {
            MessageFormat::Json => RecordLayout::Json,
            MessageFormat::Text => RecordLayout::Text,
            MessageFormat::Raw => RecordLayout::Raw,
        }
    }
}

/// The format of lines, each of which is a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LineFormat {
    #[default]
    Json,
    Csv,
    Text,
}

/// Options for sources of lines.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default)]
pub(crate) struct LineOptions {
    format: LineFormat,
    /// For CSV: the separator of values.
    delimiter: char,
}

impl Default for LineOptions {
    fn default() -> Self {
        LineOptions { format: LineFormat::default(), delimiter: ',' }
    }
}

impl LineOptions {
    /// The layout of lines.
    ///
    /// # Errors
    /// A description, if the delimiter is more than one byte.
    pub(crate) fn layout(self) -> Result<RecordLayout, String> {
        let LineOptions { format, delimiter } = self;
        if !delimiter.is_ascii() {
            return Err("`delimiter` must be one ASCII character".into());
        }
        Ok(match format {
            LineFormat::Json => RecordLayout::Json,
            LineFormat::Csv => RecordLayout::Csv { delimiter: delimiter as u8 },
            LineFormat::Text => RecordLayout::Text,
        })
    }
}

/// The schema of rows of a layout. Text and raw bytes have one column, called `column` unless the given schema has
/// another name; other layouts use the given schema.
///
/// # Errors
/// If there is no schema, or if it has other columns.
pub(crate) fn schema(
    connector: &str,
    layout: RecordLayout,
    column: &str,
    given: Option<SchemaRef>,
) -> Result<SchemaRef, ConnectError> {
    let (name, of, kinds): (_, _, &[DataType]) = match layout {
        RecordLayout::Text => ("text", "strings", &[DataType::Utf8, DataType::LargeUtf8, DataType::Utf8View]),
        RecordLayout::Raw => ("raw", "bytes", &[DataType::Binary, DataType::LargeBinary, DataType::BinaryView]),
        RecordLayout::Json | RecordLayout::Csv { .. } => return options::needed(connector, given),
    };
    let Some(given) = given else {
        return Ok(Arc::new(Schema::new(vec![Field::new(column, kinds[0].clone(), false)])));
    };
    match given.fields().as_ref() {
        [field] if kinds.contains(field.data_type()) => Ok(given),
        _ => {
            let reason = format!("{name} has one column, of {of}: omit the schema, or use that one");
            Err(ConnectError::option(connector, reason))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text with several columns, or a format without a schema, would otherwise fail at each record instead of at the
    /// start.
    #[test]
    fn text_and_bytes_have_one_column() {
        let of = |fields: &[(&str, DataType)]| {
            let field = |(name, kind): &(&str, DataType)| Field::new(*name, kind.clone(), true);
            Some(Arc::new(Schema::new(fields.iter().map(field).collect::<Vec<_>>())))
        };
        let text = schema("x", RecordLayout::Text, "line", None).unwrap();
        assert_eq!((text.field(0).name().as_str(), text.field(0).data_type()), ("line", &DataType::Utf8));
        let named = of(&[("word", DataType::LargeUtf8)]);
        assert_eq!(schema("x", RecordLayout::Text, "line", named.clone()).ok(), named);
        assert_eq!(schema("x", RecordLayout::Raw, "value", None).unwrap().field(0).data_type(), &DataType::Binary);
        for (layout, given) in [
            (RecordLayout::Text, of(&[])),
            (RecordLayout::Text, of(&[("a", DataType::Int64)])),
            (RecordLayout::Raw, of(&[("a", DataType::Utf8)])),
            (RecordLayout::Raw, of(&[("a", DataType::Binary), ("b", DataType::Binary)])),
        ] {
            let error = schema("x", layout, "value", given).unwrap_err().to_string();
            assert!(error.contains("has one column, of "), "{error}");
        }
        let error = schema("x", RecordLayout::Json, "value", None).unwrap_err().to_string();
        assert!(error.contains("needs a schema"), "{error}");
    }
}
