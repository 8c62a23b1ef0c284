//! Turns a query into a graph of tasks.
//!
//! Each module uses only those above it in this table.
//!
//! | module            | contents                                     |
//! |-------------------|----------------------------------------------|
//! | `passing`         | steps that pass rows on: names, shuffles     |
//! | `table`           | sources and sinks, as queries see them       |
//! | `memory`          | tables in memory as streams                  |
//! | `common_subplans` | what several queries of a job have in common |
//! | `late_output`     | where late rows go                           |
//! | `lower`           | lowering of a plan to a graph of tasks       |
//! | `explain`         | a description of a job's guarantees          |

pub(crate) mod common_subplans;
pub(crate) mod explain;
pub(crate) mod late_output;
pub(crate) mod lower;
pub(crate) mod memory;
pub(crate) mod passing;
pub(crate) mod table;
