//! A worker's part in checkpoints: barriers for its sources, snapshots of its copies, news for its sinks; and on worker 0
//! what carries out the coordinator's decisions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::coordinator::{Action, Coordinator, Event, StoreFailure};
use super::manifest::{Entry, Key, Manifest, Report, Said};
use super::store::{CheckpointStore, StoreError};
use super::{Later, Part, Restored, Snapshot};
use crate::error::TaskError;
use crate::link::Links;
use crate::route_map::{BUCKETS, RouteMap};
use crate::run::Resume;
use crate::stream::{Barrier, Control};
use crate::wire::{Frame, Header, Kind, Received};

/// Between two looks of the coordinator at the clock.
const TICK: Duration = Duration::from_millis(20);

/// See the module.
pub(crate) struct Hub {
    store: CheckpointStore,
    links: Arc<Links>,
    /// Names the objects of this run: what an earlier one wrote is never replaced.
    run: String,
    /// The last barrier that sources were asked for.
    barrier: watch::Sender<Option<Barrier>>,
    /// The last epoch that is durable.
    durable: watch::Sender<u64>,
    /// To the coordinator, on worker 0.
    events: Option<mpsc::UnboundedSender<Event>>,
}

impl Hub {
    /// The hub, and on worker 0 what its coordinator will hear.
    pub(crate) fn new(
        store: &CheckpointStore,
        links: &Arc<Links>,
        run: String,
    ) -> (Arc<Self>, Option<mpsc::UnboundedReceiver<Event>>) {
        let (events, heard) = match links.me {
            0 => {
                let (events, heard) = mpsc::unbounded_channel();
                (Some(events), Some(heard))
            }
            _ => (None, None),
        };
        let hub = Hub {
            store: store.clone(),
            links: Arc::clone(links),
            run,
            barrier: watch::Sender::new(None),
            durable: watch::Sender::new(0),
            events,
        };
        (Arc::new(hub), heard)
    }

    /// A frame about checkpoints has come. The engine is locked.
    ///
    /// # Errors
    /// In words, when it makes no sense.
    pub(crate) fn frame(&self, frame: &Received) -> Result<(), String> {
        frame.verify().map_err(|error| error.to_string())?;
        match (frame.header.kind, &self.events) {
            (Kind::Inject, None) => self.inject(Barrier::decode(&frame.body())?),
            (Kind::Durable, None) => self.tell_durable(frame.header.rows),
            // The coordinator has ended with the run.
            (Kind::Saved, Some(events)) => drop(events.send(Event::Report(Report::decode(&frame.body())?))),
            (kind, _) => return Err(format!("a {kind:?} frame for worker {}", self.links.me)),
        }
        Ok(())
    }

    /// Asks the coordinator for a barrier; only worker 0 has one.
    pub(crate) fn request(&self, control: Control) {
        if let Some(events) = &self.events {
            // As above.
            let _ = events.send(Event::Request(control));
        }
    }

    fn inject(&self, barrier: Barrier) {
        self.barrier.send_replace(Some(barrier));
    }

    fn tell_durable(&self, epoch: u64) {
        self.durable.send_replace(epoch);
    }

    fn report(&self, report: Report) {
        match &self.events {
            // As above.
            Some(events) => drop(events.send(Event::Report(report))),
            None => {
                let header = Header::new(Kind::Saved, self.links.run);
                self.links.enqueue(0, Frame::new(&header, &[report.encode().into()]));
            }
        }
    }

    fn to_others(&self, frame: impl Fn() -> Frame) {
        self.links.others().for_each(|worker| self.links.enqueue(worker, frame()));
        self.links.endpoint().rouse();
    }

    /// Carries out what the coordinator decides, until nothing is left to be done. On worker 0.
    ///
    /// # Errors
    /// What ends the run.
    pub(crate) async fn coordinate(
        self: Arc<Self>,
        resume: Resume,
        mut heard: mpsc::UnboundedReceiver<Event>,
    ) -> Result<(), String> {
        // The lock goes with the coordinator.
        let Resume { settings, job, members, manifest, lock: _lock, .. } = resume;
        let mut coordinator = Coordinator::new(&job, members, settings.interval, settings.timeout, manifest.as_deref());
        let begun = Instant::now();
        let mut writing = JoinSet::new();
        loop {
            let event = match tokio::time::timeout(TICK, heard.recv()).await {
                Ok(Some(event)) => event,
                // The hub, which this is a part of, holds a sender.
                Ok(None) => return Ok(()),
                Err(_) => Event::Tick,
            };
            let at_ms = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis() as u64);
            for action in coordinator.handle(begun.elapsed(), at_ms, event) {
                match action {
                    Action::Inject(barrier) => {
                        let header = Header::new(Kind::Inject, self.links.run);
                        self.to_others(|| Frame::new(&header, &[barrier.encode().into()]));
                        self.inject(barrier);
                    }
                    Action::Store(manifest) => {
                        while writing.try_join_next().is_some() {}
                        writing.spawn(Arc::clone(&self).put(*manifest, settings.keep));
                    }
                    Action::Durable(epoch) => {
                        let header = Header { rows: epoch, ..Header::new(Kind::Durable, self.links.run) };
                        self.to_others(|| Frame::bare(&header));
                        self.tell_durable(epoch);
                    }
                    Action::Warn(message) => eprintln!("tidemill: {message}"),
                    Action::Fail(message) => return Err(message),
                    Action::Finished => {
                        while writing.join_next().await.is_some() {}
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Writes a manifest, tells the coordinator, and clears away what is old.
    async fn put(self: Arc<Self>, manifest: Manifest, keep: usize) {
        let epoch = manifest.epoch;
        let result = self.store.put_manifest(&manifest).await;
        let stored = result.is_ok();
        let failure = |error: StoreError| StoreFailure {
            reason: error.to_string(),
            fenced: matches!(error, StoreError::Taken { .. }),
        };
        if let Some(events) = &self.events {
            // As above.
            let _ = events.send(Event::Stored { epoch, result: result.map_err(failure) });
        }
        if stored && let Err(error) = self.store.prune(keep, epoch).await {
            eprintln!("tidemill: old checkpoints could not be removed: {error}");
        }
    }
}

/// What one copy needs to take part.
pub(crate) struct CopyStates {
    hub: Arc<Hub>,
    task: u32,
    copy: u32,
    restored: Option<Restored>,
    /// The next snapshot must be of wholes: a change was lost.
    whole: Arc<AtomicBool>,
    /// The writing of the snapshot before: the next one is written, and reported, after it.
    before: Mutex<Option<JoinHandle<()>>>,
    ended: AtomicBool,
}

impl CopyStates {
    pub(crate) fn new(hub: &Arc<Hub>, (task, copy): (u32, u32), restored: Option<Restored>) -> Self {
        CopyStates {
            hub: Arc::clone(hub),
            task,
            copy,
            restored,
            whole: Arc::default(),
            before: Mutex::default(),
            ended: AtomicBool::new(false),
        }
    }

    /// What the copy begins with; `None` when the job begins anew.
    pub(crate) fn restored(&self) -> Option<&Restored> {
        self.restored.as_ref()
    }

    /// The barriers that sources are asked for.
    pub(crate) fn barriers(&self) -> watch::Receiver<Option<Barrier>> {
        self.hub.barrier.subscribe()
    }

    /// The epochs that are durable.
    pub(crate) fn durable(&self) -> watch::Receiver<u64> {
        self.hub.durable.subscribe()
    }

    /// Whether the next snapshot must name all buckets, whole.
    pub(crate) fn wants_whole(&self) -> bool {
        self.whole.swap(false, Ordering::SeqCst)
    }

    /// Writes a snapshot in the background and reports it. Within the runner's pool.
    pub(crate) fn save(&self, epoch: u64, snapshot: Snapshot) {
        let (hub, task, copy) = (Arc::clone(&self.hub), self.task, self.copy);
        let whole = Arc::clone(&self.whole);
        let file = format!("state/{}/{epoch}-{task}-{copy}", hub.run);
        let mut before = self.before.lock();
        let earlier = before.take();
        *before = Some(tokio::spawn(async move {
            if let Some(earlier) = earlier {
                // If it was cut off, so is the run.
                let _ = earlier.await;
            }
            let said = match hub.put_state(file, snapshot).await {
                Ok(parts) => Said::Saved { epoch, parts },
                Err(error) => {
                    whole.store(true, Ordering::SeqCst);
                    Said::Failed { epoch, reason: error.to_string() }
                }
            };
            hub.report(Report { task, copy, said });
        }));
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
        // Of the next epoch: the checkpoint of the last one that was asked for may be made without it, and its clearing away
        // must not find it unneeded.
        let epoch = self.hub.barrier.borrow().as_ref().map_or(0, |barrier| barrier.epoch) + 1;
        let file = format!("state/{}/{epoch}-{}-{}-end", self.hub.run, self.task, self.copy);
        let parts = self.hub.put_state(file, snapshot).await?;
        self.hub.report(Report { task: self.task, copy: self.copy, said: Said::Ended { parts } });
        Ok(())
    }
}

impl Hub {
    /// Writes a snapshot. Returns where its parts lie.
    async fn put_state(&self, file: String, snapshot: Snapshot) -> Result<Vec<(Key, Entry)>, TaskError> {
        let Snapshot { mut buckets, splits, shared, later } = snapshot;
        if let Some(Later(make)) = later {
            buckets.extend(tokio::task::spawn_blocking(make).await??);
        }
        let buckets = buckets.into_iter().map(|(bucket, part)| match part {
            Part::Whole(bytes) => (Key::Bucket(bucket), bytes, true),
            Part::Change(bytes) => (Key::Bucket(bucket), bytes, false),
        });
        let splits = splits.into_iter().map(|(name, bytes)| (Key::Split(name), bytes, true));
        let shared = shared.into_iter().map(|(name, bytes)| (Key::Shared(name), bytes, true));
        Ok(self.store.put_state(file, buckets.chain(splits).chain(shared).collect()).await?)
    }
}

/// What copy `copy` of `copies` begins with: its buckets, its share of the splits, read and checked.
///
/// # Errors
/// The store's; when a part is damaged.
pub(crate) async fn restore(
    store: &CheckpointStore,
    manifest: &Manifest,
    task: &str,
    copy: u32,
    copies: u32,
) -> Result<Restored, StoreError> {
    let mut restored = Restored { epoch: manifest.epoch, ..Restored::default() };
    // A task that the job had not then begins empty.
    let Some(state) = manifest.tasks.get(task) else { return Ok(restored) };
    restored.ended = state.ended.len() as u32 == state.copies || manifest.finished;
    if state.copies == copies {
        restored.ended |= state.ended.contains(&copy);
    }
    let even = RouteMap::even(BUCKETS, copies);
    let route = state.route.as_ref().filter(|_| state.copies == copies).unwrap_or(&even);
    let mine = state.buckets.iter().filter(|(bucket, _)| route.copy(**bucket) == copy);
    let mut wanted: Vec<&Entry> = Vec::new();
    let mut buckets = Vec::new();
    for (&bucket, entries) in mine {
        buckets.push((bucket, wanted.len()..wanted.len() + entries.len()));
        wanted.extend(entries);
    }
    // Of the same copies each has its own splits again; of others they are dealt in turn.
    let all = state.splits.iter().flat_map(|(of, splits)| splits.iter().map(move |split| (*of, split)));
    let mine = all.enumerate().filter(|(at, (of, _))| match state.copies == copies {
        true => *of == copy,
        false => *at as u32 % copies == copy,
    });
    let splits: Vec<(&String, usize)> = mine
        .map(|(_, (_, (name, entry)))| {
            wanted.push(entry);
            (name, wanted.len() - 1)
        })
        .collect();
    let shared = wanted.len()..wanted.len() + state.shared.values().map(Vec::len).sum::<usize>();
    wanted.extend(state.shared.values().flatten().map(|(_, entry)| entry));
    let parts = store.parts(&wanted).await?;
    for ((name, _), bytes) in state.shared.values().flatten().zip(&parts[shared]) {
        restored.shared.entry(name.clone()).or_default().push(bytes.clone());
    }
    restored.buckets = buckets.into_iter().map(|(bucket, range)| (bucket, parts[range].to_vec())).collect();
    restored.splits = splits.into_iter().map(|(name, at)| (name.clone(), parts[at].clone())).collect();
    Ok(restored)
}
