//! Writes rows to hashes or a stream.
//!
//! With exactly once, the changes wait in the checkpoint. A *commit* is one transaction of the server: it writes the
//! changes, and sets a *marker*, the key `tidemill:ID:COPY`, to the run and the epoch. If the marker is already there,
//! nothing is left to do. The key is watched, so if two processes commit the same changes, one of them has to check
//! again. This makes even adding to a number exact.
//!
//! With at least once, rows are written as they arrive, for users who want them soon: setting a hash again changes
//! nothing.
//!
//! At the start, the sink asks whether the server keeps its data. A server that does not write each change to disk, or
//! that evicts keys when it is full, loses committed rows and markers. The sink prints a warning in that case, and also
//! if the server does not answer.
//!
//! A hash's key consists of the values of its columns, joined by colons, see `key`.
//!
//! The server does not undo a transaction if one of its commands fails, for example on a key of another type: this is
//! an error of the job, and the rest of the transaction has been written.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisResult};
use serde_json::Value;
use tidemill_dataflow::stream::sink::Sink;
use tidemill_dataflow::{TaskContext, TaskError};

use super::change::{ChangeEncoder, ChangeOptions, KeyChange};
use super::client::{RedisServer, passes};
use super::risks::{SETTINGS, risks};
use crate::connection::{Credentials, ServerOptions};
use crate::error::ConnectError;
use crate::prepared_commit::{CommitMarker, CommitOptions, EpochBuffer, PreparedHeader, open, records};
use crate::{DeliveryGuarantee, SinkSpec, options};

const NAME: &str = "redis sink";

/// Default limit per copy between two checkpoints.
const EPOCH_BYTES_MAX: usize = 64 << 20;

pub(crate) fn sink(spec: &Value, schema: &SchemaRef) -> Result<SinkSpec, ConnectError> {
    type Groups = (ChangeOptions, ServerOptions, Credentials, CommitOptions);
    let (changes, server, credentials, commits) = options::read_groups::<Groups>(NAME, spec)?;
    let wrong = |reason: String| ConnectError::option(NAME, reason);
    let server = RedisServer::new(&server, credentials).map_err(wrong)?;
    let encoder = ChangeEncoder::new(&changes, schema).map_err(wrong)?;
    let id = commits.id("the server").map_err(wrong)?;
    if id.is_none() && !changes.increment.is_empty() {
        return Err(wrong("`increment` with at least once would count rows twice".into()));
    }
    let guarantee = if id.is_some() { DeliveryGuarantee::ExactlyOnce } else { DeliveryGuarantee::AtLeastOnce };
    let bytes_max = commits.epoch_bytes_max.unwrap_or(EPOCH_BYTES_MAX);
    let target = changes.stream.clone().unwrap_or_else(|| format!("{}*", changes.prefix));
    Ok(SinkSpec {
        name: format!("redis {target}"),
        copies_max: 0,
        guarantee,
        make: Arc::new(move |context: &TaskContext| {
            let buffer = |id: &String| EpochBuffer::new(id.clone(), target.clone(), context.copy(), false, bytes_max);
            Ok(Box::new(RedisSink {
                encoder: encoder.clone(),
                server: server.clone(),
                connection: None,
                buffer: id.as_ref().map(buffer),
                once: context.at_most_once() && changes.stream.is_some(),
                is_first: context.copy() == 0,
            }))
        }),
    })
}

/// The sink of one copy.
struct RedisSink {
    encoder: ChangeEncoder,
    server: RedisServer,
    connection: Option<MultiplexedConnection>,
    /// Set with exactly once.
    buffer: Option<EpochBuffer>,
    /// Whether nothing may be sent twice, because changes that may have arrived would be added again.
    once: bool,
    /// One copy reports for all what the server may lose.
    is_first: bool,
}

impl RedisSink {
    /// Connects, and reports what the server may lose.
    async fn begin(&mut self) -> Result<(), TaskError> {
        let begun = Instant::now();
        loop {
            match self.risks().await {
                Ok(risks) => {
                    for risk in risks {
                        eprintln!("tidemill: redis {}: {risk}", self.server.name);
                    }
                    return Ok(());
                }
                Err(error) => {
                    self.connection = None;
                    self.server.wait(begun, &error).await?;
                }
            }
        }
    }

    async fn risks(&mut self) -> RedisResult<Vec<String>> {
        let connection = self.server.connected(&mut self.connection).await?;
        if self.buffer.is_none() || !self.is_first {
            return Ok(Vec::new());
        }
        let mut found = BTreeMap::new();
        for name in SETTINGS {
            let asked: RedisResult<BTreeMap<String, String>> =
                redis::cmd("CONFIG").arg("GET").arg(name).query_async(connection).await;
            match asked {
                Ok(values) => found.extend(values),
                Err(error) if passes(&error) => return Err(error),
                // A missing permission is reported below.
                Err(_) => {}
            }
        }
        Ok(risks(&found, self.encoder.expire_s.is_some()))
    }

    async fn write(&mut self, rows: &RecordBatch) -> Result<(), TaskError> {
        let Some(buffer) = &mut self.buffer else {
            let mut bytes = Vec::new();
            self.encoder.encode(rows, &mut bytes)?;
            return self.send(&bytes, None).await;
        };
        self.encoder.encode(rows, &mut buffer.bytes)?;
        buffer.count(rows.num_rows());
        Ok(())
    }

    /// Makes changes, and retries until patience runs out.
    async fn send(&mut self, bytes: &[u8], marker: Option<(&str, &PreparedHeader)>) -> Result<(), TaskError> {
        let mut pipeline = Pipeline::new();
        let mut found = 0;
        for record in records(bytes) {
            let (Some(key), Some(change)) = record? else { return Err("a change without a key".into()) };
            let change: KeyChange = serde_json::from_slice(change)?;
            change.apply(key, &mut pipeline);
            found += 1;
        }
        if let Some((_, header)) = marker.filter(|(_, header)| header.records != found) {
            return Err(format!("the checkpoint has {found} of {} changes", header.records).into());
        }
        let begun = Instant::now();
        loop {
            match self.attempt(&pipeline, marker).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    let sent = self.connection.take().is_some();
                    if sent && self.once && marker.is_none() && passes(&error) {
                        eprintln!("tidemill: redis {}: {error}; {found} entries may be lost", self.server.name);
                        return Ok(());
                    }
                    self.server.wait(begun, &error).await?;
                }
            }
        }
    }

    /// Returns false if another process has moved the marker meanwhile.
    async fn attempt(&mut self, pipeline: &Pipeline, marker: Option<(&str, &PreparedHeader)>) -> RedisResult<bool> {
        let connection = self.server.connected(&mut self.connection).await?;
        let Some((key, header)) = marker else {
            pipeline.exec_async(connection).await?;
            return Ok(true);
        };
        // This connection is not shared, so it may watch keys.
        redis::cmd("WATCH").arg(key).exec_async(connection).await?;
        let last: Option<String> = redis::cmd("GET").arg(key).query_async(connection).await?;
        let marker = CommitMarker::parse(last.as_deref().unwrap_or_default());
        if marker.has(header) {
            redis::cmd("UNWATCH").exec_async(connection).await?;
            return Ok(true);
        }
        let mut pipeline = pipeline.clone();
        pipeline.atomic().cmd("SET").arg(key).arg(marker.with(header).to_string());
        let done: Option<redis::Value> = pipeline.query_async(connection).await?;
        Ok(done.is_some())
    }
}

impl Sink for RedisSink {
    fn begin(&mut self) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(RedisSink::begin(self))
    }

    fn write(&mut self, rows: RecordBatch) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(async move { RedisSink::write(self, &rows).await })
    }

    fn prepare(&mut self, epoch: u64) -> BoxFuture<'_, Result<Bytes, TaskError>> {
        let sealed = self.buffer.as_mut().map(|buffer| buffer.seal(epoch));
        Box::pin(std::future::ready(Ok(sealed.unwrap_or_default())))
    }

    fn commit(&mut self, prepared: Bytes) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(async move {
            let (header, bytes) = open(&prepared)?;
            let key = format!("tidemill:{}:{}", header.id, header.origin);
            self.send(bytes, Some((&key, &header))).await
        })
    }

    fn fullness(&self) -> f64 {
        self.buffer.as_ref().map_or(0.0, EpochBuffer::fullness)
    }
}
