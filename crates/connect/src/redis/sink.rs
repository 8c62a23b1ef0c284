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

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisResult};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidemill_dataflow::stream::sink::Sink;
use tidemill_dataflow::{TaskContext, TaskError};

use super::client::{PAUSE, RedisServer, passes, told};
use super::key::{KeyTemplate, texts};
use crate::error::ConnectError;
use crate::options::SecretText;
use crate::prepared_commit::{CommitMarker, PreparedHeader, open, put, records, seal};
use crate::tls::TlsOptions;
use crate::{Guarantee, SinkSpec, hash, options};

const NAME: &str = "redis sink";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RedisGuarantee {
    #[default]
    ExactlyOnce,
    AtLeastOnce,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RedisSinkOptions {
    /// `redis://HOST:PORT/NUMBER`, or `rediss:` for TLS.
    url: SecretText,
    /// Files of certificates.
    tls: Option<TlsOptions>,
    /// Else the URL's, else `TIDEMILL_REDIS_USER` and `TIDEMILL_REDIS_PASSWORD`.
    user: Option<String>,
    password: Option<SecretText>,
    /// The stream that rows are added to; without it they go into hashes.
    stream: Option<String>,
    /// Of the stream: about so many entries are kept.
    entries_max: Option<u64>,
    /// Of hashes: the columns whose values, with colons between, are a hash's key, see `KeyTemplate`. The others are
    /// its fields.
    #[serde(default)]
    key: Vec<String>,
    /// Of hashes: what their keys begin with.
    #[serde(default)]
    prefix: String,
    /// Of hashes: columns that are added to what is there.
    #[serde(default)]
    increment: Vec<String>,
    /// Of hashes: how long one stays after it was written last.
    expire_s: Option<u64>,
    #[serde(default)]
    guarantee: RedisGuarantee,
    /// With exactly once: what the job is called at the server, where nobody else may be called so.
    id: Option<String>,
    /// Of one copy between two checkpoints: at half of it one is asked for, and at all of it rows wait for that.
    #[serde(default = "epoch_bytes_max_default")]
    epoch_bytes_max: usize,
    /// How long the server may keep silent before the job fails.
    #[serde(default = "options::a_minute")]
    patience_s: f64,
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

/// What is done to a key.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct KeyChange {
    /// Fields that a hash has from now on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    set: Vec<(String, String)>,
    /// Fields that it has no more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unset: Vec<String>,
    /// Whole numbers, and others, that are added to its fields.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    add: Vec<(String, String, bool)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expire_s: Option<u64>,
    /// Fields of an entry of a stream.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    entry: Vec<(String, String)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entries_max: Option<u64>,
}

impl KeyChange {
    fn apply(&self, key: &[u8], pipeline: &mut Pipeline) {
        if !self.set.is_empty() {
            pipeline.cmd("HSET").arg(key).arg(&self.set).ignore();
        }
        if !self.unset.is_empty() {
            pipeline.cmd("HDEL").arg(key).arg(&self.unset).ignore();
        }
        for (field, by, is_whole) in &self.add {
            let command = if *is_whole { "HINCRBY" } else { "HINCRBYFLOAT" };
            pipeline.cmd(command).arg(key).arg(field).arg(by).ignore();
        }
        if let Some(seconds) = self.expire_s {
            pipeline.cmd("EXPIRE").arg(key).arg(seconds).ignore();
        }
        if !self.entry.is_empty() {
            let command = pipeline.cmd("XADD").arg(key);
            if let Some(entries) = self.entries_max {
                command.arg("MAXLEN").arg("~").arg(entries);
            }
            command.arg("*").arg(&self.entry).ignore();
        }
    }
}

/// How rows are changes.
#[derive(Clone)]
struct ChangeEncoder {
    schema: SchemaRef,
    stream: Option<String>,
    entries_max: Option<u64>,
    key: KeyTemplate,
    prefix: String,
    increment: Vec<usize>,
    expire_s: Option<u64>,
}

impl ChangeEncoder {
    fn new(given: &RedisSinkOptions, schema: &SchemaRef) -> Result<Self, String> {
        let columns = |option: &str, names: &[String]| -> Result<Vec<usize>, String> {
            names.iter().map(|name| options::column(schema, option, name)).collect()
        };
        let (key, increment) = (columns("key", &given.key)?, columns("increment", &given.increment)?);
        let is_hash = given.stream.is_none();
        if is_hash && key.is_empty() {
            return Err("`key` must name the columns that identify hashes, or `stream` a stream".into());
        }
        let is_plain = key.is_empty() && increment.is_empty() && given.prefix.is_empty() && given.expire_s.is_none();
        if !(is_hash || is_plain) {
            return Err("`key`, `prefix`, `increment` and `expire_s` are for hashes, but `stream` writes none".into());
        }
        if is_hash && given.entries_max.is_some() {
            return Err("`entries_max` is for a stream".into());
        }
        if let Some(column) = increment.iter().find(|column| !schema.field(**column).data_type().is_numeric()) {
            return Err(format!("column \"{}\" is not numeric, so it cannot be added", schema.field(*column).name()));
        }
        if let Some(column) = key.iter().find(|column| increment.contains(column)) {
            return Err(format!("column \"{}\" cannot be both a key and added", schema.field(*column).name()));
        }
        let encoder = ChangeEncoder {
            schema: SchemaRef::clone(schema),
            stream: given.stream.clone(),
            entries_max: given.entries_max,
            key: KeyTemplate::new(schema, &key),
            prefix: given.prefix.clone(),
            increment,
            expire_s: given.expire_s,
        };
        // Types are looked at before there are rows.
        let empty = RecordBatch::new_empty(SchemaRef::clone(schema));
        encoder.encode(&empty, &mut Vec::new()).map_err(|error| error.to_string())?;
        Ok(encoder)
    }

    /// Appends what rows change to `out`, as records of keys and changes.
    fn encode(&self, rows: &RecordBatch, out: &mut Vec<u8>) -> Result<(), TaskError> {
        let texts = texts(rows)?;
        for row in 0..rows.num_rows() {
            let mut change =
                KeyChange { expire_s: self.expire_s, entries_max: self.entries_max, ..KeyChange::default() };
            for (column, field) in self.schema.fields().iter().enumerate() {
                let name = field.name().clone();
                let value = texts[column].is_valid(row).then(|| texts[column].value(row).to_owned());
                match value {
                    _ if self.key.has(column) => {}
                    Some(value) if self.increment.contains(&column) => {
                        change.add.push((name, value, field.data_type().is_integer()));
                    }
                    Some(value) if self.stream.is_some() => change.entry.push((name, value)),
                    Some(value) => change.set.push((name, value)),
                    None if self.stream.is_none() && !self.increment.contains(&column) => change.unset.push(name),
                    None => {}
                }
            }
            let key = match &self.stream {
                Some(stream) => {
                    // An entry has at least one field: a row of nulls has one without a name, which is none of its
                    // columns.
                    if change.entry.is_empty() {
                        change.entry.push((String::new(), String::new()));
                    }
                    stream.clone()
                }
                None => self.key.of(&self.prefix, &texts, row),
            };
            put(Some(key.as_bytes()), out);
            put(Some(&serde_json::to_vec(&change)?), out);
        }
        Ok(())
    }
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

/// By which a server keeps what it has, or does not.
const SETTINGS: [&str; 3] = ["appendonly", "appendfsync", "maxmemory-policy"];

/// What settings of a server mean for rows that are to be there once.
fn risks(settings: &BTreeMap<String, String>, expires: bool) -> Vec<String> {
    let mut risks = Vec::new();
    let unsaid: Vec<&str> = SETTINGS.into_iter().filter(|name| !settings.contains_key(*name)).collect();
    if !unsaid.is_empty() {
        risks.push(format!(
            "it does not say whether it keeps what is committed (CONFIG GET {}): make sure that it has appendonly \
             yes, appendfsync always and maxmemory-policy noeviction, or allow this user +config|get",
            unsaid.join(" ")
        ));
    }
    let is = |name: &str, value: &str| settings.get(name).is_some_and(|found| found == value);
    if is("appendonly", "no") {
        risks.push(
            "it does not write each change to disk (appendonly no): when it ends, rows committed since its last \
             snapshot are lost, or come again; appendonly yes and appendfsync always keep them"
                .to_owned(),
        );
    } else if let Some(often) = settings.get("appendfsync").filter(|often| *often != "always") {
        let lost = if often == "everysec" { "of the last second" } else { "since the system last wrote" };
        risks.push(format!(
            "it does not wait until a change is on disk (appendfsync {often}): when its machine fails, committed rows \
             {lost} are lost, or come again; appendfsync always keeps them"
        ));
    }
    if let Some(policy) = settings.get("maxmemory-policy") {
        if policy.starts_with("allkeys") {
            risks.push(format!(
                "it evicts keys when its memory is full (maxmemory-policy {policy}): committed rows may be lost, or \
                 come again; noeviction keeps them"
            ));
        } else if policy.starts_with("volatile") && expires {
            risks.push(format!(
                "it evicts expiring keys when its memory is full (maxmemory-policy {policy}), and these hashes \
                 expire: committed rows may be lost before their time; noeviction keeps them, or leave `expire` out"
            ));
        }
    }
    risks
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that loses what it has said to have is to be told of, and one that does not say.
    #[test]
    fn servers_that_forget_are_told_of() {
        let told = |settings: &[(&str, &str)], expires: bool| {
            let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            risks(&settings.collect(), expires).join(" ")
        };
        let of = |aof, often, policy, expires| {
            told(&[("appendonly", aof), ("appendfsync", often), ("maxmemory-policy", policy)], expires)
        };
        assert_eq!(of("yes", "always", "noeviction", true) + &of("yes", "always", "volatile-ttl", false), "");
        assert!(told(&[], false).contains("(CONFIG GET appendonly appendfsync maxmemory-policy)"));
        let both = of("no", "everysec", "allkeys-lru", false);
        assert!(both.contains("(appendonly no)") && both.contains("(maxmemory-policy allkeys-lru)"), "{both}");
        assert!(!both.contains("(appendfsync"), "{both}");
        assert!(of("yes", "everysec", "noeviction", false).contains("(appendfsync everysec)"));
        assert!(of("yes", "always", "volatile-lru", true).contains("(maxmemory-policy volatile-lru)"));
    }
}
