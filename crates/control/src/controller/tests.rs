//! A fluid model of a keyed job: sources send to all buckets and are as fast as the slowest receiver lets them.

use super::*;
use crate::{
    layout::{HostLayout, TaskLayout, TaskRole},
    sample::{BucketCounters, LinkCounters, TaskCounters, TcpCounters},
    testing::{Random, random_layout, random_samples},
};

const HOSTS: usize = 8;
const BUCKETS: usize = 256;
/// The rate of a link, in bytes per second.
const LINK: f64 = 2e6;
const ROW_BYTES: f64 = 100.0;
const TICK_S: f64 = 0.25;
const TICKS: usize = 4;

struct Fluid {
    layout: ClusterLayout,
    /// The fraction of all rows, by bucket.
    shares: Vec<f64>,
    inbound: Vec<f64>,
    /// What all sources have to send, in bytes per second.
    offered: f64,
    noise: f64,
    random: Random,
    now_s: f64,
    counters: Vec<WorkerSample>,
    /// Exact counts, by worker and then by bucket or peer.
    sent: Vec<Vec<f64>>,
    sent_to: Vec<Vec<f64>>,
    /// A move in progress: when it ends, and the new owners.
    moving: Option<(f64, Owners)>,
    /// The result to report when a move ends.
    answer: Result<(), String>,
    /// The times of actions.
    actions_s: Vec<f64>,
    /// How many bytes have passed.
    done: f64,
}

impl Fluid {
    fn new(seed: u64, offered: f64) -> Self {
        println!("seed {seed}");
        let mut random = Random(seed);
        let sizes: Vec<f64> = (0..BUCKETS).map(|_| 0.5 + random.share()).collect();
        let all: f64 = sizes.iter().sum();
        let task = |role, owners: Vec<u32>| TaskLayout {
            name: "task".to_owned(),
            role,
            copy_workers: (0..HOSTS as u32).collect(),
            state_bytes: vec![100; owners.len()],
            owners,
            ..TaskLayout::default()
        };
        let owners = (0..BUCKETS).map(|bucket| (bucket * HOSTS / BUCKETS) as u32).collect();
        Self {
            layout: ClusterLayout {
                hosts: (0..HOSTS)
                    .map(|host| HostLayout { name: format!("host{host}"), cores: 2.0, drained: false })
                    .collect(),
                worker_hosts: (0..HOSTS as u32).collect(),
                tasks: vec![task(TaskRole::Source, Vec::new()), task(TaskRole::Step, owners)],
                ..ClusterLayout::default()
            },
            shares: sizes.iter().map(|size| size / all).collect(),
            inbound: vec![LINK; HOSTS],
            offered,
            noise: 0.0,
            random,
            now_s: 0.0,
            counters: (0..HOSTS).map(blank).collect(),
            sent: vec![vec![0.0; BUCKETS]; HOSTS],
            sent_to: vec![vec![0.0; HOSTS]; HOSTS],
            moving: None,
            answer: Ok(()),
            actions_s: Vec::new(),
            done: 0.0,
        }
    }

    /// The fraction of all rows that goes to each host.
    fn host_shares(&self) -> Vec<f64> {
        let mut shares = vec![0.0; HOSTS];
        for (owner, share) in self.layout.tasks[1].owners.iter().zip(&self.shares) {
            shares[*owner as usize] += share;
        }
        shares
    }

    /// What links allow with an ideal assignment of buckets, in bytes per second.
    fn possible(&self) -> f64 {
        let hosts = HOSTS as f64;
        (self.inbound.iter().sum::<f64>() * hosts / (hosts - 1.0)).min(self.offered)
    }

    fn tick(&mut self) {
        let shares = self.host_shares();
        let crossing = (HOSTS as f64 - 1.0) / HOSTS as f64;
        let noise = 1.0 + self.noise * (2.0 * self.random.share() - 1.0);
        let wanted = self.offered * noise;
        let most = shares.iter().zip(&self.inbound).map(|(share, link)| link / (share * crossing).max(1e-9));
        let mut rate = most.fold(wanted, f64::min);
        if self.moving.is_some() {
            rate *= 0.2;
        }
        self.done += rate * TICK_S;
        self.now_s += TICK_S;
        let blocked = (1.0 - rate / wanted).max(0.0);
        let full: Vec<f64> = (0..HOSTS).map(|host| rate * shares[host] * crossing / self.inbound[host]).collect();
        let ns = |share: f64| (share * TICK_S * 1e9) as u64;
        for (from, sample) in self.counters.iter_mut().enumerate() {
            sample.at_ns += ns(1.0);
            sample.buckets_at_ns = sample.at_ns;
            sample.cpu_ns += ns(0.2);
            for (bucket, owner) in self.layout.tasks[1].owners.iter().enumerate() {
                let bytes = rate / HOSTS as f64 * self.shares[bucket] * TICK_S;
                self.sent[from][bucket] += bytes;
                sample.buckets[bucket].bytes = self.sent[from][bucket] as u64;
                sample.buckets[bucket].rows = (self.sent[from][bucket] / ROW_BYTES) as u64;
                if *owner as usize == from {
                    sample.buckets[bucket].work_ns += (bytes * HOSTS as f64 * 20.0) as u64;
                }
                self.sent_to[from][*owner as usize] += bytes;
            }
            for link in &mut sample.links {
                let to = link.peer as usize;
                link.sent_bytes = self.sent_to[from][to] as u64;
                // Acknowledgments for what a host sends arrive over its full link.
                let busy = full[to].powi(8).max(if full[from] > 0.98 { 0.6 } else { 0.0 });
                link.busy_ns += ns(busy);
                link.link_wait_ns += if full[to] > 0.98 { ns(blocked) } else { ns(0.1 * blocked * busy) };
                link.tcp = Some(TcpCounters { app_limited: busy < 0.5, ..TcpCounters::default() });
            }
            sample.tasks[0].rows_out = (self.sent[from].iter().sum::<f64>() / ROW_BYTES) as u64;
            sample.tasks[0].blocked_ns += ns(blocked);
            sample.tasks[0].busy_ns += ns(0.1);
            sample.tasks[1].busy_ns += ns(0.1);
        }
    }

    /// Runs for `seconds`, calling `change` every second.
    fn run(&mut self, controller: &mut Controller, seconds: usize, mut change: impl FnMut(&mut Self)) {
        for tick in 0..seconds * TICKS {
            if tick % TICKS == 0 {
                change(self);
            }
            self.tick();
            if let Some((_, owners)) = self.moving.take_if(|(end_s, _)| *end_s <= self.now_s) {
                for (task, owners) in owners.into_iter().filter(|_| self.answer.is_ok()) {
                    self.layout.tasks[task as usize].owners = owners;
                }
                controller.moved(self.now_s, self.answer.clone());
            }
            if tick % 2 == 0 {
                for Action::Move(owners) in controller.step(self.now_s, &self.layout, &self.counters) {
                    self.actions_s.push(self.now_s);
                    self.moving = Some((self.now_s + 0.3, owners));
                }
            }
        }
    }

    /// The mean rate over `seconds`.
    fn rate_over(&mut self, controller: &mut Controller, seconds: usize) -> f64 {
        let before = self.done;
        self.run(controller, seconds, |_| {});
        (self.done - before) / seconds as f64
    }
}

fn blank(worker: usize) -> WorkerSample {
    WorkerSample {
        worker: worker as u32,
        // Each worker has its own clock.
        at_ns: 1_000_000 * worker as u64,
        links: (0..HOSTS as u32)
            .filter(|peer| *peer != worker as u32)
            .map(|peer| LinkCounters { peer, ..LinkCounters::default() })
            .collect(),
        tasks: (0..2).map(|task| TaskCounters { task, copies: 1, ..TaskCounters::default() }).collect(),
        buckets: (0..BUCKETS as u32)
            .map(|bucket| BucketCounters { task: 1, bucket, ..BucketCounters::default() })
            .collect(),
        ..WorkerSample::default()
    }
}

fn controller(mode: Mode) -> Controller {
    Controller::new(mode, Limits::default())
}

fn print(controller: &Controller) {
    for decision in controller.report().decisions {
        println!(
            "{:.1} s: {:?}, {:+.2} of {:+.2}: {}",
            decision.at_s,
            decision.outcome,
            decision.measured.unwrap_or(f64::NAN),
            decision.predicted,
            decision.sentence
        );
    }
}

/// The published run: one host's inbound link at 40 %, then at 20 %, then free again.
#[test]
fn goes_around_a_link_that_changes() {
    for seed in 0..3 {
        let (mut job, mut controller) = (Fluid::new(seed, 100e6), controller(Mode::On));
        job.run(&mut controller, 60, |_| {});
        assert_eq!(job.actions_s, [], "nothing is wrong yet");
        for share in [0.4, 0.2, 1.0] {
            let (begin_s, actions) = (job.now_s, job.actions_s.len());
            job.inbound[3] = share * LINK;
            job.run(&mut controller, 25, |_| {});
            let rate = job.rate_over(&mut controller, 100);
            print(&controller);
            println!("{share}: {:.2} of what is possible, actions {:?}", rate / job.possible(), job.actions_s);
            assert!(rate >= 0.9 * job.possible(), "{share}: {rate} of {}", job.possible());
            if share < 1.0 {
                let first_s = job.actions_s.get(actions).expect("an action") - begin_s;
                assert!((1.5..=4.0).contains(&first_s), "acts after {first_s} s");
            }
        }
        assert!(job.actions_s.len() <= 8, "{:?}", job.actions_s);
    }
}

/// If nothing is wrong, every action costs something and gains nothing.
#[test]
fn leaves_alone_what_is_well() {
    for (seed, noise) in [(1, 0.0), (2, 0.1), (3, 0.6)] {
        for offered in [0.4 * LINK * HOSTS as f64, 100e6] {
            let (mut job, mut controller) = (Fluid::new(seed, offered), controller(Mode::On));
            job.noise = noise;
            job.run(&mut controller, 300, |_| {});
            print(&controller);
            assert_eq!(job.actions_s, []);
        }
    }
}

/// A source that has less to send is not a fault, nor is one that has more again.
#[test]
fn leaves_sources_alone_that_have_less() {
    let (mut job, mut controller) = (Fluid::new(4, 0.5 * LINK * HOSTS as f64), controller(Mode::On));
    let full = job.offered;
    for share in [1.0, 0.3, 0.8, 0.1, 1.0] {
        job.offered = share * full;
        job.run(&mut controller, 60, |_| {});
    }
    print(&controller);
    assert_eq!(job.actions_s, []);
}

/// Links whose bandwidth walks at random: the controller may follow, but must neither oscillate nor lose throughput.
fn walk(seed: u64, seconds: usize) {
    let mut done = [0.0; 2];
    for (done, mode) in done.iter_mut().zip([Mode::Off, Mode::On]) {
        let (mut job, mut controller) = (Fluid::new(seed, 100e6), controller(mode));
        let mut walk = Random(seed + 100);
        job.run(&mut controller, seconds, |job| {
            for link in &mut job.inbound {
                *link = (*link * (0.1 * (walk.share() - 0.5)).exp()).clamp(0.2 * LINK, LINK);
            }
        });
        *done = job.done;
        print(&controller);
        assert!(job.actions_s.len() < 20, "{} actions", job.actions_s.len());
    }
    println!("{:.2} times what the static job does", done[1] / done[0]);
    assert!(done[1] >= 0.98 * done[0]);
}

#[test]
fn follows_a_random_walk_without_swinging() {
    walk(0, 600);
}

#[test]
#[ignore = "hours of a job take a minute"]
fn follows_random_walks_for_hours() {
    for seed in 0..2 {
        walk(seed, 3600);
    }
}

/// Advice comes once, not at every step.
#[test]
fn advises_without_acting() {
    let (mut job, mut controller) = (Fluid::new(5, 100e6), controller(Mode::Advise));
    job.run(&mut controller, 20, |_| {});
    job.inbound[3] = 0.3 * LINK;
    job.run(&mut controller, 50, |_| {});
    let report = controller.report();
    print(&controller);
    assert_eq!(job.actions_s, []);
    assert_eq!(report.decisions.len(), 1);
    assert_eq!(report.decisions[0].outcome, Outcome::Advised);
    assert_eq!((report.causes[0].kind, report.causes[0].host), (CauseKind::Inbound, Some(3)));
    assert_eq!(report.tasks[1].buckets.as_ref().unwrap().hosts.len(), BUCKETS);
}

/// A move that makes things worse is undone, and the next one waits longer.
#[test]
fn takes_back_what_was_worse() {
    let (mut job, mut controller) = (Fluid::new(6, 100e6), controller(Mode::On));
    job.run(&mut controller, 20, |_| {});
    let before = job.layout.tasks[1].owners.clone();
    job.inbound[3] = 0.65 * LINK;
    // After its action all links become slower, and none of them at a moment.
    job.run(&mut controller, 20, |job| {
        if job.layout.tasks[1].owners != before {
            job.inbound.iter_mut().for_each(|link| *link = (0.88 * *link).max(0.2 * LINK));
        }
    });
    print(&controller);
    assert_eq!(controller.report().decisions[0].outcome, Outcome::RolledBack);
    assert_eq!(job.layout.tasks[1].owners, before);
    assert_eq!(job.actions_s.len(), 2);
}

/// The rate before a move says nothing once another link has become slower: going back would make it worse, and the
/// controller would do nothing for a minute.
#[test]
fn keeps_a_move_after_which_another_link_became_slower() {
    for seed in 0..3 {
        let (mut job, mut controller) = (Fluid::new(seed, 100e6), controller(Mode::On));
        job.run(&mut controller, 30, |_| {});
        job.inbound[3] = 0.4 * LINK;
        job.run(&mut controller, 5, |_| {});
        assert_eq!(job.actions_s.len(), 1, "{:?}", job.actions_s);
        job.inbound[5] = 0.2 * LINK;
        job.run(&mut controller, 25, |_| {});
        let rate = job.rate_over(&mut controller, 5);
        print(&controller);
        println!("{:.2} of what is possible", rate / job.possible());
        let report = controller.report();
        assert!(report.decisions.iter().all(|decision| decision.outcome != Outcome::RolledBack));
        assert_eq!((report.decisions[0].outcome.clone(), report.decisions[0].measured), (Outcome::Kept, None));
        assert!(rate >= 0.85 * job.possible(), "{rate} of {}", job.possible());
    }
}

/// All links become slower after a move, the one it went around as much as the others: the rate falls, but the previous
/// owners would do worse still.
#[test]
fn keeps_a_move_when_all_becomes_slower() {
    for seed in 0..3 {
        let (mut job, mut controller) = (Fluid::new(seed, 100e6), controller(Mode::On));
        job.run(&mut controller, 20, |_| {});
        let before = job.layout.tasks[1].owners.clone();
        job.inbound[3] = 0.65 * LINK;
        let mut slower = 1.0;
        job.run(&mut controller, 20, |job| {
            if job.layout.tasks[1].owners != before && slower > 0.45 {
                slower *= 0.88;
                job.inbound.iter_mut().for_each(|link| *link *= 0.88);
            }
        });
        print(&controller);
        let decisions = controller.report().decisions;
        assert_eq!(decisions[0].outcome, Outcome::Kept);
        assert!(decisions[0].measured.is_none_or(|gain| gain < -MUCH_WORSE), "{:?}", decisions[0].measured);
    }
}

/// A failed move is reported, and not retried at once.
#[test]
fn waits_after_a_failure() {
    let (mut job, mut controller) = (Fluid::new(7, 100e6), controller(Mode::On));
    job.run(&mut controller, 20, |_| {});
    job.inbound[3] = 0.3 * LINK;
    job.answer = Err("the checkpoint failed".to_owned());
    job.run(&mut controller, 60, |_| {});
    let decisions = controller.report().decisions;
    assert_eq!(decisions[0].outcome, Outcome::Failed("the checkpoint failed".to_owned()));
    assert_eq!(decisions.len(), 1);
}

/// Whatever layouts and samples contain, worker 0 must not fail.
#[test]
fn takes_any_input() {
    for seed in 0..300 {
        println!("seed {seed}");
        let mut random = Random(seed);
        let mut controller = controller(Mode::On);
        let mut now_s = 0.0;
        for _ in 0..20 {
            now_s += random.share() * 3.0;
            let layout = random_layout(&mut random);
            controller.step(now_s, &layout, &random_samples(&mut random));
            if random.below(2) == 0 {
                controller.moved(now_s, if random.below(2) == 0 { Ok(()) } else { Err("no".to_owned()) });
            }
            controller.report();
        }
    }
}
