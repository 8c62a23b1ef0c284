//! What people write: lazy tables, expressions and SQL. The work is DataFusion's; this crate gives it names, checks and errors
//! that people can use.
//!
//! | module       | what is in it                                                              |
//! |--------------|----------------------------------------------------------------------------|
//! | `error`      | `DataSetError`: every message stands alone                                 |
//! | `exact`      | casts without loss                                                         |
//! | `types`      | column types by name                                                       |
//! | `plan`       | what queries mean: expressions, SQL, rules                                 |
//! | `exec`       | steps of plans that are added to DataFusion's, or take their place         |
//! | `engine`     | threads and memory that queries run with; actions that can be cancelled    |
//! | `dataset`    | `DataSet`: select, filter, aggregate, sort, ...; collect, count, explain   |
//! | `join`       | joins of two DataSets                                                      |
//! | `files`      | files and object stores: finding, reading and writing them                 |
//! | `distribute` | queries on all workers of a job                                            |
//! | `stream`     | queries over streams: windows of event time                                |
#![warn(missing_docs)]

mod dataset;
mod distribute;
mod engine;
mod error;
mod exact;
mod exec;
mod files;
mod join;
mod plan;
mod stream;
pub mod types;

pub use datafusion;
pub use dataset::{DataSet, Explain};
pub use distribute::{ActionError, To, Watch, Workers};
pub use engine::{Engine, EngineConfig, Running};
pub use error::{DataSetError, Result};
pub use exact::{exact, plain_batch, plain_schema, plain_type};
pub use exec::map::BatchFunction;
pub use exec::reading::Reading;
pub use files::commit::settle;
pub use files::lenient::{BadRow, OnError};
pub use files::npy::read_npy;
pub use files::one_file::join_files;
pub use files::part_sink::PartFormat;
pub use files::paths::{LocalFile, find_files, find_local_files, read_bytes};
pub use files::read::{CsvLayout, Format, ReadOptions, read};
pub use files::records::read_records;
pub use files::stores::{ObjectPlace, StorageOptions};
pub use files::unite::unite;
pub use files::write::Output;
pub use join::How;
pub use plan::deep::check_expr;
pub use plan::expr;
pub use stream::{
    BadTo, Calendar, Early, KeyedBatch, KeyedFunction, LateRows, LateTo, LookAtSinks, MakeKeyedFunction, MakeLateSink,
    StreamJob, StreamOutput, StreamSink, StreamSource, WindowKind, Windows, sql_functions, table_stream,
};
