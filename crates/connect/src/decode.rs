//! Decodes bytes to rows: JSON, CSV, text, Avro and raw bytes, where some records may be malformed.
//!
//! Many records are decoded at a time. If that fails, the bad record is found by its number, or by bisection; the
//! others cost no more than usual. Each record makes exactly one row: two objects, or half of one, are bad.

use std::cell::Cell;
use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, RecordBatch, StringArray};
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow_avro::schema::AvroSchema;

use tidemill_json::{LossDetector, LosslessReader, RowReader, has_overflown, rounded, with_guard_digits};

use crate::avro::AvroSchemas;
use crate::error::DecodeFailure;

/// The encoding of a row in a record's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordLayout {
    /// An object.
    Json,
    /// Values separated by delimiters.
    Csv {
        /// The separator of values.
        delimiter: u8,
    },
    /// UTF-8 text, unchanged.
    Text,
    /// Bytes, unchanged.
    Raw,
}

/// Decodes records.
#[derive(Clone, Debug)]
pub(crate) struct RecordDecoder {
    kind: DecoderKind,
    schema: SchemaRef,
    /// For JSON: reads most records, and detects values in the others that Arrow would truncate.
    rows: Option<RowReader>,
    cuts: LossDetector,
    /// For JSON: the schema with one more digit for decimals.
    guarded: SchemaRef,
    /// For CSV: reads values without truncating any.
    exact: LosslessReader,
}

#[derive(Clone, Debug)]
enum DecoderKind {
    Layout(RecordLayout),
    Avro(AvroSchemas),
}

impl RecordDecoder {
    /// A decoder from records of `layout` to rows of `schema`.
    ///
    /// # Errors
    /// A description, for types that cannot be read from that layout.
    pub(crate) fn new(layout: RecordLayout, schema: SchemaRef) -> Result<Self, String> {
        let rows = if layout == RecordLayout::Json { RowReader::new(&schema, true) } else { None };
        let decoder = RecordDecoder::of(DecoderKind::Layout(layout), schema, rows);
        // Types are otherwise checked only when there is a row.
        if layout == RecordLayout::Json {
            json(&decoder.guarded, 1).map_err(|error| plain(&error))?;
        }
        Ok(decoder)
    }

    fn of(kind: DecoderKind, schema: SchemaRef, rows: Option<RowReader>) -> Self {
        let (cuts, exact, guarded) =
            (LossDetector::of(schema.fields()), LosslessReader::new(&schema), with_guard_digits(&schema));
        RecordDecoder { kind, schema, rows, cuts, guarded, exact }
    }

    /// A decoder for Avro records, whose schemas determine the rows.
    pub(crate) fn of_avro(avro: AvroSchemas) -> Self {
        let schema = SchemaRef::clone(avro.schema());
        RecordDecoder::of(DecoderKind::Avro(avro), schema, None)
    }

    /// For Avro: tells the decoder the writer schema of records with this number. Needed only once.
    ///
    /// # Errors
    /// A description, if the records cannot be read.
    pub(crate) fn learn(&mut self, number: u32, schema: &str) -> Result<(), String> {
        match &mut self.kind {
            DecoderKind::Avro(avro) if !avro.knows(number) => avro.learn(number, AvroSchema::new(schema.to_owned())),
            _ => Ok(()),
        }
    }

    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The rows of `records`, in order; calls `bad` for those that are malformed, with their number.
    ///
    /// # Errors
    /// Those of `bad`.
    pub(crate) fn decode<E>(
        &self,
        records: &[&[u8]],
        mut bad: impl FnMut(usize, &str) -> Result<(), E>,
    ) -> Result<RecordBatch, E> {
        let mut bad = |at: usize, reason: &str| bad(at, compressed(records[at]).unwrap_or(reason));
        let mut good = Vec::new();
        let mut stack = vec![(0, records.len())];
        while let Some((begin, end)) = stack.pop() {
            if begin == end {
                continue;
            }
            match self.some(&records[begin..end]) {
                Ok(rows) => good.push(rows),
                Err(DecodeFailure { reason, .. }) if end - begin == 1 => bad(begin, &reason)?,
                Err(DecodeFailure { at: Some(at), reason }) => {
                    // The values of the records before it may be bad.
                    if at == 0 {
                        bad(begin, &reason)?;
                        stack.push((begin + 1, end));
                    } else {
                        stack.extend([(begin + at, end), (begin, begin + at)]);
                    }
                }
                Err(DecodeFailure { at: None, .. }) => {
                    let middle = begin + (end - begin) / 2;
                    stack.extend([(middle, end), (begin, middle)]);
                }
            }
        }
        Ok(match good.len() {
            0 => RecordBatch::new_empty(SchemaRef::clone(&self.schema)),
            1 => good.remove(0),
            _ => concat_batches(&self.schema, &good).expect("they have one schema"),
        })
    }

    fn some(&self, records: &[&[u8]]) -> Result<RecordBatch, DecodeFailure> {
        match &self.kind {
            DecoderKind::Layout(RecordLayout::Json) => self.some_json(records),
            DecoderKind::Layout(RecordLayout::Csv { delimiter }) => self.some_csv(records, *delimiter),
            DecoderKind::Layout(RecordLayout::Text) => self.some_text(records),
            DecoderKind::Layout(RecordLayout::Raw) => self.some_raw(records),
            DecoderKind::Avro(avro) => avro.decode(records),
        }
    }

    fn some_json(&self, records: &[&[u8]]) -> Result<RecordBatch, DecodeFailure> {
        if let Some(rows) = self.rows.as_ref().and_then(|rows| rows.read(records)) {
            return Ok(rows);
        }
        let mut decoder = json(&self.guarded, records.len() + 1).map_err(|error| failure(&error, None))?;
        for (at, record) in records.iter().enumerate() {
            let wrong = |reason: &str| DecodeFailure { reason: reason.into(), at: Some(at) };
            let read = decoder.decode(record).map_err(|error| failure(&error, Some(at)))?;
            if decoder.has_partial_record() {
                return Err(wrong("the JSON object is not closed"));
            }
            match decoder.len() {
                rows if rows <= at => return Err(wrong("there is no JSON object")),
                rows if rows > at + 1 || read < record.len() => {
                    return Err(wrong("there is more than one JSON object"));
                }
                _ => {}
            }
            if let Some(reason) = self.cuts.cut(record) {
                return Err(wrong(&reason));
            }
        }
        let rows = decoder.flush().and_then(|rows| rows.map(|rows| rounded(rows, &self.schema)).transpose());
        match rows {
            Ok(Some(rows)) if records.iter().any(|record| has_overflown(&rows, record)) => {
                // With several records, the bad one is unknown: they are checked separately.
                let at = (records.len() == 1).then_some(0);
                Err(DecodeFailure { reason: "a number is too large for its column".into(), at })
            }
            Ok(Some(rows)) => Ok(rows),
            Ok(None) => Err(DecodeFailure { reason: "there is no JSON object".into(), at: Some(0) }),
            Err(error) => Err(failure(&error, None)),
        }
    }

    fn some_csv(&self, records: &[&[u8]], delimiter: u8) -> Result<RecordBatch, DecodeFailure> {
        // The bad record, if its bytes alone show that; bad values are found by the reader of the values.
        let failed_at = Cell::new(None);
        let read = |schema: &SchemaRef| {
            let builder = arrow::csv::ReaderBuilder::new(SchemaRef::clone(schema));
            let mut decoder = builder.with_delimiter(delimiter).with_batch_size(records.len() + 1).build_decoder();
            for (at, record) in records.iter().enumerate() {
                failed_at.set(Some(at));
                for bytes in [record, b"\n".as_slice()] {
                    // An empty line is not a row, and the decoder would take an empty slice for the end of input.
                    if !bytes.is_empty() {
                        decoder.decode(bytes)?;
                    }
                }
                if decoder.capacity() != records.len() - at {
                    let reason = "the line is not a row: it is empty, or a quote is not closed";
                    return Err(ArrowError::CsvError(reason.into()));
                }
            }
            failed_at.set(None);
            decoder.flush()?.ok_or_else(|| ArrowError::CsvError("there is no row".into()))
        };
        self.exact.read(None, read).map_err(|error| failure(&error, failed_at.get()))
    }

    fn some_text(&self, records: &[&[u8]]) -> Result<RecordBatch, DecodeFailure> {
        let text = |(at, record): (usize, &&[u8])| {
            let text = std::str::from_utf8(record).map(str::to_owned);
            text.map_err(|_| DecodeFailure { reason: "it is not UTF-8".into(), at: Some(at) })
        };
        let texts: Vec<String> = records.iter().enumerate().map(text).collect::<Result<_, _>>()?;
        self.only_column(Arc::new(StringArray::from(texts)))
    }

    fn some_raw(&self, records: &[&[u8]]) -> Result<RecordBatch, DecodeFailure> {
        self.only_column(Arc::new(BinaryArray::from_iter_values(records)))
    }

    fn only_column(&self, column: ArrayRef) -> Result<RecordBatch, DecodeFailure> {
        cast(&column, self.schema.field(0).data_type())
            .and_then(|column| RecordBatch::try_new(SchemaRef::clone(&self.schema), vec![column]))
            .map_err(|error| failure(&error, None))
    }
}

/// The remedy if bytes are compressed: no text starts like compressed data.
pub(crate) fn compressed(bytes: &[u8]) -> Option<&'static str> {
    let begins: [&[u8]; 3] = [b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ"];
    begins.iter().any(|begin| bytes.starts_with(begin)).then_some(
        "it is compressed and must be unpacked first (tidemill.read_json and read_csv unpack whole files themselves)",
    )
}

fn json(schema: &SchemaRef, rows: usize) -> Result<arrow::json::reader::Decoder, ArrowError> {
    // A number is accepted where text is expected: some programs write ids as numbers, others as text.
    let builder = arrow::json::ReaderBuilder::new(SchemaRef::clone(schema)).with_coerce_primitive(true);
    builder.with_batch_size(rows).build_decoder()
}

fn failure(error: &ArrowError, at: Option<usize>) -> DecodeFailure {
    DecodeFailure { reason: plain(error), at }
}

/// Arrow's message without the name of the error kind.
fn plain(error: &ArrowError) -> String {
    let text = error.to_string();
    let kinds = ["Csv error: ", "Parser error: ", "Json error: ", "Cast error: "];
    kinds.iter().fold(text.as_str(), |text, kind| text.strip_prefix(kind).unwrap_or(text)).to_owned()
}

#[cfg(test)]
mod tests {
    use arrow::array::AsArray;
    use arrow::datatypes::{DataType, Field, Int64Type, Schema};
    use proptest::prelude::*;

    use super::*;

    fn schema() -> SchemaRef {
        let text = Field::new("text", DataType::Utf8, true);
        Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true), text]))
    }

    fn decode(layout: RecordLayout, records: &[&[u8]]) -> (Vec<i64>, Vec<usize>) {
        let mut bad = Vec::new();
        let decoder = RecordDecoder::new(layout, schema()).unwrap();
        let rows = decoder
            .decode(records, |at, _| {
                bad.push(at);
                Ok::<(), ()>(())
            })
            .unwrap();
        (rows.column(0).as_primitive::<Int64Type>().values().to_vec(), bad)
    }

    /// Records that together look like the right number of rows must not pass.
    #[test]
    fn every_record_is_one_row() {
        let json: [&[u8]; 8] = [
            br#"{"n":1}"#,
            br#"{"n":2}{"n":3}"#,
            b"",
            br#"{"n":4} {"n":"#,
            b"5}",
            br#"{"n":"x"}"#,
            b"[6]",
            b"{\"n\":7,\n\"text\":\"\xc3\xa4\"}",
        ];
        assert_eq!(decode(RecordLayout::Json, &json), (vec![1, 7], vec![1, 2, 3, 4, 5, 6]));
        let json: [&[u8]; 3] = [br#"{"n":1}"#, br#"{"n":2.5}"#, br#"{"n":3.0}"#];
        assert_eq!(decode(RecordLayout::Json, &json), (vec![1, 3], vec![1]), "a number is not cut");
        let csv: [&[u8]; 7] = [b"1,a", b"2,\"b", b"c\"", b"3", b"", b"x,y", b"4,\"d\"\r"];
        assert_eq!(decode(RecordLayout::Csv { delimiter: b',' }, &csv), (vec![1, 4], vec![1, 2, 3, 4, 5]));
    }

    proptest! {
        /// Catches a bad record, anywhere, that affects good ones or passes as valid.
        #[test]
        fn bad_records_are_found_wherever_they_are(
            kinds in prop::collection::vec(0usize..6, 0..200), csv in any::<bool>(),
        ) {
            let (good, wrong): (fn(usize) -> String, [&str; 5]) = match csv {
                false => (|n| format!("{{\"n\":{n},\"text\":\"t\"}}"), ["{", "}", "{\"n\":1.5e400}", "nonsense", "\u{0}"]),
                true => (|n| format!("{n},t"), ["1", "1,2,3", "x,y", "\"", ""]),
            };
            let of = |(n, kind): (usize, &usize)| if *kind < 5 && n % 3 == 0 { wrong[*kind].to_owned() } else { good(n) };
            let texts: Vec<String> = kinds.iter().enumerate().map(of).collect();
            let is_bad = |n: &usize| kinds[*n] < 5 && n.is_multiple_of(3);
            let records: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
            let (rows, mut bad) = decode(if csv { RecordLayout::Csv { delimiter: b',' } } else { RecordLayout::Json }, &records);
            bad.sort_unstable();
            prop_assert_eq!(bad, (0..kinds.len()).filter(is_bad).collect::<Vec<_>>());
            let expected: Vec<i64> = (0..kinds.len()).filter(|n| !is_bad(n)).map(|n| n as i64).collect();
            prop_assert_eq!(rows, expected);
        }
    }
}
