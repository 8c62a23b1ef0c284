//! Sorting and merging for whoever has rows and no graph: what the exchange by [`Sort`](crate::exchange::Sort) is made of.

pub use crate::local::merge::{Merge, Step};
pub use crate::local::order::{Order, SortKey};
pub use crate::local::sort::{Sorted, Sorter, Spilled};
