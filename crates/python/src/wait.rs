//! Waiting for native requests: a microsecond with the GIL, then without it, in slices between which signals are
//! checked.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use pyo3::prelude::*;
use smallvec::SmallVec;
use tidemill_collective::{CollectiveError, Request, StartResult};
use tidemill_net::{CallWait, NetError, ReceiveStatus, interruptible};

use crate::errors::{cancelled, from_collective, from_net};
use crate::handles::Raised;

thread_local! {
    /// On the thread of a copy: whether its run was aborted.
    static GIVEN_UP: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// On the thread of a task copy: from now on, waits fail once `given_up` is set.
pub fn set_given_up(given_up: Arc<AtomicBool>) {
    GIVEN_UP.set(Some(given_up));
}

/// Runs `work` on a thread that many copies use in turn: during this, waits fail once `given_up` is set.
pub fn in_copy<T>(given_up: Arc<AtomicBool>, work: impl FnOnce() -> T) -> T {
    GIVEN_UP.set(Some(given_up));
    let made = work();
    GIVEN_UP.set(None);
    made
}

/// Whether the run of this thread's copy was aborted.
fn is_given_up() -> bool {
    GIVEN_UP.with_borrow(|flag| flag.as_ref().is_some_and(|flag| flag.load(Ordering::SeqCst)))
}

/// Raises on the thread of a copy whose run was aborted, because nobody may ever answer what it waits for.
pub fn check_given_up(py: Python<'_>) -> PyResult<()> {
    if is_given_up() { Err(cancelled(py)) } else { Ok(()) }
}

/// The objects that keep the memory of an operation alive when its wait is abandoned. Usually one or two buffers.
pub type Owners = SmallVec<[Py<PyAny>; 2]>;

/// The exception for a failed operation: the one of a user function, if that is the cause.
#[cold]
pub fn explain(py: Python<'_>, error: &NetError, raised: Option<&Raised>) -> PyErr {
    // Copies leave their task's communicator when the run ends, some earlier than others. A function that still uses it
    // belongs to a failed run.
    if matches!(error, NetError::Closed | NetError::PeerLeft { .. }) && GIVEN_UP.with_borrow(Option::is_some) {
        return cancelled(py);
    }
    raised.and_then(|slot| slot.lock().take()).unwrap_or_else(|| from_net(py, error))
}

/// Waits for a started blocking call. `owners` returns what keeps the memory alive if a signal handler raises before
/// the operation completes.
#[inline]
pub fn blocking(
    py: Python<'_>,
    started: Result<StartResult, CollectiveError>,
    raised: Option<&Raised>,
    owners: impl FnOnce() -> Owners,
) -> PyResult<ReceiveStatus> {
    match started {
        Ok(StartResult::Done(status)) => Ok(status),
        Ok(StartResult::Pending(request)) => pending(py, request, raised, owners),
        Err(CollectiveError::Net(error)) => Err(explain(py, &error, raised)),
        Err(error) => Err(from_collective(py, &error)),
    }
}

#[inline]
fn pending(
    py: Python<'_>,
    mut request: Request,
    raised: Option<&Raised>,
    owners: impl FnOnce() -> Owners,
) -> PyResult<ReceiveStatus> {
    // Releasing the GIL costs as much as a short message takes, and most replies arrive before that.
    match request.poll_briefly() {
        Ok(Some(status)) => return Ok(status),
        Ok(None) => {}
        Err(error) => return Err(explain(py, &error, raised)),
    }
    match without_gil(py, &mut request, raised) {
        Ok(status) => Ok(status),
        Err(error) => {
            give_up(py, request, owners());
            Err(error)
        }
    }
}

/// Waits with the GIL released.
///
/// # Errors
/// The failure of the operation, or an exception of a signal handler; then the request may still be in progress.
pub fn without_gil(py: Python<'_>, request: &mut Request, raised: Option<&Raised>) -> PyResult<ReceiveStatus> {
    let mut wait = CallWait::default();
    loop {
        match detach(py, || request.wait_slice(&mut wait)) {
            Ok(Some(status)) => return Ok(status),
            Ok(None) => {
                py.check_signals()?;
                check_given_up(py)?;
            }
            Err(error) => return Err(explain(py, &error, raised)),
        }
    }
}

/// Waits with the GIL released until one of `requests` completes.
///
/// # Errors
/// An exception of a signal handler.
pub fn any_without_gil(py: Python<'_>, requests: &mut [&mut Request]) -> PyResult<()> {
    let mut wait = CallWait::default();
    loop {
        match detach(py, || Request::wait_any_slice(requests, &mut wait)) {
            Ok(false) => {
                py.check_signals()?;
                check_given_up(py)?;
            }
            // A failure is the outcome of its own request.
            Ok(true) | Err(_) => return Ok(()),
        }
    }
}

/// Abandons `request`: a receive is withdrawn if possible, and anything else continues with `owners`.
pub fn give_up(py: Python<'_>, mut request: Request, owners: Owners) {
    if !request.cancel() {
        let owners: Box<dyn std::any::Any + Send> = Box::new(owners);
        detach(py, || request.detach(Some(owners)));
    }
}

/// Runs native code that waits for other workers, without the GIL; an exception of a signal handler ends it and is
/// raised, and so does the end of the copy's run.
pub fn detached<R: Send>(py: Python<'_>, run: impl FnOnce() -> Result<R, CollectiveError> + Send) -> PyResult<R> {
    interruptibly(py, run)?.map_err(|error| from_collective(py, &error))
}

/// The result of `run`, or the exception that a signal handler raised meanwhile.
pub fn interruptibly<R: Send>(py: Python<'_>, run: impl FnOnce() -> R + Send) -> PyResult<R> {
    let raised = Mutex::new(None);
    let result = detach(py, || {
        // The check must own what it uses: the slot outlives the call, but the type system cannot see this.
        let slot = Arc::new(Mutex::new(None));
        let seen = Arc::clone(&slot);
        let check = move || {
            if seen.lock().is_none() {
                *seen.lock() = Python::attach(|py| py.check_signals().and_then(|()| check_given_up(py)).err());
            }
            seen.lock().is_some()
        };
        let result = interruptible(Rc::new(check), run);
        *raised.lock() = slot.lock().take();
        result
    });
    match raised.into_inner() {
        Some(error) => Err(error),
        None => Ok(result),
    }
}

thread_local! {
    /// Whether this thread is in [`detach`].
    static DETACHED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` without the GIL. Everything that may use an endpoint must do so through this function, so that
/// [`wait_unlocked`] knows.
pub fn detach<R: Send>(py: Python<'_>, work: impl FnOnce() -> R + Send) -> R {
    struct DetachRestore(bool);
    impl Drop for DetachRestore {
        fn drop(&mut self) {
            DETACHED.set(self.0);
        }
    }
    py.detach(|| {
        let _restore = DetachRestore(DETACHED.replace(true));
        work()
    })
}

/// Runs `wait` without the GIL if this thread holds it: the other side may need the GIL, for a function of the user.
pub fn wait_unlocked(wait: &mut (dyn FnMut() + Send)) -> bool {
    // SAFETY: asks for this thread's own state, which a thread unknown to Python does not have.
    if DETACHED.get() || unsafe { pyo3::ffi::PyGILState_GetThisThreadState() }.is_null() {
        return false;
    }
    Python::attach(|py| detach(py, wait));
    true
}
