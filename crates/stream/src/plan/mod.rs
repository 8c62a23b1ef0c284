//! From a query to a graph of tasks.
//!
//! Each module uses only those above it in this table.
//!
//! | module    | what is in it                                |
//! |-----------|----------------------------------------------|
//! | `named`   | names that programs give steps               |
//! | `table`   | sources and sinks, as queries know them      |
//! | `memory`  | tables in memory as streams                  |
//! | `shared`  | what several queries of a job have in common |
//! | `late`    | where rows go that come too late             |
//! | `lower`   | a query's plan becomes a graph of tasks      |
//! | `explain` | what a job promises, in words                |

pub(crate) mod explain;
pub(crate) mod late;
pub(crate) mod lower;
pub(crate) mod memory;
pub(crate) mod named;
pub(crate) mod shared;
pub(crate) mod table;
