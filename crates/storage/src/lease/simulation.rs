//! Several runs that want the same lease, in one thread. A seed determines a story; a tick is a millisecond. The
//! protocol and the store, an in-memory one, are the real ones. Clocks of runs show arbitrary times and are up to a
//! twentieth too fast or too slow. Requests and answers take time, get lost, or are executed long after the sender has
//! given up. Runs are killed, visibly to others or not, and are paused and resumed.
//!
//! At all times, at most one run holds the lease. And after the faults stop, some run does.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::FutureExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use tidemill_sim::{SplitMix64, share_of_seeds};

use super::client::ask_store;
use super::process::ProcessIdentity;
use super::protocol::{ClaimStep, LeaseClaimant, LeaseRecord, LeaseTerms, Now, StoreAnswer, StoreRequest};

/// Seeds in a full run of the test; see [`share_of_seeds`].
const SEEDS: u64 = 1500;
/// A tenth of the usual durations.
const TERMS: LeaseTerms = LeaseTerms {
    lasts: Duration::from_millis(150),
    held: Duration::from_millis(120),
    renew: Duration::from_millis(30),
    again: Duration::from_millis(5),
};
/// When a run gives up on a request.
const ANSWER_MAX: u64 = 100;
const FAULTS_END: u64 = 2500;
/// Long enough for late messages, for a run to start, and for it to wait for one that was killed.
const END: u64 = FAULTS_END + 1200;

/// A request, and when it will be executed.
struct PendingRequest {
    of: usize,
    number: u64,
    ask: StoreRequest,
    done_at: u64,
    answer_at: Option<u64>,
}

struct SimulatedRun {
    claimant: LeaseClaimant,
    /// The rate of its clock, in thousandths.
    rate: u64,
    began: u64,
    /// Whether others can see when it is killed.
    is_here: bool,
    stopped_until: u64,
    asked: Option<(u64, u64)>,
    over: bool,
}

impl SimulatedRun {
    fn now(&self, tick: u64) -> Now {
        Duration::from_micros((tick - self.began) * self.rate)
    }

    fn holds(&self, tick: u64, terms: LeaseTerms) -> bool {
        self.claimant.held().is_some_and(|held| self.now(tick) - held < terms.held)
    }
}

fn begin(number: usize, tick: u64, terms: LeaseTerms, random: &mut SplitMix64) -> SimulatedRun {
    SimulatedRun {
        claimant: LeaseClaimant::new(LeaseRecord::of(&number.to_string(), "job", ProcessIdentity::default()), terms),
        rate: 950 + random.below(101) as u64,
        began: tick,
        is_here: random.once_in(2),
        stopped_until: 0,
        asked: None,
        over: false,
    }
}

/// The outcome of a story.
#[derive(Debug, Default)]
struct SimulationCounts {
    runs: usize,
    takeovers: usize,
    refused: usize,
    lost: usize,
    given_back: usize,
    /// The tick at which two runs held the lease.
    two: Option<u64>,
    one_at_the_end: bool,
}

/// Frequency of faults: once in this many chances, never for 0.
struct FaultRates {
    lost: usize,
    killed: usize,
    stopped: usize,
    new: usize,
    back: usize,
}

/// A story in progress.
struct Story {
    random: SplitMix64,
    store: InMemory,
    path: Path,
    terms: LeaseTerms,
    /// Maximum delay of requests and answers.
    slow: usize,
    rates: FaultRates,
    runs: Vec<SimulatedRun>,
    asked: Vec<PendingRequest>,
    /// Number of requests so far.
    numbered: u64,
    /// Answers by run and request number: the arrival time, and the answer.
    answers: BTreeMap<(usize, u64), (u64, StoreAnswer)>,
    /// For killed runs: whether others can see it.
    gone: BTreeMap<String, bool>,
    /// The last holder.
    last: Option<usize>,
    counts: SimulationCounts,
}

fn story(seed: u64, terms: LeaseTerms) -> SimulationCounts {
    let mut story = Story::new(seed, terms);
    for tick in 0..END {
        story.begin_runs(tick);
        story.answer(tick);
        for at in 0..story.runs.len() {
            story.act(at, tick);
        }
        story.look(tick);
    }
    story.counts
}

impl Story {
    fn new(seed: u64, terms: LeaseTerms) -> Self {
        let mut random = SplitMix64::scattered(seed);
        let slow = 1 + random.one_of(&[1, 5, 40]);
        let rates: [&[usize]; 5] = [&[0, 5, 30], &[0, 300, 1000], &[0, 200], &[100, 500, 3000], &[0, 400]];
        let [lost, killed, stopped, new, back] = rates.map(|rates| random.one_of(rates));
        let runs = vec![begin(0, 0, terms, &mut random)];
        Story {
            random,
            store: InMemory::new(),
            path: Path::from("lease"),
            terms,
            slow,
            rates: FaultRates { lost, killed, stopped, new, back },
            runs,
            asked: Vec::new(),
            numbered: 0,
            answers: BTreeMap::new(),
            gone: BTreeMap::new(),
            last: None,
            counts: SimulationCounts { runs: 1, ..SimulationCounts::default() },
        }
    }

    /// Whether a fault with this frequency happens now.
    fn fault(&mut self, tick: u64, rate: usize) -> bool {
        tick < FAULTS_END && self.random.once_in(rate)
    }

    fn begin(&mut self, tick: u64) {
        self.runs.push(begin(self.runs.len(), tick, self.terms, &mut self.random));
    }

    /// Starts new runs now and then. At the end, the launcher restarts a run that was rejected because of a killed one.
    fn begin_runs(&mut self, tick: u64) {
        let is_new =
            if tick < FAULTS_END { self.random.once_in(self.rates.new) } else { self.runs.iter().all(|run| run.over) };
        if is_new {
            self.begin(tick);
            self.counts.runs += 1;
        }
    }

    /// Makes the store execute requests, in any order.
    fn answer(&mut self, tick: u64) {
        self.asked.sort_by_key(|asked| asked.done_at);
        while self.asked.first().is_some_and(|asked| asked.done_at <= tick) {
            let PendingRequest { of, number, ask, answer_at, .. } = self.asked.remove(0);
            let answer = ask_store(&self.store, &self.path, ask, false).now_or_never();
            let answer = answer.expect("at once").expect("it is in memory");
            if let Some(at) = answer_at {
                self.answers.insert((of, number), (at, answer));
            }
        }
    }

    /// Kills or pauses a run, delivers an answer to it, or lets it send a request.
    fn act(&mut self, at: usize, tick: u64) {
        if self.runs[at].over || self.runs[at].stopped_until > tick {
            return;
        }
        if self.fault(tick, self.rates.killed) {
            self.runs[at].over = true;
            self.gone.insert(at.to_string(), self.runs[at].is_here);
            return;
        }
        if self.fault(tick, self.rates.stopped) {
            self.runs[at].stopped_until = tick + self.random.below(400) as u64;
            return;
        }
        if let Some((number, since)) = self.runs[at].asked {
            self.hear(at, tick, number, since);
            return;
        }
        // It need not check at once.
        if self.random.once_in(3) {
            return;
        }
        if let Some(ask) = self.next_question(at, tick) {
            self.ask(at, tick, ask);
        }
    }

    /// Delivers the answer to a run's request, or makes it give up.
    fn hear(&mut self, at: usize, tick: u64, number: u64, since: u64) {
        let answer = if self.answers.get(&(at, number)).is_some_and(|(when, _)| *when <= tick) {
            self.answers.remove(&(at, number)).expect("it is there").1
        } else if tick - since > ANSWER_MAX {
            StoreAnswer::Failed("no answer".into())
        } else {
            return;
        };
        let run = &mut self.runs[at];
        run.asked = None;
        let now = run.now(tick);
        let gone = &self.gone;
        let is_gone =
            |record: Option<&LeaseRecord>| record.is_some_and(|record| gone.get(&record.owner) == Some(&true));
        run.claimant.on_answer(now, answer, is_gone);
    }

    /// A run's next request to the store, if any.
    fn next_question(&mut self, at: usize, tick: u64) -> Option<StoreRequest> {
        if tick < FAULTS_END && self.runs[at].claimant.held().is_some() && self.random.once_in(self.rates.back) {
            let run = &mut self.runs[at];
            let ask = run.claimant.give_back(0)?;
            run.over = true;
            self.counts.given_back += 1;
            return Some(ask);
        }
        let run = &mut self.runs[at];
        let now = run.now(tick);
        match run.claimant.step(now, 0) {
            ClaimStep::Ask(ask) => Some(ask),
            ClaimStep::Wait(_) => None,
            ClaimStep::Lost(_) => {
                run.over = true;
                let had = run.claimant.held().is_some();
                self.counts.lost += usize::from(had);
                self.counts.refused += usize::from(!had);
                None
            }
            // The launcher restarts it.
            ClaimStep::Failed(_) => {
                run.over = true;
                self.begin(tick);
                None
            }
        }
    }

    /// Sends a request. It may get lost, or its answer.
    fn ask(&mut self, at: usize, tick: u64, ask: StoreRequest) {
        self.numbered += 1;
        self.runs[at].asked = Some((self.numbered, tick));
        let done_at = tick + self.random.below(self.slow) as u64;
        let answer_at = done_at + self.random.below(self.slow) as u64;
        // Lost on the way; this may also mean very late.
        let late = if self.fault(tick, self.rates.lost) { self.random.below(600) as u64 } else { 0 };
        let answer_at = (late == 0 && !self.fault(tick, self.rates.lost)).then_some(answer_at);
        self.asked.push(PendingRequest { of: at, number: self.numbered, ask, done_at: done_at + late, answer_at });
    }

    /// Checks which run holds the lease.
    fn look(&mut self, tick: u64) {
        let holds = |at: &usize| !self.runs[*at].over && self.runs[*at].holds(tick, self.terms);
        let holders: Vec<usize> = (0..self.runs.len()).filter(holds).collect();
        if holders.len() > 1 {
            self.counts.two.get_or_insert(tick);
        }
        if let [holder] = holders[..]
            && self.last.replace(holder) != Some(holder)
        {
            self.counts.takeovers += 1;
        }
        // If answers are slow, a holder may lose the lease for a moment and get it back.
        self.counts.one_at_the_end |= holders.len() == 1 && tick + 300 > END;
    }
}

/// Two simultaneous holders would overwrite each other's checkpoints; and if no run could get the lease, no job would
/// resume.
#[test]
fn nobody_shares_the_place() {
    let seeds = match std::env::var("SIMULATION_SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("a seed is a number");
            seed..seed + 1
        }
        Err(_) => 0..share_of_seeds(SEEDS),
    };
    let single = seeds.end - seeds.start == 1;
    let mut all = SimulationCounts::default();
    for seed in seeds {
        let told = story(seed, TERMS);
        assert_eq!(told.two, None, "seed {seed}: {told:?}");
        assert!(told.one_at_the_end, "seed {seed}: nobody holds the place at the end: {told:?}");
        all.runs += told.runs;
        all.takeovers += told.takeovers;
        all.refused += told.refused;
        all.lost += told.lost;
        all.given_back += told.given_back;
    }
    println!("{all:?}");
    let enough = share_of_seeds(SEEDS) as usize;
    assert!(single || [all.takeovers, all.refused].iter().all(|&count| count > enough), "{all:?}");
    assert!(single || [all.lost, all.given_back].iter().all(|&count| count > enough / 10), "{all:?}");
}

/// The test would notice: holders that rely on their last write for longer than others wait.
#[test]
fn terms_that_are_wrong_are_found_out() {
    let terms = LeaseTerms { held: TERMS.lasts * 2, ..TERMS };
    assert!((0..SEEDS).any(|seed| story(seed, terms).two.is_some()));
}
