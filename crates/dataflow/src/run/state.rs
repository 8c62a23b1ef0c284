//! The state of a run on one worker, shared by its copies, the pump and the thread that drives it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arrow::buffer::Buffer;
use parking_lot::Mutex;
use tidemill_batch::route_map::RouteMap;
use tidemill_batch::wire::{Frame, ReceivedFrame, WireHeader, WireKind};
use tidemill_checkpoint::{BarrierControl, Rebalance};
use tidemill_control::{ClusterLayout, SplitPlan, WorkerSample};
use tidemill_net::NetError;

use super::ending::{Ending, ReportedFault, RoundMessage};
use super::fault::RunFault;
use super::meter::{MeasuredRun, Measurements, Meter};
use crate::checkpoint::{CheckpointClient, CheckpointMade};
use crate::error::DataflowError;
use crate::flow::EdgeRuntime;
use crate::link::{FrameHandler, Links};
use crate::metrics::EdgeReport;
use crate::rebalance::PendingRebalance;
use crate::source_progress::{SourceReport, SourceTrackers, StallMonitor};
use crate::task::CancelFlag;
use crate::work::{StepWorks, WorkReport};

/// In the header of a status: its worker sends no more.
const OVER: u64 = 1;

/// The state that the module describes.
pub(crate) struct RunState {
    pub links: Arc<Links>,
    pub cancel: Arc<CancelFlag>,
    copies_left: AtomicUsize,
    faults: Mutex<KnownFaults>,
    ending: Mutex<Ending>,
    pub progress: RunProgress,
    meter: Mutex<Meter>,
    checkpoints: Option<Arc<CheckpointClient>>,
}

/// The progress of a run, in a unit that the program chooses, such as rows read. Every worker reports its own
/// progress, and worker 0 receives all reports.
pub struct RunProgress {
    worker: u32,
    edges: OnceLock<Vec<Arc<EdgeRuntime>>>,
    here: AtomicU64,
    /// By worker, as last received.
    elsewhere: Vec<AtomicU64>,
    checkpoints: Option<Arc<CheckpointClient>>,
    pub(crate) sources: Arc<SourceTrackers>,
    pub(crate) works: Arc<StepWorks>,
    pub(crate) measurements: Measurements,
    /// This worker's status, until it is sent.
    status: Mutex<Option<Vec<u8>>>,
    /// The statuses of others and their arrival times; on worker 0.
    statuses: Mutex<BTreeMap<u32, (Vec<u8>, Instant)>>,
    /// Whether this worker has reported any status.
    has_status: AtomicBool,
    /// By worker that has reported a status: whether it sends no more.
    over: Vec<AtomicBool>,
}

/// The last status of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerStatus {
    /// The worker.
    pub worker: u32,
    /// The status as reported.
    pub status: Vec<u8>,
    /// How long ago it arrived here.
    pub age: Duration,
    /// Whether its part of the run is over, so that it sends no more.
    pub over: bool,
}

impl RunProgress {
    fn new(worker: u32, workers: u32, checkpoints: Option<Arc<CheckpointClient>>) -> Self {
        let elsewhere = (0..workers).map(|_| AtomicU64::new(0)).collect();
        RunProgress {
            worker,
            edges: OnceLock::new(),
            here: AtomicU64::new(0),
            elsewhere,
            checkpoints,
            sources: Arc::default(),
            works: Arc::default(),
            measurements: Measurements::default(),
            status: Mutex::default(),
            statuses: Mutex::default(),
            has_status: AtomicBool::new(false),
            over: (0..workers).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    /// On worker 0: handles the report of another worker, which may have passed through others.
    fn hear(&self, frame: &ReceivedFrame) -> Result<(), String> {
        let (worker, rows) = (frame.header.source, frame.header.rows);
        let (Some(elsewhere), Some(over)) = (self.elsewhere.get(worker as usize), self.over.get(worker as usize))
        else {
            return Err(format!("a report of worker {worker}, which is not in the run"));
        };
        if frame.header.kind == WireKind::Progress {
            elsewhere.store(rows, Ordering::Relaxed);
            return Ok(());
        }
        frame.verify().map_err(|error| error.to_string())?;
        let body = frame.body();
        if !body.is_empty() {
            // Copied, since the message that contains it may be long.
            drop(self.statuses.lock().insert(worker, (body.to_vec(), Instant::now())));
        }
        if rows == OVER {
            over.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Requests a barrier that carries `control`. Only works on worker 0 of a run that makes checkpoints.
    pub fn request(&self, control: BarrierControl) {
        if let Some(client) = &self.checkpoints {
            client.request(control);
        }
    }

    /// Moves buckets of the keys of tasks to other copies, with their state, while the stream continues: for all
    /// these tasks at one barrier, or for none. Each map's version must exceed the one of [`RunProgress::route`].
    /// Only works on worker 0 of a run that makes checkpoints; anywhere else, the answer says so.
    ///
    /// Later tasks may rely on keys staying with a copy only as far as they do in the task itself: none may be
    /// connected directly and keep something by key.
    pub fn rebalance(&self, maps: BTreeMap<String, RouteMap>) -> PendingRebalance {
        self.apply(Rebalance { maps, ..Rebalance::default() })
    }

    /// Like [`RunProgress::rebalance`], for buckets of tasks and splits of sources: they move at one barrier. A split
    /// that its copy does not have, or that has ended, stays where it is.
    pub fn apply(&self, rebalance: Rebalance) -> PendingRebalance {
        let (answer, rebalancing) = PendingRebalance::new();
        match &self.checkpoints {
            Some(client) => client.rebalance(rebalance, answer),
            None => drop(answer.send(Err("buckets and splits move at checkpoints, but this run makes none".into()))),
        }
        rebalancing
    }

    /// Like [`RunProgress::rebalance`], for a layout: `owners` names tasks by their numbers in the layout, with the new
    /// owners of their buckets.
    pub fn move_buckets(&self, layout: &ClusterLayout, owners: &[(u32, Vec<u32>)]) -> PendingRebalance {
        self.move_all(layout, owners, SplitPlan::new())
    }

    /// [`RunProgress::move_buckets`], and splits at the same barrier.
    pub fn move_all(&self, layout: &ClusterLayout, owners: &[(u32, Vec<u32>)], splits: SplitPlan) -> PendingRebalance {
        self.apply(Rebalance { maps: maps_of(layout, owners), splits, spares: None })
    }

    /// [`RunProgress::move_all`]; from the same barrier on, the layout's spare workers are the job's. Nothing of theirs
    /// moves by itself.
    pub fn scale(&self, layout: &ClusterLayout, owners: &[(u32, Vec<u32>)], splits: SplitPlan) -> PendingRebalance {
        self.apply(Rebalance { maps: maps_of(layout, owners), splits, spares: Some(layout.spares.clone()) })
    }

    /// The workers that get no buckets and splits until the job is scaled.
    pub fn spares(&self) -> BTreeSet<u32> {
        match &self.checkpoints {
            Some(client) => client.spares(),
            None => self.measurements.layout.get().map(|layout| layout.spares().clone()).unwrap_or_default(),
        }
    }

    /// Which copy of a task owns which bucket; for moving buckets, the new owner. `None` for a task whose inputs are
    /// not partitioned by key, or in a run that makes no checkpoints.
    pub fn route(&self, task: &str) -> Option<RouteMap> {
        self.checkpoints.as_ref()?.route(task)
    }

    /// By task, like [`RunProgress::route`]; empty in a run that makes no checkpoints.
    pub fn routes(&self) -> BTreeMap<String, RouteMap> {
        self.checkpoints.as_ref().map(|client| client.routes()).unwrap_or_default()
    }

    /// What this worker has counted on every edge so far.
    pub fn edges(&self) -> Vec<EdgeReport> {
        let edges = self.edges.get().map_or(&[][..], Vec::as_slice);
        edges.iter().filter(|edge| !edge.handover).map(|edge| edge.report()).collect()
    }

    /// How far the time of this worker's sources has advanced, and which split holds it back.
    pub fn sources(&self) -> Vec<SourceReport> {
        self.sources.reports()
    }

    /// The worker.
    pub fn worker(&self) -> u32 {
        self.worker
    }

    /// How long this worker's copies have worked, by step.
    pub fn works(&self) -> Vec<WorkReport> {
        self.works.reports()
    }

    /// The counters of workers: on worker 0 of all of them, elsewhere of this one. Each is as of the worker's last
    /// reading, twice a second. Workers without a reading are missing.
    pub fn samples(&self) -> Vec<WorkerSample> {
        self.measurements.samples()
    }

    /// Where copies run, and which of them own which buckets. Costs a copy of the layout.
    pub fn layout(&self) -> ClusterLayout {
        let layout = self.measurements.layout.get();
        layout.map(|layout| layout.now(self.checkpoints.as_deref())).unwrap_or_default()
    }

    /// Warnings about sources whose time has stopped.
    pub(crate) fn stalls(&self, stalls: &mut StallMonitor) -> Vec<String> {
        let edges = self.edges.get().map_or(&[][..], Vec::as_slice);
        stalls.check(Instant::now(), &self.sources(), |task| {
            edges.iter().filter(|edge| edge.source_task == task).filter_map(|edge| edge.ahead()).max()
        })
    }

    /// The last durable checkpoint; 0 before the first. `None` if the run makes none.
    pub fn durable(&self) -> Option<u64> {
        self.checkpoints.as_ref().map(|client| client.last_durable())
    }

    /// The last checkpoint that is durable or from which the run resumed. `None` if there is none, and on workers
    /// other than 0.
    pub fn checkpoint(&self) -> Option<CheckpointMade> {
        self.checkpoints.as_ref()?.last_made()
    }

    /// Reports this worker's progress.
    pub fn tell(&self, here: u64) {
        self.here.store(here, Ordering::Relaxed);
    }

    /// The total progress of the others; on worker 0 as of some moments ago, elsewhere 0.
    pub fn elsewhere(&self) -> u64 {
        self.elsewhere.iter().map(|n| n.load(Ordering::Relaxed)).sum()
    }

    /// Sends this worker's status to worker 0. It travels between the rows; if several statuses wait to be sent, only
    /// the newest is.
    pub fn tell_status(&self, status: Vec<u8>) {
        self.has_status.store(true, Ordering::Relaxed);
        *self.status.lock() = Some(status);
    }

    /// On worker 0: the last statuses of the other workers that have reported any; empty elsewhere.
    pub fn statuses(&self) -> Vec<WorkerStatus> {
        let statuses = self.statuses.lock();
        let told = statuses.iter().map(|(&worker, (status, came))| WorkerStatus {
            worker,
            status: status.clone(),
            age: came.elapsed(),
            over: self.over[worker as usize].load(Ordering::Relaxed),
        });
        told.collect()
    }
}

/// The next map of each task in a layout that gets other owners, given by its number there.
fn maps_of(layout: &ClusterLayout, owners: &[(u32, Vec<u32>)]) -> BTreeMap<String, RouteMap> {
    let next = |(task, owners): &(u32, Vec<u32>)| {
        let task = &layout.tasks[*task as usize];
        (task.name.clone(), RouteMap::new(task.version + 1, owners.clone()))
    };
    owners.iter().map(next).collect()
}

#[derive(Default)]
struct KnownFaults {
    /// The first fault that began here before any other was known.
    own: Option<RunFault>,
    /// A failure of the job itself, after which nothing more can be agreed on.
    net: Option<NetError>,
}

impl RunState {
    pub(crate) fn new(links: &Arc<Links>, copies: usize, checkpoints: Option<Arc<CheckpointClient>>) -> Arc<Self> {
        Arc::new(RunState {
            links: Arc::clone(links),
            cancel: CancelFlag::of_run(links),
            copies_left: AtomicUsize::new(copies),
            faults: Mutex::default(),
            ending: Mutex::new(Ending::new(links.me, links.workers())),
            progress: RunProgress::new(links.me, links.workers(), checkpoints.clone()),
            meter: Mutex::new(Meter::new(links.workers())),
            checkpoints,
        })
    }

    /// Set once, before the first frame can arrive.
    pub(crate) fn set_edges(&self, edges: Vec<Arc<EdgeRuntime>>) {
        assert!(self.progress.edges.set(edges).is_ok(), "a run's edges are set once");
    }

    pub(crate) fn edges(&self) -> &[Arc<EdgeRuntime>] {
        self.progress.edges.get().map_or(&[], Vec::as_slice)
    }

    /// Handles a fault that begins here: tells all workers, and gives everything up. Does nothing once this worker
    /// has announced that its part is over, since the others rely on that.
    pub(crate) fn fail(&self, fault: RunFault) {
        if self.links.is_closed() {
            return;
        }
        let mut faults = self.faults.lock();
        if self.cancel.is_raised() || faults.own.is_some() {
            return;
        }
        faults.own = Some(fault);
        drop(faults);
        self.abort();
        self.links.endpoint().rouse();
    }

    /// Gives everything up, everywhere.
    fn abort(&self) {
        self.cancel.raise();
        self.spread_abort();
    }

    /// Tells some others to give up, which tell others.
    pub(crate) fn spread_abort(&self) {
        let successors = self.ending.lock().successors();
        let header = WireHeader::new(WireKind::Abort, self.links.run);
        // Even when this worker's part is over: others may only learn of it through this one.
        successors.for_each(|worker| self.links.enqueue_last(worker, Frame::header_only(&header)));
    }

    /// Sends worker 0 this worker's progress since `told`, and its status. Returns the progress that has now been
    /// sent.
    pub(crate) fn send_progress(&self, told: u64) -> u64 {
        let here = self.progress.here.load(Ordering::Relaxed);
        if self.links.me == 0 {
            return here;
        }
        if here != told {
            let header = WireHeader { rows: here, ..WireHeader::new(WireKind::Progress, self.links.run) };
            drop(self.links.report(header, &[]));
        }
        if let Some(status) = self.progress.status.lock().take() {
            let header = WireHeader::new(WireKind::Status, self.links.run);
            self.links.report_newest(header, &[Buffer::from(status)]);
        }
        here
    }

    /// Reads this worker's counters if it is time, and sends them to worker 0.
    pub(crate) fn measure(&self) {
        let RunProgress { works, measurements, .. } = &self.progress;
        self.meter.lock().look(&MeasuredRun { links: &self.links, edges: self.edges(), works, measurements });
    }

    /// Handles a failure of the job.
    pub(crate) fn fail_net(&self, error: NetError) {
        self.faults.lock().net.get_or_insert(error);
        self.cancel.raise();
        self.links.endpoint().rouse();
    }

    pub(crate) fn net_error(&self) -> Option<NetError> {
        self.faults.lock().net.clone()
    }

    /// Records that a copy is over.
    pub(crate) fn copy_done(&self) {
        if self.copies_left.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.links.endpoint().rouse();
        }
    }

    /// Whether all copies are over.
    pub(crate) fn copies_done(&self) -> bool {
        self.copies_left.load(Ordering::SeqCst) == 0
    }

    /// Whether nothing of this worker's part is left: either its copies are over and others' streams have ended, or
    /// it is given up.
    pub(crate) fn is_done(&self) -> bool {
        self.copies_done() && (self.cancel.is_raised() || self.edges().iter().all(|edge| edge.is_quiet()))
    }

    /// Sends the last of this worker's part of the run.
    pub(crate) fn close(&self) {
        if self.links.me != 0 && self.progress.has_status.load(Ordering::Relaxed) {
            let status = self.progress.status.lock().take().map(Buffer::from);
            let header = WireHeader { rows: OVER, ..WireHeader::new(WireKind::Status, self.links.run) };
            drop(self.links.report(header, status.as_slice()));
        }
        self.links.close();
    }

    /// Announces that this worker's part is over: nothing of it is in transit any more.
    pub(crate) fn finish(&self) {
        let own = self.faults.lock().own.clone();
        let mut ending = self.ending.lock();
        let messages = ending.begin(own);
        self.send_rounds(&ending, &messages);
    }

    fn send_rounds(&self, ending: &Ending, messages: &[RoundMessage]) {
        for &(worker, round) in messages {
            let header = WireHeader { rows: u64::from(round), ..WireHeader::new(WireKind::Finish, self.links.run) };
            let body = ending.encode().map(Buffer::from);
            self.links.enqueue_last(worker, Frame::new(&header, body.as_slice()));
        }
    }

    fn hear_round(&self, from: u32, frame: &ReceivedFrame) -> Result<(), String> {
        frame.verify().map_err(|error| error.to_string())?;
        let round = u32::try_from(frame.header.rows).unwrap_or(u32::MAX);
        let body = frame.body();
        let fault = match body.is_empty() {
            true => None,
            false => Some(ReportedFault::decode(&body).ok_or("a fault that cannot be read")?),
        };
        if fault.is_some() && !self.cancel.is_raised() {
            self.abort();
        }
        let mut ending = self.ending.lock();
        let messages = ending.hear((from, round), fault)?;
        self.send_rounds(&ending, &messages);
        Ok(())
    }

    /// Whether all workers' parts are over.
    pub(crate) fn is_over(&self) -> bool {
        self.ending.lock().is_over()
    }

    /// The outcome, the same on every worker once all parts are over: of several simultaneous faults, the lowest
    /// worker's.
    pub(crate) fn outcome(&self) -> Result<(), DataflowError> {
        if let Some(error) = self.net_error() {
            return Err(error.into());
        }
        self.ending.lock().first().map_or(Ok(()), |fault| Err(fault.clone().into_error()))
    }

    /// Fails because of something that is not the fault of a single task.
    fn fail_beneath(&self, edge: &str, reason: String) {
        let rank = self.links.rank(self.links.me).0;
        let error = DataflowError::Edge { edge: edge.to_owned(), reason };
        self.fail(RunFault { rank, task: "(exchange)".into(), copy: 0, message: error.to_string() });
    }
}

impl FrameHandler for RunState {
    fn frame(&self, from: u32, frame: ReceivedFrame, links: &Links) {
        match frame.header.kind {
            WireKind::Abort if self.cancel.is_raised() => {}
            WireKind::Abort => self.abort(),
            WireKind::Finish => {
                if let Err(reason) = self.hear_round(from, &frame) {
                    self.damaged(from, reason);
                }
            }
            WireKind::Progress | WireKind::Status | WireKind::Measured if links.me != 0 => {
                links.pass_up(&frame);
            }
            WireKind::Measured => {
                if let Err(reason) = self.progress.measurements.hear(&frame, links.workers()) {
                    self.damaged(from, reason);
                }
            }
            WireKind::Progress | WireKind::Status => {
                if let Err(reason) = self.progress.hear(&frame) {
                    self.damaged(from, reason);
                }
            }
            WireKind::Inject | WireKind::Unalign | WireKind::Saved | WireKind::Durable => {
                let heard = match &self.checkpoints {
                    Some(client) => client.frame(&frame),
                    None => Err("a frame about checkpoints, but this run makes none".into()),
                };
                if let Err(reason) = heard {
                    self.damaged(from, reason);
                }
                if frame.header.kind != WireKind::Saved {
                    links.pass_down(&frame);
                }
            }
            WireKind::Lent | WireKind::Returned => unreachable!("links see to what is lent"),
            WireKind::Batch
            | WireKind::End
            | WireKind::Watermark
            | WireKind::Idle
            | WireKind::Barrier
            | WireKind::Credit
            | WireKind::Stop => {
                let Some(edge) = self.edges().get(frame.header.edge as usize) else {
                    return self.damaged(from, format!("a frame of unknown edge {}", frame.header.edge));
                };
                // After a failure, what still arrives has no destination.
                if self.cancel.is_raised() {
                    return;
                }
                if let Err(reason) = edge.frame(from, frame, links) {
                    self.fail_beneath(&edge.name, format!("from worker {from}: {reason}"));
                }
            }
        }
    }

    fn damaged(&self, from: u32, reason: String) {
        self.fail_beneath("between workers", format!("worker {from} sent {reason}"));
    }

    fn awaits(&self, worker: u32) -> bool {
        self.ending.lock().awaits(worker)
    }

    fn left(&self, worker: u32, error: NetError) {
        let Some(fault) = RunFault::absent(&error) else { return self.fail_net(error) };
        let mut ending = self.ending.lock();
        if ending.has_begun() {
            let messages = ending.give_up(worker, &fault);
            self.send_rounds(&ending, &messages);
        } else {
            drop(ending);
            self.fail(fault);
        }
    }
}
