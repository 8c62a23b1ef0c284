//! What the owner of keys holds of a stretch of time: a table that grows, beneath it tables of states that do not change any more,
//! and beneath these, when memory has run out, states on disk.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::error::Result;
use tidemill_dataflow::TaskError;
use tidemill_dataflow::flow::batch_bytes;

use super::groups::{Aggregation, Groups};
use super::held::Disk;
use super::kept::buckets_of_key;
use super::sorted::{Levels, Sorted};

/// So many tables of about the same size become one. More would be copied less often, and have more keys twice.
const TOGETHER: usize = 4;
/// A pane that takes less stays in memory.
const PANE_BYTES_MIN: usize = 1 << 17;

/// States that do not change any more.
#[derive(Clone)]
pub(crate) enum States {
    Memory(RecordBatch),
    Disk(Sorted),
}

impl States {
    pub(crate) fn rows(&self) -> usize {
        match self {
            States::Memory(states) => states.num_rows(),
            States::Disk(states) => states.rows(),
        }
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            States::Memory(states) => batch_bytes(states) as usize,
            States::Disk(_) => 0,
        }
    }

    /// All of them.
    pub(crate) fn batch(&self) -> &RecordBatch {
        match self {
            States::Memory(states) => states,
            States::Disk(states) => states.states(),
        }
    }

    /// The same, on disk.
    pub(crate) fn sorted(self, of: &Aggregation, disk: &Disk) -> Result<Vec<Sorted>, TaskError> {
        match self {
            States::Memory(states) => Sorted::new(&states, &buckets_of_key(&states, 0, of.keys.len())?, disk),
            States::Disk(states) => Ok(vec![states]),
        }
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Pane {
    open: Option<Groups>,
    /// States that were cut off, each with every key at most once.
    closed: Vec<RecordBatch>,
    disk: Levels,
}

impl Pane {
    /// The table that grows.
    pub(crate) fn open(&mut self, of: &Arc<Aggregation>) -> Result<&mut Groups> {
        if self.open.is_none() {
            self.open = Some(Groups::new(of)?);
        }
        Ok(self.open.as_mut().expect("just made"))
    }

    fn take_open(&mut self) -> Result<Option<RecordBatch>> {
        let open = self.open.take().filter(|open| open.len() > 0);
        open.map(|mut open| open.take_states()).transpose()
    }

    /// Cuts off what grows. Returns it, if there is anything.
    pub(crate) fn cut(&mut self, of: &Arc<Aggregation>, disk: &Disk) -> Result<Option<RecordBatch>> {
        let Some(states) = self.take_open()? else { return Ok(None) };
        self.closed.push(states.clone());
        // As soon as some are of about the same size they become one: a state is copied a few times, however many barriers pass.
        while let Some(from) = self.closed.len().checked_sub(TOGETHER)
            && let [largest, .., smallest] = &self.closed[from..]
            && largest.num_rows() < TOGETHER * smallest.num_rows()
            && self.closed[from..].iter().map(batch_bytes).sum::<u64>() as usize <= disk.run_bytes()
        {
            let mut merged = Groups::new(of)?;
            for states in self.closed.drain(from..) {
                merged.merge(&states)?;
            }
            self.closed.push(merged.take_states()?);
        }
        Ok(Some(states))
    }

    /// Puts everything on disk. Returns what was cut off for that.
    pub(crate) fn spill(&mut self, of: &Arc<Aggregation>, disk: &Disk) -> Result<Vec<Sorted>, TaskError> {
        let mut cut = Vec::new();
        for states in std::mem::take(&mut self.closed) {
            self.disk.add(States::Memory(states).sorted(of, disk)?, of, disk)?;
        }
        if let Some(states) = self.take_open()? {
            cut = States::Memory(states).sorted(of, disk)?;
            self.disk.add(cut.clone(), of, disk)?;
        }
        Ok(cut)
    }

    /// Whether it is worth a file.
    pub(crate) fn is_large(&self) -> bool {
        self.bytes() >= PANE_BYTES_MIN
    }

    pub(crate) fn is_on_disk(&self) -> bool {
        !self.disk.is_empty()
    }

    /// The states on disk.
    pub(crate) fn sorted(&self) -> impl Iterator<Item = &Sorted> {
        self.disk.pieces()
    }

    /// Everything but the table that grows.
    pub(crate) fn closed(&self) -> impl Iterator<Item = States> {
        let disk = self.disk.pieces().map(|states| States::Disk(states.clone()));
        self.closed.iter().map(|states| States::Memory(states.clone())).chain(disk)
    }

    /// Takes over all that another one has.
    pub(crate) fn absorb(&mut self, mut other: Pane, of: &Arc<Aggregation>, disk: &Disk) -> Result<(), TaskError> {
        other.cut(of, disk)?;
        self.closed.append(&mut other.closed);
        other.disk.into_levels().into_iter().try_for_each(|level| self.disk.add(level, of, disk))
    }

    /// Adds to a table what is closed, of what lies on disk only these buckets. Returns the table, which is `own` or a new one.
    pub(crate) fn merge_into(
        &self,
        merged: &mut Option<Groups>,
        of: &Arc<Aggregation>,
        buckets: &Range<u32>,
    ) -> Result<()> {
        let disk = self.disk.pieces().map(|states| states.of(buckets)).filter(|states| states.num_rows() > 0);
        for states in self.closed.iter().cloned().chain(disk) {
            match merged {
                Some(merged) => merged,
                None => merged.insert(Groups::new(of)?),
            }
            .merge(&states)?;
        }
        Ok(())
    }

    /// Takes the table that grows out of it.
    pub(crate) fn take(&mut self) -> Option<Groups> {
        self.open.take()
    }

    /// Replaces what is closed by what `rest` makes of each, and drops what becomes empty.
    pub(crate) fn retain(
        &mut self,
        of: &Arc<Aggregation>,
        disk: &Disk,
        mut rest: impl FnMut(States) -> Result<Option<RecordBatch>, TaskError>,
    ) -> Result<(), TaskError> {
        for states in std::mem::take(&mut self.closed) {
            let left = rest(States::Memory(states.clone()))?.unwrap_or(states);
            self.closed.extend((left.num_rows() > 0).then_some(left));
        }
        for level in std::mem::take(&mut self.disk).into_levels() {
            let mut pieces = Vec::new();
            for states in level {
                match rest(States::Disk(states.clone()))? {
                    Some(left) => pieces.extend(States::Memory(left).sorted(of, disk)?),
                    None => pieces.push(states),
                }
            }
            self.disk.add(pieces, of, disk)?;
        }
        Ok(())
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> usize {
        let closed = self.closed.iter().map(batch_bytes).sum::<u64>() as usize;
        self.open.as_ref().map_or(0, Groups::bytes) + closed
    }

    pub(crate) fn rows(&self) -> usize {
        let closed = self.closed.iter().map(RecordBatch::num_rows).sum::<usize>();
        self.open.as_ref().map_or(0, Groups::len) + closed + self.disk.rows()
    }
}
