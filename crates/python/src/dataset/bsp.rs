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
use tidemill_net::notice;
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
    member: Arc<StepMember>,
}

/// A copy of a step among others, which it meets in collectives.
struct StepMember {
    step: String,
    copy: u32,
    comm: Communicator,
    /// What `tidemill._streaming.rounds.RoundLogic` counts.
    rounds: Mutex<Option<RoundFigures>>,
}

/// The rounds of an all-reduce that a copy has ended: how many, their mean and longest seconds from the copy's part to
/// the result, how many have left the copy out, how many of its parts are in none yet, and for how many seconds it has
/// been left out.
type RoundFigures = (u64, f64, f64, u64, u64, f64);

/// The members in this process, which has few copies.
static MEMBERS: Mutex<Vec<Weak<StepMember>>> = Mutex::new(Vec::new());

/// How long each copy of this worker has waited in its last collectives: call numbers, which are the same on all copies
/// of a step, with seconds. A copy without waits was the last to arrive. And its rounds, if it all-reduces.
pub(super) fn collective_waits() -> Vec<Value> {
    const CALLS_MAX: usize = 100;
    let mut members = MEMBERS.lock();
    members.retain(|member| member.strong_count() > 0);
    let told = members.iter().filter_map(Weak::upgrade).map(|member| {
        let waits = member.comm.recent_waits();
        let newest = waits[waits.len().saturating_sub(CALLS_MAX)..].iter();
        // A resolution of 0.1 ms is sufficient.
        let waits = newest.map(|(call, waited)| (call, (waited.as_secs_f64() * 1e4).round() / 1e4));
        let rounds = member.rounds.lock().map(|(rounds, mean_s, worst_s, left_out, behind, late_s)| {
            json!({
                "rounds": rounds, "mean_s": mean_s, "worst_s": worst_s,
                "left_out": left_out, "behind": behind, "late_s": late_s,
            })
        });
        json!({"step": member.step, "copy": member.copy, "waits": waits.collect::<Vec<_>>(), "rounds": rounds})
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
    let (tables, is_pending, timer) = made.extract::<(Py<PyAny>, bool, Option<i64>)>(py)?;
    Ok(CallOutput { rows: batches(py, &tables)?, is_pending, timer })
}

fn batches(py: Python<'_>, tables: &Py<PyAny>) -> PyResult<Vec<RecordBatch>> {
    let tables = tables.extract::<Vec<PyRef<'_, NativeTable>>>(py)?;
    Ok(tables.iter().flat_map(|table| table.batches.clone()).collect())
}

impl StepMember {
    /// Takes over the figures of rounds. If ever more have left the copy out, says so after 1, 2, 4, 8 and so on.
    fn note_rounds(&self, py: Python<'_>, logic: &Py<PyAny>) -> PyResult<()> {
        let now: Option<RoundFigures> = logic.getattr(py, "rounds")?.extract(py)?;
        let before = std::mem::replace(&mut *self.rounds.lock(), now).map_or(0, |(.., left_out, _, _)| left_out);
        if let Some((rounds, .., left_out, behind, late_s)) = now
            && left_out > before
            && left_out.is_power_of_two()
        {
            let (step, copy, parts) = (&self.step, self.copy, if behind == 1 { "part" } else { "parts" });
            notice!(
                self.comm.world_rank(copy),
                "copy {copy} of {step} was late, for {late_s:.1} s now: {left_out} of {rounds} rounds left out its part; \
                 {behind} {parts} of it will be in a later round"
            );
        }
        Ok(())
    }
}

impl BspFunction for PythonBsp {
    fn call(&mut self, _comm: &Communicator, rows: RecordBatch, of: CallSpan) -> Result<CallOutput, TaskError> {
        let Some(logic) = self.logic.clone() else { return Ok(CallOutput::default()) };
        let member = Arc::clone(&self.member);
        call(&mut self.thread, move |py| {
            let table = NativeTable { schema: rows.schema(), batches: vec![rows] };
            let (window, is_rows) = match of {
                CallSpan::Epoch => (None, false),
                CallSpan::Time(start, end) => (Some((start, end)), false),
                CallSpan::Rows(start, end) => (Some((start, end)), true),
            };
            let made = output(py, &logic.call_method1(py, "call", (table, window, is_rows))?)?;
            member.note_rounds(py, &logic)?;
            Ok(made)
        })
    }

    fn poll(&mut self, waits: bool) -> Result<CallOutput, TaskError> {
        let Some(logic) = self.logic.clone() else { return Ok(CallOutput::default()) };
        let member = Arc::clone(&self.member);
        call(&mut self.thread, move |py| {
            let made = output(py, &logic.call_method1(py, "poll", (waits,))?)?;
            member.note_rounds(py, &logic)?;
            Ok(made)
        })
    }

    fn finish(&mut self) -> Result<Vec<RecordBatch>, TaskError> {
        let Some(logic) = self.logic.clone() else { return Ok(Vec::new()) };
        call(&mut self.thread, move |py| batches(py, &logic.call_method0(py, "finish")?))
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
        let (step, comm) = (setup.context.task().to_owned(), setup.comm.clone());
        let member = Arc::new(StepMember { step, copy, comm, rounds: Mutex::new(None) });
        MEMBERS.lock().push(Arc::downgrade(&member));
        Ok(Box::new(PythonBsp { logic: Some(Arc::new(logic)), thread, member }) as Box<dyn BspFunction>)
    })
}
