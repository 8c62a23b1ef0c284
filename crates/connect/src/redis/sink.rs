//! Rows into hashes or a stream.
//!
//! With exactly once, what is to be written waits in the checkpoint. To *commit* is one transaction of the server: it
//! writes, and sets a *marker*, the key `tidemill:ID:COPY`, to the run and the epoch. Where the marker is there already
//! nothing is left to do; the key is watched, so that of two who commit the same one has to look again. So adding to a
//! number is exact, too.
//!
//! With at least once rows are written as they come, for those who want them soon: a hash that is set again is as it
//! was.
//!
//! At the beginning it is asked whether it keeps what it has: one that does not write each change to disk, or evicts
//! keys when it is full, loses rows that were committed, and markers; that is printed, as is that it does not say.
//!
//! A hash's key is the values of its columns, with colons between, see `key`.
//!
//! The server does not undo a transaction one of whose commands is wrong, such as one on a key of another type: that is
//! an error of the job, and the rest of the transaction has been written.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisResult};
use serde::Deserialize;
use serde_json::Value;
use tidemill_dataflow::stream::sink::Sink;
use tidemill_dataflow::{TaskContext, TaskError};

use super::change::{ChangeEncoder, KeyChange};
use super::client::{PAUSE, RedisServer, passes, told};
use super::risks::{SETTINGS, risks};
use crate::error::ConnectError;
use crate::options::{self, SecretText};
use crate::prepared_commit::{CommitMarker, PreparedHeader, open, records, seal};
use crate::tls::TlsOptions;
use crate::{Guarantee, SinkSpec, hash};

const NAME: &str = "redis sink";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RedisGuarantee {
    #[default]
    ExactlyOnce,
    AtLeastOnce,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RedisSinkOptions {
    /// `redis://HOST:PORT/NUMBER`, or `rediss:` for TLS.
    pub(super) url: SecretText,
    /// Files of certificates.
    pub(super) tls: Option<TlsOptions>,
    /// Else the URL's, else `TIDEMILL_REDIS_USER` and `TIDEMILL_REDIS_PASSWORD`.
    pub(super) user: Option<String>,
    pub(super) password: Option<SecretText>,
    /// The stream that rows are added to; without it they go into hashes.
    pub(super) stream: Option<String>,
    /// Of the stream: about so many entries are kept.
    pub(super) entries_max: Option<u64>,
    /// Of hashes: the columns whose values, with colons between, are a hash's key, see `KeyTemplate`. The others are
    /// its fields.
    #[serde(default)]
    pub(super) key: Vec<String>,
    /// Of hashes: what their keys begin with.
    #[serde(default)]
    pub(super) prefix: String,
    /// Of hashes: columns that are added to what is there.
    #[serde(default)]
    pub(super) increment: Vec<String>,
    /// Of hashes: how long one stays after it was written last.
    pub(super) expire_s: Option<u64>,
    #[serde(default)]
    pub(super) guarantee: RedisGuarantee,
    /// With exactly once: what the job is called at the server, where nobody else may be called so.
    pub(super) id: Option<String>,
    /// Of one copy between two checkpoints: at half of it one is asked for, and at all of it rows wait for that.
    #[serde(default = "epoch_bytes_max_default")]
    pub(super) epoch_bytes_max: usize,
    /// How long the server may keep silent before the job fails.
    #[serde(default = "options::a_minute")]
    pub(super) patience_s: f64,
}

fn epoch_bytes_max_default() -> usize {
    64 << 20
}

pub(crate) fn sink(spec: &Value, schema: &SchemaRef) -> Result<SinkSpec, ConnectError> {
    let options: RedisSinkOptions = options::read(NAME, spec)?;
    let wrong = |reason: String| ConnectError::option(NAME, reason);
    let server = RedisServer::new(&options.url, options.user.clone(), options.password.clone(), options.tls.as_ref())
        .map_err(wrong)?;
    let encoder = ChangeEncoder::new(&options, schema).map_err(wrong)?;
    let (guarantee, id) = match (options.guarantee, options.id.clone().filter(|id| !id.is_empty())) {
        (RedisGuarantee::ExactlyOnce, None) => {
            return Err(wrong(
                "exactly once needs `id`, a name that only this job uses at the server and keeps".into(),
            ));
        }
        (RedisGuarantee::AtLeastOnce, _) if !options.increment.is_empty() => {
            return Err(wrong("`increment` with at least once would count rows twice".into()));
        }
        (RedisGuarantee::ExactlyOnce, id) => (Guarantee::ExactlyOnce, id),
        (RedisGuarantee::AtLeastOnce, _) => (Guarantee::AtLeastOnce, None),
    };
    let target = options.stream.clone().unwrap_or_else(|| format!("{}*", options.prefix));
    Ok(SinkSpec {
        name: format!("redis {target}"),
        copies_max: 0,
        guarantee,
        make: Arc::new(move |context: &TaskContext| {
            let header = id.clone().map(|id| PreparedHeader {
                id,
                target: target.clone(),
                origin: context.copy(),
                run: hash::unique(),
                epoch: 0,
                records: 0,
                headed: false,
            });
            Ok(Box::new(RedisSink {
                encoder: encoder.clone(),
                server: server.clone(),
                connection: None,
                header,
                bytes: Vec::new(),
                epoch_bytes_max: options.epoch_bytes_max,
                patience: Duration::from_secs_f64(options.patience_s.clamp(0.0, 1e6)),
                once: context.at_most_once() && options.stream.is_some(),
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
    /// With exactly once.
    header: Option<PreparedHeader>,
    bytes: Vec<u8>,
    epoch_bytes_max: usize,
    patience: Duration,
    /// Whether nothing may be sent twice: what may have arrived, and would be added again.
    once: bool,
    /// One copy says for all what the server may lose.
    is_first: bool,
}

impl RedisSink {
    /// Connects, and says what the server may lose.
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
                Err(error) if passes(&error) && begun.elapsed() < self.patience => {
                    self.connection = None;
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(format!("redis {}: {}", self.server.name, told(&error)).into()),
            }
        }
    }

    async fn risks(&mut self) -> RedisResult<Vec<String>> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            None => self.connection.insert(self.server.connect().await?),
        };
        if self.header.is_none() || !self.is_first {
            return Ok(Vec::new());
        }
        let mut found = BTreeMap::new();
        for name in SETTINGS {
            let asked: RedisResult<BTreeMap<String, String>> =
                redis::cmd("CONFIG").arg("GET").arg(name).query_async(connection).await;
            match asked {
                Ok(values) => found.extend(values),
                Err(error) if passes(&error) => return Err(error),
                // Who may not ask is told so below.
                Err(_) => {}
            }
        }
        Ok(risks(&found, self.encoder.expire_s.is_some()))
    }

    async fn write(&mut self, rows: &RecordBatch) -> Result<(), TaskError> {
        let Some(header) = &mut self.header else {
            let mut bytes = Vec::new();
            self.encoder.encode(rows, &mut bytes)?;
            return self.send(&bytes, None).await;
        };
        self.encoder.encode(rows, &mut self.bytes)?;
        header.records += rows.num_rows() as u64;
        Ok(())
    }

    /// Makes changes, and tries again while there is patience.
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
                    if !passes(&error) || begun.elapsed() >= self.patience {
                        return Err(format!("redis {}: {}", self.server.name, told(&error)).into());
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// False: somebody else has moved the marker meanwhile.
    async fn attempt(&mut self, pipeline: &Pipeline, marker: Option<(&str, &PreparedHeader)>) -> RedisResult<bool> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            None => self.connection.insert(self.server.connect().await?),
        };
        let Some((key, header)) = marker else {
            pipeline.exec_async(connection).await?;
            return Ok(true);
        };
        // Nobody else has this connection, which is what may watch.
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
        let bytes = std::mem::take(&mut self.bytes);
        let mut sealed = Bytes::new();
        if let Some(header) = self.header.as_mut().filter(|header| header.records > 0) {
            header.epoch = epoch;
            sealed = seal(header, &bytes);
            header.records = 0;
        }
        Box::pin(std::future::ready(Ok(sealed)))
    }

    fn commit(&mut self, prepared: Bytes) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(async move {
            let (header, bytes) = open(&prepared)?;
            let key = format!("tidemill:{}:{}", header.id, header.origin);
            self.send(bytes, Some((&key, &header))).await
        })
    }

    fn fullness(&self) -> f64 {
        self.bytes.len() as f64 / self.epoch_bytes_max as f64
    }
}
