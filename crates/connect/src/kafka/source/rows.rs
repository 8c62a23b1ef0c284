//! Converts records of a partition to rows.

use std::convert::Infallible;
use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryBuilder, Int32Array, Int64Array, RecordBatch, TimestampMillisecondArray};
use arrow::datatypes::SchemaRef;
use serde_json::json;
use tidemill_dataflow::TaskError;

use super::super::buffer::PartitionBuffer;
use super::super::metadata::RecordColumns;
use super::reader::{KafkaReader, KafkaReaderPlan};
use super::spec::KafkaSourceFormat;
use crate::bad_records::Decoded;

impl KafkaReader {
    pub(super) fn decode(&mut self, partition: i32, buffer: &PartitionBuffer) -> Result<Decoded, TaskError> {
        let KafkaReader { plan, bad, schemas, .. } = self;
        let KafkaReaderPlan { options, topic, decoder, schema, .. } = plan;
        let decoder = decoder.as_mut().expect("only sources with a decoder call this");
        let is_json = options.format == KafkaSourceFormat::Json;
        let strips = (options.confluent_header || schemas.is_some()) && is_json;
        let (mut values, mut records, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
        for (record, key, value) in buffer.iter() {
            let body = match (value, strips) {
                (None, _) => Err("it has no value"),
                (Some([0, _, _, _, _, body @ ..]), true) => Ok(body),
                (Some(_), true) => Err("it has no Confluent header"),
                (Some(value), false) => Ok(value),
            };
            let body = body.map_err(str::to_owned);
            let known = match (schemas.as_mut(), value) {
                (Some(schemas), Some([0, a, b, c, d, ..])) => {
                    let number = u32::from_be_bytes([*a, *b, *c, *d]);
                    let found = schemas.find(number)?.as_ref().map_err(String::clone);
                    found.and_then(|schema| decoder.learn(number, schema))
                }
                // Without a header there is no schema to ask for; the error follows below.
                _ => Ok(()),
            };
            match known.and(body) {
                Ok(body) => {
                    values.push(body);
                    records.push((record, key));
                }
                Err(reason) => wrong.push((record, key, reason, value)),
            }
        }
        let mut is_row = vec![true; values.len()];
        let Ok(rows) = decoder.decode(&values, |at, reason| {
            let (record, key) = records[at];
            wrong.push((record, key, reason.to_owned(), Some(values[at])));
            is_row[at] = false;
            Ok::<(), Infallible>(())
        });
        // The first one is reported first.
        wrong.sort_unstable_by_key(|(record, ..)| record.offset);
        for (record, key, reason, bytes) in wrong {
            let offset = json!(record.offset);
            let place = [("topic", json!(topic)), ("partition", json!(partition)), ("offset", offset)];
            bad.bad_with(&place, &reason, bytes, || record.besides(key))?;
        }
        let bad = bad.flush()?;
        if options.metadata.is_empty() {
            return Ok((rows, bad));
        }
        let records = records.into_iter().zip(is_row).filter(|(_, is_row)| *is_row).map(|(record, _)| record).collect();
        let found = RecordColumns { topic, partition, records };
        let more = options.metadata.iter().map(|(_, what)| found.column(*what));
        let columns = rows.columns().iter().cloned().chain(more).collect();
        Ok((RecordBatch::try_new(SchemaRef::clone(schema), columns)?, bad))
    }

    pub(super) fn raw(&self, partition: i32, buffer: &PartitionBuffer) -> Result<RecordBatch, TaskError> {
        let (mut keys, mut values) = (BinaryBuilder::new(), BinaryBuilder::new());
        for (_, key, value) in buffer.iter() {
            keys.append_option(key);
            values.append_option(value);
        }
        let records = || buffer.records.iter();
        let columns: Vec<ArrayRef> = vec![
            Arc::new(keys.finish()),
            Arc::new(values.finish()),
            Arc::new(Int32Array::from(vec![partition; buffer.records.len()])),
            Arc::new(Int64Array::from_iter_values(records().map(|record| record.offset))),
            Arc::new(records().map(|record| record.timestamp_ms).collect::<TimestampMillisecondArray>()),
        ];
        let records = buffer.iter().map(|(record, key, _)| (record, key)).collect();
        let found = RecordColumns { topic: &self.plan.topic, partition, records };
        let more = self.plan.options.metadata.iter().map(|(_, what)| found.column(*what));
        let columns = columns.into_iter().chain(more).collect();
        Ok(RecordBatch::try_new(SchemaRef::clone(&self.plan.schema), columns)?)
    }
}
