//! Sorting and merging for whoever has rows and no graph: what the exchange by [`Sort`](crate::exchange::Sort) is made
//! of.

pub use tidemill_batch::local::{KWayMerge, MergeStep, RowOrder, SortKey, SortedBatches, Sorter, SpillCounts};
