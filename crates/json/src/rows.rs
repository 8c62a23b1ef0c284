//! Reads objects as rows, in one pass.

use std::collections::HashMap;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use crate::columns::{ColumnReader, column};
use crate::scan::RecordScanner;

/// Maximum number of names to remember: in objects whose names are data, there could be any number.
const NAMES_MAX: usize = 256;

/// Reads objects whose required values are texts, numbers, times and booleans.
///
/// Returns what Arrow's decoder would return, or nothing: nothing if a record is not such an object, if a value would
/// have to be converted or truncated, or if a name repeats. Values that are not required are only checked for being
/// JSON, and skipped.
#[derive(Clone, Debug)]
pub struct RowReader {
    schema: SchemaRef,
    columns: HashMap<Vec<u8>, usize>,
    texts_of_all: bool,
}

/// A name as it appears in records, including quotes.
struct QuotedName {
    quoted: Vec<u8>,
    column: Option<usize>,
    /// The name that followed it last.
    next: usize,
}

/// The state while records are read.
struct ReadState<'r> {
    of: &'r RowReader,
    columns: Vec<Box<dyn ColumnReader>>,
    /// The last row, counted from one, for which each column has received a value.
    filled: Vec<usize>,
    row: usize,
    /// The first entry stands for the start of an object.
    names: Vec<QuotedName>,
    numbers: HashMap<Vec<u8>, usize>,
    room: String,
}

impl RowReader {
    /// A reader for rows of `schema`; `None` if it has unsupported types or repeats a name. With `texts_of_all`,
    /// numbers and booleans are accepted where text is expected.
    pub fn new(schema: &SchemaRef, texts_of_all: bool) -> Option<Self> {
        let fields = schema.fields();
        let columns: HashMap<_, _> =
            fields.iter().zip(0..).map(|(field, at)| (field.name().clone().into_bytes(), at)).collect();
        let can_read = fields.iter().all(|field| column(field.data_type(), 0, texts_of_all).is_some());
        (can_read && !fields.is_empty() && columns.len() == fields.len()).then(|| RowReader {
            schema: SchemaRef::clone(schema),
            columns,
            texts_of_all,
        })
    }

    /// The rows of `records`; `None` if Arrow's decoder has to decide what they are, or why they are invalid.
    pub fn read(&self, records: &[&[u8]]) -> Option<RecordBatch> {
        let rows = records.len();
        let fields = self.schema.fields().iter();
        let mut reading = ReadState {
            of: self,
            columns: fields.map(|field| column(field.data_type(), rows, self.texts_of_all)).collect::<Option<_>>()?,
            filled: vec![0; self.schema.fields().len()],
            row: 0,
            names: vec![QuotedName { quoted: Vec::new(), column: None, next: 0 }],
            numbers: HashMap::new(),
            room: String::new(),
        };
        let mut bytes = 0usize;
        for record in records {
            bytes += record.len();
            // The offsets of a text column must fit their type.
            if bytes > i32::MAX as usize {
                return None;
            }
            reading.record(simdutf8::basic::from_utf8(record).ok()?)?;
        }
        let columns = reading.columns.iter_mut().map(|column| column.finish()).collect();
        RecordBatch::try_new(SchemaRef::clone(&self.schema), columns).ok()
    }
}

impl ReadState<'_> {
    fn record(&mut self, text: &str) -> Option<()> {
        self.row += 1;
        let mut scan = RecordScanner::new(text);
        scan.blank();
        scan.take(b'{')?;
        scan.blank();
        let (mut name, mut filled) = (0, 0);
        if scan.take(b'}').is_none() {
            loop {
                let column;
                (name, column) = self.name(name, &mut scan)?;
                scan.blank();
                scan.take(b':')?;
                scan.blank();
                match column {
                    Some(column) => {
                        self.value(column, &mut scan)?;
                        filled += 1;
                    }
                    None => scan.skip(&mut self.room)?,
                }
                scan.blank();
                if scan.take(b'}').is_some() {
                    break;
                }
                scan.take(b',')?;
                scan.blank();
            }
        }
        scan.blank();
        if filled < self.columns.len() {
            for column in (0..self.columns.len()).filter(|&column| self.filled[column] < self.row) {
                self.of.schema.field(column).is_nullable().then(|| self.columns[column].null())?;
            }
        }
        scan.is_over().then_some(())
    }

    /// The next name, and its column. Usually it is the name that followed the same name before.
    #[inline]
    fn name(&mut self, before: usize, scan: &mut RecordScanner<'_>) -> Option<(usize, Option<usize>)> {
        let next = self.names[before].next;
        let guess = &self.names[next];
        if next > 0 && scan.take_word(&guess.quoted).is_some() {
            return Some((next, guess.column));
        }
        let text = scan.quoted()?.plain()?;
        let found = match self.numbers.get(text.as_bytes()) {
            Some(&found) => found,
            None => {
                let column = self.of.columns.get(text.as_bytes()).copied();
                if self.names.len() > NAMES_MAX {
                    return Some((0, column));
                }
                self.numbers.insert(text.as_bytes().to_vec(), self.names.len());
                self.names.push(QuotedName { quoted: format!("\"{text}\"").into_bytes(), column, next: 0 });
                self.names.len() - 1
            }
        };
        self.names[before].next = found;
        Some((found, self.names[found].column))
    }

    #[inline]
    fn value(&mut self, column: usize, scan: &mut RecordScanner<'_>) -> Option<()> {
        if std::mem::replace(&mut self.filled[column], self.row) == self.row {
            return None;
        }
        if scan.peek() != b'n' {
            return self.columns[column].read(scan, &mut self.room);
        }
        scan.take_word(b"null")?;
        self.of.schema.field(column).is_nullable().then(|| self.columns[column].null())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Array, AsArray};
    use arrow::datatypes::{DataType, Field, Int64Type, Schema};
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    use super::*;
    use crate::fuzzing::{arrow, plain_records, schema};

    fn read(schema: &SchemaRef, records: &[&[u8]]) -> Option<RecordBatch> {
        RowReader::new(schema, true).unwrap().read(records)
    }

    #[test]
    fn plain_objects_are_read() {
        let records: [&[u8]; 6] = [
            br#"{"text":"a","view":"a view that is longer than twelve bytes","n":-7,"small":3,"large":18446744073709551615}"#,
            br#" { "n" : 9007199254740993 , "x" : 2.5e-3, "y": 1, "is": true, "other": {"n": [1, {"deep": null}, "\u00e9"]} } "#,
            br#"{"at":1767225600000,"there":1767225600000000000,"is":false,"text":null}"#,
            br#"{"at":"2026-01-01T00:00:00.5Z","there":"2026-01-01T00:00:00"}"#,
            br#"{"text":"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00","view":12.50,"n":0}"#,
            b"{}",
        ];
        let schema = schema(true);
        let rows = read(&schema, &records).unwrap();
        assert_eq!(rows, arrow(&schema, true, &records).unwrap());
        assert_eq!(rows.column(2).as_primitive::<Int64Type>().value(1), 9_007_199_254_740_993);
        assert_eq!(rows.column(0).as_string::<i32>().value(4), "\"\\/\u{8}\u{c}\n\r\té😀");
        assert_eq!(rows.column(1).as_string_view().value(4), "12.50");
        assert_eq!(rows.column(7).null_count(), 4);
    }

    /// Anything that is not quite such an object is left to Arrow.
    #[test]
    fn others_are_left() {
        let schema = schema(true);
        for record in [
            "",
            " ",
            "[]",
            "{",
            r#"{"n":1"#,
            r#"{"n":1}{"n":2}"#,
            r#"{"n":1} x"#,
            r#"{"n":1,}"#,
            r#"{"n" 1}"#,
            r#"{n:1}"#,
            r#"{"n":1,"n":2}"#,
            r#"{"n":"1"}"#,
            r#"{"n":1.0}"#,
            r#"{"n":1e2}"#,
            r#"{"n":01}"#,
            r#"{"n":00}"#,
            r#"{"n":-}"#,
            r#"{"n":+1}"#,
            r#"{"n":9223372036854775808}"#,
            r#"{"small":128}"#,
            r#"{"large":-1}"#,
            r#"{"x":.5}"#,
            r#"{"x":1.}"#,
            r#"{"x":1e}"#,
            r#"{"x":NaN}"#,
            r#"{"is":1}"#,
            r#"{"is":tru}"#,
            r#"{"text":{"a":1}}"#,
            r#"{"text":"\x"}"#,
            r#"{"text":"\ud800"}"#,
            r#"{"text":"\ud800\u0041"}"#,
            r#"{"text":"open}"#,
            r#"{"text":"open\"}"#,
            r#"{"at":"noon"}"#,
            r#"{"other":"\x"}"#,
            r#"{"other":[1,]}"#,
            r#"{"other":{"a"}}"#,
            r#"{"other":nul}"#,
            r#"{"\u006e":1}"#,
        ] {
            assert!(read(&schema, &[record.as_bytes()]).is_none(), "{record}");
        }
        assert!(read(&schema, &[b"{\"text\":\"\xff\"}"]).is_none());
        let deep = format!(r#"{{"other":{}{}}}"#, "[".repeat(100), "]".repeat(100));
        assert!(read(&schema, &[deep.as_bytes()]).is_none());
        // Columns without nulls need all values.
        let schema = self::schema(false);
        assert!(read(&schema, &[br#"{"n":1}"#]).is_none());
        assert!(!schema.fields().is_empty() && RowReader::new(&Arc::new(Schema::empty()), true).is_none());
        let list = Field::new_list("l", Field::new_list_field(DataType::Int64, true), true);
        assert!(RowReader::new(&Arc::new(Schema::new(vec![list])), true).is_none());
        // Texts are required unless all values are accepted as text.
        let texts = Arc::new(Schema::new(vec![Field::new("text", DataType::Utf8, true)]));
        assert!(RowReader::new(&texts, false).unwrap().read(&[br#"{"text":1}"#]).is_none());
    }

    /// More names than are remembered, in a different order each time.
    #[test]
    fn names_may_be_many() {
        let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]));
        let record = |of: usize| {
            let others: String = (0..400).map(|name| format!(r#""name {}":{name},"#, (name * 7 + of) % 400)).collect();
            format!(r#"{{{others}"n":{of}}}"#)
        };
        let records: Vec<String> = (0..20).map(record).collect();
        let records: Vec<&[u8]> = records.iter().map(String::as_bytes).collect();
        let rows = RowReader::new(&schema, true).unwrap().read(&records).unwrap();
        assert!(rows.column(0).as_primitive::<Int64Type>().values().iter().copied().eq(0..20));
    }

    /// Values of all kinds, right or wrong, some truncated.
    fn value() -> impl Strategy<Value = String> {
        let nested = |inner: BoxedStrategy<String>| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(|of| format!("[{}]", of.join(","))),
                prop::collection::vec(("[a-n]{0,2}", inner), 0..3).prop_map(|of| {
                    let of: Vec<_> = of.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
                    format!("{{{}}}", of.join(" ,"))
                }),
            ]
        };
        let leaf = prop_oneof![
            "-?[0-9]{1,20}",
            "-?[0-9]{1,3}(\\.[0-9]{0,3})?([eE][+-]?[0-9]{0,3})?",
            "\"[a-z \\\\\"u0-9éλ😀]{0,12}\"",
            "\"(\\\\[\"/bfnrt\\\\]|\\\\u[0-9a-fA-F]{4}|[a-z]){0,6}\"",
            "\"20[0-9]{2}-0[1-9]-1[0-9]([ T][01][0-9]:[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|\\+01:30)?)?\"",
            Just("true".into()),
            Just("false".into()),
            Just("null".into()),
        ];
        leaf.boxed().prop_recursive(3, 12, 3, move |inner| nested(inner.boxed()))
    }

    fn record() -> impl Strategy<Value = String> {
        let name = prop_oneof![
            8 => prop::sample::select(vec!["text", "view", "n", "small", "large", "x", "y", "is", "at", "there", "day"]).prop_map(str::to_owned),
            2 => "[a-z]{0,10}",
        ];
        let members = prop::collection::vec((name, value()), 0..6);
        (members, 0usize..400, any::<bool>()).prop_map(|(members, cut, spaced)| {
            let (colon, comma) = if spaced { (" :\t", " , ") } else { (":", ",") };
            let members: Vec<_> = members.iter().map(|(name, value)| format!("\"{name}\"{colon}{value}")).collect();
            let text = format!("{{{}}}", members.join(comma));
            text.chars().take(if cut < 40 { cut } else { text.len() }).collect()
        })
    }

    /// If none of the records were read, the property would hold trivially.
    #[test]
    fn many_are_read() {
        let mut runner = TestRunner::deterministic();
        let mut next = || record().new_tree(&mut runner).unwrap().current();
        let read = (0..1000).filter(|_| plain_records(next().as_bytes()) > 0).count();
        assert!((100..900).contains(&read), "{read} of 1000");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Catches rows that Arrow's decoder would not have returned, or other values.
        #[test]
        fn what_is_read_is_what_arrow_reads(records in prop::collection::vec(record(), 1..4)) {
            plain_records(records.join("\n").as_bytes());
        }

        /// The same for input that is hardly JSON at all.
        #[test]
        fn nothing_else_is_read(
            records in prop::collection::vec(record(), 1..3),
            changes in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(b"{}[]:,\"\\ue-+.0nt\xc3\xff \t".to_vec())), 0..4),
        ) {
            let mut bytes = records.join("\n").into_bytes();
            for (at, to) in changes {
                let at = at.index(bytes.len() + 1);
                bytes.splice(at..bytes.len().min(at + 1), [to]);
            }
            plain_records(&bytes);
        }
    }
}
