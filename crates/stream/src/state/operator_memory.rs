//! An operator's share of the worker's memory, and the disk for what exceeds it.

use arrow::array::RecordBatch;
use tidemill_dataflow::memory::{Governor, MemorySettings, Reservation, trim};
use tidemill_dataflow::{TaskContext, TaskError};

/// State is measured every so many batches, or rows, because measuring takes time.
const WEIGH_EVERY: u32 = 64;
pub(crate) const WEIGH_EVERY_ROWS: usize = 1 << 14;
/// Less than this is not worth a file.
const SPILL_BYTES_MIN: u64 = 1 << 19;
/// If this share of the budget is smaller than such a limit, it replaces the limit, so that state can be on disk with
/// any budget.
const SMALL_SHARE: u64 = 8;
/// The share of a copy's budget that is merged in memory at a time.
const RUN_SHARE: u64 = 16;
const RUN_BYTES_MIN: u64 = 1 << 18;
const RUN_BYTES_MAX: u64 = 64 << 20;

/// An operator's share of the worker's memory.
pub(crate) struct OperatorMemory {
    reservation: Reservation,
    batches: u32,
    rows: usize,
    disk: SpillArea,
}

impl OperatorMemory {
    pub(crate) fn new(context: &TaskContext) -> Self {
        OperatorMemory { reservation: context.reservation(), batches: 0, rows: 0, disk: SpillArea::of(context) }
    }

    /// The disk for what does not fit.
    pub(crate) fn disk(&self) -> &SpillArea {
        &self.disk
    }

    /// Counts input rows. Returns whether it is time to measure the state.
    pub(crate) fn is_due(&mut self, rows: usize) -> bool {
        self.batches += 1;
        self.rows += rows;
        let budget = self.disk.governor.settings().budget_bytes;
        let small = (1..SMALL_SHARE * SPILL_BYTES_MIN).contains(&budget);
        let due = self.batches >= WEIGH_EVERY || small || budget > 0 && self.rows >= WEIGH_EVERY_ROWS;
        if due {
            (self.batches, self.rows) = (0, 0);
        }
        due
    }

    /// Reserves this many bytes in total, if possible. Returns whether it was.
    pub(crate) fn fits(&self, bytes: usize) -> bool {
        let (before, now) = (self.reservation.bytes(), bytes as u64);
        self.reservation.shrink(before.saturating_sub(now));
        now <= before || self.reservation.try_grow(now - before)
    }

    /// Releases all memory.
    pub(crate) fn free(&self) {
        self.reservation.free();
    }
}

/// State that can be on disk.
pub(crate) trait SpillableState {
    fn held(&mut self) -> &mut OperatorMemory;

    /// Approximate bytes in memory.
    ///
    /// # Errors
    /// If the size cannot be determined.
    fn bytes(&self) -> Result<usize, TaskError>;

    /// Moves to disk what can be there.
    ///
    /// # Errors
    /// If the disk is full or fails.
    fn spill(&mut self) -> Result<(), TaskError>;

    /// Counts input rows, and now and then checks that the state still fits in memory, spilling it if not.
    ///
    /// # Errors
    /// If the worker's budget is exhausted by what must be in memory; the error names the largest user.
    fn weigh(&mut self, rows: usize) -> Result<(), TaskError> {
        if !self.held().is_due(rows) {
            return Ok(());
        }
        let bytes = self.bytes()?;
        if self.held().fits(bytes) {
            return Ok(());
        }
        let before = bytes;
        if before >= self.held().disk.spill_bytes_min() {
            self.spill()?;
        }
        let bytes = self.bytes()?;
        if bytes < before {
            trim();
        }
        let held = self.held();
        if !held.fits(bytes) {
            held.reservation.grow(bytes as u64 - held.reservation.bytes())?;
        }
        Ok(())
    }
}

/// The disk for an operator's state that does not fit in memory.
#[derive(Clone)]
pub(crate) struct SpillArea {
    governor: Governor,
    run_bytes: usize,
}

impl SpillArea {
    pub(crate) fn of(context: &TaskContext) -> Self {
        let copies = context.copies().div_ceil(context.workers().max(1)).max(1);
        SpillArea::new(context.governor(), u64::from(copies))
    }

    /// The area of one of `copies` copies that share a governor's budget.
    pub(crate) fn new(governor: &Governor, copies: u64) -> Self {
        let run_bytes = match governor.settings().budget_bytes {
            0 => usize::MAX,
            budget => {
                let least = RUN_BYTES_MIN.min(budget / SMALL_SHARE).max(1);
                (budget / copies / RUN_SHARE).clamp(least, RUN_BYTES_MAX) as usize
            }
        };
        SpillArea { governor: governor.clone(), run_bytes }
    }

    /// Minimum size of state that is worth a file.
    fn spill_bytes_min(&self) -> usize {
        match self.governor.settings().budget_bytes {
            0 => SPILL_BYTES_MIN as usize,
            budget => SPILL_BYTES_MIN.min(budget / SMALL_SHARE) as usize,
        }
    }

    /// Bytes that may be merged in memory at once.
    pub(crate) fn run_bytes(&self) -> usize {
        self.run_bytes
    }

    pub(crate) fn governor(&self) -> &Governor {
        &self.governor
    }

    /// The same rows, on disk.
    ///
    /// # Errors
    /// If the disk is full or fails.
    pub(crate) fn map(&self, rows: &RecordBatch) -> Result<RecordBatch, TaskError> {
        Ok(self.governor.map(rows)?)
    }
}

impl Default for SpillArea {
    /// In the system's temporary directory, without a memory limit.
    fn default() -> Self {
        SpillArea { governor: Governor::new(MemorySettings::default()), run_bytes: usize::MAX }
    }
}

#[cfg(test)]
impl SpillArea {
    /// An area that merges at most this many bytes at once.
    pub(crate) fn with_runs_of(run_bytes: usize) -> Self {
        SpillArea { run_bytes, ..SpillArea::default() }
    }
}
