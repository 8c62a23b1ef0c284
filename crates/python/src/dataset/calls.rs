//! Functions of the program that query threads call: none may be under way when the interpreter ends.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use pyo3::prelude::*;

#[derive(Clone, Copy)]
struct State {
    /// Whose threads the calls are on: a forked child has none of its parent's.
    process: u32,
    running: usize,
    ending: bool,
}

static STATE: Mutex<State> = Mutex::new(State { process: 0, running: 0, ending: false });
static CHANGED: Condvar = Condvar::new();

/// A call under way.
pub struct Call(());

impl Call {
    /// `None` when the program is ending. Not with the GIL held.
    pub fn begin() -> Option<Call> {
        let mut state = STATE.lock();
        if state.process != std::process::id() {
            *state = State { process: std::process::id(), running: 0, ending: false };
        }
        if state.ending {
            return None;
        }
        state.running += 1;
        Some(Call(()))
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut state = STATE.lock();
        if state.process == std::process::id() {
            state.running -= 1;
            CHANGED.notify_all();
        }
    }
}

/// The program is ending: waits for calls under way, and lets none begin.
#[pyfunction]
pub fn end_calls(py: Python<'_>) -> PyResult<()> {
    /// How long Ctrl-C may go unseen.
    const SLICE: Duration = Duration::from_millis(50);
    loop {
        let over = py.detach(|| {
            let mut state = STATE.lock();
            state.ending = true;
            if state.running > 0 && state.process == std::process::id() {
                CHANGED.wait_for(&mut state, SLICE);
            }
            state.running == 0 || state.process != std::process::id()
        });
        if over {
            return Ok(());
        }
        py.check_signals()?;
    }
}
