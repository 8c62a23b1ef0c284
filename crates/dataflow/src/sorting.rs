//! Sorting and merging for callers with rows but no graph: the parts of the exchange by
//! [`Sort`](crate::exchange::Sort).

pub use tidemill_batch::local::{KWayMerge, MergeStep, RowOrder, SortKey, SortedBatches, Sorter, SpillCounts};
