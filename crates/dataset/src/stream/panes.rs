//! What the owner of keys holds of a stretch of time: a table that grows, and beneath it levels of states that do not change any
//! more, in memory or, when it has run out, on disk.

use std::sync::Arc;

use datafusion::error::Result;
use tidemill_dataflow::TaskError;

use super::groups::{Aggregation, Groups};
use super::held::Disk;
use super::sorted::{Levels, Sorted};

/// A pane that takes less stays in memory.
pub(crate) const PANE_BYTES_MIN: usize = 1 << 17;

/// See the module.
#[derive(Default)]
pub(crate) struct Pane {
    open: Option<Groups>,
    closed: Levels,
}

impl Pane {
    /// The table that grows.
    pub(crate) fn open(&mut self, of: &Arc<Aggregation>) -> Result<&mut Groups> {
        if self.open.is_none() {
            self.open = Some(Groups::new(of)?);
        }
        Ok(self.open.as_mut().expect("just made"))
    }

    /// Cuts off what grows, and sorts it. Returns it, if there is anything.
    pub(crate) fn cut(&mut self, of: &Aggregation) -> Result<Option<Sorted>> {
        let Some(open) = &mut self.open else { return Ok(None) };
        let states = open.take_states()?;
        if states.num_rows() == 0 {
            self.open = None;
            return Ok(None);
        }
        let states = Sorted::new(states, of)?;
        self.closed.add(vec![states.clone()]);
        Ok(Some(states))
    }

    /// Puts levels together that are alike: to be called after what adds some.
    pub(crate) fn compact(&mut self, of: &Arc<Aggregation>, disk: &Disk) -> Result<(), TaskError> {
        self.closed.compact(of, disk)
    }

    /// Adds to a level states of keys that it does not have.
    pub(crate) fn add_to(&mut self, level: usize, states: Vec<Sorted>) {
        self.closed.add_to(level, states);
    }

    /// Puts everything on disk. Returns what was cut off for that.
    pub(crate) fn spill(&mut self, of: &Arc<Aggregation>, disk: &Disk) -> Result<Vec<Sorted>, TaskError> {
        let mut cut = Vec::new();
        if let Some(mut open) = self.open.take() {
            cut = Sorted::new(open.take_states()?, of)?.on_disk(disk)?;
        }
        self.closed.add(cut.clone());
        self.closed.spill(of, disk)?;
        Ok(cut)
    }

    /// Whether it is worth a file.
    pub(crate) fn is_large(&self) -> bool {
        self.bytes() >= PANE_BYTES_MIN
    }

    /// Everything but the table that grows.
    pub(crate) fn closed(&self) -> impl Iterator<Item = &Sorted> {
        self.closed.pieces()
    }

    /// Takes over all that another one has.
    pub(crate) fn absorb(&mut self, mut other: Pane, of: &Arc<Aggregation>, disk: &Disk) -> Result<(), TaskError> {
        other.cut(of)?;
        other.closed.into_levels().into_iter().for_each(|level| self.closed.add(level));
        self.compact(of, disk)
    }

    /// Takes the table that grows out of it.
    pub(crate) fn take(&mut self) -> Option<Groups> {
        self.open.take().filter(|open| open.len() > 0)
    }

    /// Takes out the states of the buckets that go, by level.
    pub(crate) fn split(&mut self, of: &Aggregation, goes: impl Fn(u16) -> bool) -> Result<Vec<Vec<Sorted>>> {
        self.cut(of)?;
        let mut levels = Vec::new();
        for level in std::mem::take(&mut self.closed).into_levels() {
            let (mut gone, mut left) = (Vec::new(), Vec::new());
            for piece in level {
                let (some, rest) = piece.split(&goes)?;
                gone.extend(some);
                left.extend(rest);
            }
            self.closed.add(left);
            levels.push(gone);
        }
        Ok(levels)
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.open.as_ref().map_or(0, Groups::bytes) + self.closed.pieces().map(Sorted::bytes).sum::<usize>()
    }

    pub(crate) fn rows(&self) -> usize {
        self.open.as_ref().map_or(0, Groups::len) + self.closed.rows()
    }
}
