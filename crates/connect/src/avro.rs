//! Avro records: plain, or in Confluent's wire format, which puts a zero and the number of the writer's schema before
//! each record.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use arrow_avro::reader::{Decoder, ReaderBuilder};
use arrow_avro::schema::{AvroSchema, Fingerprint, FingerprintAlgorithm, SchemaStore};
use serde_json::Value;

use crate::error::DecodeFailure;

/// The header of a record without one.
const NO_HEADER: [u8; 5] = [0; 5];

/// The schemas for reading records.
#[derive(Clone, Debug)]
pub(crate) struct AvroSchemas {
    reader: AvroSchema,
    /// Whether the number of its schema precedes each record.
    has_header: bool,
    /// The writer schemas by number; for records without a header, a single one.
    writers: BTreeMap<u32, AvroSchema>,
    schema: SchemaRef,
}

impl AvroSchemas {
    /// Records are read as `schema`; `writers` contains the writer schemas by number. If it is empty, the two are the
    /// same, and records have no header.
    ///
    /// # Errors
    /// A description of the problem.
    pub(crate) fn new(schema: &Value, writers: &BTreeMap<u32, Value>) -> Result<Self, String> {
        let avro = |schema: &Value| AvroSchema::new(schema.as_str().map_or_else(|| schema.to_string(), str::to_owned));
        let reader = avro(schema);
        let mut found = AvroSchemas {
            // The schema that the decoder gives its own records is the schema of the rows.
            schema: builder(&reader, 0, &reader, 1)?.schema(),
            writers: BTreeMap::from([(0, reader.clone())]),
            has_header: false,
            reader,
        };
        if !writers.is_empty() {
            found = found.learning();
            for (number, writer) in writers {
                let wrong = |error| format!("the schema with number {number} is not an Avro schema: {error}");
                found.learn(*number, avro(writer)).map_err(wrong)?;
            }
        }
        Ok(found)
    }

    /// The same, for records preceded by the number of their schema, which is yet to be [learned](AvroSchemas::learn).
    pub(crate) fn learning(self) -> Self {
        AvroSchemas { has_header: true, writers: BTreeMap::new(), ..self }
    }

    /// Records with this number were written with this schema.
    ///
    /// # Errors
    /// A description, if they cannot be read.
    pub(crate) fn learn(&mut self, number: u32, writer: AvroSchema) -> Result<(), String> {
        builder(&self.reader, number, &writer, 1)?;
        self.writers.insert(number, writer);
        Ok(())
    }

    /// Whether the writer schema with this number is known.
    pub(crate) fn knows(&self, number: u32) -> bool {
        self.writers.contains_key(&number)
    }

    /// The schema of its rows.
    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The rows of records, or the problem and, if known, the record that causes it.
    pub(crate) fn decode(&self, records: &[&[u8]]) -> Result<RecordBatch, DecodeFailure> {
        let mut batches = Vec::new();
        let mut begin = 0;
        // A batch contains records of a single writer.
        while begin < records.len() {
            let number = self.number(records[begin]).map_err(|reason| DecodeFailure { reason, at: Some(begin) })?;
            let same = |record: &&&[u8]| !self.has_header || self.number(record) == Ok(number);
            let end = begin + records[begin..].iter().take_while(same).count();
            let rows = self.decode_same(number, &records[begin..end]);
            batches.push(rows.map_err(|failure| DecodeFailure { at: failure.at.map(|at| begin + at), ..failure })?);
            begin = end;
        }
        let all = concat_batches(&self.schema, &batches);
        all.map_err(|error| DecodeFailure { reason: error.to_string(), at: None })
    }

    fn number(&self, record: &[u8]) -> Result<u32, String> {
        if !self.has_header {
            return Ok(0);
        }
        let Some(([0, number @ ..], _)) = record.split_first_chunk::<5>() else {
            return Err("it has no Confluent header".into());
        };
        let number = u32::from_be_bytes(*number);
        match self.knows(number) {
            true => Ok(number),
            false => Err(format!("its schema has the number {number}, but no such schema exists")),
        }
    }

    fn decode_same(&self, number: u32, records: &[&[u8]]) -> Result<RecordBatch, DecodeFailure> {
        let failure = |reason: String, at| DecodeFailure { reason, at };
        let decoder = builder(&self.reader, number, &self.writers[&number], records.len() + 1);
        let mut decoder = decoder.map_err(|reason| failure(reason, None))?;
        let mut with_header = Vec::new();
        for (at, record) in records.iter().enumerate() {
            let record = match self.has_header {
                true => record,
                false => {
                    with_header.clear();
                    with_header.extend_from_slice(&NO_HEADER);
                    with_header.extend_from_slice(record);
                    with_header.as_slice()
                }
            };
            let read = sound(|| decoder.decode(record)).map_err(|reason| failure(reason, Some(at)))?;
            if decoder.capacity() != records.len() - at || read != record.len() {
                return Err(failure("it is not a single record of its schema".into(), Some(at)));
            }
        }
        let rows = sound(|| decoder.flush()).map_err(|reason| failure(reason, None))?;
        rows.ok_or_else(|| failure("there is no record".into(), None))
    }
}

/// Runs a decoder that may panic on a record that violates its assertions. Such a record is bad, and the job continues.
fn sound<R, E: ToString>(decode: impl FnOnce() -> Result<R, E>) -> Result<R, String> {
    match catch_unwind(AssertUnwindSafe(decode)) {
        Ok(read) => read.map_err(|error| error.to_string()),
        Err(_) => Err("it is damaged: its decoder stopped".into()),
    }
}

/// Makes a decoder for batches of `rows` records that reads records of one schema as those of another.
fn builder(reader: &AvroSchema, number: u32, writer: &AvroSchema, rows: usize) -> Result<Decoder, String> {
    let mut store = SchemaStore::new_with_type(FingerprintAlgorithm::Id);
    store.set(Fingerprint::Id(number), writer.clone()).map_err(|error| error.to_string())?;
    let builder = ReaderBuilder::new().with_batch_size(rows).with_reader_schema(reader.clone());
    let builder = builder.with_writer_schema_store(store).with_active_fingerprint(Fingerprint::Id(number));
    builder.build_decoder().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use arrow::array::AsArray;
    use arrow::datatypes::Int64Type;
    use serde_json::json;

    use super::{AvroSchemas, BTreeMap, Value};
    use crate::decode::RecordDecoder;

    fn schema(fields: &Value) -> Value {
        json!({"type": "record", "name": "Click", "fields": fields})
    }

    /// The first column, and the bad records.
    fn found(avro: &AvroSchemas, records: &[&[u8]]) -> (Vec<i64>, Vec<(usize, String)>) {
        let mut bad = Vec::new();
        let Ok(rows) = RecordDecoder::of_avro(avro.clone()).decode(records, |at, reason| {
            bad.push((at, reason.to_owned()));
            Ok::<(), Infallible>(())
        });
        (rows.column(0).as_primitive::<Int64Type>().values().to_vec(), bad)
    }

    /// A truncated record, or one with extra bytes, must neither affect other records nor pass as valid.
    #[test]
    fn plain_records() {
        let avro = AvroSchemas::new(
            &schema(&json!([{"name": "x", "type": "long"}, {"name": "s", "type": "string"}])),
            &BTreeMap::new(),
        )
        .unwrap();
        assert_eq!(avro.schema().field(1).name(), "s");
        // 1 and "a", 300 and "".
        let (one, two): (&[u8], &[u8]) = (&[2, 2, b'a'], &[0xd8, 4, 0]);
        assert_eq!(found(&avro, &[one, two, one]), (vec![1, 300, 1], vec![]));
        let bad: [&[u8]; 5] =
            [&[], &[2, 2], &[2, 2, b'a', 0], &[2, 2, 0xff], &[2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]];
        for bad in bad {
            let (rows, wrong) = found(&avro, &[one, bad, two]);
            assert_eq!((rows, wrong.len(), wrong[0].0), (vec![1, 300], 1, 1), "{bad:?}");
        }
    }

    /// Whatever bytes arrive, the good records become rows and the others are reported: a length in the data must
    /// neither end the process nor size an allocation.
    #[test]
    fn damaged_records() {
        let field = |name: &str, kind: Value| json!({"name": name, "type": kind});
        let fields = json!([
            field("x", json!("long")),
            field("s", json!("string")),
            field("b", json!(["null", "bytes"])),
            field("l", json!({"type": "array", "items": "string"})),
            field("f", json!("double")),
        ]);
        let avro = AvroSchemas::new(&schema(&fields), &BTreeMap::new()).unwrap();
        // 1, "abc", the bytes 1 2, ["a", "b"], 1.5
        let good: &[u8] = &[2, 6, b'a', b'b', b'c', 2, 4, 1, 2, 4, 2, b'a', 2, b'b', 0, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f];
        assert_eq!(found(&avro, &[good]), (vec![1], vec![]));
        let seed = std::process::id() as u64;
        println!("seed {seed}");
        // A SplitMix64 generator.
        let mut state = seed;
        let mut below = |most: usize| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            (mixed ^ mixed >> 31) as usize % most
        };
        let mut wrong = 0;
        for _ in 0..500 {
            let mut bad = good.to_vec();
            for _ in 0..=below(3) {
                let at = below(bad.len());
                match below(5) {
                    0 => bad[at] ^= 1 << below(8),
                    1 => bad[at] = below(256) as u8,
                    2 => bad.truncate(at.max(1)),
                    // The largest possible lengths, and negative ones.
                    3 => drop(bad.splice(at..at, [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01])),
                    _ => drop(bad.splice(at..at, [0xfe, 0xff, 0xff, 0xff, 0x0f])),
                }
            }
            let (rows, told) = found(&avro, &[good, &bad, good]);
            assert_eq!(rows.len() + told.len(), 3, "seed {seed}: {bad:?}");
            assert!(told.iter().all(|&(at, _)| at == 1), "seed {seed}: {bad:?}");
            wrong += told.len();
        }
        assert!(wrong > 250, "{wrong} of seed {seed}");
    }

    /// Records of several writers in one topic become rows of one schema.
    #[test]
    fn confluent_records() {
        let x = json!({"name": "x", "type": "long"});
        let (old, new) = (schema(&json!([x])), schema(&json!([{"name": "s", "type": "string"}, x])));
        let reader = schema(&json!([x, {"name": "s", "type": "string", "default": "none"}]));
        let avro = AvroSchemas::new(&reader, &BTreeMap::from([(7, old), (258, new)])).unwrap();
        let (seven, other): (&[u8], &[u8]) = (&[0, 0, 0, 0, 7, 4], &[0, 0, 0, 1, 2, 2, b'a', 6]);
        let Ok(rows) = avro.decode(&[seven, other, other, seven]) else { panic!("they are good") };
        assert_eq!(rows.column(0).as_primitive::<Int64Type>().values(), &[2, 3, 3, 2]);
        assert_eq!(rows.column(1).as_string::<i32>().value(0), "none");
        assert_eq!(rows.column(1).as_string::<i32>().value(1), "a");
        let (rows, bad) = found(&avro, &[&[0, 0, 0, 0, 9, 4], seven, &[1, 0, 0, 0, 7, 4]]);
        assert_eq!((rows, bad.len()), (vec![2], 2));
        assert_eq!(bad[0], (0, "its schema has the number 9, but no such schema exists".into()));
        assert!(AvroSchemas::new(&json!("nonsense"), &BTreeMap::new()).is_err());
    }
}
