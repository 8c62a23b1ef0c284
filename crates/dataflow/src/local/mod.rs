//! What exchanges do to rows where they are: sorting, merging, reducing, joining, in a bounded part of the worker's memory.

pub(crate) mod compact;
pub(crate) mod gather;
pub(crate) mod groups;
pub(crate) mod join;
#[cfg(target_arch = "x86_64")]
mod marked;
pub(crate) mod merge;
pub(crate) mod order;
pub(crate) mod part;
pub(crate) mod reduce;
pub(crate) mod sort;
pub(crate) mod whole;
