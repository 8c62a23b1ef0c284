//! Files and object stores: finding, reading and writing them.
//!
//! Each module uses only those above it in this table.
//!
//! | module        | what is in it                                         |
//! |---------------|-------------------------------------------------------|
//! | `csv_layout`  | the layout of CSV files                               |
//! | `refused`     | rows that cannot be written                           |
//! | `one_file`    | joins files into one                                  |
//! | `packing`     | compressed files                                      |
//! | `ipc_sink`    | Arrow IPC files with a choice of compression          |
//! | `unite`       | one schema for files of different ones                |
//! | `own_files`   | tables of files that only some hosts have             |
//! | `places`      | where checkpoints and streams of objects lie          |
//! | `held`        | uploads that are complete but not yet visible         |
//! | `local_files` | what the disk says of local files                     |
//! | `paths`       | which files paths and URLs stand for                  |
//! | `ipc_check`   | what Arrow IPC files say about their sizes            |
//! | `mark`        | marks who writes into a folder                        |
//! | `evolved`     | Parquet and Arrow files of different schemas          |
//! | `lines`       | pieces of text files, in blocks of whole lines        |
//! | `lenient`     | which rows cannot be read                             |
//! | `file_table`  | tables of files, without the rows that cannot be read |
//! | `sources`     | which files a query reads, for its errors             |
//! | `line_table`  | text files as one column                              |
//! | `text_source` | CSV and JSON lines in DataFusion's tables of files    |
//! | `read`        | DataSets of files                                     |
//! | `from_sql`    | DataSets of SQL, over tables and files                |
//! | `records`     | files of records of a fixed length                    |
//! | `npy`         | arrays of NumPy                                       |
//! | `part_sink`   | writes arrays, records and texts                      |
//! | `output`      | the formats of files that are written                 |
//! | `commit`      | makes what was written visible, all or nothing        |
//! | `write`       | files of DataSets                                     |

pub(crate) mod commit;
pub(crate) mod csv_layout;
pub(crate) mod evolved;
pub(crate) mod file_table;
pub(crate) mod from_sql;
pub(crate) mod held;
pub(crate) mod ipc_check;
pub(crate) mod ipc_sink;
pub(crate) mod lenient;
pub(crate) mod line_table;
pub(crate) mod lines;
pub(crate) mod local_files;
pub(crate) mod mark;
pub(crate) mod npy;
pub(crate) mod one_file;
pub(crate) mod output;
pub(crate) mod own_files;
pub(crate) mod packing;
pub(crate) mod part_sink;
pub(crate) mod paths;
pub(crate) mod places;
pub(crate) mod read;
pub(crate) mod records;
pub(crate) mod refused;
pub(crate) mod sources;
pub(crate) mod text_source;
pub(crate) mod unite;
pub(crate) mod write;
