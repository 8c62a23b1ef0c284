//! The work of exchanges on one worker: sorting, merging, reducing and joining rows, within a memory budget.
//!
//! | module    | what is in it                                                      |
//! |-----------|--------------------------------------------------------------------|
//! | `compact` | plain numbers as short keys that compare like them                 |
//! | `order`   | by which columns rows are sorted, and rows as bytes that compare   |
//! | `merge`   | sorted batches become one                                          |
//! | `sort`    | rows in any order become sorted ones                               |
//! | `groups`  | rows with equal keys                                               |
//! | `column_sums`, `reduce` | many rows of a group become one                            |
//! | `rounds`  | the n-th messages of several streams become one row                |
//! | `join`    | two sets of rows by equal keys                                     |

mod column_sums;
mod compact;
mod groups;
mod join;
mod merge;
mod order;
mod reduce;
mod rounds;
mod sort;

pub use join::{HashJoiner, JoinInput, JoinKind};
pub use merge::{KWayMerge, MergeStep};
pub use order::{RowOrder, SortKey};
pub use reduce::{ColumnOp, FoldFunction, ReducedBatches, Reducer, Reduction};
pub use rounds::{MessageReducer, RoundEnd, RoundMerger, UnequalRounds};
pub use sort::{SortedBatches, Sorter, SpillCounts};
