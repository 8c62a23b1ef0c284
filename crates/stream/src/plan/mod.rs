//! Turns a query into a graph of tasks.
//!
//! Each module uses only those above it in this table.
//!
//! | module            | what is in it                                |
//! |-------------------|----------------------------------------------|
//! | `passing`         | steps that pass rows on: names, shuffles     |
//! | `table`           | sources and sinks, as queries know them      |
//! | `memory`          | tables in memory as streams                  |
//! | `common_subplans` | what several queries of a job have in common |
//! | `late_output`     | where rows go that come too late             |
//! | `lower`           | a query's plan becomes a graph of tasks      |
//! | `explain`         | what a job promises, in words                |

pub(crate) mod common_subplans;
pub(crate) mod explain;
pub(crate) mod late_output;
pub(crate) mod lower;
pub(crate) mod memory;
pub(crate) mod passing;
pub(crate) mod table;
