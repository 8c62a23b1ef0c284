//! Collectives on Rust slices, and jobs whose workers are threads: the communicator for Rust programs and tests.

use std::sync::Arc;

use tidemill_net::{Endpoint, MemoryRegion, Rank, ReceiveStatus};

use crate::{Collective, CollectiveCall, CollectiveError, Communicator, DType, ReduceOp, StartResult, TuneTable};

/// Rust types that are elements of collectives.
///
/// # Safety
/// The type has the memory layout of `DTYPE`, every bit pattern that a peer could send is valid, and it has no padding.
pub unsafe trait CollectiveElement: Copy + Send + 'static {
    /// The corresponding dtype.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),*) => {
        $(
            // SAFETY: a primitive number of the dtype's size; all bit patterns are valid.
            unsafe impl CollectiveElement for $rust { const DTYPE: DType = DType::$dtype; }
        )*
    };
}

elements!(i8 => I8, i16 => I16, i32 => I32, i64 => I64, u8 => U8, u16 => U16, u32 => U32, u64 => U64, f32 => F32, f64 => F64);

fn read<T>(slice: &[T]) -> MemoryRegion {
    MemoryRegion { ptr: slice.as_ptr().cast_mut().cast(), len: size_of_val(slice) }
}

fn write<T>(slice: &mut [T]) -> MemoryRegion {
    MemoryRegion { ptr: slice.as_mut_ptr().cast(), len: size_of_val(slice) }
}

impl Communicator {
    /// Waits until every rank has called it. Source: MPI 4.1 section 6.3.
    ///
    /// # Errors
    /// Any failure of the job.
    pub fn barrier(&self) -> Result<(), CollectiveError> {
        // SAFETY: a barrier has no buffers.
        unsafe { self.run(&CollectiveCall::new(Collective::Barrier)) }
    }

    /// Copies the root's `buffer` to all ranks' buffers, which have the same length. Source: MPI 4.1 section 6.4.
    ///
    /// # Errors
    /// `NoSuchRank`; any failure of the job; `Mismatch` on every rank when lengths or roots differ.
    pub fn bcast<T: CollectiveElement>(&self, buffer: &mut [T], root: u32) -> Result<(), CollectiveError> {
        let (count, recv) = (buffer.len(), Some(write(buffer)));
        // SAFETY: the slice is borrowed during the call.
        unsafe {
            self.run(&CollectiveCall { dtype: T::DTYPE, root, count, recv, ..CollectiveCall::new(Collective::Bcast) })
        }
    }

    /// Reduces `send` elementwise over all ranks and leaves the result in `recv` on every rank. Both have the same
    /// length, on every rank. Source: MPI 4.1 section 6.9.6.
    ///
    /// # Errors
    /// `Length`; `ReduceOp` if the operation is not defined for the type; `Mismatch` on every rank; any failure of the
    /// job.
    ///
    /// # Examples
    /// ```
    /// use tidemill_collective::{ReduceOp, run_ranks};
    ///
    /// let sums = run_ranks(4, |comm| {
    ///     let mut sum = [0i64];
    ///     comm.allreduce(&[1], &mut sum, &ReduceOp::Sum).unwrap();
    ///     sum[0]
    /// });
    /// assert_eq!(sums.unwrap(), [4, 4, 4, 4]);
    /// ```
    pub fn allreduce<T: CollectiveElement>(
        &self,
        send: &[T],
        recv: &mut [T],
        op: &ReduceOp,
    ) -> Result<(), CollectiveError> {
        let call = CollectiveCall {
            dtype: T::DTYPE,
            op,
            count: send.len(),
            send: Some(read(send)),
            recv: Some(write(recv)),
            ..CollectiveCall::new(Collective::Allreduce)
        };
        // SAFETY: the slices are borrowed during the call.
        unsafe { self.run(&call) }
    }

    /// Concatenates all ranks' `send`, in rank order, on every rank. `recv` is `size` times as long. Source: MPI 4.1
    /// section 6.7.
    ///
    /// # Errors
    /// `Length`; `Mismatch` on every rank; any failure of the job.
    pub fn allgather<T: CollectiveElement>(&self, send: &[T], recv: &mut [T]) -> Result<(), CollectiveError> {
        let call = CollectiveCall {
            dtype: T::DTYPE,
            count: send.len(),
            send: Some(read(send)),
            recv: Some(write(recv)),
            ..CollectiveCall::new(Collective::Allgather)
        };
        // SAFETY: the slices are borrowed during the call.
        unsafe { self.run(&call) }
    }

    /// Sends `data` to `dest` and returns when the caller may change it again.
    ///
    /// # Errors
    /// `NoSuchRank`; any failure of the job.
    pub fn send_slice<T: CollectiveElement>(&self, data: &[T], dest: u32, tag: i32) -> Result<(), CollectiveError> {
        // SAFETY: the slice is borrowed until the request is over.
        match unsafe { self.send(dest, tag, read(data))? } {
            StartResult::Done(_) => Ok(()),
            StartResult::Pending(request) => Ok(request.wait().map(|_| ())?),
        }
    }

    /// Receives a message of at most `data.len()` elements. `None` means any source or tag.
    ///
    /// # Errors
    /// `NoSuchRank`; `Truncated`; any failure of the job.
    pub fn recv_slice<T: CollectiveElement>(
        &self,
        data: &mut [T],
        source: Option<u32>,
        tag: Option<i32>,
    ) -> Result<ReceiveStatus, CollectiveError> {
        // SAFETY: the slice is borrowed until the request is over.
        match unsafe { self.recv(source, tag, write(data))? } {
            StartResult::Done(status) => Ok(status),
            StartResult::Pending(request) => Ok(request.wait()?),
        }
    }
}

/// Runs `work` on `size` threads, each with its own rank of a world communicator, and returns their results by rank. A
/// thread that panics fails the job on the others.
///
/// # Errors
/// If the job cannot be opened.
pub fn run_ranks<R: Send>(
    size: u32,
    work: impl Fn(Communicator) -> R + Sync,
) -> Result<Vec<R>, tidemill_net::OpenError> {
    let endpoints = Endpoint::in_process(size)?;
    let table = Arc::new(TuneTable::default());
    let work = &work;
    let results = std::thread::scope(|scope| {
        let ranks: Vec<_> = endpoints
            .into_iter()
            .map(|endpoint| {
                let table = Arc::clone(&table);
                scope.spawn(move || {
                    let guard = FailOnPanic(endpoint.clone());
                    let world = Communicator::world(endpoint.clone(), table).expect("a new job's workers agree");
                    let result = work(world);
                    drop(guard);
                    endpoint.leave();
                    result
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join()).collect::<Vec<_>>()
    });
    Ok(results.into_iter().map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect())
}

struct FailOnPanic(Endpoint);

impl Drop for FailOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Rank(rank) = self.0.rank();
            self.0.report_failure(&format!("rank {rank} panicked; its message is on stderr"));
        }
    }
}
