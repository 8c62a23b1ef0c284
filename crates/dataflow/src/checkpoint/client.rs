//! A worker's part in checkpoints: barriers for its sources, snapshots of its copies, news for its sinks; and on worker
//! 0 what carries out the coordinator's decisions.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use arrow::array::RecordBatch;
use bytes::Bytes;
use parking_lot::Mutex;
use tidemill_batch::memory::Governor;
use tidemill_batch::route_map::RouteMap;
use tidemill_batch::wire::{ReceivedFrame, WireHeader, WireKind};
use tidemill_checkpoint::coordinator::{
    CheckpointTiming, Coordinator, CoordinatorAction, CoordinatorEvent, StoreFailure,
};
use tidemill_checkpoint::lease::LeaseView;
use tidemill_checkpoint::manifest::{CopyReport, ReportBody};
use tidemill_checkpoint::reports::{ReportBundle, ReportMerger};
use tidemill_checkpoint::store::StoreHold;
use tidemill_checkpoint::{
    Barrier, BarrierControl, CheckpointStore, DeferredPart, DeferredShared, Manifest, MoveReport, PartEntry, PartKey,
    Rebalance, RestoredState, Snapshot, SnapshotPart, StoreError, TaskState,
};
use tidemill_net::notice;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::ResumePlan;
use super::notifications::EpochNotifications;
use super::{in_flight, open_rounds};
use crate::error::TaskError;
use crate::link::Links;
use crate::rebalance::{BucketOwnership, Moves, RebalanceAnswer};
use crate::unaligned::UnalignedSignal;

/// Between two looks of the coordinator at the clock.
const TICK: Duration = Duration::from_millis(20);
/// A run that is given up waits so long for a manifest that is being written. What comes later is refused by the next
/// run.
const SETTLE: Duration = Duration::from_secs(5);

/// What the coordinator hears.
pub(crate) enum CoordinatorInput {
    Event(CoordinatorEvent),
    /// Copies of other workers have reported.
    Reports(ReportBundle),
    /// Somebody wants buckets to move, and waits for an answer.
    Rebalance(Rebalance, RebalanceAnswer),
}

/// See the module.
pub(crate) struct CheckpointClient {
    store: CheckpointStore,
    /// On worker 0, in an object store: whether the place is still this run's.
    lease: Option<LeaseView>,
    links: Arc<Links>,
    /// Names the objects of this run: what an earlier one wrote is never replaced.
    run: String,
    /// Nothing but where sources stand is kept.
    at_most_once: bool,
    notifications: EpochNotifications,
    /// To the coordinator, on worker 0.
    events: Option<mpsc::UnboundedSender<CoordinatorInput>>,
    /// On the others: reports on their way to worker 0.
    merger: Mutex<ReportMerger>,
    /// How many copies each task has.
    copies: Vec<u32>,
    /// By task: which copy owns which bucket, as of the last barrier that sources were asked for.
    routes: Mutex<BTreeMap<String, Arc<RouteMap>>>,
    /// The spare workers, as of the same barrier.
    spares: Mutex<BTreeSet<u32>>,
    /// The epoch of the checkpoint that the run goes on from.
    resumed: Option<u64>,
    /// Manifests that are being written, and the clearing away behind them.
    writing: Mutex<Vec<JoinHandle<()>>>,
    /// On worker 0: the last one that was, or that the run goes on from.
    made: Mutex<Option<CheckpointMade>>,
    /// The last epoch that was begun, and when.
    injected: Mutex<Option<(u64, Instant)>>,
    last: Mutex<Option<Arc<Manifest>>>,
    /// See [`ResumePlan::sinks`].
    sinks: Vec<String>,
}

/// A checkpoint that is there.
#[derive(Clone, Copy, Debug)]
pub struct CheckpointMade {
    /// When, in milliseconds since 1970 UTC.
    pub at_ms: u64,
    /// Bytes of state that it refers to, also those of checkpoints before.
    pub bytes: u64,
    /// How long it took, from its barrier to its manifest, in milliseconds; 0 of one that the run goes on from.
    pub took_ms: u64,
}

impl CheckpointMade {
    fn of(manifest: &Manifest, took_ms: u64) -> Self {
        CheckpointMade { at_ms: manifest.at_ms, bytes: manifest.state_bytes(), took_ms }
    }
}

impl CheckpointClient {
    /// The hub, and on worker 0 what its coordinator will hear. Through this worker report so many copies, its own
    /// among them.
    pub(crate) fn new(
        resume: &ResumePlan,
        links: &Arc<Links>,
        copies: usize,
    ) -> (Arc<Self>, Option<mpsc::UnboundedReceiver<CoordinatorInput>>) {
        let (events, heard) = match links.me {
            0 => {
                let (events, heard) = mpsc::unbounded_channel();
                (Some(events), Some(heard))
            }
            _ => (None, None),
        };
        let ResumePlan { settings, run, members, sinks, begin, hold, .. } = resume;
        let client = CheckpointClient {
            store: settings.store.clone(),
            lease: hold.as_ref().and_then(StoreHold::lease),
            links: Arc::clone(links),
            run: run.clone(),
            at_most_once: settings.at_most_once,
            notifications: EpochNotifications::default(),
            events,
            merger: Mutex::new(ReportMerger::new(copies)),
            copies: members.iter().map(|member| member.copies).collect(),
            routes: Mutex::new(members.iter().filter_map(|m| Some((m.name.clone(), m.route.clone()?))).collect()),
            spares: Mutex::new(begin.spares.clone()),
            resumed: begin.from.as_ref().map(|from| from.epoch),
            writing: Mutex::default(),
            made: Mutex::default(),
            injected: Mutex::default(),
            last: Mutex::new(begin.from.clone()),
            sinks: sinks.clone(),
        };
        (Arc::new(client), heard)
    }

    /// A frame about checkpoints has come. The engine is locked.
    ///
    /// # Errors
    /// In words, when it makes no sense.
    pub(crate) fn frame(&self, frame: &ReceivedFrame) -> Result<(), String> {
        frame.verify().map_err(|error| error.to_string())?;
        match (frame.header.kind, &self.events) {
            (WireKind::Inject, None) => self.inject(Barrier::decode(&frame.body())?),
            (WireKind::Unalign, None) => self.notifications.unalign(frame.header.rows),
            (WireKind::Durable, None) => self.notifications.durable(frame.header.rows),
            // The coordinator has ended with the run.
            (WireKind::Saved, Some(events)) => {
                drop(events.send(CoordinatorInput::Reports(ReportBundle::decode(&frame.body(), &self.copies)?)));
            }
            (WireKind::Saved, None) => {
                self.pass_up(ReportBundle::decode(&frame.body(), &self.copies)?.into_reports());
            }
            (kind, _) => return Err(format!("a {kind:?} frame for worker {}", self.links.me)),
        }
        Ok(())
    }

    /// Whether rows may come at most once.
    pub(crate) fn at_most_once(&self) -> bool {
        self.at_most_once
    }

    /// The last epoch that is durable, as this worker knows.
    pub(crate) fn last_durable(&self) -> u64 {
        self.notifications.last_durable()
    }

    /// The last checkpoint that was written, or that the run goes on from, as worker 0 knows.
    pub(crate) fn last_made(&self) -> Option<CheckpointMade> {
        *self.made.lock()
    }

    /// On worker 0: the manifest of the last checkpoint, or of that which the run goes on from, if there is one.
    pub(crate) fn last_manifest(&self) -> Option<Arc<Manifest>> {
        self.last.lock().clone()
    }

    /// Whether a manifest is of this run: splits may have been dealt anew since one that the run goes on from.
    pub(crate) fn is_own(&self, manifest: &Manifest) -> bool {
        self.resumed.is_none_or(|resumed| manifest.epoch > resumed)
    }

    /// Asks the coordinator for a barrier; only worker 0 has one.
    pub(crate) fn request(&self, control: BarrierControl) {
        if let Some(events) = &self.events {
            // As above.
            let _ = events.send(CoordinatorInput::Event(CoordinatorEvent::Request { id: 0, control }));
        }
    }

    /// Asks the coordinator to move buckets and splits.
    pub(crate) fn rebalance(&self, rebalance: Rebalance, answer: RebalanceAnswer) {
        // If it has ended with the run, that is what is heard of the answer.
        match &self.events {
            Some(events) => drop(events.send(CoordinatorInput::Rebalance(rebalance, answer))),
            None => drop(answer.send(Err("only worker 0 can move buckets and splits; call it there".into()))),
        }
    }

    /// Which copy of a task owns which bucket.
    pub(crate) fn route(&self, task: &str) -> Option<RouteMap> {
        self.routes.lock().get(task).map(|route| RouteMap::clone(route))
    }

    pub(crate) fn routes(&self) -> BTreeMap<String, RouteMap> {
        self.routes.lock().iter().map(|(task, route)| (task.clone(), RouteMap::clone(route))).collect()
    }

    /// The workers that get no buckets and splits.
    pub(crate) fn spares(&self) -> BTreeSet<u32> {
        self.spares.lock().clone()
    }

    fn inject(&self, barrier: Barrier) {
        if let BarrierControl::Rebalance(Rebalance { maps, spares, .. }) = &barrier.control {
            self.routes.lock().extend(maps.iter().map(|(task, map)| (task.clone(), Arc::new(map.clone()))));
            if let Some(spares) = spares {
                self.spares.lock().clone_from(spares);
            }
        }
        self.notifications.inject(barrier);
    }

    fn report(&self, report: CopyReport) {
        match &self.events {
            // As above.
            Some(events) => drop(events.send(CoordinatorInput::Event(CoordinatorEvent::Report(report)))),
            // A function that the run has given up may go on, and save.
            None if self.links.is_closed() => {}
            None => self.pass_up([report]),
        }
    }

    /// Sends on what copies report, or holds it until it is whole.
    fn pass_up(&self, reports: impl IntoIterator<Item = CopyReport>) {
        // Locked until it is queued: a copy's reports stay in order.
        let mut merger = self.merger.lock();
        merger.add(reports).iter().for_each(|bundle| self.send_up(bundle));
    }

    /// Sends on what is held, whole or not. To be called some times a second.
    pub(crate) fn flush_reports(&self) {
        let mut merger = self.merger.lock();
        merger.take().iter().for_each(|bundle| self.send_up(bundle));
    }

    fn send_up(&self, bundle: &ReportBundle) {
        let header = WireHeader::new(WireKind::Saved, self.links.run);
        self.links.report_last(header, &[bundle.encode().into()]);
    }

    /// Tells the other workers something of an epoch.
    fn notify_others(&self, kind: WireKind, epoch: u64) {
        let header = WireHeader { rows: epoch, ..WireHeader::new(kind, self.links.run) };
        self.links.announce(header, &[]);
    }

    /// Carries out what the coordinator decides, until nothing is left to be done. On worker 0.
    ///
    /// # Errors
    /// What ends the run.
    pub(crate) async fn coordinate(
        self: Arc<Self>,
        resume: ResumePlan,
        mut heard: mpsc::UnboundedReceiver<CoordinatorInput>,
    ) -> Result<(), String> {
        let ResumePlan { settings, job, members, begin, .. } = resume;
        // Rows that a checkpoint has, and that are also on their way, would come twice.
        let unaligned_after = settings.unaligned_after.filter(|_| !settings.at_most_once);
        let (interval, timeout) = (settings.interval, settings.timeout);
        *self.made.lock() = begin.from.as_deref().map(|manifest| CheckpointMade::of(manifest, 0));
        let mut coordinator =
            Coordinator::new(&job, members, CheckpointTiming { interval, unaligned_after, timeout }, &begin);
        let begun = Instant::now();
        // Who is still in here when this ends hears so.
        let mut answers: HashMap<u64, RebalanceAnswer> = HashMap::new();
        let mut asked = 0;
        // It has been told that the place may be another's.
        let mut lapsed = false;
        loop {
            match self.holds() {
                Ok(()) => lapsed = false,
                Err(error @ StoreError::Taken { .. }) => return Err(error.to_string()),
                Err(error) if !std::mem::replace(&mut lapsed, true) => notice!("{error}"),
                Err(_) => {}
            }
            let events = match tokio::time::timeout(TICK, heard.recv()).await {
                Ok(Some(CoordinatorInput::Event(event))) => vec![event],
                Ok(Some(CoordinatorInput::Reports(bundle))) => {
                    bundle.into_reports().map(CoordinatorEvent::Report).collect()
                }
                Ok(Some(CoordinatorInput::Rebalance(rebalance, answer))) => {
                    asked += 1;
                    answers.insert(asked, answer);
                    vec![CoordinatorEvent::Request { id: asked, control: BarrierControl::Rebalance(rebalance) }]
                }
                // The client, which this is a part of, holds a sender.
                Ok(None) => return Ok(()),
                Err(_) => vec![CoordinatorEvent::Tick],
            };
            let at_ms = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis() as u64);
            let now = begun.elapsed();
            for action in events.into_iter().flat_map(|event| coordinator.handle(now, at_ms, event)).collect::<Vec<_>>()
            {
                match action {
                    CoordinatorAction::Inject(barrier) => {
                        *self.injected.lock() = Some((barrier.epoch, Instant::now()));
                        let header = WireHeader::new(WireKind::Inject, self.links.run);
                        self.links.announce(header, &[barrier.encode().into()]);
                        self.inject(barrier);
                    }
                    CoordinatorAction::Unalign(epoch) => {
                        self.notify_others(WireKind::Unalign, epoch);
                        self.notifications.unalign(epoch);
                    }
                    CoordinatorAction::Store(manifest) => {
                        let put = tokio::spawn(Arc::clone(&self).put(*manifest, settings.keep));
                        let mut writing = self.writing.lock();
                        writing.retain(|put| !put.is_finished());
                        writing.push(put);
                    }
                    CoordinatorAction::Durable(epoch) => {
                        self.notify_others(WireKind::Durable, epoch);
                        self.notifications.durable(epoch);
                    }
                    CoordinatorAction::Answer { id, outcome } => match (answers.remove(&id), outcome) {
                        // If nobody waits any more, nobody need know.
                        (Some(answer), outcome) => drop(answer.send(outcome)),
                        (None, Err(reason)) => notice!("{reason}"),
                        (None, Ok(_)) => {}
                    },
                    CoordinatorAction::Warn(message) => notice!("{message}"),
                    CoordinatorAction::Fail(message) => return Err(message),
                    CoordinatorAction::Finished => {
                        self.settle().await;
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Waits until nothing is being written.
    async fn settle(&self) {
        let writing = std::mem::take(&mut *self.writing.lock());
        for put in writing {
            // If it was cut off, so is the run.
            let _ = put.await;
        }
    }

    /// [`CheckpointClient::settle`] for a run that is given up: the next one may begin at once, and should find what
    /// this one wrote.
    pub(crate) async fn settle_with_timeout(&self) {
        let _ = tokio::time::timeout(SETTLE, self.settle()).await;
    }

    /// The run is over on all workers. If that was its end, or it was stopped, all is committed, and its last
    /// checkpoint need not have it any more. Then the next job may come.
    pub(crate) async fn leave(&self, ended_well: bool, hold: Option<StoreHold>) {
        let last = self.last.lock().take().filter(|_| ended_well && self.events.is_some());
        if let Some(last) = last
            && let Err(error) = self.settle_last(&last).await
        {
            notice!("{error}; the next run of the job will commit again what its sinks have committed");
        }
        if let Some(hold) = hold {
            hold.give_back().await;
        }
    }

    async fn settle_last(&self, last: &Manifest) -> Result<(), StoreError> {
        self.holds()?;
        self.store.settle(last, &self.sinks).await.map(|_| ())
    }

    /// Whether the place is this run's.
    fn holds(&self) -> Result<(), StoreError> {
        self.lease.as_ref().map_or(Ok(()), LeaseView::check).map_err(|denied| self.store.denied(denied))
    }

    /// [`CheckpointStore::make_durable`], while the place is this run's.
    async fn make_durable(&self, manifest: &Manifest) -> Result<(), StoreError> {
        self.holds()?;
        self.store.make_durable(manifest).await?;
        self.holds()
    }

    /// Writes a manifest, tells the coordinator, and clears away what is old.
    async fn put(self: Arc<Self>, manifest: Manifest, keep: usize) {
        let epoch = manifest.epoch;
        let result = self.make_durable(&manifest).await;
        let stored = result.is_ok();
        let injected = self.injected.lock().filter(|(of, _)| *of == epoch);
        let took_ms = injected.map_or(0, |(_, at)| at.elapsed().as_millis() as u64);
        if stored {
            *self.made.lock() = Some(CheckpointMade::of(&manifest, took_ms));
            *self.last.lock() = Some(Arc::new(manifest));
        }
        let failure = |error: StoreError| StoreFailure {
            reason: error.to_string(),
            fenced: matches!(error, StoreError::Taken { .. }),
        };
        if let Some(events) = &self.events {
            // As above.
            let _ = events
                .send(CoordinatorInput::Event(CoordinatorEvent::Stored { epoch, result: result.map_err(failure) }));
        }
        if stored && let Err(error) = self.store.prune(keep, epoch).await {
            notice!("old checkpoints could not be removed: {error}");
        }
    }
}

/// Whether what a copy saves next can build on what it has saved: a change cannot on something that was lost. Snapshots
/// are written in order, but taken without waiting for the writing of those before.
#[derive(Default)]
pub(crate) struct SnapshotChain(AtomicBool);

impl SnapshotChain {
    pub(crate) fn new(broken: bool) -> Self {
        SnapshotChain(AtomicBool::new(broken))
    }

    /// Whether the next snapshot must name all buckets, whole.
    pub(crate) fn is_broken(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Whether the next snapshot in order is worth writing. Not if it was taken before it was known that the one before
    /// it is lost: it would leave a gap.
    pub(crate) fn holds(&self, whole: bool) -> bool {
        whole || !self.is_broken()
    }

    /// The next snapshot in order was written, or is lost.
    pub(crate) fn wrote(&self, whole: bool, written: bool) {
        if whole || !written {
            self.0.store(!written, Ordering::SeqCst);
        }
    }
}

/// A copy's view of its job's checkpoints.
pub(crate) struct CheckpointView {
    /// The state the copy resumes from; `None` in a new job.
    pub restored: Option<Arc<RestoredState>>,
    /// Whether the job guarantees at most once: sources never replay a row, and operators save nothing.
    pub at_most_once: bool,
}

/// What one copy needs to take part.
pub(crate) struct CopyStates {
    client: Arc<CheckpointClient>,
    task: u32,
    copy: u32,
    restored: Option<Arc<RestoredState>>,
    chain: Arc<SnapshotChain>,
    /// The last epoch that was saved, or gone on from.
    last: AtomicU64,
    /// The writing of the snapshot before: the next one is written, and reported, after it.
    before: Mutex<Option<JoinHandle<()>>>,
    tenure: Mutex<BucketOwnership>,
    /// Of epochs that have overtaken rows: what was in flight to a port, when all of it is known.
    overtaken: Mutex<Vec<(u64, u32, InFlight)>>,
    /// Of epochs: rounds that were open at a port.
    rounds: Mutex<Vec<(u64, u32, Bytes)>>,
    ended: AtomicBool,
}

/// Rows that are being recorded.
pub(crate) type InFlight = oneshot::Receiver<Vec<RecordBatch>>;

impl CopyStates {
    pub(crate) fn new(
        client: &Arc<CheckpointClient>,
        (task, copy): (u32, u32),
        restored: Option<RestoredState>,
    ) -> Self {
        CopyStates {
            client: Arc::clone(client),
            task,
            copy,
            last: AtomicU64::new(restored.as_ref().map_or(0, |restored| restored.epoch)),
            chain: Arc::new(SnapshotChain::new(restored.as_ref().is_some_and(|restored| restored.evolved))),
            restored: restored.map(Arc::new),
            before: Mutex::default(),
            tenure: Mutex::default(),
            overtaken: Mutex::default(),
            rounds: Mutex::default(),
            ended: AtomicBool::new(false),
        }
    }

    /// What the copy begins with; `None` when the job begins anew.
    pub(crate) fn restored(&self) -> Option<&RestoredState> {
        self.restored.as_deref()
    }

    /// The view that the copy's context has.
    pub(crate) fn view(&self) -> CheckpointView {
        CheckpointView { restored: self.restored.clone(), at_most_once: self.at_most_once() }
    }

    /// Whether a row that has left its source never leaves it again, and nothing else is kept.
    pub(crate) fn at_most_once(&self) -> bool {
        self.client.at_most_once
    }

    /// [`CopyStates::save`] of what a copy keeps by itself; `snapshot` is asked for all of it, or for what has changed.
    /// At most once that is nothing: nor, any more, what a run with another guarantee had kept.
    ///
    /// # Errors
    /// Those of `snapshot`.
    pub(crate) fn save_kept(
        &self,
        epoch: u64,
        snapshot: impl FnOnce(bool) -> Result<Snapshot, TaskError>,
    ) -> Result<(), TaskError> {
        if self.at_most_once() {
            let kept = self.restored.iter().flat_map(|restored| restored.buckets.keys());
            let buckets = kept.map(|bucket| (*bucket, SnapshotPart::Whole(Bytes::new()))).collect();
            self.save(epoch, true, Snapshot { buckets, ..Snapshot::default() });
        } else {
            let whole = self.wants_whole();
            self.save(epoch, whole, snapshot(whole)?);
        }
        Ok(())
    }

    /// The barriers that sources are asked for.
    pub(crate) fn barriers(&self) -> watch::Receiver<Option<Barrier>> {
        self.client.notifications.barriers()
    }

    /// The unaligned barriers, as one end of its streams hears of them.
    pub(crate) fn unaligned_signal(&self) -> UnalignedSignal {
        UnalignedSignal::new(self.unaligned_epochs())
    }

    /// The epochs whose barriers are unaligned.
    pub(crate) fn unaligned_epochs(&self) -> watch::Receiver<u64> {
        self.client.notifications.unaligned_epochs()
    }

    /// The barrier of `epoch` has overtaken rows on their way to `port`: they belong to the next [`CopyStates::save`].
    pub(crate) fn overtaken(&self, epoch: u64, port: u32, rows: InFlight) {
        self.overtaken.lock().push((epoch, port, rows));
    }

    /// The barrier of `epoch` passes `port`, where these rounds are open: they belong to the next
    /// [`CopyStates::save`].
    pub(crate) fn open_rounds(&self, epoch: u64, port: u32, rounds: Bytes) {
        self.rounds.lock().push((epoch, port, rounds));
    }

    /// The epochs that are durable.
    pub(crate) fn durable(&self) -> watch::Receiver<u64> {
        self.client.notifications.epochs()
    }

    /// Whether the next snapshot must name all buckets, whole.
    pub(crate) fn wants_whole(&self) -> bool {
        self.chain.is_broken() || self.tenure.lock().wants_whole()
    }

    /// Writes a snapshot in the background and reports it. `whole` says that nothing saved before is needed besides it.
    /// Within the runner's pool.
    pub(crate) fn save(&self, epoch: u64, whole: bool, mut snapshot: Snapshot) {
        let (client, task, copy) = (Arc::clone(&self.client), self.task, self.copy);
        let chain = Arc::clone(&self.chain);
        let file = state_file(&client.run, epoch, (task, copy), "");
        self.last.store(epoch, Ordering::SeqCst);
        let tenure = self.tenure.lock().at_snapshot();
        // Of one that was given up there may be some, where another port has not seen it.
        let overtaken = std::mem::take(&mut *self.overtaken.lock()).into_iter();
        let overtaken = overtaken.filter(|(of, ..)| *of == epoch).map(|(_, port, rows)| (port, rows)).collect();
        let rounds = std::mem::take(&mut *self.rounds.lock()).into_iter();
        let rounds = rounds.filter(|(of, ..)| *of == epoch && !self.at_most_once());
        snapshot.shared.extend(rounds.map(|(_, port, rounds)| (open_rounds::port_name(port), rounds)));
        let mut before = self.before.lock();
        let earlier = before.take();
        *before = Some(tokio::spawn(async move {
            if let Some(earlier) = earlier {
                // If it was cut off, so is the run.
                let _ = earlier.await;
            }
            let put = match chain.holds(whole) {
                true => client
                    .put_state(file, snapshot, (whole, tenure), overtaken)
                    .await
                    .map_err(|error| error.to_string()),
                false => Err("the snapshot it builds on could not be written".into()),
            };
            chain.wrote(whole, put.is_ok());
            let said = match put {
                Ok(parts) => ReportBody::Saved { epoch, parts },
                Err(reason) => ReportBody::Failed { epoch, reason },
            };
            client.report(CopyReport { task, copy, said });
        }));
    }

    /// The copy keeps nearly as much as it may until the checkpoint after the one of epoch `behind`, which is to come
    /// soon.
    pub(crate) fn request_checkpoint(&self, behind: u64) {
        self.client.report(CopyReport { task: self.task, copy: self.copy, said: ReportBody::Full { behind } });
    }

    /// The copy has handed over and taken what a rebalance moves.
    pub(crate) fn moved(&self, moves: &Moves, moved: MoveReport) {
        self.tenure.lock().moved(moves);
        self.client.report(CopyReport { task: self.task, copy: self.copy, said: ReportBody::Moved(moved) });
    }

    /// The copy has come to its end, and keeps this. Only the first call counts.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) async fn end(&self, snapshot: Snapshot) -> Result<(), TaskError> {
        if self.ended.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        let earlier = self.before.lock().take();
        if let Some(earlier) = earlier {
            // As above.
            let _ = earlier.await;
        }
        let file = state_file(&self.client.run, self.last.load(Ordering::SeqCst) + 1, (self.task, self.copy), "-end");
        let tenure = self.tenure.lock().clone();
        let parts = self.client.put_state(file, snapshot, (false, tenure), Vec::new()).await?;
        self.client.report(CopyReport { task: self.task, copy: self.copy, said: ReportBody::Ended { parts } });
        Ok(())
    }

    /// The copy has come to its end, and keeps no more what it kept then: later checkpoints need not have it. A sink
    /// that had it committed again by whoever goes on from one, perhaps long after, might find that nothing tells any
    /// more that it was.
    pub(crate) fn clear_end_state(&self) {
        self.client.report(CopyReport {
            task: self.task,
            copy: self.copy,
            said: ReportBody::Ended { parts: Vec::new() },
        });
    }
}

/// The object for what a copy keeps at the end of an epoch. An end is of the epoch behind the last barrier that the
/// copy itself has seen: the checkpoint of that one may be made, and cleared away behind, before the end is known.
pub(crate) fn state_file(run: &str, epoch: u64, (task, copy): (u32, u32), end: &str) -> String {
    format!("state/{run}/{epoch}-{task}-{copy}{end}")
}

pub(crate) fn parts(snapshot: Snapshot) -> Vec<(PartKey, Bytes, bool)> {
    let buckets = snapshot.buckets.into_iter().map(|(bucket, part)| match part {
        SnapshotPart::Whole(bytes) => (PartKey::Bucket(bucket), bytes, true),
        SnapshotPart::Change(bytes) => (PartKey::Bucket(bucket), bytes, false),
    });
    let splits = snapshot.splits.into_iter().map(|(name, bytes)| (PartKey::Split(name), bytes, true));
    let shared = snapshot.shared.into_iter().map(|(name, bytes)| (PartKey::Shared(name), bytes, true));
    buckets.chain(splits).chain(shared).collect()
}

impl CheckpointClient {
    /// Writes a snapshot. Returns where its parts lie.
    async fn put_state(
        &self,
        file: String,
        mut snapshot: Snapshot,
        (whole, tenure): (bool, BucketOwnership),
        overtaken: Vec<(u32, InFlight)>,
    ) -> Result<Vec<(PartKey, PartEntry)>, TaskError> {
        if let Some(DeferredPart(make)) = snapshot.later.take() {
            snapshot.buckets.extend(tokio::task::spawn_blocking(make).await??);
        }
        if let Some(DeferredShared(make)) = snapshot.later_shared.take() {
            snapshot.shared.extend(tokio::task::spawn_blocking(make).await??);
        }
        tenure.settle(whole, &mut snapshot.buckets);
        let mut parts = parts(snapshot);
        for (port, rows) in overtaken {
            // Given up with the epoch, or nobody wants rows any more.
            let Ok(rows) = rows.await else { continue };
            if !rows.is_empty() {
                let bytes = tokio::task::spawn_blocking(move || in_flight::encode(&rows)).await??;
                parts.push((PartKey::InFlight(port), bytes, true));
            }
        }
        Ok(self.store.put_state(file, parts).await?)
    }
}

/// Whose splits are dealt: how, if there are other copies than had them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SplitsOf {
    /// In turn, so that each copy reads about as many.
    Source,
    /// What one copy has prepared goes to one copy, whichever has it now: where it is committed there is room for one
    /// writer of that name, and what is behind the last epoch that it has committed.
    Sink,
}

/// The copies that splits of sources are dealt to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SplitDeal<'a> {
    /// Those that are not on spare workers.
    pub active: &'a [u32],
    /// Whether others were active before, so that splits are dealt even if there are as many copies as before.
    pub anew: bool,
}

/// Whether splits are dealt anew to a task's copies if `spares` are the spare workers, and `spare_copies` the task's
/// copies there: others were spare then, or splits had yet to leave workers that are spare.
pub(crate) fn deals_anew(
    manifest: &Manifest,
    (task, splits_of): (&str, SplitsOf),
    spares: &BTreeSet<u32>,
    spare_copies: &BTreeSet<u32>,
) -> bool {
    let on_spares = |state: &TaskState| state.splits.keys().any(|copy| spare_copies.contains(copy));
    manifest.spares != *spares || splits_of == SplitsOf::Source && manifest.tasks.get(task).is_some_and(on_spares)
}

/// What copy `copy` of `copies` begins with: its buckets as `route` deals them, its share of the splits, read and
/// checked.
///
/// # Errors
/// The store's; when a part is damaged.
pub(crate) async fn restore(
    store: &CheckpointStore,
    manifest: &Manifest,
    (task, splits_of): (&str, SplitsOf),
    (copy, copies): (u32, u32),
    deal: SplitDeal<'_>,
    route: &RouteMap,
    governor: &Governor,
) -> Result<RestoredState, StoreError> {
    let mut restored = RestoredState { epoch: manifest.epoch, ..RestoredState::default() };
    // A task that the job had not then begins empty.
    let Some(state) = manifest.tasks.get(task) else { return Ok(restored) };
    let is_same = state.copies == copies && !deal.anew;
    restored.ended = state.ended.len() as u32 == state.copies || manifest.finished;
    if is_same {
        restored.ended |= state.ended.contains(&copy);
        restored.ended_copies.clone_from(&state.ended);
    }
    if let Some(bucket) = state.buckets.keys().find(|bucket| **bucket >= route.buckets()) {
        return Err(store.damaged(format!("task \"{task}\" has state of bucket {bucket}, of {}", route.buckets())));
    }
    restored.schema.clone_from(&state.schema);
    restored.split_names = state.splits.values().flatten().map(|(name, _)| name.clone()).collect();
    // Who has ended has given what it kept.
    let mine = state.buckets.iter().filter(|(bucket, _)| route.copy(**bucket) == copy && !restored.ended);
    let mut wanted: Vec<&PartEntry> = Vec::new();
    let mut buckets = Vec::new();
    for (&bucket, entries) in mine {
        buckets.push((bucket, wanted.len()..wanted.len() + entries.len()));
        wanted.extend(entries);
    }
    // Of the same copies each has its own splits again.
    let all = state.splits.iter().flat_map(|(of, splits)| splits.iter().map(move |split| (*of, split)));
    let mine = all.enumerate().filter(|(at, (of, (name, _)))| match (is_same, splits_of) {
        (true, _) => *of == copy,
        (false, SplitsOf::Source) => deal.active.get(at % deal.active.len().max(1)) == Some(&copy),
        (false, SplitsOf::Sink) => origin(name).unwrap_or(*of) % copies == copy,
    });
    let splits: Vec<(&String, usize)> = mine
        .map(|(_, (_, (name, entry)))| {
            wanted.push(entry);
            (name, wanted.len() - 1)
        })
        .collect();
    // Of other copies each looks which of all rows are its own.
    restored.rescaled = !is_same;
    let flying = state.in_flight.iter().filter(|(of, _)| restored.rescaled || **of == copy);
    let flying = flying.flat_map(|(of, ports)| ports.iter().map(move |(port, entry)| ((*of, *port), entry)));
    let flying: Vec<((u32, u32), usize)> = flying
        .map(|(id, entry)| {
            wanted.push(entry);
            (id, wanted.len() - 1)
        })
        .collect();
    let shared = wanted.len()..wanted.len() + state.shared.values().map(Vec::len).sum::<usize>();
    wanted.extend(state.shared.values().flatten().map(|(_, entry)| entry));
    let parts = store.parts_spillable(&wanted, governor).await?;
    let by_copy = state.shared.iter().flat_map(|(copy, shared)| shared.iter().map(move |(name, _)| (*copy, name)));
    for ((copy, name), bytes) in by_copy.zip(&parts[shared]) {
        restored.shared.entry(name.clone()).or_default().push(bytes.clone());
        restored.shared_by.entry(copy).or_default().insert(name.clone(), bytes.clone());
    }
    let even = RouteMap::even(route.buckets(), state.copies.max(1));
    let then = state.route.as_ref().unwrap_or(if state.copies == copies { route } else { &even });
    restored.owners = buckets.iter().map(|(bucket, _)| (*bucket, then.copy(*bucket))).collect();
    restored.buckets = buckets.into_iter().map(|(bucket, range)| (bucket, parts[range].to_vec())).collect();
    restored.in_flight = flying.into_iter().map(|(id, at)| (id, parts[at].clone())).collect();
    restored.splits = splits.into_iter().map(|(name, at)| (name.clone(), parts[at].clone())).collect();
    Ok(restored)
}

/// The copy in a name of [`split_name`](crate::stream::sink::split_name).
fn origin(split_name: &str) -> Option<u32> {
    split_name.split_once('.')?.1.parse().ok()
}
