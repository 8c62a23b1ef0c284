//! One run of the job: its coordinator, what its workers have heard, the frames between them, and what is being
//! written.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tidemill_batch::memory::{Governor, MemorySettings};
use tidemill_batch::route_map::{BUCKETS, RouteMap};
use tidemill_checkpoint::coordinator::{
    ALL, CheckpointTiming, CoordinatedTask, Coordinator, CoordinatorAction, CoordinatorEvent, StartPoint, StoreFailure,
};
use tidemill_checkpoint::manifest::{CopyReport, ReportBody};
use tidemill_checkpoint::{Barrier, BarrierControl, Manifest, Rebalance, RestoredState, SplitMoves, StoreError};
use tidemill_sim::SplitMix64;

use super::super::client::{self, SplitDeal, SplitsOf};
use super::super::notifications::EpochNotifications;
use super::copies::{
    self, CopyBody, CopyGather, CopySource, CountOperator, PendingWrite, SimulatedCopy, SimulatedLane, SimulatedSink,
    StepContext,
};
use super::{OutsideWorld, StoryPlan, at_once};

/// From worker 0 to another.
#[derive(Clone)]
enum WorkerMessage {
    Inject(Barrier),
    Unalign(u64),
    Durable(u64),
}

/// Who acts next.
enum JobActor {
    Coordinator,
    Manifest,
    Prune,
    Down(usize),
    Again,
    Up(usize),
    Copy(usize),
    Write(usize),
}

#[derive(Clone, Debug)]
pub(super) enum JobOutcome {
    /// Everything is done, or paused.
    Ended,
    Failed(#[expect(dead_code, reason = "for people")] String),
}

pub(super) struct SimulatedJob {
    pub run: String,
    now: Duration,
    coordinator: Coordinator,
    /// What the coordinator will hear.
    events: VecDeque<CoordinatorEvent>,
    /// The manifest that is being written, and whether it is there.
    putting: Option<(Manifest, bool)>,
    /// The last one that was, or that the run goes on from.
    stored: Option<Arc<Manifest>>,
    prune: VecDeque<u64>,
    /// By worker.
    notifications: Vec<EpochNotifications>,
    down: Vec<VecDeque<WorkerMessage>>,
    up: Vec<VecDeque<CopyReport>>,
    /// Frames that will come once more.
    again: Vec<(usize, WorkerMessage)>,
    copies: Vec<SimulatedCopy>,
    lanes: Vec<SimulatedLane>,
    /// The coordinator has nothing left to do.
    coordinated: bool,
    failed: Option<String>,
    /// By task that is dealt by key: which copy owns which bucket, as the coordinator knows it, and how many there are.
    routes: BTreeMap<String, (RouteMap, u32)>,
    /// The number of copies of each source.
    sources: Vec<(String, u32)>,
    /// Rebalances that the coordinator has heard of and not answered: of how many tasks, and whether they make sense.
    asked: BTreeMap<u64, (usize, bool)>,
    /// How many were asked for.
    requests: u64,
}

/// `InFlightReplay::rows`: what was in flight to a port, and is this copy's.
fn in_flight(restored: Option<&RestoredState>, port: u32, mine: impl Fn(u32) -> bool) -> Vec<(u32, u32, i64)> {
    let Some(RestoredState { in_flight, rescaled, .. }) = restored else { return Vec::new() };
    let here = in_flight.iter().filter(|((_, of), _)| *of == port);
    here.flat_map(|(_, bytes)| copies::decode(bytes)).filter(|(key, ..)| !rescaled || mine(*key)).collect()
}

/// Some workers are spare: none, or any but the first, of which every task has a copy.
fn draw_spares(random: &mut SplitMix64) -> BTreeSet<u32> {
    (1..3).filter(|_| random.once_in(3)).collect()
}

/// The copies of a task that are not spare; each runs on the worker with its number.
fn active_copies(member: &CoordinatedTask) -> Vec<u32> {
    (0..member.copies).filter(|copy| !member.spares.contains(copy)).collect()
}

/// The tasks of a run, with any number of copies.
fn draw_members(sources: usize, spares: &BTreeSet<u32>, random: &mut SplitMix64) -> Vec<CoordinatedTask> {
    let names = ["numbers", "more", "count", "again", "outside"];
    let member = |name: &&str| {
        let copies = 1 + random.below(3) as u32;
        let mut member = CoordinatedTask {
            name: (*name).to_owned(),
            copies,
            route: None,
            why_not_movable: None,
            why_splits_stay: None,
            spares: spares.iter().copied().filter(|worker| *worker < copies).collect(),
            schema: None,
        };
        let route = || Arc::new(RouteMap::even_among(BUCKETS, &active_copies(&member)));
        member.route = matches!(*name, "count" | "again").then(route);
        member
    };
    names[..sources].iter().chain(&names[2..]).map(member).collect()
}

fn timing(plan: &StoryPlan) -> CheckpointTiming {
    let StoryPlan { interval, unaligned_after, timeout, .. } = *plan;
    CheckpointTiming { interval, unaligned_after, timeout }
}

/// What each copy begins with.
fn read_states(
    world: &OutsideWorld,
    manifest: &Manifest,
    members: &[CoordinatedTask],
    ids: &[(u32, u32)],
    spares: &BTreeSet<u32>,
) -> Vec<Option<RestoredState>> {
    let governor = Governor::new(MemorySettings::default());
    let read = ids.iter().map(|&(task, copy)| {
        let member = &members[task as usize];
        let route =
            member.route_in(manifest, spares).unwrap_or_else(|| Arc::new(RouteMap::even(BUCKETS, member.copies)));
        let splits_of = if member.name == "outside" { SplitsOf::Sink } else { SplitsOf::Source };
        let named = (member.name.as_str(), splits_of);
        let active = active_copies(member);
        let anew = client::deals_anew(manifest, named, spares, &member.spares);
        let (ids, deal) = ((copy, member.copies), SplitDeal { active: &active, anew });
        let read = at_once(client::restore(&world.store, manifest, named, ids, deal, &route, &governor));
        Some(read.unwrap_or_else(|error| panic!("what nobody damaged is damaged: {error}")))
    });
    read.collect()
}

/// Numbers of streams: one for each copy of a task to each of another one.
type StreamGrid = Vec<Vec<usize>>;

/// What leads from task to task.
struct JobStreams {
    /// By source.
    to_count: Vec<StreamGrid>,
    to_again: StreamGrid,
    to_outside: StreamGrid,
    /// Those on which each task but the last hands over.
    hand: Vec<StreamGrid>,
}

impl JobStreams {
    fn new(members: &[CoordinatedTask], lanes: &mut Vec<SimulatedLane>) -> Self {
        let mut lane = || {
            lanes.push(SimulatedLane::default());
            lanes.len() - 1
        };
        let mut streams = |source: usize, target: usize| -> StreamGrid {
            (0..members[source].copies).map(|_| (0..members[target].copies).map(|_| lane()).collect()).collect()
        };
        let outside = members.len() - 1;
        let (count, again) = (outside - 2, outside - 1);
        JobStreams {
            to_count: (0..count).map(|task| streams(task, count)).collect(),
            to_again: streams(count, again),
            to_outside: streams(again, outside),
            hand: (0..outside).map(|task| streams(task, task)).collect(),
        }
    }

    /// What a copy does, with the streams that it sends and hands over on.
    fn body(
        &self,
        plan: &StoryPlan,
        members: &[CoordinatedTask],
        (task, copy): (u32, u32),
        restored: Option<&RestoredState>,
    ) -> (CopyBody, (Vec<usize>, Vec<usize>)) {
        let (index, of) = (task as usize, copy as usize);
        let outside = members.len() - 1;
        let (count, again) = (outside - 2, outside - 1);
        let route_of = |task: usize| members[task].route.as_deref().expect("it is dealt by key");
        let to = |grid: &StreamGrid| grid.iter().map(|to| to[of]).collect::<Vec<usize>>();
        if index < count {
            let first: usize = plan.rows[..index].iter().map(Vec::len).sum();
            let splits = plan.splits();
            let splits = splits.range(first as u32..(first + plan.rows[index].len()) as u32);
            let splits = splits.map(|(split, rows)| (*split, *rows)).collect();
            let (named, hand) = ((members[index].name.as_str(), route_of(count)), &self.hand[index]);
            let source = CopySource::new(&splits, (copy, members[index].copies), restored, named, &to(hand));
            (CopyBody::Source(source), (self.to_count[index][of].clone(), hand[of].clone()))
        } else if index == outside {
            let replay = in_flight(restored, 0, |key| key % members[index].copies == copy);
            let inputs = CopyGather::new(vec![to(&self.to_outside)], vec![replay]);
            (CopyBody::Outside(SimulatedSink::new(inputs)), Default::default())
        } else {
            let is_first = index == count;
            let route = route_of(index);
            let ports = if is_first { self.to_count.iter().map(to).collect() } else { vec![to(&self.to_again)] };
            let replay = |port| in_flight(restored, port, |key| copies::owner(key, route) == copy);
            let replay = (0..ports.len() as u32).map(replay).collect();
            let inputs = CopyGather::new(ports, replay);
            let (next, out) = if is_first { (Some(again), &self.to_again) } else { (None, &self.to_outside) };
            let hand = &self.hand[index];
            let routes = (route, next.map(route_of));
            let operator = CountOperator::new(&members[index].name, inputs, restored, routes, &to(hand));
            (CopyBody::Count(operator), (out[of].clone(), hand[of].clone()))
        }
    }
}

impl SimulatedJob {
    /// Begins a run, anew or from what is there: `run::resume`. `meanwhile` is what others do. `None` when it cannot
    /// begin.
    pub(super) fn start(
        world: &mut OutsideWorld,
        random: &mut SplitMix64,
        mut meanwhile: impl FnMut(&mut OutsideWorld, &mut SplitMix64),
    ) -> Option<SimulatedJob> {
        world.runs += 1;
        let run = format!("run{}", world.runs);
        let workers = 1 + random.below(3);
        let spares = draw_spares(random);
        let mut members = draw_members(world.plan.rows.len(), &spares, random);
        let ids: Vec<(u32, u32)> =
            (0..).zip(&members).flat_map(|(task, member)| (0..member.copies).map(move |copy| (task, copy))).collect();

        let claim = at_once(world.store.claim(0, "run")).unwrap();
        meanwhile(world, random);
        let kept = at_once(world.store.restore_candidates()).unwrap();
        let epochs: Vec<_> = kept.manifests.iter().map(|manifest| (manifest.claim, manifest.epoch)).collect();
        meanwhile(world, random);
        let mut begin = StartPoint { newest: kept.epoch(), claim, spares, from: None };
        let mut restored = vec![None; ids.len()];
        if kept.manifests.is_empty() {
            world.clear();
            begin.newest = 0;
        }
        if let Some(manifest) = kept.manifests.into_iter().next() {
            begin.newest += 1;
            let manifest = at_once(world.store.adopt(manifest, claim, begin.newest)).ok()?;
            world.check_durable(&manifest);
            meanwhile(world, random);
            restored = read_states(world, &manifest, &members, &ids, &begin.spares);
            members.iter_mut().for_each(|member| member.route = member.route_in(&manifest, &begin.spares));
            begin.from = Some(Arc::new(manifest));
        }
        let from = begin.from.clone();
        world.say(|| {
            let copies: Vec<u32> = members.iter().map(|member| member.copies).collect();
            let from = from.as_ref().map(|from| (from.claim, from.epoch));
            format!("{run} ({claim}) begins from {from:?} of {epochs:?} with {copies:?} copies on {workers} workers")
        });

        let mut lanes = Vec::new();
        let streams = JobStreams::new(&members, &mut lanes);
        let copies = ids.iter().zip(restored).enumerate().map(|(at, (&id, restored))| {
            let (body, out) = streams.body(&world.plan, &members, id, restored.as_ref());
            SimulatedCopy::new(id, at % workers, body, restored, out)
        });
        let copies = copies.collect();
        let keyed = members.iter().filter_map(|member| {
            let route = member.route.as_deref()?.clone();
            Some((member.name.clone(), (route, member.copies)))
        });
        let routes = keyed.collect();
        let sources = members[..world.plan.rows.len()].iter();
        let sources = sources.map(|member| (member.name.clone(), member.copies)).collect();
        Some(SimulatedJob {
            run,
            now: Duration::ZERO,
            coordinator: Coordinator::new("simulated", members, timing(&world.plan), &begin),
            events: VecDeque::new(),
            putting: None,
            stored: from,
            prune: VecDeque::new(),
            notifications: (0..workers).map(|_| EpochNotifications::default()).collect(),
            down: vec![VecDeque::new(); workers],
            up: vec![VecDeque::new(); workers],
            again: Vec::new(),
            copies,
            lanes,
            coordinated: false,
            failed: None,
            routes,
            sources,
            asked: BTreeMap::new(),
            requests: 0,
        })
    }

    /// Whether nothing more comes of it.
    pub(super) fn over(&self) -> Option<JobOutcome> {
        if let Some(reason) = &self.failed {
            return Some(JobOutcome::Failed(reason.clone()));
        }
        (self.coordinated && self.copies.iter().all(SimulatedCopy::is_over)).then_some(JobOutcome::Ended)
    }

    /// All of it is gone; what it was writing may be there, or come later.
    pub(super) fn crash(self, world: &mut OutsideWorld, random: &mut SplitMix64) {
        let finished = self.stored.as_ref().is_some_and(|stored| stored.finished);
        let ended = matches!(self.over(), Some(JobOutcome::Ended));
        world.done |= finished && ended;
        if let Some(stored) = self.stored.as_ref().filter(|_| ended) {
            self.leave(stored, world, random);
        }
        if let Some((manifest, false)) = self.putting
            && world.fault(2, random)
        {
            world.late.push(manifest);
        }
        for mut write in self.copies.into_iter().flat_map(|copy| copy.writes) {
            if write.settled() && random.once_in(3) {
                at_once(world.store.put_state(write.file, write.parts)).unwrap();
            }
        }
    }

    /// `CheckpointClient::leave`: what sinks had prepared is committed, and the last checkpoint need not have it any
    /// more.
    fn leave(&self, stored: &Manifest, world: &mut OutsideWorld, random: &mut SplitMix64) {
        if world.fault(3, random) {
            return;
        }
        let settled = at_once(world.store.settle(stored, &["outside".into()]));
        world.say(|| format!("  {} settles {}: {:?}", self.run, stored.epoch, settled.as_ref().map(|_| ())));
        if let Ok(Some(settled)) = settled {
            assert!(settled.tasks["outside"].splits.is_empty());
            world.landed(&settled);
            world.check_durable(&settled);
            world.settled += 1;
            if world.fault(3, random) {
                // It was killed before it had removed the other.
                world.land(stored, true);
            }
        }
    }

    /// Somebody does something.
    pub(super) fn step(&mut self, world: &mut OutsideWorld, random: &mut SplitMix64) {
        if world.fault(world.plan.request, random) {
            let control = if random.once_in(2) { BarrierControl::Stop } else { BarrierControl::Checkpoint };
            world.say(|| format!("  {}: {control:?} is asked for", self.run));
            self.events.push_back(CoordinatorEvent::Request { id: 0, control });
        }
        if world.fault(world.plan.rebalance, random) {
            let rebalance = self.rebalance(random);
            world.say(|| format!("  {}: {rebalance:?} is asked for", self.run));
            self.requests += 1;
            self.events.push_back(CoordinatorEvent::Request {
                id: self.requests,
                control: BarrierControl::Rebalance(rebalance),
            });
        }
        match self.actor(random) {
            JobActor::Coordinator => self.coordinate(world, random),
            JobActor::Manifest => self.put_manifest(world, random),
            JobActor::Prune => {
                if let Some(last) = self.prune.pop_front() {
                    at_once(world.store.prune(world.plan.keep, last)).unwrap();
                    world.check_kept();
                }
            }
            JobActor::Down(worker) => {
                if let Some(frame) = self.down[worker].pop_front() {
                    if world.fault(world.plan.frame_twice, random) {
                        self.again.push((worker, frame.clone()));
                    }
                    self.hear(worker, frame);
                }
            }
            JobActor::Again => {
                if !self.again.is_empty() {
                    let (worker, frame) = self.again.swap_remove(random.below(self.again.len()));
                    self.hear(worker, frame);
                }
            }
            JobActor::Up(worker) => {
                if let Some(report) = self.up[worker].pop_front() {
                    self.events.push_back(CoordinatorEvent::Report(report));
                }
            }
            JobActor::Copy(at) => {
                let copy = &mut self.copies[at];
                let notifications = &self.notifications[copy.worker];
                let (run, lanes, mut said) = (&self.run, &mut self.lanes, Vec::new());
                copy.step(&mut StepContext { run, notifications, lanes, said: &mut said, world, random });
                let (worker, (task, copy)) = (copy.worker, copy.id);
                said.into_iter().for_each(|said| self.report(worker, CopyReport { task, copy, said }));
            }
            JobActor::Write(at) => self.write(at, world, random),
        }
    }

    fn actor(&self, random: &mut SplitMix64) -> JobActor {
        let (workers, copies) = (self.notifications.len(), self.copies.len());
        let mut at = random.below(4 + 2 * workers + 2 * copies);
        for (count, actor) in [
            (1, (|_| JobActor::Coordinator) as fn(usize) -> JobActor),
            (1, |_| JobActor::Manifest),
            (1, |_| JobActor::Prune),
            (1, |_| JobActor::Again),
            (workers, JobActor::Down),
            (workers, JobActor::Up),
            (copies, JobActor::Copy),
            (copies, JobActor::Write),
        ] {
            if at < count {
                return actor(at);
            }
            at -= count;
        }
        unreachable!("the counts are what was drawn from")
    }

    fn hear(&self, worker: usize, frame: WorkerMessage) {
        match frame {
            WorkerMessage::Inject(barrier) => self.notifications[worker].inject(barrier),
            WorkerMessage::Unalign(epoch) => self.notifications[worker].unalign(epoch),
            WorkerMessage::Durable(epoch) => self.notifications[worker].durable(epoch),
        }
    }

    /// `CheckpointClient::coordinate`.
    fn coordinate(&mut self, world: &mut OutsideWorld, random: &mut SplitMix64) {
        if self.coordinated {
            return;
        }
        self.now += Duration::from_millis(random.below(3) as u64);
        if world.fault(world.plan.clock_jump, random) {
            self.now += world.plan.timeout;
        }
        let event = self.events.pop_front().unwrap_or(CoordinatorEvent::Tick);
        if !matches!(event, CoordinatorEvent::Tick) {
            world.say(|| format!("  {} hears {event:?}", self.run));
        }
        if let CoordinatorEvent::Request { id, control: BarrierControl::Rebalance(Rebalance { maps, splits, .. }) } =
            &event
        {
            let is_sound = |(task, map): (&String, &RouteMap)| {
                let (now, copies) = &self.routes[task];
                map.version() > now.version() && map.copies().all(|copy| copy < *copies)
            };
            let may_move = |(task, moves): (&String, &SplitMoves)| {
                let copies = self.sources.iter().find(|(name, _)| name == task).expect("it is a source").1;
                let mut named = moves.iter().flat_map(|(from, to)| to.values().map(move |to| (*from, *to)));
                named.all(|(from, to)| from != to && from < copies && to < copies)
            };
            let is_sound = maps.iter().all(is_sound) && splits.iter().all(may_move);
            self.asked.insert(*id, (maps.len(), is_sound));
        }
        for action in self.coordinator.handle(self.now, 0, event) {
            world.say(|| match &action {
                CoordinatorAction::Store(manifest) => {
                    format!("  {}: store {} ({})", self.run, manifest.epoch, manifest.finished)
                }
                action => format!("  {}: {action:?}", self.run),
            });
            match action {
                CoordinatorAction::Inject(barrier) => {
                    for (task, (route, _)) in &mut self.routes {
                        if let Some(map) = barrier.route_of(task) {
                            route.clone_from(map);
                        }
                    }
                    self.tell_all(&WorkerMessage::Inject(barrier));
                }
                CoordinatorAction::Unalign(epoch) => self.tell_all(&WorkerMessage::Unalign(epoch)),
                CoordinatorAction::Store(manifest) => {
                    assert!(self.putting.is_none(), "two manifests are written at once");
                    self.putting = Some((*manifest, false));
                }
                CoordinatorAction::Durable(epoch) => {
                    let stored = self.stored.as_ref().expect("a manifest was stored");
                    assert!(epoch == ALL || epoch == stored.epoch, "{epoch} is durable, and {} stored", stored.epoch);
                    world.check_durable(stored);
                    self.tell_all(&WorkerMessage::Durable(epoch));
                }
                CoordinatorAction::Answer { id, outcome } => {
                    let (tasks, sound) = self.asked.remove(&id).expect("what is asked is answered once");
                    assert!(sound || outcome.is_err(), "buckets have moved that cannot");
                    world.moved += usize::from(outcome.is_ok());
                    world.moved_together += usize::from(outcome.is_ok() && tasks > 1);
                    world.moved_splits += outcome.map_or(0, |moved| moved.splits as usize);
                }
                CoordinatorAction::Warn(_) => {}
                CoordinatorAction::Fail(reason) => {
                    self.failed = Some(reason);
                    return;
                }
                CoordinatorAction::Finished => {
                    self.coordinated = true;
                    assert!(self.asked.is_empty(), "the job is over, and {:?} are not answered", self.asked);
                    return;
                }
            }
        }
    }

    fn tell_all(&mut self, frame: &WorkerMessage) {
        self.down[1..].iter_mut().for_each(|down| down.push_back(frame.clone()));
        self.hear(0, frame.clone());
    }

    /// `CheckpointClient::put`, in two steps.
    fn put_manifest(&mut self, world: &mut OutsideWorld, random: &mut SplitMix64) {
        let Some((manifest, there)) = self.putting.take() else { return };
        let epoch = manifest.epoch;
        let unfenced = |reason: &str| Err(StoreFailure { reason: reason.into(), fenced: false });
        let fenced = |error: StoreError| Err(StoreFailure { reason: error.to_string(), fenced: true });
        let fails = world.fault(world.plan.manifest_fails, random);
        let result = if there {
            match at_once(world.store.is_claimed(manifest.claim)) {
                _ if fails => unfenced("the claims cannot be read"),
                Ok(()) => {
                    self.stored = Some(Arc::new(manifest));
                    self.prune.push_back(epoch);
                    Ok(())
                }
                Err(error) => fenced(error),
            }
        } else {
            if fails {
                match random.below(3) {
                    0 => drop(world.land(&manifest, true)),
                    1 => drop(world.land(&manifest, false)),
                    _ => {}
                }
                unfenced("it cannot be written")
            } else {
                match at_once(world.store.put_manifest(&manifest)) {
                    Ok(()) => {
                        world.landed(&manifest);
                        self.putting = Some((manifest, true));
                        return;
                    }
                    Err(error) => fenced(error),
                }
            }
        };
        self.events.push_back(CoordinatorEvent::Stored { epoch, result });
    }

    /// What `CopyStates::save` and `CopyStates::end` leave to be done.
    fn write(&mut self, at: usize, world: &mut OutsideWorld, random: &mut SplitMix64) {
        let copy = &mut self.copies[at];
        // What is in flight may not be known yet.
        let Some(write) = copy.writes.pop_front_if(PendingWrite::settled) else { return };
        let mut put = Err("the snapshot before it, which it builds on, could not be written".to_owned());
        if copy.chain.holds(write.whole) {
            let fails = world.fault(world.plan.state_fails, random);
            put = Err("it cannot be written".to_owned());
            if !fails || random.once_in(2) {
                let entries = at_once(world.store.put_state(write.file, write.parts)).unwrap();
                put = if fails { put } else { Ok(entries) };
            }
        }
        let (task, of) = copy.id;
        let said = match (write.epoch, put) {
            (Some(epoch), put) => {
                copy.chain.wrote(write.whole, put.is_ok());
                match put {
                    Ok(parts) => ReportBody::Saved { epoch, parts },
                    Err(reason) => ReportBody::Failed { epoch, reason },
                }
            }
            (None, Ok(parts)) => ReportBody::Ended { parts },
            (None, Err(reason)) => {
                self.failed = Some(reason);
                return;
            }
        };
        let worker = copy.worker;
        self.report(worker, CopyReport { task, copy: of, said });
    }

    /// `CheckpointClient::report`.
    fn report(&mut self, worker: usize, report: CopyReport) {
        match worker {
            0 => self.events.push_back(CoordinatorEvent::Report(report)),
            worker => self.up[worker].push_back(report),
        }
    }

    /// Some splits of a source, mostly where they are now, for other copies.
    fn split_moves(&self, task: u32, random: &mut SplitMix64) -> SplitMoves {
        let copies = self.sources[task as usize].1 as usize + usize::from(random.once_in(20));
        let mut moves = SplitMoves::new();
        let one = random.one_of(&[0, 1, 1]);
        for (from, splits) in self.copies.iter().filter(|copy| copy.id.0 == task).map(|copy| (copy.id.1, copy.splits()))
        {
            for split in splits {
                let to = if one == 0 { 0 } else { random.below(copies) as u32 };
                if (to != from || random.once_in(50)) && !random.once_in(4) {
                    let from = if random.once_in(20) { (from + 1) % copies as u32 } else { from };
                    moves.entry(from).or_default().insert(split.to_string(), to);
                }
            }
        }
        moves
    }

    /// A rebalance of one task or several, which may be of another time, or of copies that there are not.
    fn rebalance(&self, random: &mut SplitMix64) -> Rebalance {
        let (first, mut maps) = (random.below(self.routes.len()), BTreeMap::new());
        for (at, (task, (route, copies))) in self.routes.iter().enumerate() {
            if at != first && random.once_in(2) {
                continue;
            }
            let copies = *copies as usize + usize::from(random.once_in(20));
            let (one, kind) = (random.below(copies) as u32, random.below(4));
            let owners = route.copies().map(|owner| match kind {
                0 => one,
                1 => owner,
                _ => random.below(copies) as u32,
            });
            let owners = owners.collect();
            // Mostly the next: of several one that makes no sense is enough for none to move.
            let version = route.version() + random.one_of(&[0, 1, 1, 1, 2]) as u64;
            maps.insert(task.clone(), RouteMap::new(version, owners));
        }
        let mut splits = BTreeMap::new();
        if random.once_in(2) {
            if random.once_in(2) {
                maps.clear();
            }
            let task = random.below(self.sources.len());
            let moves = self.split_moves(task as u32, random);
            if !moves.is_empty() {
                splits.insert(self.sources[task].0.clone(), moves);
            }
        }
        // Whatever has moved, it counts: what is where it should not be is dealt anew when the job resumes.
        let spares = random.once_in(3).then(|| draw_spares(random));
        Rebalance { maps, splits, spares }
    }
}
