//! State of operators: in memory, on disk, and in checkpoints.
//!
//! Each module uses only those above it in this table.
//!
//! | module            | what is in it                                                          |
//! |-------------------|------------------------------------------------------------------------|
//! | `groups`          | groups and their aggregates under way                                  |
//! | `operator_memory` | how much of the worker's memory an operator holds, and the disk beyond |
//! | `state_layout`    | what copies of a task share in checkpoints                             |
//! | `snapshot_codec`  | what goes into snapshots: rows as bytes, by bucket                     |
//! | `expiring_rows`   | rows that are kept until a time has passed                             |
//! | `sorted_states`   | states that no longer change, sorted by bucket                         |
//! | `keys`            | which keys there are                                                   |
//! | `key_records`     | what is kept of keys, as rows                                          |
//! | `key_store`       | keys on disk that nothing has come of for a while                      |
//! | `panes`           | what is held of a stretch of time                                      |
//! | `row_lists`       | kept rows, those of each key in a chain                                |

pub(crate) mod expiring_rows;
pub(crate) mod groups;
pub(crate) mod key_records;
pub(crate) mod key_store;
pub(crate) mod keys;
pub(crate) mod operator_memory;
pub(crate) mod panes;
pub(crate) mod row_lists;
pub(crate) mod snapshot_codec;
pub(crate) mod sorted_states;
pub(crate) mod state_layout;
