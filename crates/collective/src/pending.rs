//! Reductions that progress by themselves while their caller does something else.

use tidemill_net::{CallWait, MemoryRegion, NetError};

use crate::typed::CollectiveElement;
use crate::{Collective, CollectiveCall, CollectiveError, Communicator, ReduceOp, Request};

/// An allreduce under way that owns its values. Dropping it lets the call finish by itself.
#[must_use]
pub struct PendingAllreduce<T: CollectiveElement> {
    /// `None` once it has finished.
    request: Option<Request>,
    /// The send buffer and the receive buffer; their memory does not move when this value does.
    values: Option<[Box<[T]>; 2]>,
}

impl Communicator {
    /// Starts an [`allreduce`](Communicator::allreduce) that does not wait for the other ranks. Source: MPI 4.1 section
    /// 6.12.9.
    ///
    /// # Errors
    /// `ReduceOp` if the operation is not defined for the type; any failure of the job.
    ///
    /// # Examples
    /// ```
    /// use tidemill_collective::{ReduceOp, run_ranks};
    ///
    /// let least = run_ranks(3, |comm| {
    ///     let pending = comm.start_allreduce(vec![i64::from(comm.rank()) + 7], &ReduceOp::Min).unwrap();
    ///     pending.wait().unwrap()
    /// });
    /// assert_eq!(least.unwrap(), [vec![7], vec![7], vec![7]]);
    /// ```
    pub fn start_allreduce<T: CollectiveElement>(
        &self,
        values: Vec<T>,
        op: &ReduceOp,
    ) -> Result<PendingAllreduce<T>, CollectiveError> {
        let mut sent = values.into_boxed_slice();
        let mut received = sent.clone();
        let region = |slice: &mut [T]| MemoryRegion { ptr: slice.as_mut_ptr().cast(), len: size_of_val(slice) };
        let call = CollectiveCall {
            dtype: T::DTYPE,
            op,
            count: sent.len(),
            send: Some(region(&mut sent)),
            recv: Some(region(&mut received)),
            ..CollectiveCall::new(Collective::Allreduce)
        };
        // SAFETY: the slices are on the heap, nothing else refers to them, and they live until the request is over:
        // dropping their owner hands them to the request.
        let request = unsafe { self.start_nonblocking(&call)? };
        Ok(PendingAllreduce { request: Some(request), values: Some([sent, received]) })
    }
}

impl<T: CollectiveElement> PendingAllreduce<T> {
    /// The result, if it is ready. Returned only once.
    ///
    /// # Errors
    /// `Mismatch` on every rank; any failure of the job.
    pub fn test(&mut self) -> Result<Option<Vec<T>>, NetError> {
        self.poll(Request::test)
    }

    /// Like [`PendingAllreduce::test`], but waits up to 100 ms for the result.
    ///
    /// # Errors
    /// As [`PendingAllreduce::test`].
    pub fn wait_briefly(&mut self) -> Result<Option<Vec<T>>, NetError> {
        self.poll(|request| request.wait_slice(&mut CallWait::default()))
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// As [`PendingAllreduce::test`]; [`NetError::Interrupted`] when the caller requests it.
    pub fn wait(mut self) -> Result<Vec<T>, NetError> {
        let mut wait = CallWait::default();
        loop {
            if let Some(values) = self.poll(|request| request.wait_slice(&mut wait))? {
                return Ok(values);
            }
            if tidemill_net::is_interrupted() {
                return Err(NetError::Interrupted);
            }
        }
    }

    fn poll<S>(
        &mut self,
        step: impl FnOnce(&mut Request) -> Result<Option<S>, NetError>,
    ) -> Result<Option<Vec<T>>, NetError> {
        let Some(request) = &mut self.request else { return Ok(None) };
        // An error ends it just as a result does.
        let over = step(request).map(|status| status.is_some());
        if !matches!(over, Ok(false)) {
            self.request = None;
        }
        Ok(over?.then(|| self.values.take().map(|[_, received]| received.into_vec())).flatten())
    }
}

impl<T: CollectiveElement> Drop for PendingAllreduce<T> {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            request.detach(self.values.take().map(|values| Box::new(values) as _));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_ranks;

    /// A rank that has started an allreduce continues, and gets the result once the last rank has arrived.
    #[test]
    fn ranks_need_not_wait() {
        let results = run_ranks(3, |comm| {
            let mut pending = comm.start_allreduce(vec![i64::from(comm.rank()), 5], &ReduceOp::Max).unwrap();
            // The ranks that wait in this barrier need the first one to make progress meanwhile.
            comm.barrier().unwrap();
            loop {
                if let Some(values) = pending.wait_briefly().unwrap() {
                    assert!(pending.test().unwrap().is_none(), "given once");
                    return values;
                }
            }
        });
        assert_eq!(results.unwrap(), vec![vec![2, 5]; 3]);
    }

    #[test]
    fn one_that_is_dropped_ends_by_itself() {
        let sums = run_ranks(2, |comm| {
            drop(comm.start_allreduce(vec![1i64; 1000], &ReduceOp::Sum).unwrap());
            comm.start_allreduce(vec![2i64], &ReduceOp::Sum).unwrap().wait().unwrap()
        });
        assert_eq!(sums.unwrap(), [[4], [4]]);
    }

    /// The end of the job waits for promised messages, but here none will arrive.
    #[test]
    fn the_job_can_be_left_after_one_was_dropped_with_its_communicator() {
        let left = run_ranks(2, |comm| {
            let part = comm.split(Some(0), 0).unwrap().unwrap();
            // The other rank never makes this call.
            if part.rank() == 0 {
                drop(part.start_allreduce(vec![1i64], &ReduceOp::Sum).unwrap());
            }
            drop(part);
            comm.endpoint().leave();
        });
        assert_eq!(left.unwrap().len(), 2);
    }
}
