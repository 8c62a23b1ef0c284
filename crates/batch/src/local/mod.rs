//! The work of exchanges on one worker: sorting, merging, reducing and joining rows, within a memory budget.
//!
//! | module    | contents                                                           |
//! |-----------|--------------------------------------------------------------------|
//! | `compact` | short sort keys for plain numbers                                  |
//! | `order`   | sort orders, and rows as bytes that compare accordingly            |
//! | `merge`   | merges sorted batches                                              |
//! | `sort`    | sorts rows                                                         |
//! | `groups`  | finds rows with equal keys                                         |
//! | `column_sums`, `reduce` | reduces the rows of a group to one                           |
//! | `rounds`  | reduces the n-th messages of several streams to one row            |
//! | `join`    | joins two sets of rows by equal keys                               |

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
pub use rounds::{MessageReducer, OpenRounds, RoundEnd, RoundMerger, RoundUnit, TimeSlices, UnequalRounds};
pub use sort::{SortedBatches, Sorter, SpillCounts};
