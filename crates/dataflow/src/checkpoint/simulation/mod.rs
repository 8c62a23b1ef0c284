//! Checkpoints in a simulation: one seed determines the story of a job, from its first run to its end, in one thread
//! and without a clock. The coordinator, alignment, watermarks, manifests, the store's rules and the distribution on
//! restore are the real ones; the store is an object store in memory. Their environment is modeled: copies ([`copies`],
//! which act like the drivers of sources, operators and sinks), streams and control frames ([`job`]), each in order by
//! itself and in any order between them, with any delay.
//!
//! The story may have crashes at any step, with another number of copies afterwards; a job that is presumed dead and
//! continues beside its successor; manifests and states that cannot be written, are truncated, are written although the
//! write seemed to fail, or arrive long after their job has ended; a clock that jumps, so that checkpoints are
//! abandoned; duplicate control frames; barriers that stop the job, requested at any time and more than once; sources
//! without rows; sinks that are full and ask for a checkpoint; buckets that move, or are asked to move to invalid
//! owners, of one task or of two at once; splits of sources that move in the same way.
//!
//! Invariants: a manifest is consistent over all splits, keys and sinks; nothing is visible outside that is not in a
//! checkpoint; each key's rows are visible once and in order; a copy gets only rows of its own buckets, and has their
//! state; every request to move buckets gets an answer. And when faults stop, the job ends.
//!
//! [`rounds`] tells the stories of exchanges by rounds; those of `bsp`, whose copies agree on calls, are in
//! `tidemill-stream`. A job with a loop makes no checkpoints.
//!
//! `SIMULATION_SEED=17 cargo test -p tidemill-dataflow simulation` tells the story of seed 17.

mod copies;
mod job;
mod rounds;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use serde::{Deserialize, Serialize};
use tidemill_batch::route_map::{BUCKETS, RouteMap};
use tidemill_checkpoint::{CheckpointStore, Manifest};
use tidemill_sim::{SplitMix64, share_of_seeds};

use job::SimulatedJob;

/// Seeds of a whole run of the test; see [`share_of_seeds`].
const SEEDS: u64 = 3000;
/// Once faults stop a job must end within so many steps. Most need some hundreds.
const STEPS_MAX: usize = 100_000;
/// As a row's number: the last of its key, told at the end of the stream.
const LAST: u32 = u32::MAX;

/// What stays the same in all runs of the job. Rates are of one in so many; 0 is never.
struct StoryPlan {
    /// Rows of each split, by source task.
    rows: Vec<Vec<u32>>,
    keys: u32,
    keep: usize,
    interval: Duration,
    unaligned_after: Option<Duration>,
    timeout: Duration,
    /// Splits become idle now and then: then rows may be late.
    idles: bool,
    /// Rows that a sink keeps at most until the next checkpoint: at half of them it asks for one. 0: any number.
    sink_max: usize,
    /// The step at which faults stop.
    faults_end: usize,
    crash: usize,
    rival: usize,
    request: usize,
    rebalance: usize,
    clock_jump: usize,
    manifest_fails: usize,
    state_fails: usize,
    frame_twice: usize,
}

impl StoryPlan {
    fn new(random: &mut SplitMix64) -> Self {
        let rows = (0..1 + random.below(2)).map(|_| {
            let splits = 1 + random.below(5);
            (0..splits).map(|_| random.one_of(&[0, 3, 20, 60]) as u32).collect()
        });
        StoryPlan {
            rows: rows.collect(),
            keys: 1 + random.below(12) as u32,
            keep: 1 + random.below(3),
            interval: Duration::from_millis(random.one_of(&[0, 5, 50]) as u64),
            unaligned_after: [None, Some(0), Some(20)][random.below(3)].map(Duration::from_millis),
            timeout: Duration::from_millis(random.one_of(&[30, 300, 100_000]) as u64),
            idles: random.once_in(2),
            sink_max: random.one_of(&[0, 2, 10]),
            faults_end: random.one_of(&[0, 500, 3000, 10_000]),
            crash: random.one_of(&[0, 150, 500, 1500]),
            rival: random.one_of(&[0, 0, 400]),
            request: random.one_of(&[0, 100, 400]),
            rebalance: random.one_of(&[0, 20, 100, 400]),
            clock_jump: random.one_of(&[0, 0, 20]),
            manifest_fails: random.one_of(&[0, 3, 10]),
            state_fails: random.one_of(&[0, 10, 50]),
            frame_twice: random.one_of(&[0, 3]),
        }
    }

    /// The key of a split's row.
    fn key(&self, split: u32, n: u32) -> u32 {
        (split * 31 + n * 7 + n * n / 3) % self.keys
    }

    fn bucket(key: u32) -> u32 {
        RouteMap::even(BUCKETS, 1).bucket(u64::from(key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Rows of each key before these places in the splits.
    fn counts(&self, places: &BTreeMap<u32, u32>) -> BTreeMap<u32, u32> {
        let mut counts = BTreeMap::new();
        for (&split, &place) in places {
            (0..place).for_each(|n| *counts.entry(self.key(split, n)).or_default() += 1);
        }
        counts
    }

    /// All splits with their rows; a split's number says which it is.
    fn splits(&self) -> BTreeMap<u32, u32> {
        self.rows.iter().flatten().enumerate().map(|(split, rows)| (split as u32, *rows)).collect()
    }
}

/// What a sink has prepared in one epoch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PreparedUnit {
    epoch: u64,
    run: String,
    copy: u32,
    /// Keys and numbers.
    rows: Vec<(u32, u32)>,
}

/// What outlives a job's runs.
pub(super) struct OutsideWorld {
    plan: StoryPlan,
    objects: Arc<InMemory>,
    store: CheckpointStore,
    /// Whether things still go wrong.
    faults: bool,
    /// What sinks have made appear.
    visible: BTreeMap<Bytes, PreparedUnit>,
    /// The last epoch of each run and copy that has appeared: where Kafka and Redis have what sinks write, they know no
    /// more.
    appeared: BTreeMap<(String, u32), u64>,
    /// What is prepared in any manifest that was ever whole.
    prepared: BTreeSet<Bytes>,
    /// Manifests of runs that are gone, which have not landed yet.
    late: Vec<Manifest>,
    /// The newest run that has had a durable checkpoint.
    durable: Option<u64>,
    done: bool,
    runs: usize,
    /// Rebalances that were done.
    moved: usize,
    /// Of these, those of several tasks.
    moved_together: usize,
    /// Splits that other copies have taken over.
    moved_splits: usize,
    /// Rows that barriers have overtaken.
    overtaken: usize,
    /// Checkpoints that full sinks have asked for.
    full: usize,
    /// Sinks that had ended and committed all they had left while others went on.
    early: usize,
    /// Last checkpoints of which nothing was left to be committed.
    settled: usize,
    tell: bool,
}

/// What a store in memory answers.
fn at_once<T>(answer: impl Future<Output = T>) -> T {
    answer.now_or_never().expect("a store in memory answers at once")
}

impl OutsideWorld {
    fn new(random: &mut SplitMix64, tell: bool) -> Self {
        let objects = Arc::new(InMemory::new());
        OutsideWorld {
            plan: StoryPlan::new(random),
            store: CheckpointStore::objects(Arc::clone(&objects) as _, Path::from("jobs/simulated"), "memory"),
            objects,
            faults: true,
            visible: BTreeMap::new(),
            appeared: BTreeMap::new(),
            prepared: BTreeSet::new(),
            late: Vec::new(),
            durable: None,
            done: false,
            runs: 0,
            moved: 0,
            moved_together: 0,
            moved_splits: 0,
            overtaken: 0,
            full: 0,
            early: 0,
            settled: 0,
            tell,
        }
    }

    fn say(&self, what: impl FnOnce() -> String) {
        if self.tell {
            println!("{}", what());
        }
    }

    /// Whether something goes wrong that does so once in `times`.
    fn fault(&self, times: usize, random: &mut SplitMix64) -> bool {
        self.faults && random.once_in(times)
    }

    /// Whether it is of a run that others have left behind, and cleared away behind.
    fn is_left_behind(&self, manifest: &Manifest) -> bool {
        let newer = at_once(self.store.restore_candidates()).unwrap().manifests[0].claim > manifest.claim;
        let gone = |file: &str| at_once(self.objects.head(&Path::from(format!("jobs/simulated/{file}")))).is_err();
        newer && manifest.files().into_iter().any(gone)
    }

    /// A manifest is there and whole.
    fn landed(&mut self, manifest: &Manifest) {
        if self.is_left_behind(manifest) {
            return;
        }
        let mut places = BTreeMap::new();
        for (name, place) in self.splits_of(manifest, |name| name != "outside") {
            let place = u32::from_le_bytes(place.as_ref().try_into().unwrap());
            assert!(places.insert(name.parse().unwrap(), place).is_none(), "split {name} is there twice");
        }
        let missing = |split: &u32| !places.contains_key(split);
        let lost: Vec<u32> = self.plan.splits().into_keys().filter(missing).collect();
        assert!(lost.is_empty(), "splits {lost:?} are lost in {manifest:?}");

        self.overtaken +=
            ["count", "again", "outside"].map(|task| self.in_flight(manifest, task).len()).iter().sum::<usize>();
        let count = &manifest.tasks["count"];
        assert!(
            count.ended.is_empty() || count.ended.len() as u32 == count.copies,
            "some copies have ended: {count:?}"
        );
        if count.ended.is_empty() {
            let (kept, flying) = self.counts_of(manifest, "count");
            assert_eq!(flying, self.plan.counts(&places), "counts are not of the places {places:?} in {manifest:?}");
            let (_, flying) = self.counts_of(manifest, "again");
            assert_eq!(flying, kept, "what was counted first is not what is counted again in {manifest:?}");
        }
        let prepared = self.splits_of(manifest, |name| name == "outside");
        self.prepared.extend(prepared.into_iter().map(|(_, unit)| unit));
    }

    /// What a task has counted of each key; and with what was in flight to it.
    fn counts_of(&self, manifest: &Manifest, task: &str) -> (BTreeMap<u32, u32>, BTreeMap<u32, u32>) {
        let mut kept = BTreeMap::new();
        for entries in manifest.tasks[task].buckets.values() {
            for part in at_once(self.store.parts(&entries.iter().collect::<Vec<_>>())).unwrap() {
                kept.extend(copies::pairs(&part));
            }
        }
        let mut all = kept.clone();
        for (key, ..) in self.in_flight(manifest, task) {
            *all.entry(key).or_default() += 1;
        }
        (kept, all)
    }

    /// Something has been cleared away: whatever a run may go on from is all there.
    fn check_kept(&self) {
        let kept = at_once(self.store.restore_candidates()).unwrap().manifests;
        let newest = kept.first().map_or(0, |newest| newest.claim);
        for manifest in kept.iter().filter(|manifest| manifest.claim == newest) {
            self.splits_of(manifest, |_| true);
            for entries in manifest.tasks.values().flat_map(|task| task.buckets.values()) {
                at_once(self.store.parts(&entries.iter().collect::<Vec<_>>())).unwrap();
            }
            for task in ["count", "again", "outside"] {
                self.in_flight(manifest, task);
            }
        }
    }

    /// What was in flight to a task: keys, numbers, times.
    fn in_flight(&self, manifest: &Manifest, task: &str) -> Vec<(u32, u32, i64)> {
        let entries: Vec<_> = manifest.tasks[task].in_flight.values().flatten().map(|(_, entry)| entry).collect();
        at_once(self.store.parts(&entries)).unwrap().iter().flat_map(copies::decode).collect()
    }

    fn splits_of(&self, manifest: &Manifest, task: impl Fn(&str) -> bool) -> Vec<(String, Bytes)> {
        let tasks = manifest.tasks.iter().filter(|(name, _)| task(name));
        let splits: Vec<_> = tasks.flat_map(|(_, state)| state.splits.values().flatten()).collect();
        let parts = at_once(self.store.parts(&splits.iter().map(|(_, entry)| entry).collect::<Vec<_>>())).unwrap();
        splits.into_iter().map(|(name, _)| name.clone()).zip(parts).collect()
    }

    /// A run takes a checkpoint for durable: what is visible, and what it has prepared, is what it has read.
    fn check_durable(&mut self, manifest: &Manifest) {
        let newer = self.durable > Some(manifest.claim);
        self.durable = self.durable.max(Some(manifest.claim));
        if newer || self.is_left_behind(manifest) {
            // More may be visible by now: of runs that went on from it.
            return;
        }
        let mut places = BTreeMap::new();
        for (name, place) in self.splits_of(manifest, |name| name != "outside") {
            places.insert(name.parse().unwrap(), u32::from_le_bytes(place.as_ref().try_into().unwrap()));
        }
        let mut units = self.visible.clone();
        for (_, unit) in self.splits_of(manifest, |name| name == "outside") {
            let parsed = serde_json::from_slice(&unit).unwrap();
            units.insert(unit, parsed);
        }
        let ended = !manifest.tasks["count"].ended.is_empty();
        // Numbers go no further than what was counted; what sinks were still to take comes behind what they took.
        let mut counts = self.plan.counts(&places);
        for (key, ..) in ["count", "again"].iter().flat_map(|task| self.in_flight(manifest, task)) {
            *counts.get_mut(&key).expect("it has been read") -= 1;
        }
        let flying = self.in_flight(manifest, "outside");
        self.check_rows(&units, &flying, counts, ended, &format!("at epoch {}", manifest.epoch));
    }

    fn check_rows(
        &self,
        units: &BTreeMap<Bytes, PreparedUnit>,
        flying: &[(u32, u32, i64)],
        counts: BTreeMap<u32, u32>,
        ended: bool,
        when: &str,
    ) {
        let mut in_order: Vec<&PreparedUnit> = units.values().collect();
        in_order.sort_by_key(|unit| unit.epoch);
        let mut found: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (key, n) in in_order.iter().flat_map(|unit| &unit.rows) {
            found.entry(*key).or_default().push(*n);
        }
        for (key, n, _) in flying {
            found.entry(*key).or_default().push(*n);
        }
        let counts = counts.into_iter().filter(|(_, count)| *count > 0);
        let expected = counts.map(|(key, count)| (key, (1..=count).chain(ended.then_some(LAST)).collect()));
        assert_eq!(found, expected.collect(), "{when}: rows of each key that are visible, or will be");
    }

    /// A sink makes something appear.
    fn commit(&mut self, unit: Bytes) {
        assert!(self.prepared.contains(&unit), "{unit:?} appears, which no checkpoint has");
        let parsed: PreparedUnit = serde_json::from_slice(&unit).unwrap();
        let last = self.appeared.entry((parsed.run.clone(), parsed.copy)).or_default();
        if *last >= parsed.epoch {
            assert!(self.visible.contains_key(&unit), "{parsed:?} is taken for what has appeared: epoch {last} has");
            return;
        }
        *last = parsed.epoch;
        self.visible.insert(unit, parsed);
    }

    /// Writes a manifest as `PutMode::Create` does, whole or cut short. Returns whether it was not there.
    fn land(&mut self, manifest: &Manifest, whole: bool) -> bool {
        let bytes = manifest.encode();
        let len = if whole { bytes.len() } else { bytes.len() / 2 };
        let path = Path::from(format!("jobs/simulated/epochs/{:020}", manifest.epoch));
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let landed = at_once(self.objects.put_opts(&path, bytes[..len].to_vec().into(), options)).is_ok();
        if landed && whole {
            self.landed(manifest);
        }
        landed
    }

    /// The remedy for a place where no checkpoint was ever whole.
    fn clear(&mut self) {
        assert!(self.durable.is_none(), "no manifest can be read, and there has been a durable one");
        for epoch in at_once(self.store.epochs()).unwrap() {
            at_once(self.objects.delete(&Path::from(format!("jobs/simulated/epochs/{epoch:020}")))).unwrap();
        }
    }
}

/// Tells the story of a seed. Returns its steps, and how it came to its end.
fn story(seed: u64, tell: bool) -> (usize, OutsideWorld) {
    let mut random = SplitMix64::scattered(seed);
    let mut world = OutsideWorld::new(&mut random, tell);
    let mut jobs: Vec<SimulatedJob> = Vec::new();
    let mut step = 0;
    while !(world.done && jobs.is_empty()) {
        step += 1;
        world.faults = step < world.plan.faults_end;
        assert!(step < world.plan.faults_end + STEPS_MAX, "faults have stopped, and the job does not come to its end");
        let rival = jobs.len() == 1 && world.fault(world.plan.rival, &mut random);
        if rival || jobs.is_empty() {
            let started = SimulatedJob::start(&mut world, &mut random, |world, random| {
                for job in &mut jobs {
                    for _ in 0..random.below(40) {
                        if job.over().is_none() {
                            job.step(world, random);
                        }
                    }
                }
            });
            jobs.extend(started);
            continue;
        }
        if world.fault(3 * world.plan.crash, &mut random)
            && let Some(manifest) = world.late.pop()
        {
            let landed = world.land(&manifest, true);
            world.say(|| format!("{step}: manifest {} of a run that is gone lands: {landed}", manifest.epoch));
        }
        let at = random.below(jobs.len());
        if world.fault(world.plan.crash, &mut random) {
            world.say(|| format!("{step}: run {} crashes", jobs[at].run));
            jobs.swap_remove(at).crash(&mut world, &mut random);
            continue;
        }
        jobs[at].step(&mut world, &mut random);
        if let Some(how) = jobs[at].over() {
            world.say(|| format!("{step}: run {} is over: {how:?}", jobs[at].run));
            jobs.swap_remove(at).crash(&mut world, &mut random);
        }
    }
    let splits = world.plan.splits();
    world.check_rows(&world.visible, &[], world.plan.counts(&splits), true, "at the end");
    (step, world)
}

/// What fails here loses rows, or counts them twice, or hangs, when something fails at the wrong moment; the seed tells
/// it again.
#[test]
fn whatever_fails_every_row_counts_once() {
    if let Ok(seed) = std::env::var("SIMULATION_SEED") {
        let (steps, OutsideWorld { runs, moved, moved_together, moved_splits, overtaken, full, .. }) =
            story(seed.parse().expect("a seed is a number"), true);
        println!(
            "{steps} steps, {runs} runs, {moved} rebalances, {moved_together} of both tasks, {moved_splits} splits moved, \
             {overtaken} rows overtaken, sinks full {full} times"
        );
        return;
    }
    let (mut steps, mut runs, mut moved, mut together, mut splits) = (0, 0, 0, 0, 0);
    let (mut overtaken, mut full, mut early, mut settled) = (0, 0, 0, 0);
    let seeds = share_of_seeds(SEEDS);
    for seed in 0..seeds {
        let told = std::panic::catch_unwind(AssertUnwindSafe(|| story(seed, false)));
        let Ok((of_story, world)) = told else {
            panic!("seed {seed} fails: SIMULATION_SEED={seed} tells its story");
        };
        steps += of_story;
        runs += world.runs;
        moved += world.moved;
        together += world.moved_together;
        splits += world.moved_splits;
        overtaken += world.overtaken;
        full += world.full;
        early += world.early;
        settled += world.settled;
    }
    println!(
        "{seeds} seeds: {runs} runs, {steps} steps, {moved} rebalances, {together} of both tasks, {splits} splits \
         moved, {overtaken} rows overtaken, sinks full {full} times, {early} sinks done before others, {settled} times all was committed"
    );
    assert!(overtaken > 10 * seeds as usize, "hardly any row was overtaken");
    assert!(moved > seeds as usize, "hardly anything has moved");
    assert!(together > seeds as usize / 4, "hardly anything of both tasks has moved at once");
    assert!(splits > seeds as usize / 8, "hardly any split has moved");
    assert!(full > seeds as usize, "hardly any sink was full");
    assert!(early > seeds as usize / 10, "hardly any sink had nothing left while others went on");
    assert!(settled > seeds as usize / 2, "hardly any run has ended with all committed");
}
