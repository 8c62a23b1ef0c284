//! Headers of records, which are ordered names and values: as a column with a list per record, and from columns.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryBuilder, LargeBinaryArray, LargeStringArray, ListBuilder, OffsetSizeTrait,
    RecordBatch, StringBuilder, StructArray, StructBuilder,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Fields, SchemaRef};
use arrow::error::ArrowError;
use tidemill_dataflow::TaskError;

use crate::options;
use crate::prepared_commit::put;

/// Names and values; a value may be missing.
pub(crate) type Headers = Vec<(String, Option<Vec<u8>>)>;

fn fields() -> Fields {
    Fields::from(vec![Field::new("name", DataType::Utf8, false), Field::new("value", DataType::Binary, true)])
}

/// The type of the column.
pub(crate) fn data_type() -> DataType {
    DataType::new_list(DataType::Struct(fields()), true)
}

/// The column of records' headers, one record per row; null if it is unknown whether there are any.
pub(crate) fn column<'a>(records: impl IntoIterator<Item = Option<&'a Headers>>) -> ArrayRef {
    let mut lists = ListBuilder::new(StructBuilder::from_fields(fields(), 0));
    for record in records {
        let headers = lists.values();
        for (name, value) in record.into_iter().flatten() {
            headers.field_builder::<StringBuilder>(0).expect("names").append_value(name);
            headers.field_builder::<BinaryBuilder>(1).expect("values").append_option(value.as_deref());
            headers.append(true);
        }
        lists.append(record.is_some());
    }
    Arc::new(lists.finish())
}

/// The name of a header, and the column with its values. Without a name, the column contains both names and values.
pub(crate) type HeaderColumn = (Option<String>, String);

/// The columns from which headers are written.
#[derive(Clone, Debug)]
pub(crate) struct HeaderColumns(Vec<(Option<String>, usize)>);

impl HeaderColumns {
    /// # Errors
    /// A description, for columns that do not exist.
    pub(crate) fn new(schema: &SchemaRef, columns: &[HeaderColumn]) -> Result<Self, String> {
        let of = |(name, column): &HeaderColumn| Ok((name.clone(), options::column(schema, "headers", column)?));
        columns.iter().map(of).collect::<Result<_, String>>().map(HeaderColumns)
    }

    /// Whether a header comes from this column.
    pub(crate) fn has(&self, column: usize) -> bool {
        self.0.iter().any(|(_, of)| *of == column)
    }

    /// The header columns of some rows.
    ///
    /// # Errors
    /// For columns of other types.
    pub(crate) fn of<'a>(&'a self, rows: &'a RecordBatch) -> Result<RowHeaders<'a>, TaskError> {
        let schema = rows.schema_ref();
        let part = |(name, column): &'a (Option<String>, usize)| {
            let (field, values) = (schema.field(*column), rows.column(*column));
            match name {
                Some(name) => one(name, field, values),
                None => all(field, values),
            }
        };
        self.0.iter().map(part).collect::<Result<_, _>>().map(RowHeaders)
    }
}

/// The headers of a batch's rows.
pub(crate) struct RowHeaders<'a>(Vec<HeaderPart<'a>>);

/// The headers from one column.
enum HeaderPart<'a> {
    /// A single header, without a value if the value is null.
    One(&'a str, LargeBinaryArray),
    /// Any number of headers; a null has no value.
    All { column: &'a str, lists: Box<HeaderLists>, names: LargeStringArray, values: LargeBinaryArray },
}

/// The range of entries of each row.
struct HeaderLists {
    offsets: Vec<usize>,
    rows: ArrayRef,
    entries: StructArray,
}

impl HeaderLists {
    fn new<O: OffsetSizeTrait>(rows: &ArrayRef, offsets: &OffsetBuffer<O>, entries: &StructArray) -> Self {
        let offsets = offsets.iter().map(|offset| offset.as_usize()).collect();
        HeaderLists { offsets, rows: Arc::clone(rows), entries: entries.clone() }
    }

    fn of(&self, row: usize) -> Range<usize> {
        if self.rows.is_null(row) { 0..0 } else { self.offsets[row]..self.offsets[row + 1] }
    }
}

fn one<'a>(name: &'a str, field: &Field, values: &ArrayRef) -> Result<HeaderPart<'a>, TaskError> {
    if field.data_type().is_nested() {
        return Err(format!(
            "`headers`: column \"{}\" is {}, but a header has one value, bytes or a string",
            field.name(),
            field.data_type()
        )
        .into());
    }
    Ok(HeaderPart::One(name, bytes_of(values)?))
}

fn all<'a>(field: &'a Field, values: &ArrayRef) -> Result<HeaderPart<'a>, TaskError> {
    let (column, kind) = (field.name(), field.data_type());
    let wrong = || {
        format!(
            "`headers`: column \"{column}\" is {kind}; a column with all headers of a record must be a list of \
             structs of `name` (string) and `value` (bytes or string), as sources give them, or a map, and a column \
             with the value of one header needs a name"
        )
    };
    let (lists, [name, value]) = match kind {
        DataType::Map(..) => {
            let map = values.as_map();
            (HeaderLists::new(values, map.offsets(), map.entries()), [0, 1])
        }
        DataType::List(item) | DataType::LargeList(item) => {
            let DataType::Struct(fields) = item.data_type() else { return Err(wrong().into()) };
            let at = |wanted: &str| fields.iter().position(|field| field.name() == wanted).ok_or_else(wrong);
            let lists = match values.as_list_opt::<i32>() {
                Some(list) => HeaderLists::new(values, list.offsets(), list.values().as_struct()),
                None => {
                    let list = values.as_list::<i64>();
                    HeaderLists::new(values, list.offsets(), list.values().as_struct())
                }
            };
            (lists, [at("name")?, at("value")?])
        }
        _ => return Err(wrong().into()),
    };
    let (names, values) = (lists.entries.column(name), lists.entries.column(value));
    if !names.data_type().is_string() || values.data_type().is_nested() {
        return Err(wrong().into());
    }
    let names = cast(names, &DataType::LargeUtf8)?.as_string::<i64>().clone();
    let values = bytes_of(values)?;
    Ok(HeaderPart::All { column, lists: Box::new(lists), names, values })
}

impl RowHeaders<'_> {
    /// The headers of a row, encoded by `put` as names and values.
    ///
    /// # Errors
    /// For a header without a name.
    pub(crate) fn row(&self, row: usize) -> Result<Vec<u8>, TaskError> {
        let mut out = Vec::new();
        let mut header = |name: &str, values: &LargeBinaryArray, at: usize| {
            put(Some(name.as_bytes()), &mut out);
            put(values.is_valid(at).then(|| values.value(at)), &mut out);
        };
        for part in &self.0 {
            match part {
                HeaderPart::One(name, values) if values.is_valid(row) => header(name, values, row),
                HeaderPart::One(..) => {}
                HeaderPart::All { column, lists, names, values } => {
                    for entry in lists.of(row) {
                        if lists.entries.is_null(entry) || names.is_null(entry) {
                            let text = format!(
                                "`headers`: column \"{column}\" has a header without a name: name it, or leave it out"
                            );
                            return Err(text.into());
                        }
                        header(names.value(entry), values, entry);
                    }
                }
            }
        }
        Ok(out)
    }
}

/// Bytes unchanged, anything else as text.
///
/// # Errors
/// For types without a text form.
pub(crate) fn bytes_of(column: &ArrayRef) -> Result<LargeBinaryArray, ArrowError> {
    let texts = match column.data_type() {
        // A cast to text would turn bytes that are not UTF-8 into null.
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            cast(column, &DataType::LargeBinary)?
        }
        _ => cast(&cast(column, &DataType::LargeUtf8)?, &DataType::LargeBinary)?,
    };
    Ok(texts.as_binary::<i64>().clone())
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, MapBuilder, StringArray};

    use super::*;
    use crate::prepared_commit::{Record, records};

    fn read(rows: &RecordBatch, columns: &[HeaderColumn]) -> Result<Vec<Headers>, String> {
        let columns = HeaderColumns::new(&rows.schema(), columns)?;
        let headers = columns.of(rows).map_err(|error| error.to_string())?;
        let row = |row| {
            let bytes = headers.row(row).map_err(|error| error.to_string())?;
            let header = |header: Result<Record<'_>, TaskError>| {
                let (name, value) = header.unwrap();
                (String::from_utf8(name.unwrap().to_vec()).unwrap(), value.map(<[u8]>::to_vec))
            };
            Ok(records(&bytes).map(header).collect())
        };
        (0..rows.num_rows()).map(row).collect()
    }

    fn all(column: &str) -> HeaderColumn {
        (None, column.into())
    }

    fn named(name: &str, column: &str) -> HeaderColumn {
        (Some(name.into()), column.into())
    }

    /// A source must read what a sink writes, also in slices of batches, whose lists do not start at the first entry.
    #[test]
    fn headers_are_written_as_they_were_read() {
        let of = |name: &str, value: Option<&[u8]>| (name.to_owned(), value.map(<[u8]>::to_vec));
        let given = [
            Some(vec![of("a", Some(b"1")), of("a", Some(b"\xff"))]),
            None,
            Some(vec![of("none", None), of("", Some(b""))]),
            Some(vec![]),
        ];
        let texts: ArrayRef = Arc::new(StringArray::from(vec![None, Some(""), Some("t"), Some("u")]));
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), Some(-2), None, Some(4)]));
        let lists = column(given.iter().map(Option::as_ref));
        let large = DataType::LargeList(Arc::new(Field::new_list_field(DataType::Struct(fields()), true)));
        let wide = cast(&lists, &large).unwrap();
        let rows =
            RecordBatch::try_from_iter([("lists", lists), ("wide", wide), ("t", texts), ("n", numbers)]).unwrap();
        let expected: Vec<Headers> = given.into_iter().map(Option::unwrap_or_default).collect();
        assert_eq!(read(&rows, &[all("lists")]).unwrap(), expected);
        assert_eq!(read(&rows, &[all("wide")]).unwrap(), expected);
        assert_eq!(read(&rows.slice(2, 2), &[all("lists")]).unwrap(), expected[2..]);
        let both = read(&rows, &[named("n", "n"), all("lists"), named("t", "t")]).unwrap();
        assert_eq!(both[0], [vec![of("n", Some(b"1"))], expected[0].clone()].concat());
        assert_eq!(both[1], [of("n", Some(b"-2")), of("t", Some(b""))]);
        assert_eq!(both[2], [expected[2].clone(), vec![of("t", Some(b"t"))]].concat());
    }

    #[test]
    fn maps_have_headers() {
        let mut map = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
        for (name, value) in [("a", Some("1")), ("b", None)] {
            map.keys().append_value(name);
            map.values().append_option(value);
            map.append(true).unwrap();
        }
        map.append(false).unwrap();
        let map: ArrayRef = Arc::new(map.finish());
        let rows = RecordBatch::try_from_iter_with_nullable([("map", map, true)]).unwrap();
        let found = read(&rows, &[all("map")]).unwrap();
        assert_eq!(found, [vec![("a".into(), Some(b"1".to_vec()))], vec![("b".into(), None)], vec![]]);
    }

    /// A wrong type must be reported before there are rows, and a missing name must not become an empty one.
    #[test]
    fn what_is_no_header_is_refused() {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1]));
        let mut others =
            ListBuilder::new(StructBuilder::from_fields(vec![Field::new("name", DataType::Utf8, true)], 0));
        others.values().field_builder::<StringBuilder>(0).unwrap().append_null();
        others.values().append(true);
        others.append(true);
        let others: ArrayRef = Arc::new(others.finish());
        let names =
            Fields::from(vec![Field::new("name", DataType::Utf8, true), Field::new("value", DataType::Utf8, true)]);
        let mut nameless = ListBuilder::new(StructBuilder::from_fields(names, 0));
        for field in 0..2 {
            nameless.values().field_builder::<StringBuilder>(field).unwrap().append_null();
        }
        nameless.values().append(true);
        nameless.append(true);
        let nameless: ArrayRef = Arc::new(nameless.finish());
        let rows = RecordBatch::try_from_iter([("n", numbers), ("others", others), ("nameless", nameless)]).unwrap();
        let error = |columns: &[HeaderColumn]| read(&rows, columns).unwrap_err();
        for column in ["n", "others"] {
            assert!(error(&[all(column)]).contains("a list of structs of `name`"), "{}", error(&[all(column)]));
        }
        assert!(
            error(&[named("h", "others")]).contains("a header has one value"),
            "{}",
            error(&[named("h", "others")])
        );
        assert!(error(&[named("h", "m")]).contains("`headers`: no column \"m\"; the columns are"));
        assert!(error(&[all("nameless")]).contains("without a name"), "{}", error(&[all("nameless")]));
    }
}
