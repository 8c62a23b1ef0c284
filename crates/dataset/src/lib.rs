//! What people write: lazy tables, expressions and SQL. The work is DataFusion's; this crate gives it names, checks and errors
//! that people can use.
//!
//! | module    | what                                                                      |
//! |-----------|---------------------------------------------------------------------------|
//! | `engine`  | threads and memory that queries run with; actions that can be cancelled    |
//! | `dataset` | `DataSet`: select, filter, aggregate, sort, ...; collect, count, explain   |
//! | `distribute` | queries on all workers of a job                                      |
//! | `join`    | joins of two DataSets; `join_exec` runs them within the memory budget       |
//! | `instead` | steps done otherwise than DataFusion does them; `step`: what all steps of ours say alike |
//! | `within_memory` | steps in forms that can spill; `window_exec`: window functions        |
//! | `running`       | window functions of rows in order                                       |
//! | `frames`  | functions of a window's frame, with a filter                               |
//! | `expr`    | expressions by the names that Python uses; `durations`: what they do with dates and numbers |
//! | `map`     | functions of programs as steps                                            |
//! | `group`   | group-by with a key of whole numbers, its first half                      |
//! | `numbers` | what numbers mean: sums and products that do not fit are errors            |
//! | `guards`  | a condition guards what is right of it                                    |
//! | `optimizer` | DataFusion's rules, with guards around those that are wrong; `sql`: what a query means |
//! | `parts`   | tables of which every worker holds a part; `own_files`: of files that only some hosts have |
//! | `split`   | texts to rows of their parts                                              |
//! | `spill`   | files, with checksums, that DataFusion's steps spill to                   |
//! | `types`   | column types by name                                                       |
//! | `reading` | how far an action is                                                      |
//! | `read`    | DataSets of files; `lines` reads text                                      |
//! | `records` | files of records of a fixed length; `npy` reads arrays; `part_sink` writes both, and texts |
//! | `evolved` | Parquet and Arrow files of different schemas: `unite` finds one for all, `exact` casts without loss |
//! | `files`   | which files paths and URLs stand for; `stores` opens object stores         |
//! | `ipc_check` | what Arrow IPC files say of their sizes; `caught`: decoders that panic; `deep`: plans too deep for a stack |
//! | `ipc_sink` | Arrow IPC files with a choice of compression                             |
//! | `json_source` | JSON lines in DataFusion's tables of files                            |
//! | `lenient` | rows that cannot be read: which those are; `file_table` leaves them out      |
//! | `stream`  | queries over streams: windows of event time                               |
//! | `rewrite` | what rules that change expressions have in common                       |
//! | `sorted`  | sorts and merges of long rows within the budget                              |
//! | `sources` | which files a query reads, for its errors                                 |
//! | `write`   | files of DataSets, all or nothing: `commit`, and `held` in object stores; `local_files` tells what the disk says |
//! | `error`   | `DataSetError`: every message stands alone                                 |
#![warn(missing_docs)]

mod caught;
mod commit;
mod dataset;
mod deep;
mod distribute;
mod durations;
mod engine;
mod error;
mod evolved;
mod exact;
pub mod expr;
mod file_table;
mod files;
mod frames;
mod group;
mod guards;
mod held;
mod instead;
mod ipc_check;
mod ipc_sink;
mod join;
mod join_exec;
mod lenient;
mod lines;
mod local_files;
mod map;
mod mark;
mod npy;
mod number_keys;
mod numbers;
mod one_file;
mod optimizer;
mod own_files;
mod packing;
mod part_sink;
mod parts;
mod read;
mod reading;
mod records;
mod rewrite;
mod running;
mod sorted;
mod sources;
mod spill;
mod split;
mod spread;
mod sql;
mod step;
mod stores;
mod stream;
mod text_source;
mod times;
pub mod types;
mod unite;
mod window_exec;
mod within_memory;
mod write;

pub use commit::settle;
pub use datafusion;
pub use dataset::{DataSet, Explain};
pub use deep::check_expr;
pub use distribute::{ActionError, To, Watch, Workers};
pub use engine::{Engine, EngineConfig, Running};
pub use error::{DataSetError, Result};
pub use exact::{exact, plain_batch, plain_schema, plain_type};
pub use files::{LocalFile, find_files, find_local_files, read_bytes};
pub use join::How;
pub use lenient::{BadRow, OnError};
pub use map::BatchFunction;
pub use npy::read_npy;
pub use one_file::join_files;
pub use part_sink::PartFormat;
pub use read::{CsvLayout, Format, ReadOptions, read};
pub use reading::Reading;
pub use records::read_records;
pub use stores::{ObjectPlace, StorageOptions};
pub use stream::{
    BadTo, Calendar, Early, KeyedBatch, KeyedFunction, LateRows, LateTo, LookAtSinks, MakeKeyedFunction, MakeLateSink,
    StreamJob, StreamOutput, StreamSink, StreamSource, WindowKind, Windows, table_stream,
};
pub use unite::unite;
pub use write::Output;
