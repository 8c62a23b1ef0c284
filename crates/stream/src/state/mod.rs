//! State of operators: in memory, on disk, and in checkpoints.
//!
//! Each module uses only those above it in this table.
//!
//! | module            | contents                                           |
//! |-------------------|----------------------------------------------------|
//! | `groups`          | groups and their partial aggregates                |
//! | `operator_memory` | an operator's memory, and disk for what exceeds it |
//! | `state_layout`    | shared parts and schemas of checkpoints            |
//! | `snapshot_codec`  | contents of snapshots: rows as bytes, by bucket    |
//! | `expiring_rows`   | rows stored until a time has passed                |
//! | `sorted_states`   | states that no longer change, sorted by bucket     |
//! | `keys`            | an index of keys                                   |
//! | `key_records`     | records of keys, as rows                           |
//! | `key_store`       | idle keys on disk                                  |
//! | `panes`           | the states of a time span                          |
//! | `row_lists`       | stored rows, chained by key                        |

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
