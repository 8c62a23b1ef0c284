//! Several runs that want one place, in one thread: one seed is one story, a tick a millisecond of it. The protocol and
//! the store, one in memory, are the real ones. Clocks of runs show anything and are up to a twentieth too fast or too
//! slow; questions and answers take their time, get lost, or are done when whoever asked has long given up; runs are
//! killed, where others may see it or not, and stopped for a while, and go on.
//!
//! Always: no two hold the place. And when faults stop, somebody does.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::FutureExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use tidemill_sim::{SplitMix64, share_of_seeds};

use super::asker::ask_store;
use super::process::Process;
use super::protocol::{ClaimStep, Claimant, LeaseRecord, LeaseTerms, Now, StoreAnswer, StoreRequest};

/// Seeds of a whole run of the test; see [`share_of_seeds`].
const SEEDS: u64 = 1500;
/// With a tenth of the usual times.
const TERMS: LeaseTerms = LeaseTerms {
    lasts: Duration::from_millis(150),
    held: Duration::from_millis(120),
    renew: Duration::from_millis(30),
    again: Duration::from_millis(5),
};
/// When a run gives a question up.
const ANSWER_MAX: u64 = 100;
const FAULTS_END: u64 = 2500;
/// Long enough for what comes late, for a run to begin, and for it to wait for one that was killed.
const END: u64 = FAULTS_END + 1200;

/// What was asked, and when it will be done.
struct Asked {
    of: usize,
    number: u64,
    ask: StoreRequest,
    done_at: u64,
    answer_at: Option<u64>,
}

struct Run {
    claimant: Claimant,
    /// Its clock runs at so many thousandths.
    rate: u64,
    began: u64,
    /// Whether others see when it is killed.
    is_here: bool,
    stopped_until: u64,
    asked: Option<(u64, u64)>,
    over: bool,
}

impl Run {
    fn now(&self, tick: u64) -> Now {
        Duration::from_micros((tick - self.began) * self.rate)
    }

    fn holds(&self, tick: u64, terms: LeaseTerms) -> bool {
        self.claimant.held().is_some_and(|held| self.now(tick) - held < terms.held)
    }
}

fn begin(number: usize, tick: u64, terms: LeaseTerms, random: &mut SplitMix64) -> Run {
    Run {
        claimant: Claimant::new(LeaseRecord::of(&number.to_string(), "job", Process::default()), terms),
        rate: 950 + random.below(101) as u64,
        began: tick,
        is_here: random.once_in(2),
        stopped_until: 0,
        asked: None,
        over: false,
    }
}

/// What has come of a story.
#[derive(Debug, Default)]
struct SimulationCounts {
    runs: usize,
    takeovers: usize,
    refused: usize,
    lost: usize,
    given_back: usize,
    /// Two have held the place, at this tick.
    two: Option<u64>,
    one_at_the_end: bool,
}

fn story(seed: u64, terms: LeaseTerms) -> SimulationCounts {
    let mut random = SplitMix64::scattered(seed);
    let (store, path) = (InMemory::new(), Path::from("lease"));
    let slow = 1 + random.one_of(&[1, 5, 40]);
    let rates: [&[usize]; 5] = [&[0, 5, 30], &[0, 300, 1000], &[0, 200], &[100, 500, 3000], &[0, 400]];
    let [lost, killed, stopped, new, back] = rates.map(|rates| random.one_of(rates));
    let mut runs = vec![begin(0, 0, terms, &mut random)];
    let mut asked: Vec<Asked> = Vec::new();
    // Of runs that are no more: whether it can be seen.
    let mut gone: BTreeMap<String, bool> = BTreeMap::new();
    let (mut told, mut last, mut numbered) = (SimulationCounts { runs: 1, ..SimulationCounts::default() }, None, 0);
    let mut answers: BTreeMap<(usize, u64), (u64, StoreAnswer)> = BTreeMap::new();
    for tick in 0..END {
        let faults = tick < FAULTS_END;
        // Who is refused by what a run that was killed had still written is started again.
        if if faults { random.once_in(new) } else { runs.iter().all(|run| run.over) } {
            runs.push(begin(runs.len(), tick, terms, &mut random));
            told.runs += 1;
        }
        // The store does what it was asked, in any order.
        asked.sort_by_key(|asked| asked.done_at);
        while asked.first().is_some_and(|asked| asked.done_at <= tick) {
            let Asked { of, number, ask, answer_at, .. } = asked.remove(0);
            let answer =
                ask_store(&store, &path, ask, false).now_or_never().expect("at once").expect("it is in memory");
            if let Some(at) = answer_at {
                answers.insert((of, number), (at, answer));
            }
        }
        for at in 0..runs.len() {
            if runs[at].over || runs[at].stopped_until > tick {
                continue;
            }
            if faults && random.once_in(killed) {
                runs[at].over = true;
                gone.insert(at.to_string(), runs[at].is_here);
                continue;
            }
            if faults && random.once_in(stopped) {
                runs[at].stopped_until = tick + random.below(400) as u64;
                continue;
            }
            let run = &mut runs[at];
            let now = run.now(tick);
            if let Some((number, since)) = run.asked {
                let come = answers.get(&(at, number)).is_some_and(|(when, _)| *when <= tick);
                let answer = if come {
                    answers.remove(&(at, number)).expect("it is there").1
                } else if tick - since > ANSWER_MAX {
                    StoreAnswer::Failed("no answer".into())
                } else {
                    continue;
                };
                run.asked = None;
                let is_gone =
                    |record: Option<&LeaseRecord>| record.is_some_and(|record| gone.get(&record.owner) == Some(&true));
                run.claimant.heard(now, answer, is_gone);
                continue;
            }
            // It need not look at once.
            if random.once_in(3) {
                continue;
            }
            let ask = if faults && run.claimant.held().is_some() && random.once_in(back) {
                let Some(ask) = run.claimant.give_back(0) else { continue };
                told.given_back += 1;
                run.over = true;
                ask
            } else {
                match run.claimant.step(now, 0) {
                    ClaimStep::Ask(ask) => ask,
                    ClaimStep::Wait(_) => continue,
                    ClaimStep::Lost(_) => {
                        run.over = true;
                        told.lost += usize::from(run.claimant.held().is_some());
                        told.refused += usize::from(run.claimant.held().is_none());
                        continue;
                    }
                    // The launcher starts it again.
                    ClaimStep::Failed(_) => {
                        run.over = true;
                        let number = runs.len();
                        runs.push(begin(number, tick, terms, &mut random));
                        continue;
                    }
                }
            };
            numbered += 1;
            run.asked = Some((numbered, tick));
            let mut after = |least: u64| least + random.below(slow) as u64;
            let done_at = after(tick);
            let answer_at = after(done_at);
            let is_lost = |random: &mut SplitMix64| faults && random.once_in(lost);
            // Lost on its way there: that may also mean very late.
            let late = if is_lost(&mut random) { random.below(600) as u64 } else { 0 };
            let answer_at = (late == 0 && !is_lost(&mut random)).then_some(answer_at);
            asked.push(Asked { of: at, number: numbered, ask, done_at: done_at + late, answer_at });
        }
        let holders: Vec<usize> = (0..runs.len()).filter(|&at| !runs[at].over && runs[at].holds(tick, terms)).collect();
        if holders.len() > 1 {
            told.two.get_or_insert(tick);
        }
        if let [holder] = holders[..]
            && last.replace(holder) != Some(holder)
        {
            told.takeovers += 1;
        }
        // Where answers take long a holder may lose it for a moment, and get it back.
        told.one_at_the_end |= holders.len() == 1 && tick + 300 > END;
    }
    told
}

/// Two that hold the place at once write over each other's checkpoints; if nobody can get it a job never goes on.
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

/// That would have been noticed: holders that count on what they have written for longer than others wait.
#[test]
fn terms_that_are_wrong_are_found_out() {
    let terms = LeaseTerms { held: TERMS.lasts * 2, ..TERMS };
    assert!((0..SEEDS).any(|seed| story(seed, terms).two.is_some()));
}
