//! CSV, JSON lines and text with malformed rows: finds these, and reads all others.
//!
//! Lines are decoded a block at a time, as in DataFusion. A block that fails is bisected until the bad rows stand
//! alone, so readable rows cost no more than usual.

use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, StringArray, StringViewArray, UInt64Array,
};
use arrow::compute::nullif;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::error::ArrowError;
use regex::Regex;
use tidemill_json::{
    LossDetector, LosslessReader, RowReader, has_overflown, is_canonical, is_code, rounded, with_guard_digits,
};

use crate::bad_rows::{BadRow, BadRows};
use crate::error::{DataSetError, Result};
use crate::files::csv_layout::CsvLayout;
use crate::files::encoding::FileEncoding;
use crate::files::lines::{ByteRange, lines_until, read_blocks};
use crate::files::paths::InputFile;
use crate::lossless_cast::is_text;

/// Rows decoded at a time: DataFusion's own batch size.
const BATCH_ROWS: usize = 8192;
/// A longer quoted value has lost its closing quote.
const ROW_BYTES_MAX: usize = 16 << 20;
/// Maximum length of a bad row's text that is kept.
const TEXT_BYTES_MAX: usize = 1 << 16;

/// What to do with unreadable rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum OnError {
    /// The query fails, and names the first one.
    #[default]
    Raise,
    /// They are skipped and counted.
    Skip,
    /// They are skipped, counted, and written to this local folder.
    Quarantine(PathBuf),
}

/// The contents of lines.
#[derive(Debug, Clone)]
pub(crate) enum LineLayout {
    Csv(CsvLayout),
    Json,
    Text,
}

/// The decoder of rows.
#[derive(Clone, Debug)]
pub(crate) struct RowDecoder {
    layout: LineLayout,
    schema: SchemaRef,
    /// For JSON: the same schema with one more digit for decimals.
    guarded: SchemaRef,
    /// For CSV: reads values without truncating any.
    exact: LosslessReader,
    /// Matches values that stand for null.
    null: Option<Regex>,
    /// Required columns of CSV; `None` for all.
    projection: Option<Vec<usize>>,
    /// For JSON: reads most rows, and detects values in the others that would be truncated.
    plain: Option<RowReader>,
    cuts: Option<LossDetector>,
}

/// An item of a file's piece.
pub(crate) enum FileItem {
    Rows(RecordBatch),
    Bad(BadRow),
}

impl RowDecoder {
    pub(crate) fn new(layout: LineLayout, schema: SchemaRef) -> Result<Self> {
        let null = match &layout {
            // The pattern has to match the whole value.
            LineLayout::Csv(CsvLayout { null: Some(pattern), .. }) => Some(
                Regex::new(&format!("^(?:{pattern})$"))
                    .map_err(|error| DataSetError::Query(format!("null={pattern:?}: {error}")))?,
            ),
            _ => None,
        };
        let (guarded, is_json) = (with_guard_digits(&schema), matches!(layout, LineLayout::Json));
        let plain = if is_json { RowReader::new(&guarded, false) } else { None };
        let cuts = is_json.then(|| LossDetector::of(schema.fields()));
        let exact = match &layout {
            LineLayout::Csv(layout) if layout.strict => LosslessReader::strict(&schema),
            _ => LosslessReader::new(&schema),
        };
        Ok(RowDecoder { layout, guarded, exact, schema, null, projection: None, plain, cuts })
    }

    /// The same for some of the columns.
    pub(crate) fn projected(&self, projection: Option<&Vec<usize>>) -> Self {
        RowDecoder { projection: projection.cloned(), ..self.clone() }
    }

    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Whether files can only be read from the beginning.
    pub(crate) fn needs_whole_files(&self) -> bool {
        matches!(&self.layout, LineLayout::Csv(layout) if layout.newlines_in_values)
    }

    /// Passes the rows of a piece, good and bad, to `give` in order, until it returns false or no more rows are wanted.
    pub(crate) fn read_piece(
        &self,
        piece: &ByteRange,
        packing: FileEncoding,
        is_wanted: &dyn Fn() -> bool,
        mut give: impl FnMut(FileItem) -> Result<bool>,
    ) -> Result<()> {
        let mut has_header = piece.start == 0 && matches!(&self.layout, LineLayout::Csv(layout) if layout.has_header);
        // A row that continues in the next block.
        let mut carried: Vec<u8> = Vec::new();
        // Lines in the piece before `carried`, and lines in the file before the piece, once they are needed.
        let (mut lines, mut lines_before) = (0, (piece.start == 0).then_some(0));
        let mut first_start = None;
        read_blocks(piece, packing, is_wanted, |block, block_start, ended| {
            let piece_start = *first_start.get_or_insert(block_start);
            let start = block_start - carried.len() as u64;
            let bytes = if carried.is_empty() { block } else { [std::mem::take(&mut carried), block].concat() };
            let (mut rows, rest) = self.rows(&bytes, ended);
            let mine = rows.partition_point(|row| start + (row.start as u64) < piece.end);
            let more = mine == rows.len();
            rows.truncate(mine);
            if has_header && let Some(header) = rows.iter().position(|row| !self.is_blank(&bytes[row.clone()])) {
                rows.drain(..=header);
                has_header = false;
            }
            for some in rows.chunks(BATCH_ROWS) {
                let mut stack = vec![some];
                while let Some(some) = stack.pop() {
                    let item = match self.decode(&bytes, some) {
                        Ok(batch) if batch.num_rows() == 0 => continue,
                        Ok(batch) => FileItem::Rows(batch),
                        Err(reason) => {
                            let [row] = some else {
                                let (left, right) = some.split_at(some.len() / 2);
                                stack.extend([right, left]);
                                continue;
                            };
                            let before = match lines_before {
                                Some(known) => known,
                                None => *lines_before.insert(lines_until(&piece.file, packing, piece_start)?),
                            };
                            let line = before + lines + count_lines(&bytes[..row.start]) + 1;
                            let text = &bytes[row.start..row.end.min(row.start + TEXT_BYTES_MAX)];
                            let text = String::from_utf8_lossy(text).trim_end_matches(['\r', '\n']).to_owned();
                            FileItem::Bad(BadRow { file: piece.file.to_string(), line, reason, text })
                        }
                    };
                    if !give(item)? {
                        return Ok(false);
                    }
                }
            }
            lines += count_lines(&bytes[..rest]);
            carried = bytes[rest..].to_vec();
            Ok(more)
        })
    }

    /// The ranges of rows, and the start of the first incomplete row.
    fn rows(&self, bytes: &[u8], ended: bool) -> (Vec<Range<usize>>, usize) {
        let mut rows = Vec::new();
        let mut start = 0;
        let quotes = match &self.layout {
            LineLayout::Csv(layout) if layout.newlines_in_values => Some(layout),
            _ => None,
        };
        // Line ends within an open quote. If the quote is never closed, its first line is a separate bad row.
        let mut open = Vec::new();
        let mut scan = quotes.map(CsvScan::new);
        let mut at = 0;
        while at < bytes.len() {
            let end = memchr::memchr(b'\n', &bytes[at..]).map_or(bytes.len(), |found| at + found + 1);
            let is_open = scan.as_mut().is_some_and(|scan| {
                scan.see(&bytes[at..end]);
                scan.quoted
            });
            at = end;
            if is_open {
                open.push(end);
                let lost = end - start > ROW_BYTES_MAX || (ended && end == bytes.len());
                if !lost {
                    continue;
                }
                at = open[0];
            } else if end == bytes.len() && !ended && !bytes.ends_with(b"\n") {
                break;
            }
            rows.push(start..at);
            open.clear();
            start = at;
            scan = quotes.map(CsvScan::new);
        }
        (rows, start)
    }

    /// Whether this is not a row: an empty line or a comment.
    fn is_blank(&self, row: &[u8]) -> bool {
        match &self.layout {
            LineLayout::Csv(layout) => {
                row.iter().all(|byte| b"\r\n".contains(byte))
                    || (layout.comment.is_some() && row.first() == layout.comment.as_ref())
            }
            LineLayout::Json => row.iter().all(u8::is_ascii_whitespace),
            LineLayout::Text => false,
        }
    }

    /// The decoded rows, or the problem of one of them.
    fn decode(&self, bytes: &[u8], rows: &[Range<usize>]) -> Result<RecordBatch, String> {
        if let Some(plain) = &self.plain {
            let rows = rows.iter().map(|row| &bytes[Range::clone(row)]).filter(|row| !self.is_blank(row));
            if let Some(batch) = plain.read(&rows.collect::<Vec<_>>()) {
                return Ok(batch);
            }
        }
        let whole = &bytes[rows[0].start..rows[rows.len() - 1].end];
        if let Some(cuts) = self.cuts.as_ref().filter(|cuts| cuts.may_cut(whole))
            && let Some(reason) = rows.iter().find_map(|row| cuts.cut(&bytes[Range::clone(row)]))
        {
            return Err(reason);
        }
        let batch = match &self.layout {
            LineLayout::Csv(layout) => self.decode_csv(layout, whole, rows.len()),
            LineLayout::Json => self.decode_json(whole, rows.len()),
            LineLayout::Text => self.decode_text(bytes, rows),
        };
        let batch = batch.map_err(|error| self.reason(&error))?;
        let wanted = rows.iter().filter(|row| !self.is_blank(&bytes[Range::clone(row)])).count();
        if batch.num_rows() == wanted {
            return Ok(batch);
        }
        match &self.layout {
            // For a single row, the reader decides what a row is.
            _ if rows.len() > 1 => Err("rows and lines differ in number".into()),
            LineLayout::Json if batch.num_rows() < wanted => Err("incomplete JSON object".into()),
            _ => Ok(batch),
        }
    }

    fn decode_csv(&self, layout: &CsvLayout, bytes: &[u8], rows: usize) -> Result<RecordBatch, ArrowError> {
        if rows == 1 && fields(bytes, layout).is_none() {
            return Err(ArrowError::CsvError("a quote is not closed".into()));
        }
        let read = |schema: &SchemaRef| self.read_csv(layout, bytes, rows, schema);
        let projection = self.projection.as_deref();
        if self.null.is_none() {
            return self.exact.read(projection, read);
        }
        let text = |field: &Arc<Field>| Field::new(field.name(), DataType::Utf8, true);
        let texts = Arc::new(Schema::new(self.schema.fields().iter().map(text).collect::<Vec<_>>()));
        self.exact.typed(&self.without_blanks(read(&texts)?)?, projection)
    }

    /// Reads CSV rows with Arrow into columns of `schema`.
    fn read_csv(
        &self,
        layout: &CsvLayout,
        bytes: &[u8],
        rows: usize,
        schema: &SchemaRef,
    ) -> Result<RecordBatch, ArrowError> {
        let mut builder = arrow::csv::ReaderBuilder::new(SchemaRef::clone(schema))
            .with_delimiter(layout.delimiter)
            .with_quote(layout.quote)
            .with_batch_size(rows + 1);
        if let Some(comment) = layout.comment {
            builder = builder.with_comment(comment);
        }
        if let Some(null) = &self.null {
            builder = builder.with_null_regex(null.clone());
        }
        if let Some(projection) = &self.projection {
            builder = builder.with_projection(projection.clone());
        }
        let mut decoder = builder.build_decoder();
        let mut rest = bytes;
        while !rest.is_empty() {
            match decoder.decode(rest)? {
                0 => return Err(ArrowError::CsvError("more rows than lines".into())),
                read => rest = &rest[read..],
            }
        }
        decoder.decode(&[])?;
        let none = || match &self.projection {
            Some(projection) => schema.project(projection).map(Arc::new),
            None => Ok(SchemaRef::clone(schema)),
        };
        decoder.flush()?.map_or_else(|| Ok(RecordBatch::new_empty(none()?)), Ok)
    }

    /// Turns empty values into nulls, except in string columns.
    fn without_blanks(&self, batch: RecordBatch) -> Result<RecordBatch, ArrowError> {
        let wanted = |column: usize| {
            let column = self.projection.as_ref().map_or(column, |projection| projection[column]);
            self.schema.field(column).data_type()
        };
        let column = |(number, column): (usize, &ArrayRef)| {
            if is_text(wanted(number)) {
                return Ok(Arc::clone(column));
            }
            let texts = column.as_any().downcast_ref::<StringArray>().expect("decoded as text");
            let blank: BooleanArray = texts.iter().map(|text| Some(text == Some(""))).collect();
            nullif(column, &blank)
        };
        let columns = batch.columns().iter().enumerate().map(column).collect::<Result<_, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(batch.schema(), columns, &options)
    }

    fn decode_json(&self, bytes: &[u8], rows: usize) -> Result<RecordBatch, ArrowError> {
        let builder = arrow::json::ReaderBuilder::new(SchemaRef::clone(&self.guarded)).with_batch_size(rows + 1);
        let mut decoder = builder.build_decoder()?;
        let mut rest = bytes;
        while !rest.is_empty() {
            match decoder.decode(rest)? {
                0 => return Err(ArrowError::JsonError("more objects than lines".into())),
                read => rest = &rest[read..],
            }
        }
        if decoder.has_partial_record() {
            return Err(ArrowError::JsonError("the object is not closed".into()));
        }
        let batch = decoder.flush()?.unwrap_or_else(|| RecordBatch::new_empty(SchemaRef::clone(&self.guarded)));
        // With many rows, the bad one is searched for afterwards.
        if has_overflown(&batch, if rows > 1 { b"" } else { bytes }) {
            return Err(ArrowError::JsonError("a number is too large for its column".into()));
        }
        rounded(batch, &self.schema)
    }

    fn decode_text(&self, bytes: &[u8], rows: &[Range<usize>]) -> Result<RecordBatch, ArrowError> {
        let text = |row: &Range<usize>| {
            let line = &bytes[row.clone()];
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            std::str::from_utf8(line).map_err(|_| ArrowError::ParseError("it is not UTF-8".into()))
        };
        let lines: Vec<&str> = rows.iter().map(text).collect::<Result<_, _>>()?;
        let lines: ArrayRef = Arc::new(StringViewArray::from_iter_values(lines));
        RecordBatch::try_new(SchemaRef::clone(&self.schema), vec![lines])
    }

    /// Arrow's description of the problem, without line numbers, which are not those of the file.
    fn reason(&self, error: &ArrowError) -> String {
        let text = error.to_string();
        let plain =
            ["Csv error: ", "Parser error: ", "Json error: ", "Cast error: ", "Invalid argument error: "].iter();
        let text = plain.fold(text.as_str(), |text, prefix| text.strip_prefix(prefix).unwrap_or(text));
        if let Some((_, counts)) = text.split_once("expected ").filter(|_| text.starts_with("incorrect number of")) {
            let (wanted, got) = counts.split_once(" got ").unwrap_or((counts, "others"));
            // It stops at the first excess value.
            let got = if got.starts_with("more than") { "more" } else { got };
            return format!("{wanted} values expected, {got} found");
        }
        if text.starts_with("Encountered invalid UTF-8") {
            return "it is not UTF-8".into();
        }
        if let Some((value, rest)) =
            text.strip_prefix("Error while parsing value ").and_then(|rest| rest.split_once(" as type "))
            && let Some((kind, rest)) = rest.split_once(" for column ")
        {
            let number = rest.split(' ').next().and_then(|number| number.parse::<usize>().ok());
            let name = number.and_then(|number| self.schema.fields().get(number)).map_or("", |field| field.name());
            return format!("{value} is not of type {}, that of column {name:?}", kind.trim_matches('\''));
        }
        if let Some((number, rest)) =
            text.strip_prefix("Error parsing column ").and_then(|rest| rest.split_once(" at line "))
            && let Some((_, reason)) = rest.split_once(": ")
        {
            let name = number.parse().ok().and_then(|number: usize| self.schema.fields().get(number));
            let reason = reason.strip_prefix("Parser error: ").unwrap_or(reason);
            return format!("{reason}, in column {:?}", name.map_or("", |field| field.name()));
        }
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

fn count_lines(bytes: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', bytes).count() as u64
}

/// A scan of a CSV row so far. A quote counts only at the beginning of a value.
struct CsvScan<'a> {
    layout: &'a CsvLayout,
    values: usize,
    begins: bool,
    quoted: bool,
}

impl<'a> CsvScan<'a> {
    fn new(layout: &'a CsvLayout) -> Self {
        CsvScan { layout, values: 1, begins: true, quoted: false }
    }

    fn see(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if self.quoted {
                // A doubled quote closes and immediately reopens.
                self.quoted = byte != self.layout.quote;
                self.begins = !self.quoted;
            } else if byte == self.layout.quote && self.begins {
                (self.quoted, self.begins) = (true, false);
            } else {
                self.begins = byte == self.layout.delimiter;
                self.values += usize::from(self.begins);
            }
        }
    }
}

/// The number of values of a CSV row; `None` if its last quote is open.
fn fields(row: &[u8], layout: &CsvLayout) -> Option<usize> {
    let mut scan = CsvScan::new(layout);
    scan.see(row);
    (!scan.quoted).then_some(scan.values)
}

/// Infers types from the plausible rows among a file's first rows: those with as many values as the first, or those
/// that are objects.
pub(crate) fn infer(
    layout: &LineLayout,
    file: &InputFile,
    packing: FileEncoding,
    rows_max: usize,
) -> Result<SchemaRef> {
    let none = RowDecoder::new(layout.clone(), Arc::new(Schema::empty()))?;
    // A header is not a row from which to infer types.
    let header = usize::from(matches!(layout, LineLayout::Csv(csv) if csv.has_header));
    let (mut good, mut left, mut wanted) = (Vec::new(), rows_max.saturating_add(header), None);
    // A row that continues in the next block.
    let mut carried: Vec<u8> = Vec::new();
    let piece = ByteRange { file: file.clone(), start: 0, end: u64::MAX };
    read_blocks(&piece, packing, &|| true, |block, _, ended| {
        let bytes = if carried.is_empty() { block } else { [std::mem::take(&mut carried), block].concat() };
        let (rows, rest) = none.rows(&bytes, ended);
        for row in rows {
            let row = &bytes[row];
            let fits = match layout {
                _ if none.is_blank(row) || std::str::from_utf8(row).is_err() => false,
                LineLayout::Csv(layout) => {
                    let found = fields(row, layout);
                    found.is_some() && found == *wanted.get_or_insert(found)
                }
                LineLayout::Json => arrow::json::reader::infer_json_schema(row, None).is_ok(),
                LineLayout::Text => true,
            };
            if fits && left > 0 {
                good.extend_from_slice(row);
                if !row.ends_with(b"\n") {
                    good.push(b'\n');
                }
                left -= 1;
            }
        }
        carried = bytes[rest..].to_vec();
        Ok(left > 0)
    })?;
    let schema = match layout {
        LineLayout::Csv(layout) => {
            let mut format = arrow::csv::reader::Format::default()
                .with_header(layout.has_header)
                .with_delimiter(layout.delimiter)
                .with_quote(layout.quote);
            if let Some(comment) = layout.comment {
                format = format.with_comment(comment);
            }
            if let Some(null) = &none.null {
                format = format.with_null_regex(null.clone());
            }
            let found = format.infer_schema(&good[..], None)?.0;
            with_codes_as_text(layout, none.null.as_ref(), &good, &found)?
        }
        LineLayout::Json => arrow::json::reader::infer_json_schema(&good[..], None)?.0,
        LineLayout::Text => Schema::new(vec![Field::new("line", DataType::Utf8View, false)]),
    };
    Ok(Arc::new(schema))
}

/// The types of CSV columns, without those that would change values: numbers with leading zeros or a plus sign are
/// codes, and so remain strings. With a strict layout, this applies to any number not in canonical form. Times in
/// seconds may be finer in later rows.
fn with_codes_as_text(layout: &CsvLayout, null: Option<&Regex>, rows: &[u8], found: &Schema) -> Result<Schema> {
    let is_number = |kind: &DataType| kind.is_integer() || kind.is_floating() || *kind == DataType::Boolean;
    let mut kinds: Vec<DataType> = found.fields().iter().map(|field| field.data_type().clone()).collect();
    if kinds.iter().any(is_number) {
        let text = |field: &Arc<Field>| Field::new(field.name(), DataType::Utf8, true);
        let texts = Arc::new(Schema::new(found.fields().iter().map(text).collect::<Vec<_>>()));
        let lenient = CsvLayout { null: None, strict: false, ..layout.clone() };
        let decoder = RowDecoder::new(LineLayout::Csv(lenient.clone()), SchemaRef::clone(&texts))?;
        let batch = decoder.read_csv(&lenient, rows, count_lines(rows) as usize, &texts)?;
        for (kind, column) in kinds.iter_mut().zip(batch.columns()).filter(|(kind, _)| is_number(kind)) {
            let texts = column.as_any().downcast_ref::<StringArray>().expect("decoded as text");
            let values = texts.iter().skip(usize::from(layout.has_header)).flatten();
            let mut values = values.filter(|text| !text.is_empty() && !null.is_some_and(|null| null.is_match(text)));
            let is_text = match layout.strict {
                true => values.any(|text| !is_canonical(text, kind)),
                false => *kind != DataType::Boolean && values.any(is_code),
            };
            if is_text {
                *kind = DataType::Utf8;
            }
        }
    }
    let finer = |kind: DataType| match kind {
        DataType::Timestamp(TimeUnit::Second | TimeUnit::Millisecond, zone) => {
            DataType::Timestamp(TimeUnit::Microsecond, zone)
        }
        other => other,
    };
    let typed =
        found.fields().iter().zip(kinds).map(|(field, kind)| field.as_ref().clone().with_data_type(finer(kind)));
    Ok(Schema::new(typed.collect::<Vec<_>>()))
}

/// The first bad row of files, if there is one. Only for errors: it reads the files from the beginning.
pub(crate) fn first_bad(files: &[InputFile], decoder: &RowDecoder, packing: FileEncoding) -> Result<Option<BadRow>> {
    let mut found = None;
    for file in files {
        let piece = ByteRange { file: file.clone(), start: 0, end: u64::MAX };
        decoder.read_piece(&piece, packing, &|| true, |item| {
            if let FileItem::Bad(row) = item {
                found = Some(row);
            }
            Ok(found.is_none())
        })?;
        if found.is_some() {
            break;
        }
    }
    Ok(found)
}

/// Writes the bad rows of one partition to a file of JSON lines, which appears when the partition has been read.
pub(crate) struct QuarantineWriter {
    file: PathBuf,
    hidden: PathBuf,
    writer: Option<BufWriter<std::fs::File>>,
}

impl QuarantineWriter {
    pub(crate) fn new(folder: &std::path::Path, name: &str) -> Self {
        let hidden = folder.join(format!(".{name}.unfinished-{}", std::process::id()));
        QuarantineWriter { file: folder.join(format!("{name}.json")), hidden, writer: None }
    }

    fn failed(&self, error: &std::io::Error) -> DataSetError {
        DataSetError::Io(format!("quarantine: {}: {error}", self.file.display()))
    }

    fn add(&mut self, row: &BadRow) -> Result<()> {
        if self.writer.is_none() {
            let made = self.hidden.parent().map_or(Ok(()), std::fs::create_dir_all);
            let file = made.and_then(|()| std::fs::File::create(&self.hidden)).map_err(|error| self.failed(&error))?;
            self.writer = Some(BufWriter::new(file));
        }
        let text = |value: &str| -> ArrayRef { Arc::new(StringArray::from(vec![value])) };
        let line: ArrayRef = Arc::new(UInt64Array::from(vec![row.line]));
        let columns =
            [("file", text(&row.file)), ("line", line), ("reason", text(&row.reason)), ("text", text(&row.text))];
        let batch = RecordBatch::try_from_iter(columns)?;
        let mut bytes = Vec::new();
        arrow::json::LineDelimitedWriter::new(&mut bytes).write(&batch)?;
        let written = self.writer.as_mut().expect("just made").write_all(&bytes);
        written.map_err(|error| self.failed(&error))
    }

    /// Removes what an earlier action has left for this partition.
    pub(crate) fn end(mut self) -> Result<()> {
        let ended = match self.writer.take() {
            Some(mut writer) => writer.flush().and_then(|()| std::fs::rename(&self.hidden, &self.file)),
            None => match std::fs::remove_file(&self.file) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            },
        };
        ended.map_err(|error| self.failed(&error))
    }
}

impl Drop for QuarantineWriter {
    fn drop(&mut self) {
        if self.writer.is_some() {
            // The query failed; the hidden file is useless.
            let _ = std::fs::remove_file(&self.hidden);
        }
    }
}

/// Reads pieces one after the other, and passes their good rows with the piece to `give`, until it returns false.
/// Without `seen`, the first bad row is an error.
pub(crate) fn read_good(
    pieces: &[ByteRange],
    decoder: &RowDecoder,
    packing: FileEncoding,
    seen: Option<&BadRows>,
    mut quarantine: Option<QuarantineWriter>,
    is_wanted: &dyn Fn() -> bool,
    mut give: impl FnMut(&ByteRange, RecordBatch) -> bool,
) -> Result<()> {
    let mut wanted = true;
    for piece in pieces {
        decoder.read_piece(piece, packing, is_wanted, |item| {
            match item {
                FileItem::Rows(batch) => wanted = give(piece, batch),
                FileItem::Bad(row) => {
                    let Some(seen) = seen else { return Err(unread(&row)) };
                    seen.note(&row);
                    if let Some(quarantine) = &mut quarantine {
                        quarantine.add(&row)?;
                    }
                }
            }
            Ok(wanted)
        })?;
        if !wanted {
            break;
        }
    }
    quarantine.map_or(Ok(()), QuarantineWriter::end)
}

/// The start of [`unread`] errors.
pub(crate) const UNREAD: &str = "bad row: ";

/// For a bad row of some partition: the first bad row of all files is searched for later, as for DataFusion's own
/// readers.
fn unread(row: &BadRow) -> DataSetError {
    DataSetError::Data(format!("{UNREAD}{}", row.reason))
}

/// Describes the bad row, for an error.
pub(crate) fn told(row: &BadRow) -> String {
    format!("reading {}: line {}: {}", row.file, row.line, row.reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(decoder: &RowDecoder, file: &InputFile, start: u64, end: u64) -> (Vec<RecordBatch>, Vec<(u64, String)>) {
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        let piece = ByteRange { file: file.clone(), start, end };
        let read = decoder.read_piece(&piece, FileEncoding::NONE, &|| true, |item| {
            match item {
                FileItem::Rows(batch) => good.push(batch),
                FileItem::Bad(row) => bad.push((row.line, row.text)),
            }
            Ok(true)
        });
        read.unwrap();
        (good, bad)
    }

    fn shown(batches: &[RecordBatch]) -> Vec<String> {
        let rows = |batch: &RecordBatch| {
            let mut bytes = Vec::new();
            arrow::json::LineDelimitedWriter::new(&mut bytes).write(batch).unwrap();
            String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
        };
        batches.iter().flat_map(rows).collect()
    }

    /// However a file is divided, every row is either good or bad exactly once, and a bad one has its line number in
    /// the file.
    #[test]
    fn every_cut_finds_the_same_rows() {
        let path = std::env::temp_dir().join(format!("tidemill-lenient-{}", std::process::id()));
        let file = InputFile::Local(path.clone());
        let schema: SchemaRef =
            Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true), Field::new("s", DataType::Utf8, true)]));
        for text in ["", "n,s", "n,s\n1,a\nx,b\n\n3\r\n4,\"d\n5,e", "n,s\nx\ny\nz", "\n\nn,s\n1,ä\n\u{e9},b\n"] {
            std::fs::write(&path, text).unwrap();
            let decoder = RowDecoder::new(LineLayout::Csv(CsvLayout::default()), SchemaRef::clone(&schema)).unwrap();
            let size = text.len() as u64;
            let (good, bad) = seen(&decoder, &file, 0, u64::MAX);
            // The header belongs to the first piece of a file.
            let header = (text.trim_start().find('\n').unwrap_or(0) + text.len() - text.trim_start().len()) as u64;
            for first in header + 1..=size {
                for second in first..=size {
                    let (mut all_good, mut all_bad) = (Vec::new(), Vec::new());
                    for (start, end) in [(0, first), (first, second), (second, size)] {
                        if start < end {
                            let (good, bad) = seen(&decoder, &file, start, end);
                            all_good.extend(good);
                            all_bad.extend(bad);
                        }
                    }
                    assert_eq!(all_bad, bad, "{text:?} cut at {first} and {second}");
                    assert_eq!(shown(&all_good), shown(&good), "{text:?} cut at {first} and {second}");
                }
            }
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn values_are_counted_as_they_are_read() {
        let layout = CsvLayout::default();
        let count = |row: &str| fields(row.as_bytes(), &layout);
        assert_eq!(count("a,b"), Some(2));
        assert_eq!(count("\"a,\"\"b\",c\n"), Some(2));
        assert_eq!(count("5\" pipe,x"), Some(2));
        assert_eq!(count("a,\"b"), None);
        assert_eq!(count(""), Some(1));
    }

    /// An unclosed quote must not swallow the rest of the file.
    #[test]
    fn an_open_quote_costs_one_row() {
        let layout = CsvLayout { newlines_in_values: true, ..CsvLayout::default() };
        let decoder = RowDecoder::new(LineLayout::Csv(layout), Arc::new(Schema::empty())).unwrap();
        let text = "a,\"b\nc\"\nd,\"e\nf,g\n";
        let lines = |ended| {
            let (rows, rest) = decoder.rows(text.as_bytes(), ended);
            (rows.into_iter().map(|row| &text[row]).collect::<Vec<_>>(), &text[rest..])
        };
        assert_eq!(lines(false), (vec!["a,\"b\nc\"\n"], "d,\"e\nf,g\n"));
        assert_eq!(lines(true), (vec!["a,\"b\nc\"\n", "d,\"e\n", "f,g\n"], ""));
    }
}
