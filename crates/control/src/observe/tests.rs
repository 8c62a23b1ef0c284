use super::*;
use crate::{
    layout::{HostLayout, TaskLayout},
    sample::{BucketCounters, HeavyKey, LinkCounters, TcpCounters},
    testing::Random,
};

const SECOND: f64 = 1e9;

fn layout_of(hosts: u32) -> ClusterLayout {
    let task = |role, owners: Vec<u32>| TaskLayout {
        role,
        copy_workers: (0..hosts).collect(),
        owners,
        ..TaskLayout::default()
    };
    ClusterLayout {
        hosts: (0..hosts).map(|host| HostLayout { name: format!("host{host}"), cores: 2.0, drained: false }).collect(),
        worker_hosts: (0..hosts).collect(),
        tasks: vec![
            task(TaskRole::Source, Vec::new()),
            task(TaskRole::Step, (0..8).map(|bucket| bucket % hosts).collect()),
        ],
        ..ClusterLayout::default()
    }
}

/// Samples after `s` seconds at steady rates: `flow(from, to)` gives bytes per second and whether the link is full.
fn samples_at(hosts: u32, s: f64, flow: &dyn Fn(u32, u32) -> (f64, bool)) -> Vec<WorkerSample> {
    let sample = |worker: u32| {
        let peers = (0..hosts).filter(|peer| *peer != worker);
        let links = peers.map(|peer| {
            let (bytes_s, full) = flow(worker, peer);
            LinkCounters {
                peer,
                sent_bytes: (bytes_s * s) as u64,
                busy_ns: (s * SECOND * if full { 0.9 } else { 0.1 }) as u64,
                link_wait_ns: (s * SECOND * if full { 0.7 } else { 0.0 }) as u64,
                tcp: Some(TcpCounters { app_limited: !full, rtt_us: 300, ..TcpCounters::default() }),
                ..LinkCounters::default()
            }
        });
        let count = |per_s: f64| (per_s * s) as u64;
        WorkerSample {
            worker,
            at_ns: count(SECOND),
            cpu_ns: count(0.5 * SECOND),
            cpu_wait_ns: count(0.1 * SECOND),
            links: links.collect(),
            tasks: vec![
                TaskCounters {
                    task: 0,
                    copies: 1,
                    blocked_ns: count(0.7 * SECOND),
                    rows_out: count(1000.0),
                    ..TaskCounters::default()
                },
                TaskCounters {
                    task: 1,
                    copies: 1,
                    busy_ns: count(0.2 * SECOND),
                    rows_in: count(900.0),
                    ..TaskCounters::default()
                },
            ],
            buckets_at_ns: count(SECOND),
            buckets: vec![BucketCounters {
                task: 1,
                bucket: worker,
                rows: count(10.0),
                bytes: count(500.0),
                work_ns: count(0.3 * SECOND),
            }],
            heavy_keys: vec![HeavyKey { task: 1, bucket: 2, key: "a".to_owned(), rows: 30, all_rows: 100 }],
        }
    };
    (0..hosts).map(sample).collect()
}

fn observed(hosts: u32, flow: &dyn Fn(u32, u32) -> (f64, bool)) -> Rates {
    let (layout, mut observer) = (layout_of(hosts), Observer::new());
    for half in 1..20 {
        let s = f64::from(half) / 2.0;
        observer.add(s, &layout, &samples_at(hosts, s, flow));
    }
    observer.rates().clone()
}

#[test]
fn counts_rates() {
    let rates = observed(3, &|_, _| (100.0, false));
    let near = |a: f64, b: f64| assert!((a - b).abs() < 0.01 * b, "{a} is not {b}");
    near(rates.hosts[1].cpus_used, 0.5);
    near(rates.hosts[1].in_bytes_s, 200.0);
    near(rates.links[0].busy, 0.1);
    near(rates.tasks[0].workers[2].blocked, 0.7);
    near(rates.tasks[0].workers[2].rows_s, 1000.0);
    near(rates.tasks[1].workers[2].rows_s, 900.0);
    near(rates.source_rows_s, 3000.0);
    near(rates.tasks[1].work[2], 0.3);
    near(rates.tasks[1].sent_bytes_s[2 * 3 + 2], 500.0);
    assert_eq!(rates.tasks[1].sent_bytes_s[2 * 3], 0.0);
    near(rates.tasks[1].heavy_keys[0].share, 0.3);
    assert_eq!(rates.hosts[0].in_capacity, None);
    assert_eq!(rates.links[0].rtt_us, Some(300));
}

/// Workers that send nothing of a heavy key, or send more rows than others, change its share of all rows.
#[test]
fn shares_of_keys_are_of_the_rows_of_all_workers() {
    let (layout, mut observer) = (layout_of(4), Observer::new());
    for half in 1..20 {
        let s = f64::from(half) / 2.0;
        let mut samples = samples_at(4, s, &|_, _| (100.0, false));
        for sample in &mut samples {
            sample.heavy_keys.retain_mut(|key| {
                key.rows = 50;
                sample.worker >= 2
            });
            sample.buckets[0].rows *= if sample.worker == 3 { 5 } else { 1 };
        }
        observer.add(s, &layout, &samples);
    }
    let keys = &observer.rates().tasks[1].heavy_keys;
    assert!(keys.len() == 1 && (keys[0].share - (0.5 + 0.5 * 5.0) / 8.0).abs() < 0.01, "{keys:?}");
}

/// Acknowledgments for what a host sends arrive over its inbound link, so its outbound traffic looks slow too.
#[test]
fn blames_the_inbound_link_first() {
    let rates = observed(4, &|from, to| (100.0, to == 2 || from == 2));
    let full: Vec<bool> = rates.limits.iter().map(|limits| limits.in_full).collect();
    assert_eq!(full, [false, false, true, false]);
    assert!(rates.limits.iter().all(|limits| !limits.out_full));
    assert!(rates.hosts[2].in_capacity.is_some_and(|bytes_s| (bytes_s - 300.0).abs() < 3.0));
    assert!(rates.link_full.iter().all(|full| !full));
}

#[test]
fn tells_outbound_links_and_pairs() {
    let outbound = observed(4, &|from, _| (100.0, from == 2));
    assert!(outbound.limits[2].out_full && outbound.limits.iter().all(|limits| !limits.in_full));
    assert!(outbound.hosts[2].out_capacity.is_some());
    let pair = observed(4, &|from, to| (100.0, (from, to) == (1, 3)));
    assert!(pair.limits.iter().all(|limits| !limits.in_full && !limits.out_full));
    let full = pair.links.iter().zip(&pair.link_full).filter(|(_, full)| **full).map(|(link, _)| (link.from, link.to));
    assert_eq!(full.collect::<Vec<_>>(), [(1, 3)]);
    // With only two hosts, nobody can tell which side is full.
    let two = observed(2, &|from, _| (100.0, from == 0));
    assert!(two.link_full[0] && !two.limits[1].in_full && !two.limits[0].out_full);
}

#[test]
fn forgets_what_may_have_changed() {
    let mut capacity = Capacity::default();
    capacity.update(0.0, 100.0, 0.9, true);
    capacity.update(1.0, 120.0, 0.8, false);
    assert_eq!(capacity.value(), Some(120.0));
    capacity.update(55.0, 50.0, 0.0, false);
    assert_eq!(capacity.value(), Some(120.0));
    capacity.update(62.0, 50.0, 0.0, false);
    assert_eq!(capacity.value(), None);
    assert!(capacity.peak() > 100.0);
    // As much traffic without a queue means that the link carries more.
    capacity.update(63.0, 100.0, 0.9, true);
    for s in 64..71 {
        capacity.update(f64::from(s), 98.0, 0.0, false);
    }
    assert_eq!(capacity.value(), None);
}

/// On a host whose CPUs others take, buckets would seem to need more than any host has, and nothing would move away.
#[test]
fn work_is_what_a_cpu_was_there_for() {
    let (layout, mut observer) = (layout_of(2), Observer::new());
    for half in 1..20 {
        let mut samples = samples_at(2, f64::from(half) / 2.0, &|_, _| (100.0, false));
        // Worker 1 has work for all of a second, and a tenth of a CPU.
        samples[1].buckets[0].work_ns = samples[1].at_ns;
        (samples[1].cpu_ns, samples[1].cpu_wait_ns) = (samples[1].at_ns / 10, samples[1].at_ns * 9 / 10);
        observer.add(f64::from(half) / 2.0, &layout, &samples);
    }
    let work = &observer.rates().tasks[1].work;
    assert!((work[0] - 0.3).abs() < 0.01 && (work[1] - 0.1).abs() < 0.01, "{work:?}");
}

/// Buckets are reported with every other sample: rates over the time of the samples would differ from host to host.
#[test]
fn rates_of_buckets_cover_the_time_between_their_readings() {
    let (layout, mut observer) = (layout_of(2), Observer::new());
    for half in 1..20 {
        let at = |half: i32| samples_at(2, f64::from(half) / 2.0, &|_, _| (100.0, false));
        let (mut samples, last) = (at(half), at(half - half % 2));
        samples[1].buckets.clone_from(&last[1].buckets);
        samples[1].buckets_at_ns = last[1].buckets_at_ns;
        observer.add(f64::from(half) / 2.0, &layout, &samples);
        let rows_s = &observer.rates().tasks[1].rows_s;
        assert!(half < 6 || (rows_s[1] - 10.0).abs() < 0.1, "{half}: {rows_s:?}");
    }
}

/// Counters that restart from zero must give neither negative nor huge rates.
#[test]
fn takes_counters_that_begin_again() {
    let (layout, mut observer) = (layout_of(2), Observer::new());
    let flow = |_, _| (100.0, false);
    for s in [1.0, 2.0, 3.0] {
        observer.add(s, &layout, &samples_at(2, s, &flow));
    }
    observer.add(4.0, &layout, &samples_at(2, 0.5, &flow));
    observer.add(5.0, &layout, &samples_at(2, 1.5, &flow));
    assert!((observer.rates().source_rows_s - 2000.0).abs() < 20.0);
    observer.add(30.0, &layout, &[]);
    assert_eq!(observer.rates().source_rows_s, 0.0, "silent workers no longer count");
}

/// Whatever workers send, worker 0 must not fail.
#[test]
fn takes_any_input() {
    for seed in 0..300 {
        println!("seed {seed}");
        let mut random = Random(seed);
        let mut observer = Observer::new();
        for _ in 0..10 {
            let layout = crate::testing::random_layout(&mut random);
            let samples = crate::testing::random_samples(&mut random);
            observer.add(random.share() * 100.0, &layout, &samples);
            let plan = crate::assign(&crate::Problem::of(&layout.without([1]), observer.rates()));
            println!("{}", plan.is_ok());
        }
    }
}
