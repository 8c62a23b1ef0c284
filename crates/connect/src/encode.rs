//! Encodes rows as bytes: JSON lines, CSV and Parquet.
//!
//! JSON numbers cannot be NaN or infinite, and Arrow's own encoder turns these into nulls. Here they become the strings
//! "NaN", "Infinity" and "-Infinity", as in Jackson (and thus Spark and Kafka's tools), which can be read back into
//! floats.

use std::io::{self, Write};
use std::sync::{Arc, LazyLock, Mutex};

use arrow::array::{Array, ArrowPrimitiveType, AsArray, RecordBatch};
use arrow::datatypes::{DataType, FieldRef, Float16Type, Float32Type, Float64Type, SchemaRef};
use arrow::error::ArrowError;
use arrow::json::writer::{LineDelimited, NullableEncoder, make_encoder};
use arrow::json::{Encoder, EncoderFactory, EncoderOptions, WriterBuilder};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use serde::Deserialize;

/// The output format of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RowFormat {
    /// One object per line; nulls are omitted.
    #[default]
    Json,
    /// Values separated by commas.
    Csv,
    /// Columns, in files with a footer.
    Parquet,
}

/// The amount that a Parquet file buffers before it is written as a row group.
const GROUP_BYTES: usize = 32 << 20;

/// Encodes the rows of one file; the caller takes the encoded bytes whenever there are enough.
pub(crate) struct FileEncoder {
    kind: EncoderKind,
    begun: bool,
}

enum EncoderKind {
    Lines { format: RowFormat, bytes: Vec<u8> },
    Parquet { writer: Box<ArrowWriter<SharedBuffer>>, bytes: SharedBuffer },
}

/// The output of a Parquet writer, which owns its writer and does not return the bytes.
#[derive(Clone, Default)]
struct SharedBuffer(Arc<Mutex<Vec<u8>>>);

impl Write for SharedBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("nothing panics with it locked").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl FileEncoder {
    /// # Errors
    /// For types that the format cannot represent.
    pub(crate) fn new(format: RowFormat, schema: &SchemaRef) -> Result<Self, ArrowError> {
        let kind = match format {
            RowFormat::Parquet => {
                let bytes = SharedBuffer::default();
                let settings = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
                let writer = ArrowWriter::try_new(bytes.clone(), SchemaRef::clone(schema), Some(settings));
                EncoderKind::Parquet {
                    writer: Box::new(writer.map_err(|error| ArrowError::ParquetError(error.to_string()))?),
                    bytes,
                }
            }
            RowFormat::Json | RowFormat::Csv => EncoderKind::Lines { format, bytes: Vec::new() },
        };
        Ok(FileEncoder { kind, begun: false })
    }

    pub(crate) fn write(&mut self, rows: &RecordBatch) -> Result<(), ArrowError> {
        let is_new = !std::mem::replace(&mut self.begun, true);
        match &mut self.kind {
            EncoderKind::Lines { format, bytes } => format.encode(rows, is_new, bytes),
            EncoderKind::Parquet { writer, .. } => {
                let failed = |error: ParquetError| ArrowError::ParquetError(error.to_string());
                writer.write(rows).map_err(failed)?;
                // Its buffer grows until a group is full; groups limited only by rows could have any size.
                if writer.in_progress_size() >= GROUP_BYTES { writer.flush().map_err(failed) } else { Ok(()) }
            }
        }
    }

    /// Marks the end of the rows: the rest of the file becomes ready.
    pub(crate) fn finish(&mut self) -> Result<(), ArrowError> {
        match &mut self.kind {
            EncoderKind::Lines { .. } => Ok(()),
            EncoderKind::Parquet { writer, .. } => {
                writer.finish().map(drop).map_err(|error| ArrowError::ParquetError(error.to_string()))
            }
        }
    }

    /// Number of bytes that are ready.
    pub(crate) fn ready(&self) -> usize {
        match &self.kind {
            EncoderKind::Lines { bytes, .. } => bytes.len(),
            EncoderKind::Parquet { bytes, .. } => bytes.0.lock().expect("nothing panics with it locked").len(),
        }
    }

    /// Takes the bytes that are ready.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        match &mut self.kind {
            EncoderKind::Lines { bytes, .. } => std::mem::take(bytes),
            EncoderKind::Parquet { bytes, .. } => {
                std::mem::take(&mut *bytes.0.lock().expect("nothing panics with it locked"))
            }
        }
    }
}

impl RowFormat {
    /// The extension of files in this format.
    pub(crate) fn ending(self) -> &'static str {
        match self {
            RowFormat::Json => "jsonl",
            RowFormat::Csv => "csv",
            RowFormat::Parquet => "parquet",
        }
    }

    /// Appends rows to `out`, one line each. For CSV, a line with the column names comes first if `header` is set.
    ///
    /// # Errors
    /// For types that the format cannot represent.
    pub(crate) fn encode(self, rows: &RecordBatch, header: bool, out: &mut Vec<u8>) -> Result<(), ArrowError> {
        match self {
            RowFormat::Json => json_lines(rows, NotFinite::Text, out),
            RowFormat::Csv => arrow::csv::WriterBuilder::new().with_header(header).build(out).write(rows),
            RowFormat::Parquet => Err(ArrowError::NotYetImplemented("Parquet has files, not lines".into())),
        }
    }
}

/// What to do with a NaN or an infinity in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotFinite {
    /// Write a string.
    Text,
    /// Fail: a schema promises only numbers.
    Refused,
}

/// Appends rows to `out`, one object per line. Nulls are omitted, except those in maps, whose keys would be lost with
/// them.
///
/// # Errors
/// For types that JSON cannot represent, and for values that are rejected.
pub(crate) fn json_lines(rows: &RecordBatch, not_finite: NotFinite, out: &mut Vec<u8>) -> Result<(), ArrowError> {
    let mut writer = WriterBuilder::new().with_encoder_factory(Arc::new(not_finite)).build::<_, LineDelimited>(out);
    writer.write(rows)?;
    writer.finish()
}

/// Encoders borrow their options from the caller, so the default options must be static.
static PLAIN: LazyLock<EncoderOptions> = LazyLock::new(EncoderOptions::default);
static TEXT_IN_MAPS: LazyLock<EncoderOptions> = LazyLock::new(|| NotFinite::Text.in_maps());
static REFUSED_IN_MAPS: LazyLock<EncoderOptions> = LazyLock::new(|| NotFinite::Refused.in_maps());

impl NotFinite {
    fn in_maps(self) -> EncoderOptions {
        EncoderOptions::default().with_explicit_nulls(true).with_encoder_factory(Arc::new(self))
    }
}

impl EncoderFactory for NotFinite {
    fn make_default_encoder<'a>(
        &self,
        field: &'a FieldRef,
        array: &'a dyn Array,
        options: &'a EncoderOptions,
    ) -> Result<Option<NullableEncoder<'a>>, ArrowError> {
        let texts = match array.data_type() {
            DataType::Float16 => texts::<Float16Type>(array, |value| value.to_f64()),
            DataType::Float32 => texts::<Float32Type>(array, f64::from),
            DataType::Float64 => texts::<Float64Type>(array, |value| value),
            DataType::Map(..) if !options.explicit_nulls() => {
                let options = match self {
                    NotFinite::Text => &*TEXT_IN_MAPS,
                    NotFinite::Refused => &*REFUSED_IN_MAPS,
                };
                return make_encoder(field, array, options).map(Some);
            }
            _ => return Ok(None),
        };
        let Some(found) = texts.iter().flatten().next() else { return Ok(None) };
        if *self == NotFinite::Refused {
            return Err(ArrowError::JsonError(format!(
                "column \"{}\" has {found}, which is not a number in a JSON schema: make it null first, or write \
                 without `registry`",
                field.name()
            )));
        }
        let plain = make_encoder(field, array, &PLAIN)?;
        Ok(Some(NullableEncoder::new(Box::new(FloatTexts { plain, texts }), array.nulls().cloned())))
    }
}

/// For each number, the string that replaces it, if any.
fn texts<T: ArrowPrimitiveType>(array: &dyn Array, wide: impl Fn(T::Native) -> f64) -> Vec<Option<&'static str>> {
    let text = |value: f64| match value {
        _ if value.is_finite() => None,
        _ if value.is_nan() => Some("\"NaN\""),
        _ if value > 0.0 => Some("\"Infinity\""),
        _ => Some("\"-Infinity\""),
    };
    array.as_primitive::<T>().iter().map(|value| value.and_then(|value| text(wide(value)))).collect()
}

/// Numbers of which some are written as strings.
struct FloatTexts<'a> {
    plain: NullableEncoder<'a>,
    texts: Vec<Option<&'static str>>,
}

impl Encoder for FloatTexts<'_> {
    fn encode(&mut self, row: usize, out: &mut Vec<u8>) {
        match self.texts[row] {
            Some(text) => out.extend_from_slice(text.as_bytes()),
            None => self.plain.encode(row, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Float64Array, ListArray, MapBuilder, StringBuilder};
    use arrow::array::{Float64Builder, Int64Array};

    use super::*;
    use crate::decode::{RecordDecoder, RecordLayout};

    /// Such numbers used to become nulls, and nulls in a map were lost.
    #[test]
    fn what_json_has_no_number_for_is_read_as_it_was_written() {
        let some = [Some(f64::NAN), Some(f64::INFINITY), Some(f64::NEG_INFINITY), Some(1.5), None];
        let x: ArrayRef = Arc::new(Float64Array::from(some.to_vec()));
        let lists = some.map(|value| Some(vec![value, Some(0.25)]));
        let list: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Float64Type, _, _>(lists));
        let mut map = MapBuilder::new(None, StringBuilder::new(), Float64Builder::new());
        for value in some {
            map.keys().append_value("a");
            map.values().append_option(value);
            map.append(true).unwrap();
        }
        let map: ArrayRef = Arc::new(map.finish());
        let rows = RecordBatch::try_from_iter_with_nullable([("x", x, true), ("list", list, true), ("map", map, true)]);
        let rows = rows.unwrap();
        let mut bytes = Vec::new();
        RowFormat::Json.encode(&rows, false, &mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], r#"{"x":"NaN","list":["NaN",0.25],"map":{"a":"NaN"}}"#);
        assert_eq!(lines[3], r#"{"x":1.5,"list":[1.5,0.25],"map":{"a":1.5}}"#);
        assert_eq!(lines[4], r#"{"list":[null,0.25],"map":{"a":null}}"#);
        let decoder = RecordDecoder::new(RecordLayout::Json, rows.schema()).unwrap();
        let lines: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
        let read = decoder.decode(&lines, |at, reason| Err(format!("{at}: {reason}"))).unwrap();
        // NaN does not equal anything, but its text equals itself.
        assert_eq!(format!("{read:?}"), format!("{rows:?}"));

        let error = json_lines(&rows, NotFinite::Refused, &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains(r#"column "x" has "NaN""#), "{error}");
        let n: ArrayRef = Arc::new(Int64Array::from(vec![1]));
        let rows = RecordBatch::try_from_iter([("n", n)]).unwrap();
        json_lines(&rows, NotFinite::Refused, &mut Vec::new()).unwrap();
    }
}
