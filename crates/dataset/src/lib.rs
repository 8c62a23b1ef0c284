//! Lazy tables, expressions and SQL. DataFusion does the work; this crate adds an API, checks and helpful errors.
//!
//! Modules, lowest first; each uses only those above it:
//!
//! | module          | contents                                                                |
//! |-----------------|-------------------------------------------------------------------------|
//! | `error`         | `DataSetError`, with self-contained messages                            |
//! | `lossless_cast` | casts without loss                                                      |
//! | `types`         | column types by name                                                    |
//! | `bad_rows`      | unreadable rows                                                         |
//! | `plan`          | the meaning of queries: expressions, SQL, rules                         |
//! | `exec`          | physical steps that extend or replace DataFusion's                      |
//! | `engine`        | the threads and memory of queries; actions that can be canceled         |
//! | `dataset`       | `DataSet`: select, filter, aggregate, sort, ...                         |
//! | `join`          | joins of two DataSets                                                   |
//! | `files`         | finds, reads and writes files and objects                               |
//! | `actions`       | collect and explain, in one process                                     |
//! | `distribute`    | queries on all workers of a job                                         |
#![warn(missing_docs)]

mod actions;
mod bad_rows;
mod dataset;
mod distribute;
mod engine;
mod error;
mod exec;
mod files;
mod join;
mod lossless_cast;
mod plan;
pub mod types;

pub use actions::ExplainLevel;
pub use bad_rows::BadRow;
pub use datafusion;
pub use dataset::DataSet;
pub use distribute::{ActionError, ResultTarget, Watch, WorkerGroup};
pub use engine::{ActionHandle, Engine, EngineConfig};
pub use error::{DataSetError, Result};
pub use exec::progress::ReadProgress;
pub use exec::user_function::BatchFunction;
pub use files::commit::settle;
pub use files::csv_layout::CsvLayout;
pub use files::malformed_rows::OnError;
pub use files::npy::read_npy;
pub use files::one_file::join_files;
pub use files::output::OutputFormat;
pub use files::part_sink::PartFormat;
pub use files::paths::{LocalFile, find_files, find_local_files, read_bytes};
pub use files::read::{ReadFormat, ReadOptions, read};
pub use files::records::read_records;
pub use files::schema_union::unite;
pub use join::JoinHow;
pub use lossless_cast::{exact, plain_batch, plain_schema, plain_type};
pub use plan::deep::check_expr;
pub use plan::expr;
pub use tidemill_storage::StorageOptions;

/// For crates that add tables and steps, such as `tidemill-stream`.
pub mod extend {
    pub use crate::distribute::{failed, only_value};
    pub use crate::exec::explode_split::SplitExec;
    pub use crate::exec::group::grouped_by_numbers;
    pub use crate::exec::number_keys::group_values;
    pub use crate::exec::step::SLICE_ROWS;
    pub use crate::exec::stream_step::{StreamStep, StreamStepExec, has_stream};
    pub use crate::exec::user_function::{MapExec, fitted, planned_below};
    pub use crate::join::with_given_names;
    pub use crate::plan::calls::{call_of, number_of, said_by};
    pub use crate::plan::markers::{DistinctTtl, JoinTtl};
    pub use crate::plan::micros::micros;
    pub use crate::plan::rewrite::rewrite_exprs;
    pub use crate::plan::tables::{StepProvider, StepTable, hidden_in, reads_stream, table_at};
    pub use crate::plan::window_names;
}
