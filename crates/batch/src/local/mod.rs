//! The work of exchanges on one worker: sorting, merging, reducing and joining rows, within a memory budget.
//!
//! | module    | what is in it                                                      |
//! |-----------|--------------------------------------------------------------------|
//! | `compact` | plain numbers as short keys that compare like them                 |
//! | `order`   | by which columns rows are sorted, and rows as bytes that compare   |
//! | `merge`   | sorted batches become one                                          |
//! | `sort`    | rows in any order become sorted ones                               |
//! | `groups`  | rows with equal keys                                               |
//! | `whole`, `reduce` | many rows of a group become one                            |
//! | `join`    | two sets of rows by equal keys                                     |

mod compact;
mod groups;
mod join;
mod merge;
mod order;
mod reduce;
mod sort;
mod whole;

pub use join::{JoinKind, Joiner, Side};
pub use merge::{Merge, Step};
pub use order::{Order, SortKey};
pub use reduce::{ColumnOp, FoldFunction, Reduce, Reduced, Reducer};
pub use sort::{Sorted, Sorter, Spilled};
