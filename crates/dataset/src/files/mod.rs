//! Files and object stores: finding, reading and writing them.
//!
//! Each module uses only those above it in this table.
//!
//! | module             | what is in it                                         |
//! |--------------------|-------------------------------------------------------|
//! | `csv_layout`       | the layout of CSV files                               |
//! | `rejected`         | rows that cannot be written                           |
//! | `one_file`         | joins files into one                                  |
//! | `encoding`         | compressed files                                      |
//! | `ipc_sink`         | Arrow IPC files with a choice of compression          |
//! | `schema_union`     | one schema for files of different ones                |
//! | `per_host_files`   | tables of files that only some hosts have             |
//! | `uncommitted`      | uploads that are complete but not yet visible         |
//! | `local_files`      | metadata of local files                               |
//! | `paths`            | which files paths and URLs stand for                  |
//! | `ipc_check`        | checks of sizes in Arrow IPC files                    |
//! | `output_lease`     | marks the writer of a folder                          |
//! | `schema_evolution` | Parquet and Arrow files of different schemas          |
//! | `lines`            | pieces of text files, in blocks of whole lines        |
//! | `malformed_rows`   | which rows cannot be read                             |
//! | `file_table`       | tables of files, without the rows that cannot be read |
//! | `sources`          | which files a query reads, for its errors             |
//! | `line_table`       | text files as one column                              |
//! | `text_source`      | CSV and JSON lines in DataFusion's tables of files    |
//! | `read`             | DataSets of files                                     |
//! | `from_sql`         | DataSets of SQL, over tables and files                |
//! | `records`          | files of records of a fixed length                    |
//! | `npy`              | arrays of NumPy                                       |
//! | `part_sink`        | writes arrays, records and texts                      |
//! | `output`           | the formats of files that are written                 |
//! | `commit`           | makes what was written visible, all or nothing        |
//! | `write`            | files of DataSets                                     |

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
