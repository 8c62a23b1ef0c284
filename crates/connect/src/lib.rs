//! Sources and sinks: the connectors through which streams enter and leave a job, one per file.
//!
//! | module     | kind                             | source | copies resume from            | sink | guarantee             |
//! |------------|----------------------------------|--------|-------------------------------|------|-----------------------|
//! | `rate`     | `rate`                           | yes    | the number of a row           |      |                       |
//! | `files`    | `files`                          | yes    | bytes of each file, or object | yes  | exactly once          |
//! | `kafka`    | `kafka`                          | yes    | offsets of partitions         | yes  | exactly once, or less |
//! | `redis`    | `redis`                          | yes    | ids of streams' entries       | yes  | exactly once, or less |
//! | `rabbitmq` | `rabbitmq`                       | yes    | unacknowledged messages       | yes  | at least once         |
//! | `sockets`  | `socket`, `websocket`, `webhook` | yes    | nothing: see there            |      |                       |
//!
//! Modules, lowest first; each uses only those above it:
//!
//! | module            | contents                                                      |
//! |-------------------|---------------------------------------------------------------|
//! | `error`           | Errors in the description of a source or sink, and in records |
//! | `options`         | Reads the options of connectors                               |
//! | `hash`            | Hashes that are the same everywhere                           |
//! | `prepared_commit` | A sink's data in checkpoints                                  |
//! | `headers`         | Headers of records, as a column                               |
//! | `tls`             | Certificates and keys, for all connectors                     |
//! | `connection`      | Connection options                                            |
//! | `idleness`        | Reports of idle splits                                        |
//! | `encode`          | Encodes rows as bytes                                         |
//! | `read_ahead`      | A thread that reads ahead                                     |
//! | `avro`            | Avro records                                                  |
//! | `decode`          | Decodes bytes to rows                                         |
//! | `format`          | The formats that several sources share                        |
//! | `bad_records`     | Records that cannot be decoded                                |
//! | `rate`            | The generator                                                 |
//! | `read_options`    | Options of sources                                            |
//! | `files`           | Folders and objects, as sources and sinks                     |
//! | `redis`           | Redis streams, lists and hashes                               |
//! | `sockets`         | TCP servers, WebSockets and webhooks                          |
//! | `record`          | Encodes rows as keys and values, or as messages               |
//! | `kafka`           | Kafka                                                         |
//! | `rabbitmq`        | RabbitMQ                                                      |
//!
//! JSON describes a connector; [`source`] and [`sink`] turn that into a factory that makes one connector for each copy
//! of a task:
//!
//! ```
//! use serde_json::json;
//! use tidemill_storage::ObjectStores;
//! let stores = ObjectStores::default();
//! let source = tidemill_connect::source(&json!({"kind": "rate", "rows": 1000, "splits": 2}), None, &stores)?;
//! assert_eq!((source.copies_max, source.guarantee), (2, tidemill_connect::DeliveryGuarantee::ExactlyOnce));
//! let error = tidemill_connect::source(&json!({"kind": "rate", "row": 1000}), None, &stores).unwrap_err();
//! assert!(error.to_string().starts_with("generator: no option `row`, expected one of `rows`"));
//! # Ok::<(), tidemill_connect::ConnectError>(())
//! ```
//!
//! Connectors never block a thread of the pool: blocking work has its own thread, with a bounded queue in between.
//! Passwords come from the options or the environment and never appear in messages.

mod avro;
mod bad_records;
mod connection;
mod decode;
mod encode;
mod error;
mod files;
mod format;
mod hash;
mod headers;
mod idleness;
mod kafka;
mod options;
mod prepared_commit;
mod rabbitmq;
mod rate;
mod read_ahead;
mod read_options;
mod record;
mod redis;
mod sockets;
mod tls;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use serde_json::Value;
pub use tidemill_dataflow::stream::sink::{DeliveryGuarantee, MakeSink};
pub use tidemill_dataflow::stream::source::{ListFiles, MakeSource};
use tidemill_storage::ObjectStores;

pub use self::redis::RedisHashes;
use bad_records::BadRecordPolicy;
pub use bad_records::BadRecords;
pub use error::ConnectError;

/// A source that can be created.
#[derive(Clone)]
pub struct SourceSpec {
    /// For plans and errors; the same on every worker.
    pub name: String,
    /// The schema of its rows.
    pub schema: SchemaRef,
    /// More copies than this would have nothing to read; 0 is no limit.
    pub copies_max: u32,
    /// The guarantee for rows when a job with checkpoints fails and resumes. Exactly once: the source resumes where the
    /// checkpoint says. At least once: senders do not know what has arrived. At most once: whatever arrived since the
    /// checkpoint is lost.
    pub guarantee: DeliveryGuarantee,
    /// The records skipped in this process.
    pub bad: Arc<BadRecords>,
    /// The schema of bad records, if `on_error` sends them to a sink: the source then emits them beside the rows.
    pub bad_schema: Option<SchemaRef>,
    /// The folder to which bad records are written, if `on_error` says so. They are written at once, so a job that
    /// resumes after a failure may write one again.
    pub bad_folder: Option<PathBuf>,
    /// The local files that it would read now: all hosts must see the same ones.
    pub files: Option<ListFiles>,
    /// Whether its splits can move to other copies while a job runs.
    pub moves_splits: bool,
    /// Creates one.
    pub make: MakeSource,
}

impl SourceSpec {
    /// A source that any number of copies may read and that does not read local files.
    fn new(
        name: String,
        schema: SchemaRef,
        guarantee: DeliveryGuarantee,
        bad: &BadRecordPolicy,
        make: MakeSource,
    ) -> Self {
        SourceSpec {
            name,
            schema,
            copies_max: 0,
            guarantee,
            bad: bad.counted(),
            bad_schema: bad.on_error().schema(),
            bad_folder: bad.on_error().folder(),
            files: None,
            moves_splits: false,
            make,
        }
    }
}

impl fmt::Debug for SourceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceSpec").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A sink that can be created.
#[derive(Clone)]
pub struct SinkSpec {
    /// For plans and errors; the same on every worker.
    pub name: String,
    /// Maximum useful number of copies; 0 for no limit.
    pub copies_max: u32,
    /// The best guarantee that it can give.
    pub guarantee: DeliveryGuarantee,
    /// Creates one.
    pub make: MakeSink,
}

impl fmt::Debug for SinkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SinkSpec").field("name", &self.name).field("guarantee", &self.guarantee).finish_non_exhaustive()
    }
}

/// The source that `spec` describes: an object with its `kind` and that kind's options. `schema` is the schema of its
/// rows, unless they have their own; `stores` contains the open object stores.
///
/// Contacts nothing outside, except for reading certificate files, and asking a registry for the schema of Avro values
/// if none is given. Everything else happens when a source is created.
///
/// # Errors
/// `Kind` and `Option` say what is wrong and what would be right.
pub fn source(spec: &Value, schema: Option<SchemaRef>, stores: &ObjectStores) -> Result<SourceSpec, ConnectError> {
    match options::kind(spec, "source", &SOURCES)? {
        "rate" => rate::source(spec, schema),
        "rabbitmq" => rabbitmq::source(spec, schema),
        "redis" => redis::source(spec, schema),
        "socket" => sockets::tcp(spec, schema),
        "webhook" => sockets::webhook(spec, schema),
        "websocket" => sockets::websocket(spec, schema),
        "files" => files::source(spec, schema, stores),
        "kafka" => kafka::source(spec, schema),
        other => unreachable!("{other} is not a kind of source"),
    }
}

/// The sink that `spec` describes, for rows of `schema`; `stores` contains the open object stores.
///
/// Contacts nothing outside; that happens when a sink is created.
///
/// # Errors
/// As [`source`].
pub fn sink(spec: &Value, schema: &SchemaRef, stores: &ObjectStores) -> Result<SinkSpec, ConnectError> {
    match options::kind(spec, "sink", &SINKS)? {
        "files" => files::sink(spec, schema, stores),
        "kafka" => kafka::sink(spec, schema),
        "rabbitmq" => rabbitmq::sink(spec, schema),
        "redis" => redis::sink(spec, schema),
        other => unreachable!("{other} is not a kind of sink"),
    }
}

const SOURCES: [&str; 8] = ["files", "kafka", "rabbitmq", "rate", "redis", "socket", "webhook", "websocket"];
const SINKS: [&str; 4] = ["files", "kafka", "rabbitmq", "redis"];
