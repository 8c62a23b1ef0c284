//! BSP functions of the program, which all copies of a task enter together, inside a stream: a Python object calls
//! them, with a communicator of `tidemill.mpi`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use serde_json::{Value, json};
use tidemill_collective::Communicator;
use tidemill_dataflow::{TaskError, wait_in_copy};
use tidemill_dataset::datafusion::arrow::array::RecordBatch;
use tidemill_stream::{BspFunction, CallOutput, CallSpan, MakeBspFunction};

use super::calls::CallerThread;
use super::frame::exception_text;
use super::table::NativeTable;
use crate::comm::Comm;
use crate::wait::in_copy;

/// An object with the methods of `tidemill._streaming.bsp.BspLogic`, and the thread that calls it.
struct PythonBsp {
    logic: Option<Arc<Py<PyAny>>>,
    thread: CallerThread,
    /// Listed for [`collective_waits`] as long as this lives.
    _member: Arc<StepMember>,
}

/// A copy of a step among others, which it meets in collectives.
struct StepMember {
    step: String,
    copy: u32,
    comm: Communicator,
}

/// The members in this process, which has few copies.
static MEMBERS: Mutex<Vec<Weak<StepMember>>> = Mutex::new(Vec::new());

/// How long each copy of this worker has waited in its last collectives: call numbers, which are the same on all copies
/// of a step, with seconds. A copy without waits was the last to arrive.
pub(super) fn collective_waits() -> Vec<Value> {
    const CALLS_MAX: usize = 100;
    let mut members = MEMBERS.lock();
    members.retain(|member| member.strong_count() > 0);
    let told = members.iter().filter_map(Weak::upgrade).map(|member| {
        let waits = member.comm.recent_waits();
        let newest = waits[waits.len().saturating_sub(CALLS_MAX)..].iter();
        // A resolution of 0.1 ms is sufficient.
        let waits = newest.map(|(call, waited)| (call, (waited.as_secs_f64() * 1e4).round() / 1e4));
        json!({"step": member.step, "copy": member.copy, "waits": waits.collect::<Vec<_>>()})
    });
    told.collect()
}

/// Signals a function that its run was abandoned, once nobody waits for it.
struct GivenUp(Arc<AtomicBool>);

impl Drop for GivenUp {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Calls Python on a function's thread. If the copy's run is abandoned, waits in the function end with an error.
fn call<T: Send + 'static>(
    thread: &mut CallerThread,
    work: impl FnOnce(Python<'_>) -> PyResult<T> + Send + 'static,
) -> Result<T, TaskError> {
    let given_up = Arc::new(AtomicBool::new(false));
    let told = GivenUp(Arc::clone(&given_up));
    let called = thread.call(move |py| in_copy(given_up, || work(py)).map_err(|error| exception_text(py, &error)));
    let called = async move {
        let _told = told;
        called.await
    };
    Ok(wait_in_copy(called)??)
}

/// Tables, whether more may come, and a timer.
fn output(py: Python<'_>, made: &Py<PyAny>) -> PyResult<CallOutput> {
    let (tables, is_pending, timer) = made.extract::<(Vec<PyRef<'_, NativeTable>>, bool, Option<i64>)>(py)?;
    Ok(CallOutput { rows: tables.iter().flat_map(|table| table.batches.clone()).collect(), is_pending, timer })
}

impl BspFunction for PythonBsp {
    fn call(&mut self, _comm: &Communicator, rows: RecordBatch, of: CallSpan) -> Result<CallOutput, TaskError> {
        let Some(logic) = self.logic.clone() else { return Ok(CallOutput::default()) };
        call(&mut self.thread, move |py| {
            let table = NativeTable { schema: rows.schema(), batches: vec![rows] };
            let (window, is_rows) = match of {
                CallSpan::Epoch => (None, false),
                CallSpan::Time(start, end) => (Some((start, end)), false),
                CallSpan::Rows(start, end) => (Some((start, end)), true),
            };
            output(py, &logic.call_method1(py, "call", (table, window, is_rows))?)
        })
    }

    fn poll(&mut self, waits: bool) -> Result<CallOutput, TaskError> {
        let Some(logic) = self.logic.clone() else { return Ok(CallOutput::default()) };
        call(&mut self.thread, move |py| output(py, &logic.call_method1(py, "poll", (waits,))?))
    }

    fn save(&mut self) -> Result<Bytes, TaskError> {
        let Some(logic) = self.logic.clone() else { return Ok(Bytes::new()) };
        let saved = call(&mut self.thread, move |py| logic.call_method0(py, "save")?.extract::<Vec<u8>>(py))?;
        Ok(saved.into())
    }
}

impl Drop for PythonBsp {
    fn drop(&mut self) {
        if let Some(logic) = self.logic.take() {
            self.thread.release(logic);
        }
    }
}

/// Makes a function for each copy by calling `factory` with the copy's communicator, its number, the number of copies,
/// and the states that copies had saved.
pub fn bsp_function(name: &str, factory: Py<PyAny>) -> MakeBspFunction {
    let (name, factory) = (name.to_owned(), Arc::new(factory));
    Arc::new(move |setup| {
        let mut thread = CallerThread::new(&name);
        let (factory, comm, restored) = (Arc::clone(&factory), setup.comm.clone(), setup.restored.clone());
        let (copy, copies) = (setup.context.copy(), setup.context.copies());
        let logic = call(&mut thread, move |py| {
            let restored = PyList::new(py, restored.iter().map(|state| PyBytes::new(py, state)))?;
            factory.call1(py, (Comm::of(comm), copy, copies, restored))
        })?;
        let member = StepMember { step: setup.context.task().to_owned(), copy, comm: setup.comm.clone() };
        let member = Arc::new(member);
        MEMBERS.lock().push(Arc::downgrade(&member));
        Ok(Box::new(PythonBsp { logic: Some(Arc::new(logic)), thread, _member: member }) as Box<dyn BspFunction>)
    })
}
