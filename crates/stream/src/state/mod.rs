//! What operators keep: in memory, on disk, and in checkpoints.
//!
//! Each module uses only those above it in this table.
//!
//! | module     | what is in it                                                          |
//! |------------|------------------------------------------------------------------------|
//! | `groups`   | groups and their aggregates under way                                  |
//! | `held`     | how much of the worker's memory an operator holds, and the disk beyond |
//! | `saved`    | what copies of a task share in checkpoints                             |
//! | `snapshot` | what goes into snapshots: rows as bytes, by bucket                     |
//! | `kept`     | rows that are kept until a time has passed                             |
//! | `sorted`   | states that no longer change, sorted by bucket                         |
//! | `keys`     | which keys there are                                                   |
//! | `panes`    | what is held of a stretch of time                                      |
//! | `chained`  | kept rows, those of each key in a chain                                |

pub(crate) mod chained;
pub(crate) mod groups;
pub(crate) mod held;
pub(crate) mod kept;
pub(crate) mod keys;
pub(crate) mod panes;
pub(crate) mod saved;
pub(crate) mod snapshot;
pub(crate) mod sorted;
