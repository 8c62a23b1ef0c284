//! The communicator of a task's copies, whose ranks are the copies.
//!
//! If each copy is on a different worker, this is part of the run's communicator. If a worker runs several, the copies
//! form a job within the job: each has its own endpoint, connected to others of its process through ordinary or
//! shared memory, and to endpoints of other workers through the available transports. Schedules, algorithms and
//! mismatch detection are the same as for any communicator.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidemill_collective::{Communicator, ReduceOp, TuneTable};
use tidemill_net::rendezvous::{JobSecret, JoinConfig, join, publish_card, read_card};
use tidemill_net::{Endpoint, EndpointSettings, Engine, EngineTask, NetError, Rank, notice};

use super::share_bytes;
use crate::error::DataflowError;
use crate::flow::FlowTask;

/// How long functions of a failed run may take to release their communicators.
const LET_GO_TIME: Duration = Duration::from_secs(5);

/// The communicator of one copy.
#[derive(Clone)]
pub(crate) struct CopyComm {
    pub comm: Communicator,
    /// If the copy has its own endpoint: whether the run is over.
    over: Option<Arc<AtomicBool>>,
}

impl CopyComm {
    /// Called when the copy makes no more calls. Others may still send to it, and someone has to drop that.
    pub(crate) fn end(&self) {
        self.comm.end();
        if let Some(over) = &self.over {
            self.comm.endpoint().lock().add_task(Box::new(UntilOver(Arc::clone(over))));
            self.comm.endpoint().leave_to_background();
        }
    }
}

/// Keeps an endpoint's background thread working until the run is over.
struct UntilOver(Arc<AtomicBool>);

impl EngineTask for UntilOver {
    fn step(&mut self, _: &mut Engine) -> Option<Result<(), NetError>> {
        self.0.load(Ordering::SeqCst).then_some(Ok(()))
    }

    fn waiting_for(&self, _: &Engine) -> Vec<Option<Rank>> {
        Vec::new()
    }
}

/// This worker's part of the communicator of a task's copies.
#[derive(Default)]
pub(crate) struct CopyComms {
    /// By copy of this worker, in order.
    comms: Vec<(u32, Communicator)>,
    /// For copies that have their own job, which ends with the run: whether it has ended.
    over: Option<Arc<AtomicBool>>,
}

impl CopyComms {
    /// Opens the communicator of a task that wants one. Collective over `comm`.
    ///
    /// # Errors
    /// The job's fault; `CopyComm`, on every worker, if one cannot open its part.
    pub(crate) fn open(comm: &Communicator, task: &FlowTask) -> Result<Self, DataflowError> {
        if !task.comm {
            return Ok(CopyComms::default());
        }
        let me = comm.rank();
        let mine: Vec<u32> =
            (0..).zip(&task.workers).filter(|(_, worker)| **worker == me).map(|(copy, _)| copy).collect();
        let is_spread = (0..comm.size()).all(|worker| task.workers.iter().filter(|&&of| of == worker).count() <= 1);
        let opened = match is_spread {
            true => {
                let copy = mine.first().copied();
                let part = comm.split(copy.map(|_| 0), i64::from(copy.unwrap_or(0)))?;
                CopyComms { comms: copy.into_iter().zip(part).collect(), over: None }
            }
            false => {
                let opened = agree(comm, task, open_job(comm, &task.workers, &mine)?)?;
                CopyComms { comms: mine.into_iter().zip(opened).collect(), over: Some(Arc::default()) }
            }
        };
        opened.comms.iter().for_each(|(_, part)| part.set_name(&task.name));
        Ok(opened)
    }

    /// The communicator of one copy of this worker.
    pub(crate) fn of(&self, copy: u32) -> Option<CopyComm> {
        let (_, comm) = self.comms.iter().find(|(of, _)| *of == copy)?;
        Some(CopyComm { comm: comm.clone(), over: self.over.clone() })
    }
}

impl CopyComms {
    /// Leaves, once the run, and therefore every call, has succeeded on all workers.
    pub(crate) fn leave(&mut self) {
        if let Some(over) = self.over.take() {
            leave_all(std::mem::take(&mut self.comms), &over);
        }
    }
}

impl Drop for CopyComms {
    fn drop(&mut self) {
        let Some(over) = self.over.take() else { return };
        // The run has failed. A function that waits in a call should learn of that failure, not that others have
        // left. Its program may or may not handle the error and release the communicator.
        let comms = std::mem::take(&mut self.comms);
        let leave = move || {
            let until = Instant::now() + LET_GO_TIME;
            while comms.iter().any(|(_, comm)| comm.is_shared()) && Instant::now() < until {
                std::thread::sleep(LET_GO_TIME / 500);
            }
            leave_all(comms, &over);
        };
        if let Err(error) = std::thread::Builder::new().name("tidemill-leave".into()).spawn(leave) {
            notice!("cannot start a thread to close the communicators of a run: {error}");
        }
    }
}

/// Ends a job within the job: all endpoints at once, since each stays until the others have received what it has
/// sent, or have left.
fn leave_all(comms: Vec<(u32, Communicator)>, over: &AtomicBool) {
    over.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        for (_, comm) in comms {
            scope.spawn(move || comm.endpoint().leave());
        }
    });
}

/// Opens the endpoints of this worker's copies, and their communicators. The outer error is the job's, the inner one
/// only this worker's.
fn open_job(
    comm: &Communicator,
    workers: &[u32],
    mine: &[u32],
) -> Result<Result<Vec<Communicator>, String>, DataflowError> {
    let root = workers[0];
    let size = workers.len() as u32;
    if workers.iter().all(|&worker| worker == root) {
        return Ok(match mine.is_empty() {
            true => Ok(Vec::new()),
            false => Endpoint::in_process(size).map_err(|error| error.to_string()).and_then(|endpoints| {
                let openers = endpoints.into_iter().map(|endpoint| move || Ok(endpoint));
                worlds(openers.collect(), &comm.table())
            }),
        });
    }
    let mut config = JoinConfig::new(Rank(0), size, "dataflow copies", JobSecret::random(), "");
    let published = match comm.rank() == root {
        true => publish_card(&mut config, comm.hosts() == 1).map_err(|error| error.to_string()),
        false => Ok(String::new()),
    };
    let card = share_text(comm, root, published.as_deref().unwrap_or_default())?;
    if let Err(error) = published {
        return Ok(Err(error));
    }
    if card.is_empty() || mine.is_empty() {
        return Ok(Ok(Vec::new()));
    }
    let placement = &comm.endpoint().placements()[comm.world_rank(comm.rank()).index()];
    let settings = comm.endpoint().settings().clone();
    let openers = mine.iter().map(|&copy| {
        let mut of_copy = JoinConfig::new(Rank(copy), size, &config.job, config.secret.clone(), &config.root);
        of_copy.location.clone_from(&placement.location);
        of_copy.granted = placement.granted;
        of_copy.listener = if copy == 0 { config.listener.take() } else { None };
        let (card, settings) = (card.as_str(), settings.clone());
        move || open_copy(of_copy, card, settings)
    });
    Ok(worlds(openers.collect(), &comm.table()))
}

fn open_copy(mut config: JoinConfig, card: &str, settings: EndpointSettings) -> Result<Endpoint, String> {
    if config.rank != Rank(0) {
        read_card(&mut config, card)?;
    }
    let control = join(config).map_err(|error| error.to_string())?;
    Endpoint::open(control, settings).map_err(|error| error.to_string())
}

/// The communicators of endpoints, each opened on a separate thread, since they wait for each other.
fn worlds<O: FnOnce() -> Result<Endpoint, String> + Send>(
    openers: Vec<O>,
    table: &Arc<TuneTable>,
) -> Result<Vec<Communicator>, String> {
    std::thread::scope(|scope| {
        let world = |open: O| {
            scope.spawn(move || Communicator::world(open()?, Arc::clone(table)).map_err(|error| error.to_string()))
        };
        let threads: Vec<_> = openers.into_iter().map(world).collect();
        // Wait for all, even if one has failed.
        let opened: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("opening does not panic")).collect();
        opened.into_iter().collect()
    })
}

/// What all workers have opened, or the error of the first that could not.
fn agree(
    comm: &Communicator,
    task: &FlowTask,
    opened: Result<Vec<Communicator>, String>,
) -> Result<Vec<Communicator>, DataflowError> {
    let failed = if opened.is_err() { comm.rank() } else { comm.size() };
    let mut first = [0u64];
    comm.allreduce(&[u64::from(failed)], &mut first, &ReduceOp::Min)?;
    let first = first[0] as u32;
    if first == comm.size() {
        return Ok(opened.expect("no worker has failed"));
    }
    let mine = opened.as_ref().err().cloned().unwrap_or_default();
    let reason = share_text(comm, first, &mine)?;
    let worker = comm.world_rank(first);
    Err(DataflowError::CopyComm { task: task.name.clone(), worker, reason })
}

/// Gives every worker the text of worker `root`.
fn share_text(comm: &Communicator, root: u32, text: &str) -> Result<String, DataflowError> {
    let bytes = share_bytes(comm, root, text.as_bytes().to_vec())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
