//! Semantics of queries: expressions, SQL, and planning rules for DataFusion. Nothing here executes.
//!
//! Each module uses only those above it in this table.
//!
//! | module         | contents                                                        |
//! |----------------|-----------------------------------------------------------------|
//! | `calls`        | calls of marker functions                                       |
//! | `deep`         | limits on the depth of plans and expressions                    |
//! | `frames`       | functions over a window's frame, with a filter                  |
//! | `micros`       | times in microseconds                                           |
//! | `rewrite`      | common code of rules that change expressions                    |
//! | `tables`       | the tables of a plan, and those that stand for steps            |
//! | `window_names` | windows of time or rows in a plan                               |
//! | `markers`      | how long a query over streams remembers rows                    |
//! | `expr`         | expressions under Python's names                                |
//! | `numbers`      | semantics of numbers: overflow is an error                      |
//! | `operators`    | operators of durations and texts that DataFusion lacks          |
//! | `guards`       | a condition guards what is to the right of it                   |
//! | `optimizer`    | DataFusion's rules, with guards around incorrect ones           |
//! | `sql`          | semantics of SQL queries                                        |
//! | `times`        | comparing and calculating with dates and times                  |

pub(crate) mod calls;
pub(crate) mod deep;
pub mod expr;
pub(crate) mod frames;
pub(crate) mod guards;
pub(crate) mod markers;
pub(crate) mod micros;
pub(crate) mod numbers;
pub(crate) mod operators;
pub(crate) mod optimizer;
pub(crate) mod rewrite;
pub(crate) mod sql;
pub(crate) mod tables;
pub(crate) mod times;
pub mod window_names;
