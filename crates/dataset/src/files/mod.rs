//! Files and object stores: finding, reading and writing them.
//!
//! Each module uses only those above it in this table.
//!
//! | module             | contents                                              |
//! |--------------------|-------------------------------------------------------|
//! | `csv_layout`       | the layout of CSV files                               |
//! | `rejected`         | rows that cannot be written                           |
//! | `one_file`         | joins files into one                                  |
//! | `encoding`         | compressed files                                      |
//! | `ipc_sink`         | Arrow IPC files with a choice of compression          |
//! | `schema_union`     | a common schema for files with different ones         |
//! | `per_host_files`   | tables of files that only some hosts have             |
//! | `uncommitted`      | uploads that are complete but not yet visible         |
//! | `local_files`      | metadata of local files                               |
//! | `paths`            | the files that paths and URLs refer to                |
//! | `ipc_check`        | checks of sizes in Arrow IPC files                    |
//! | `output_lease`     | the marker of a folder's writer                       |
//! | `schema_evolution` | Parquet and Arrow files with different schemas        |
//! | `lines`            | pieces of text files, in blocks of whole lines        |
//! | `malformed_rows`   | finds unreadable rows                                 |
//! | `file_table`       | tables of files, without unreadable rows              |
//! | `sources`          | the files that a query reads, for its errors          |
//! | `line_table`       | text files as a single column                         |
//! | `text_source`      | CSV and JSON lines in DataFusion's tables of files    |
//! | `read`             | DataSets from files                                   |
//! | `from_sql`         | DataSets from SQL, over tables and files              |
//! | `records`          | files of records of a fixed length                    |
//! | `npy`              | NumPy arrays                                          |
//! | `part_sink`        | writes arrays, records and text                       |
//! | `output`           | output file formats                                   |
//! | `commit`           | makes output visible atomically                       |
//! | `write`            | writes DataSets to files                              |

pub(crate) mod commit;
pub(crate) mod csv_layout;
pub(crate) mod encoding;
pub(crate) mod file_table;
pub(crate) mod from_sql;
pub(crate) mod ipc_check;
pub(crate) mod ipc_sink;
pub(crate) mod line_table;
pub(crate) mod lines;
pub(crate) mod local_files;
pub(crate) mod malformed_rows;
pub(crate) mod npy;
pub(crate) mod one_file;
pub(crate) mod output;
pub(crate) mod output_lease;
pub(crate) mod part_sink;
pub(crate) mod paths;
pub(crate) mod per_host_files;
pub(crate) mod read;
pub(crate) mod records;
pub(crate) mod rejected;
pub(crate) mod schema_evolution;
pub(crate) mod schema_union;
pub(crate) mod sources;
pub(crate) mod text_source;
pub(crate) mod uncommitted;
pub(crate) mod write;
