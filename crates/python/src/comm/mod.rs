//! Communicators: the class `tidemill._tidemill.Comm`, and its methods that concern the communicator itself. The others
//! are in [`messages`], [`matched`], [`objects`] and `collectives.rs`.

#![allow(non_snake_case)] // MPI and mpi4py write them so.

mod matched;
mod messages;
mod objects;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tidemill_collective::{Collective, CollectiveCall, Communicator, DType};
use tidemill_net::MemoryRegion;

pub use matched::MatchedMessage;

use crate::array::CallMemory;
use crate::errors::{class, fail};
use crate::wait::{Owners, blocking, detached};

/// A communicator or none. Handles made from one another share it, and are all invalid once it is freed.
#[pyclass(subclass, frozen, module = "tidemill._tidemill")]
pub struct Comm {
    shared: Option<Arc<CommState>>,
}

struct CommState {
    comm: Communicator,
    freed: AtomicBool,
    /// The key of the next object message whose arrays are sent separately.
    next_key: AtomicU32,
}

impl Comm {
    pub fn of(comm: Communicator) -> Self {
        let shared = CommState { comm, freed: AtomicBool::new(false), next_key: AtomicU32::new(0) };
        Comm { shared: Some(Arc::new(shared)) }
    }

    /// The native communicator.
    #[inline]
    pub fn get(&self, py: Python<'_>) -> PyResult<&Communicator> {
        match &self.shared {
            Some(shared) if !shared.freed.load(Ordering::Relaxed) => Ok(&shared.comm),
            _ => Err(fail(py, class::COMM, "the communicator is COMM_NULL (or was freed)")),
        }
    }
}

#[pymethods]
impl Comm {
    #[new]
    #[pyo3(signature = (comm=None))]
    fn new(comm: Option<&Bound<'_, Comm>>) -> Self {
        Comm { shared: comm.and_then(|c| c.get().shared.clone()) }
    }

    /// The rank of this process.
    #[inline]
    fn Get_rank(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.get(py)?.rank())
    }

    /// The number of ranks.
    #[inline]
    fn Get_size(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.get(py)?.size())
    }

    /// The rank of this process.
    #[getter]
    fn rank(&self, py: Python<'_>) -> PyResult<u32> {
        self.Get_rank(py)
    }

    /// The number of ranks.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<u32> {
        self.Get_size(py)
    }

    /// Numbers of this rank's last collectives, and the seconds that it waited in each.
    fn _recent_waits(&self, py: Python<'_>) -> PyResult<Vec<(u32, f64)>> {
        let waits = self.get(py)?.recent_waits();
        Ok(waits.into_iter().map(|(seq, waited)| (seq, waited.as_secs_f64())).collect())
    }

    /// The overlay that adaptive all-reduces use, and the reason.
    ///
    /// These are ``Allreduce(..., algorithm="adaptive")``, or all of at least 1 MiB if ``TIDEMILL_OVERLAY=adaptive`` is
    /// set. The text names the overlay, its expected time, and hosts with slow links. It is for users and may change.
    fn overlay(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.get(py)?.describe_overlay())
    }

    /// Measures links if that is due, and changes the overlay if it pays, for the all-reduces of `bytes` bytes with
    /// ``algorithm="adaptive"`` that do not wait. Collective.
    fn _adapt(&self, py: Python<'_>, bytes: u64) -> PyResult<()> {
        let comm = self.get(py)?;
        detached(py, || comm.adapt(bytes))
    }

    fn _is_usable(&self) -> bool {
        self.shared.as_ref().is_some_and(|s| !s.freed.load(Ordering::Relaxed))
    }

    fn _is_same(&self, other: &Bound<'_, Comm>) -> bool {
        match (&self.shared, &other.get().shared) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => !self._is_usable() && !other.get()._is_usable(),
        }
    }

    fn _id(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.get(py)?.id())
    }

    fn _world_ranks(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        Ok(self.get(py)?.world_ranks().iter().map(|r| r.0).collect())
    }

    /// Whether equal ranks of both mean the same processes, which is not so for copies within a worker.
    fn _is_among(&self, py: Python<'_>, other: &Bound<'_, Comm>) -> PyResult<bool> {
        let faults = |comm: &Communicator| std::ptr::from_ref(comm.endpoint().faults());
        Ok(std::ptr::eq(faults(self.get(py)?), faults(other.get().get(py)?)))
    }

    fn _rename(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.get(py)?.set_name(name);
        Ok(())
    }

    fn _name(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.get(py)?.name())
    }

    fn _free(&self, py: Python<'_>) -> PyResult<()> {
        self.get(py)?;
        if let Some(shared) = &self.shared {
            shared.freed.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn _dup(&self, py: Python<'_>) -> PyResult<Comm> {
        let comm = self.get(py)?;
        let new = self._split(py, Some(0), i64::from(comm.rank()))?.expect("every rank has a color");
        new.get(py)?.set_name(&format!("{} (dup)", comm.name()));
        Ok(new)
    }

    /// One communicator for each color; `None` if this rank has no color.
    fn _split(&self, py: Python<'_>, color: Option<u32>, key: i64) -> PyResult<Option<Comm>> {
        let comm = self.get(py)?;
        // Gathered here rather than by `Communicator::split`: a rank that never arrives must not block Ctrl-C.
        let words: Vec<u8> = comm.split_words(color, key).iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mine = PyBytes::new(py, &words);
        let all = Bound::new(py, CallMemory::new(3 * 8 * comm.size() as usize))?;
        let call = CollectiveCall {
            dtype: DType::U64,
            count: 3,
            send: Some(MemoryRegion::of(mine.as_bytes())),
            recv: Some(all.get().region()),
            ..CollectiveCall::new(Collective::Allgather)
        };
        // SAFETY: both are exclusively owned and live until this returns; if the wait is abandoned, `owners` has them.
        let started = unsafe { comm.start(&call) };
        blocking(py, started, None, || {
            Owners::from_iter([mine.clone().into_any().unbind(), all.clone().into_any().unbind()])
        })?;
        let words = all.get().numbers();
        Ok(detached(py, || comm.split_agreed(color, &words))?.map(Comm::of))
    }

    fn _create_group(&self, py: Python<'_>, ranks: Vec<u32>, tag: i32) -> PyResult<Comm> {
        let comm = self.get(py)?;
        detached(py, || comm.create_group(&ranks, tag)).map(Comm::of)
    }
}
