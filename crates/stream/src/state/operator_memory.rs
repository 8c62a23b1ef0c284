//! What an operator holds of the worker's memory, and what lies on disk because there is too little of it.

use arrow::array::RecordBatch;
use tidemill_dataflow::memory::{Governor, MemorySettings, Reservation, trim};
use tidemill_dataflow::{TaskContext, TaskError};

/// What is held is weighed every so many batches, or rows: that takes a while.
const WEIGH_EVERY: u32 = 64;
pub(crate) const WEIGH_EVERY_ROWS: usize = 1 << 14;
/// Less than that is not worth a file.
const SPILL_BYTES_MIN: u64 = 1 << 19;
/// Where the budget is so small that this part of it is less than what such a limit says, the part counts: state lies
/// on disk whatever the budget.
const SMALL_SHARE: u64 = 8;
/// Of a copy's share of the budget, what is put together at once in memory.
const RUN_SHARE: u64 = 16;
const RUN_BYTES_MIN: u64 = 1 << 18;
const RUN_BYTES_MAX: u64 = 64 << 20;

/// What an operator holds of the worker's memory.
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

    /// Where goes what does not fit.
    pub(crate) fn disk(&self) -> &SpillArea {
        &self.disk
    }

    /// So many rows have come. Whether it should be looked how much is held.
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

    /// Whether so many bytes can be held, which are then reserved.
    pub(crate) fn fits(&self, bytes: usize) -> bool {
        let (before, now) = (self.reservation.bytes(), bytes as u64);
        self.reservation.shrink(before.saturating_sub(now));
        now <= before || self.reservation.try_grow(now - before)
    }

    /// Nothing is held any more.
    pub(crate) fn free(&self) {
        self.reservation.free();
    }
}

/// State that can lie on disk.
pub(crate) trait SpillableState {
    fn held(&mut self) -> &mut OperatorMemory;

    /// Bytes in memory, about.
    ///
    /// # Errors
    /// When they cannot be told.
    fn bytes(&self) -> Result<usize, TaskError>;

    /// Puts on disk what can lie there.
    ///
    /// # Errors
    /// When the disk is full or fails.
    fn spill(&mut self) -> Result<(), TaskError>;

    /// So many rows have come: now and then it is looked whether there is still memory for what is held.
    ///
    /// # Errors
    /// When the worker's budget is used up by what must be in memory: it names who holds most.
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

/// Where an operator's state goes that does not fit in memory.
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

    /// The area of one of so many copies that share a governor's budget.
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

    /// State of so many bytes is worth a file.
    fn spill_bytes_min(&self) -> usize {
        match self.governor.settings().budget_bytes {
            0 => SPILL_BYTES_MIN as usize,
            budget => SPILL_BYTES_MIN.min(budget / SMALL_SHARE) as usize,
        }
    }

    /// Bytes that may be put together in memory at once.
    pub(crate) fn run_bytes(&self) -> usize {
        self.run_bytes
    }

    pub(crate) fn governor(&self) -> &Governor {
        &self.governor
    }

    /// The same rows, on disk.
    ///
    /// # Errors
    /// When it is full or fails.
    pub(crate) fn map(&self, rows: &RecordBatch) -> Result<RecordBatch, TaskError> {
        Ok(self.governor.map(rows)?)
    }
}

impl Default for SpillArea {
    /// In the system's folder for temporary files, where memory has no limit.
    fn default() -> Self {
        SpillArea { governor: Governor::new(MemorySettings::default()), run_bytes: usize::MAX }
    }
}

#[cfg(test)]
impl SpillArea {
    /// One that puts no more than so many bytes together.
    pub(crate) fn with_runs_of(run_bytes: usize) -> Self {
        SpillArea { run_bytes, ..SpillArea::default() }
    }
}
