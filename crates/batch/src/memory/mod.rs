//! The memory budget: one governor per worker tracks the memory that operators hold and the real size of the process,
//! and decides on requests for more. As memory runs out, in this order:
//!
//! 1. [`MemoryLevel::Slow`]: streams into this worker get less credit, so sources slow down;
//! 2. [`MemoryLevel::Spill`]: operators that support it spill to disk instead of growing;
//! 3. requests fail with an error that names the operator that holds the most memory. Without a request, the job also
//!    fails when the process exceeds its budget and the machine is nearly out of memory ([`Governor::overdrawn`]). The
//!    kernel's out-of-memory killer never decides.
//!
//! The size of the process is read from `/proc/self/status`, at most every few milliseconds: the operators' own counts
//! miss queues, batches in flight, the allocator's slack and everything else in the program. File pages do not count:
//! the kernel reclaims them when memory is needed, and operators map the files they have spilled.
//!
//! Spilled data has checksums: per frame ([`SpillFile`]), block ([`BlockFile`]) or page ([`verify`]). If a disk returns
//! corrupt data, the reader gets an error.

mod allocations;
mod blocks;
mod machine;
mod mapped;
mod pages;
mod partitions;
mod spill;
mod spill_queue;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

pub use allocations::AllocationSet;
pub use blocks::BlockFile;
pub use machine::{address_bytes_left, memory_bytes};
pub use mapped::{MapWriter, SpillElement, SpillVec, verify, verify_column, verify_rows};
pub use pages::HugePages;
pub use partitions::{HashKeys, SpillPartitions};
pub use spill::{SpillFile, SpillReader, SpillWriter, nameless_file, spill_error};
pub use spill_queue::SpillQueue;

use crate::error::BatchError;

/// Percentages of the budget at which the levels begin.
const SLOW_PERCENT: u64 = 70;
const SPILL_PERCENT: u64 = 85;
/// The memory of an interpreter and its libraries before there is any data. Up to this much of the process, if present
/// when the governor is made, does not count: a small budget is meant for data.
const BASE_BYTES_MAX: u64 = 128 << 20;
/// The fraction of the budget that every operator gets even if the process is large, unless operators hold it already.
/// With less, spilled data would be many small pieces and cost more memory than it frees.
const FLOOR_SHARE: u64 = 32;
const FLOOR_BYTES_MIN: u64 = 1 << 20;
/// Limits on freed memory that the allocator keeps: a minimum, and a fraction of the budget.
const FREED_BYTES_MIN: u64 = 256 << 10;
const FREED_BYTES_MAX: u64 = 64 << 20;
const FREED_SHARE: u64 = 32;
/// Percentage of the machine's memory below which a process over its budget has to end by itself, before the kernel
/// ends it.
const LEFT_PERCENT: u64 = 5;
/// Consecutive checks that must find it so.
const SHORT_LOOKS: u32 = 2;
/// Time between checks of the process.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// How much of the budget is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryLevel {
    /// There is enough memory.
    Ok,
    /// Sources should slow down.
    Slow,
    /// Operators should spill.
    Spill,
}

/// Settings of a worker's memory governor.
#[derive(Clone, Debug)]
pub struct MemorySettings {
    /// The worker's budget; 0 for none.
    pub budget_bytes: u64,
    /// Whether the whole process counts, not only the memory that operators report. Off if several workers are threads
    /// of one process.
    pub watch_process: bool,
    /// The directory for spilled data.
    pub spill_dir: PathBuf,
}

impl Default for MemorySettings {
    fn default() -> Self {
        MemorySettings { budget_bytes: 0, watch_process: true, spill_dir: std::env::temp_dir() }
    }
}

/// The memory governor, see the module. Clones are the same governor.
#[derive(Clone, Debug)]
pub struct Governor(Arc<GovernorState>);

#[derive(Debug)]
struct GovernorState {
    settings: MemorySettings,
    reserved: AtomicU64,
    /// The highest reservation since the allocator last returned free memory.
    reserved_max: AtomicU64,
    holders: Mutex<Vec<Arc<MemoryHolder>>>,
    process_bytes: AtomicU64,
    process_bytes_max: AtomicU64,
    /// The part of the process that does not count.
    base_bytes: u64,
    looked: Mutex<Option<Instant>>,
    short_looks: AtomicU32,
    spilled_bytes: AtomicU64,
}

#[derive(Debug)]
struct MemoryHolder {
    name: String,
    bytes: AtomicU64,
}

impl Governor {
    /// Makes a new governor.
    pub fn new(settings: MemorySettings) -> Self {
        spill::allow_many_files();
        keep_freed(settings.budget_bytes);
        pages::use_huge_pages(settings.budget_bytes == 0 || settings.budget_bytes >= HUGE_BUDGET_BYTES);
        Governor(Arc::new(GovernorState {
            settings,
            reserved: AtomicU64::new(0),
            reserved_max: AtomicU64::new(0),
            holders: Mutex::default(),
            process_bytes: AtomicU64::new(0),
            process_bytes_max: AtomicU64::new(0),
            base_bytes: resident_bytes().min(BASE_BYTES_MAX),
            looked: Mutex::default(),
            short_looks: AtomicU32::new(0),
            spilled_bytes: AtomicU64::new(0),
        }))
    }

    /// The settings it was made with.
    pub fn settings(&self) -> &MemorySettings {
        &self.0.settings
    }

    /// An empty reservation for an operator; `name` appears in error messages.
    pub fn reservation(&self, name: impl Into<String>) -> Reservation {
        let holder = Arc::new(MemoryHolder { name: name.into(), bytes: AtomicU64::new(0) });
        self.0.holders.lock().push(Arc::clone(&holder));
        Reservation { governor: self.clone(), holder }
    }

    /// How much of the budget is used.
    pub fn level(&self) -> MemoryLevel {
        let budget = self.0.settings.budget_bytes;
        if budget == 0 {
            return MemoryLevel::Ok;
        }
        let used = self.0.reserved.load(Ordering::Relaxed).max(self.process_bytes());
        match used.saturating_mul(100) / budget {
            percent if percent >= SPILL_PERCENT => MemoryLevel::Spill,
            percent if percent >= SLOW_PERCENT => MemoryLevel::Slow,
            _ => MemoryLevel::Ok,
        }
    }

    /// Bytes that operators hold, by their own count.
    pub fn reserved_bytes(&self) -> u64 {
        self.0.reserved.load(Ordering::Relaxed)
    }

    /// Bytes written to the spill directory so far, as stored on disk.
    pub fn spilled_bytes(&self) -> u64 {
        self.0.spilled_bytes.load(Ordering::Relaxed)
    }

    /// The largest process size observed.
    pub fn process_bytes_max(&self) -> u64 {
        self.0.process_bytes_max.load(Ordering::Relaxed)
    }

    /// Bytes that all operators together may hold before they should spill; 0 for no limit.
    pub fn limit_bytes(&self) -> u64 {
        self.0.settings.budget_bytes / 100 * SPILL_PERCENT
    }

    /// The amount that an operator may hold even if the process is large.
    fn floor_bytes(&self) -> u64 {
        (self.0.settings.budget_bytes / FLOOR_SHARE).max(FLOOR_BYTES_MIN)
    }

    /// Whether an operator that holds `held` bytes may take `bytes` more before it should spill.
    fn has_room(&self, held: u64, bytes: u64) -> bool {
        let (budget, limit, floor) = (self.0.settings.budget_bytes, self.limit_bytes(), self.floor_bytes());
        let reserved = self.reserved_bytes();
        budget == 0
            || reserved.saturating_add(bytes) <= limit && (held.saturating_add(bytes) <= floor || !self.is_full())
    }

    /// Whether the process is so large that operators should spill, whatever they hold by their own count.
    pub fn is_full(&self) -> bool {
        self.0.settings.budget_bytes > 0 && self.process_bytes() > self.limit_bytes()
    }

    /// Why this process has to give up before the kernel kills it: it is over its budget, spilling has not brought it
    /// below, and the machine has almost no memory left. Call this a few times a second while anything runs.
    pub fn overdrawn(&self) -> Option<String> {
        let (process, budget) = (self.process_bytes(), self.0.settings.budget_bytes);
        let is_short = || Some(is_short(machine::left_bytes()?, machine::memory_bytes()?));
        if budget == 0 || process <= budget || is_short() != Some(true) {
            self.0.short_looks.store(0, Ordering::Relaxed);
            return None;
        }
        let looks = self.0.short_looks.fetch_add(1, Ordering::Relaxed) + 1;
        (looks >= SHORT_LOOKS).then(|| self.describe(process))
    }

    /// Describes what holds the memory of a process of this size.
    fn describe(&self, process_bytes: u64) -> String {
        let holders = self.0.holders.lock();
        let most = holders.iter().max_by_key(|holder| holder.bytes.load(Ordering::Relaxed));
        let most = most.map(|most| (&most.name, most.bytes.load(Ordering::Relaxed)));
        let holder = match most {
            Some((name, bytes)) if self.reserved_bytes() >= process_bytes / 2 => {
                format!("\"{name}\" holds most ({bytes} bytes)")
            }
            _ => format!("most of it is memory outside operators, which hold {} bytes", self.reserved_bytes()),
        };
        format!(
            "memory: the machine has almost none left, and this worker uses {process_bytes} bytes, over its budget of \
             {}; {holder}; use fewer workers or copies, or a machine with more memory",
            self.0.settings.budget_bytes
        )
    }

    fn process_bytes(&self) -> u64 {
        if !self.0.settings.watch_process {
            return 0;
        }
        // One caller checks; the others use the last value.
        if let Some(mut looked) = self.0.looked.try_lock()
            && looked.is_none_or(|at| at.elapsed() >= LOOK_INTERVAL)
        {
            let mut bytes = resident_bytes();
            self.0.process_bytes_max.fetch_max(bytes, Ordering::Relaxed);
            if self.returns_freed(bytes) {
                bytes = resident_bytes();
            }
            self.0.process_bytes.store(bytes.saturating_sub(self.0.base_bytes), Ordering::Relaxed);
            *looked = Some(Instant::now());
        }
        self.0.process_bytes.load(Ordering::Relaxed)
    }

    /// If a process of this size should spill, returns memory that operators have freed to the system, so that it does
    /// not count. Returns whether any was returned.
    fn returns_freed(&self, process_bytes: u64) -> bool {
        let (budget, limit, reserved) = (self.0.settings.budget_bytes, self.limit_bytes(), self.reserved_bytes());
        let freed = self.0.reserved_max.load(Ordering::Relaxed).saturating_sub(reserved);
        // Looking for free memory takes a while, so it has to be worth it.
        let returns = budget > 0 && process_bytes > self.0.base_bytes + limit && freed >= self.floor_bytes();
        if returns {
            self.0.reserved_max.store(reserved, Ordering::Relaxed);
            trim();
        }
        returns
    }

    fn forget(&self, holder: &Arc<MemoryHolder>) {
        self.0.holders.lock().retain(|other| !Arc::ptr_eq(other, holder));
    }
}

fn is_short(left_bytes: u64, memory_bytes: u64) -> bool {
    left_bytes < memory_bytes / 100 * LEFT_PERCENT
}

/// The resident size of this process without file pages; 0 if it cannot be read.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    // Some systems that are almost Linux only report the sum.
    let kib = kib("RssAnon:").map(|own| own + kib("RssShmem:").unwrap_or(0)).or_else(|| kib("VmRSS:"));
    kib.unwrap_or(0) << 10
}

/// Below this budget, the free memory within the arenas of many threads, which other threads cannot use, matters.
const ARENAS_BUDGET_BYTES: u64 = 512 << 20;
const ARENAS_MAX: libc::c_int = 2;
/// Below this budget, the unused ends of huge pages matter.
const HUGE_BUDGET_BYTES: u64 = 1 << 30;

/// Makes the allocator keep some freed memory at the end of each thread's heap. By default it returns all but 128 KiB,
/// and for batches that come and go the kernel would clear their pages each time, which takes longer than filling them.
fn keep_freed(budget_bytes: u64) {
    let most = if budget_bytes == 0 { FREED_BYTES_MAX } else { budget_bytes / FREED_SHARE };
    let freed = most.clamp(FREED_BYTES_MIN, FREED_BYTES_MAX) as libc::c_int;
    #[cfg(target_env = "gnu")]
    // SAFETY: only sets parameters of the allocator.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, freed);
        // Larger allocations are mapped separately. The threshold is half of the kept amount, the ratio that the
        // allocator itself uses when it adapts both.
        libc::mallopt(libc::M_MMAP_THRESHOLD, freed / 2);
        if (1..ARENAS_BUDGET_BYTES).contains(&budget_bytes) {
            libc::mallopt(libc::M_ARENA_MAX, ARENAS_MAX);
        }
    }
}

/// Returns freed memory to the system. Memory freed by spilling should leave the process, because the size of the
/// process is what counts.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the function only returns free memory of the allocator; it may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The memory that one operator holds. Dropping it returns everything.
#[derive(Debug)]
pub struct Reservation {
    governor: Governor,
    holder: Arc<MemoryHolder>,
}

impl Reservation {
    /// Bytes held.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.holder.bytes.load(Ordering::Relaxed)
    }

    /// Takes `bytes` more if there is room below the level at which operators spill; otherwise the operator should
    /// spill. Each operator can always get a small amount, even if the process itself has grown beyond that level.
    #[must_use]
    #[inline]
    pub fn try_grow(&self, bytes: u64) -> bool {
        let has_room = self.governor.has_room(self.bytes(), bytes);
        if has_room {
            self.add(bytes);
        }
        has_room
    }

    /// Takes `bytes` more, whatever others hold, as long as the total stays within the small amount that each operator
    /// may always hold.
    #[must_use]
    #[inline]
    pub fn grow_to_floor(&self, bytes: u64) -> bool {
        let is_little = self.bytes() + bytes <= self.governor.floor_bytes();
        if is_little {
            self.add(bytes);
        }
        is_little
    }

    /// Takes `bytes` more that the operator cannot do without.
    ///
    /// # Errors
    /// [`BatchError::Memory`] if this exceeds the budget.
    pub fn grow(&self, bytes: u64) -> Result<(), BatchError> {
        let (inner, budget_bytes) = (&self.governor.0, self.governor.0.settings.budget_bytes);
        if budget_bytes > 0 && inner.reserved.load(Ordering::Relaxed).saturating_add(bytes) > budget_bytes {
            let holders = inner.holders.lock();
            let most = holders.iter().max_by_key(|holder| holder.bytes.load(Ordering::Relaxed));
            let most = most.expect("this reservation is among them");
            return Err(BatchError::Memory {
                wants: self.holder.name.clone(),
                bytes,
                budget_bytes,
                holder: most.name.clone(),
                held_bytes: most.bytes.load(Ordering::Relaxed),
            });
        }
        self.add(bytes);
        Ok(())
    }

    /// Adds `bytes` that are already in use, regardless of the budget: others will slow down and spill to make room.
    #[inline]
    pub fn force_grow(&self, bytes: u64) {
        self.add(bytes);
    }

    /// Returns `bytes`.
    #[inline]
    pub fn shrink(&self, bytes: u64) {
        let bytes = bytes.min(self.bytes());
        self.holder.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.governor.0.reserved.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns everything.
    #[inline]
    pub fn free(&self) {
        self.shrink(self.bytes());
    }

    #[inline]
    fn add(&self, bytes: u64) {
        let inner = &self.governor.0;
        self.holder.bytes.fetch_add(bytes, Ordering::Relaxed);
        let reserved = inner.reserved.fetch_add(bytes, Ordering::Relaxed) + bytes;
        inner.reserved_max.fetch_max(reserved, Ordering::Relaxed);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.free();
        self.governor.forget(&self.holder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn governor(budget_bytes: u64) -> Governor {
        Governor::new(MemorySettings { budget_bytes, watch_process: false, ..MemorySettings::default() })
    }

    /// An operator must be told to spill before its requests fail, and a failed request must name the one that holds
    /// the memory.
    #[test]
    fn slow_then_spill_then_refuse() {
        let governor = governor(1000);
        let (sort, join) = (governor.reservation("sort"), governor.reservation("join"));
        assert!(sort.try_grow(690));
        assert_eq!(governor.level(), MemoryLevel::Ok);
        assert!(join.try_grow(100));
        assert_eq!(governor.level(), MemoryLevel::Slow);
        assert!(!join.try_grow(61), "85 percent is where spilling begins");
        join.grow(150).unwrap();
        assert_eq!(governor.level(), MemoryLevel::Spill);
        let error = join.grow(100).unwrap_err().to_string();
        assert!(
            error.contains("\"join\" asked for 100 bytes") && error.contains("\"sort\" holds the most (690"),
            "{error}"
        );
        drop(sort);
        assert_eq!(governor.reserved_bytes(), 250);
        join.free();
        assert_eq!((governor.level(), governor.reserved_bytes()), (MemoryLevel::Ok, 0));
    }

    /// Without a budget, no request fails.
    #[test]
    fn no_budget_no_limit() {
        let governor = governor(0);
        let reservation = governor.reservation("sort");
        assert!(reservation.try_grow(u64::MAX / 2));
        assert_eq!(governor.level(), MemoryLevel::Ok);
    }

    /// The error must name the culprit: an operator, or memory of the program itself.
    #[test]
    fn the_holder_is_named() {
        let governor = governor(1000);
        let sort = governor.reservation("sort");
        sort.force_grow(700);
        assert!(governor.describe(1300).contains("\"sort\" holds most (700 bytes)"));
        assert!(governor.describe(1500).contains("memory outside operators, which hold 700 bytes"));
        assert!(is_short(49, 1000) && !is_short(50, 1000));
        assert_eq!(governor.overdrawn(), None, "of no process");
    }

    /// A process larger than the budget counts, whatever operators report, except for a small amount without which they
    /// would spill every batch by itself.
    #[test]
    fn the_process_counts() {
        let settings = MemorySettings { budget_bytes: 64 << 20, ..MemorySettings::default() };
        let governor = Governor::new(settings);
        let held = vec![1_u8; BASE_BYTES_MAX as usize];
        assert_eq!(governor.level(), MemoryLevel::Spill);
        assert!(held.iter().all(|&byte| byte == 1));
        assert!(governor.process_bytes_max() > 64 << 20);
        let any = governor.reservation("any");
        assert!(any.try_grow(2 << 20) && !any.try_grow(1));
    }

    /// Memory that an operator has freed, but the allocator has kept, must not make the next operators spill.
    #[test]
    fn what_was_given_back_does_not_count() {
        let governor = Governor::new(MemorySettings { budget_bytes: 256 << 20, ..MemorySettings::default() });
        let sort = governor.reservation("sort");
        let mut rows: Vec<Vec<u8>> = (0..6400).map(|_| vec![1; 64 << 10]).collect();
        sort.force_grow(400 << 20);
        std::thread::sleep(2 * LOOK_INTERVAL);
        assert!(governor.is_full());
        // The last one keeps the allocator from returning the others' memory by itself.
        rows.drain(..6399);
        sort.shrink(399 << 20);
        std::thread::sleep(2 * LOOK_INTERVAL);
        assert!(!governor.is_full());
        assert_eq!(rows.len(), 1);
    }
}
