//! Physical plan steps that this crate adds to DataFusion's, or that replace them.
//!
//! Each module uses only those above it in this table.
//!
//! | module          | contents                                                 |
//! |-----------------|----------------------------------------------------------|
//! | `catch_panics`  | catches panics of decoders                               |
//! | `number_keys`   | tables of integer keys                                   |
//! | `spill`         | checksummed files that DataFusion's steps spill to       |
//! | `step`          | common code of our steps                                 |
//! | `stream_step`   | steps of a stream's plan, which never run by themselves  |
//! | `replaced_exec` | replaces DataFusion's steps with ours                    |
//! | `join_exec`     | joins within the memory budget                           |
//! | `user_function` | steps that call user functions                           |
//! | `progress`      | the progress of an action                                |
//! | `explode_split` | splits strings into rows                                 |
//! | `group`         | the first half of a group-by with an integer key         |
//! | `running`       | window functions over ordered rows                       |
//! | `sorted`        | sorts and merges of long rows within the budget          |
//! | `spread`        | distributes rows to threads                              |
//! | `window_exec`   | window functions, a partition of rows at a time          |
//! | `spilling_rule` | replaces steps by versions that can spill                |

pub(crate) mod catch_panics;
pub(crate) mod explode_split;
pub(crate) mod group;
pub(crate) mod join_exec;
pub(crate) mod number_keys;
pub(crate) mod progress;
pub(crate) mod replaced_exec;
pub(crate) mod running;
pub(crate) mod sorted;
pub(crate) mod spill;
pub(crate) mod spilling_rule;
pub(crate) mod spread;
pub(crate) mod step;
pub(crate) mod stream_step;
pub(crate) mod user_function;
pub(crate) mod window_exec;
