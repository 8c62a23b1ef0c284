//! Sources and sinks: where streams come from and go to. One connector a file.
//!
//! | module     | kind                             | source | copies go on from             | sink | guarantee             |
//! |------------|----------------------------------|--------|-------------------------------|------|-----------------------|
//! | `rate`     | `rate`                           | yes    | the number of a row           |      |                       |
//! | `files`    | `files`                          | yes    | bytes of each file, or object | yes  | exactly once          |
//! | `kafka`    | `kafka`                          | yes    | offsets of partitions         | yes  | exactly once, or less |
//! | `redis`    | `redis`                          | yes    | ids of streams' entries       | yes  | exactly once, or less |
//! | `rabbitmq` | `rabbitmq`                       | yes    | what is not acknowledged      | yes  | at least once         |
//! | `sockets`  | `socket`, `websocket`, `webhook` | yes    | nothing: see there            |      |                       |
//!
//! Modules, lowest first; each uses only those above it:
//!
//! | module            | what                                                          |
//! |-------------------|---------------------------------------------------------------|
//! | `error`           | Errors in the description of a source or sink, and in records |
//! | `options`         | What people write to describe a connector                     |
//! | `hash`            | Hashes that are the same everywhere                           |
//! | `prepared_commit` | What checkpoints keep of sinks                                |
//! | `headers`         | Headers of records, as a column                               |
//! | `tls`             | Certificates and keys, for all connectors                     |
//! | `connection`      | Options of connections                                        |
//! | `idleness`        | Splits that have nothing at the moment                        |
//! | `encode`          | Rows to bytes                                                 |
//! | `read_ahead`      | A thread that reads ahead                                     |
//! | `avro`            | Avro records                                                  |
//! | `decode`          | Bytes to rows                                                 |
//! | `format`          | The formats that several sources share                        |
//! | `bad_records`     | Records that cannot be decoded                                |
//! | `rate`            | The generator                                                 |
//! | `read_options`    | Options of sources                                            |
//! | `files`           | Folders and objects, as sources and sinks                     |
//! | `redis`           | Redis streams, lists and hashes                               |
//! | `sockets`         | TCP servers, WebSockets and webhooks                          |
//! | `record`          | Rows to keys and values, or to messages                       |
//! | `kafka`           | Kafka                                                         |
//! | `rabbitmq`        | RabbitMQ                                                      |
//!
//! A connector is described by JSON, [`source`] and [`sink`] turn that into something that makes one for each copy of a
//! task:
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
//! No connector blocks a thread of the pool: what blocks has a thread of its own, with a bounded queue between.
//! Passwords come from the options or the environment and appear in no message.

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

/// A source that can be made.
#[derive(Clone)]
pub struct SourceSpec {
    /// For plans and errors; the same on every worker.
    pub name: String,
    /// What its rows are.
    pub schema: SchemaRef,
    /// More copies than this would have nothing to read; 0 is no limit.
    pub copies_max: u32,
    /// What becomes of a row when a job with checkpoints fails and goes on: exactly once from a source that goes on
    /// where the checkpoint says, at least once where who sends does not know what has arrived, at most once where what
    /// came since is lost.
    pub guarantee: DeliveryGuarantee,
    /// The records that were left out in this process.
    pub bad: Arc<BadRecords>,
    /// What they are to a sink, if `on_error` says that they go to one: its source gives them beside the rows.
    pub bad_schema: Option<SchemaRef>,
    /// The folder that they are written into, if it says so: at once, so a job that goes on after a failure may write
    /// one again.
    pub bad_folder: Option<PathBuf>,
    /// The local files that it would read now: all hosts have to see the same.
    pub files: Option<ListFiles>,
    /// Makes one.
    pub make: MakeSource,
}

impl SourceSpec {
    /// A source that any number of copies may read, and that is of no local files.
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
            make,
        }
    }
}

impl fmt::Debug for SourceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceSpec").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A sink that can be made.
#[derive(Clone)]
pub struct SinkSpec {
    /// For plans and errors; the same on every worker.
    pub name: String,
    /// More copies than this are not wanted; 0 is no limit.
    pub copies_max: u32,
    /// What it gives, at best.
    pub guarantee: DeliveryGuarantee,
    /// Makes one.
    pub make: MakeSink,
}

impl fmt::Debug for SinkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SinkSpec").field("name", &self.name).field("guarantee", &self.guarantee).finish_non_exhaustive()
    }
}

/// The source that `spec` describes: an object with its `kind` and that kind's options. `schema` says what its rows
/// are, where they do not say it themselves; `stores` has the object stores that are open.
///
/// Nothing outside is asked, besides files of certificates, and a registry for the schema of Avro values that nobody
/// gave; all else is asked when one is made.
///
/// # Errors
/// `Kind` and `Option` name what is wrong and what would be right.
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

/// The sink that `spec` describes, for rows of `schema`; `stores` has the object stores that are open.
///
/// Nothing outside is asked; that is done when one is made.
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
