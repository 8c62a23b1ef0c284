//! Whole programs on simulated clusters: results that can be computed by hand, the effects of faults, and that seeds
//! repeat.

use std::time::Instant;

use tidemill_collective::tuner::TuneTable;
use tidemill_collective::{Algorithm, Collective};
use tidemill_sim::{
    Cluster, CollectiveStep, CostModel, Failure, Jitter, Outcome, Simulation, SlowHost, WorkRates, Workload,
    WorkloadKind,
};

fn run(cluster: &Cluster, workload: &Workload) -> Outcome {
    workload.run(cluster, &TuneTable::default()).unwrap()
}

fn end_s(outcome: &Outcome) -> f64 {
    outcome.end_s.iter().copied().fold(0.0, f64::max)
}

fn collective(cluster: &Cluster, collective: Collective, bytes: u64, algorithm: Algorithm) -> Outcome {
    let table = TuneTable::default();
    let mut simulation = Simulation::new(cluster, &table).unwrap();
    simulation.collective(CollectiveStep { collective, bytes, algorithm: Some(algorithm) }).unwrap();
    simulation.finish()
}

fn assert_close(found: f64, expected: f64, tolerance: f64) {
    assert!((found - expected).abs() <= tolerance * expected, "{found} instead of {expected}");
}

/// The time of one message between hosts, under the model.
fn message_s(bytes: f64) -> f64 {
    let link = CostModel::TYPICAL.other_host;
    link.latency_s + 2.0 * link.overhead_s + bytes * link.per_byte_s
}

/// Catches a level of a tree counted twice, and a message that does not wait for the previous one.
#[test]
fn trees_and_rings_cost_what_loggp_says() {
    let cluster = Cluster::even(16, 16, 1).unwrap();
    let link = CostModel::TYPICAL.other_host;
    // The last of 16 ranks is reached over four levels; each rank sends to its largest subtree first.
    let bcast = collective(&cluster, Collective::Bcast, 8, Algorithm::Binomial);
    assert_close(end_s(&bcast), 4.0 * message_s(8.0), 1e-9);
    assert_eq!(bcast.traffic.messages, 15);

    let n = 16.0 * 8192.0;
    let piece = n / 16.0;
    let ring = collective(&cluster, Collective::Allreduce, n as u64, Algorithm::Ring);
    let expected = 30.0 * message_s(piece) + 15.0 * piece * CostModel::TYPICAL.reduce_per_byte_s;
    assert_close(end_s(&ring), expected, 1e-9);

    let pairwise = collective(&cluster, Collective::Alltoall, n as u64, Algorithm::Pairwise);
    let copy_s = piece * CostModel::TYPICAL.copy_per_byte_s;
    assert_close(end_s(&pairwise), 15.0 * message_s(piece) + copy_s, 1e-9);
    assert!(end_s(&pairwise) > 15.0 * piece * link.per_byte_s);
}

/// The workers of a host share its link: an exchange cannot be faster than that link carries what leaves the host.
#[test]
fn an_exchange_is_bound_by_the_links_of_hosts() {
    let cluster = Cluster::even(64, 8, 1).unwrap();
    let workload = Workload { bytes: 64 << 20, ..Workload::new(WorkloadKind::Partition) };
    let outcome = run(&cluster, &workload);
    let leaves = 8.0 * f64::from(64 << 20) * 56.0 / 64.0;
    let link_s = leaves * CostModel::TYPICAL.other_host.per_byte_s;
    assert_close(outcome.busy.host_out_s, link_s, 1e-6);
    assert!(end_s(&outcome) >= link_s);
    assert_close(end_s(&outcome), link_s, 0.05);
}

/// If a rack's link carries half of what its hosts send, exchanges take twice as long as with full bandwidth.
#[test]
fn an_oversubscribed_rack_halves_the_rate() {
    // Rows are produced instantly, so that only links take time.
    let rates = WorkRates { partition_bytes_per_s: 1e12, ..WorkRates::default() };
    let workload = Workload { bytes: 16 << 20, rates, ..Workload::new(WorkloadKind::Partition) };
    let mut cluster = Cluster::even(64, 64, 8).unwrap();
    let full = run(&cluster, &workload);
    cluster.oversubscription = 2.0;
    let half = run(&cluster, &workload);
    // Of 63 others, 56 are in other racks.
    let expected = 2.0 * 56.0 / 63.0;
    assert_close(end_s(&half) / end_s(&full), expected, 0.08);
    assert_eq!(half.traffic.bytes_between_racks, full.traffic.bytes_between_racks);
    assert!(half.busy.rack_s > 0.95 * end_s(&half));
}

/// The same seed must give the same run to the bit, and another seed a different run; without noise, seeds do not
/// matter.
#[test]
fn seeds_repeat() {
    let mut cluster = Cluster::even(48, 6, 2).unwrap();
    let workload = Workload { steps: 3, points: 100_000, ..Workload::new(WorkloadKind::Kmeans) };
    let calm = run(&cluster, &workload);
    cluster.seed = 7;
    assert_eq!(run(&cluster, &workload), calm);
    cluster.jitter = Jitter::log_normal(0.2).unwrap();
    let noisy = run(&cluster, &workload);
    assert_eq!(run(&cluster, &workload), noisy);
    assert!(end_s(&noisy) > end_s(&calm), "waiting for the slowest of many takes longer");
    cluster.seed = 8;
    assert_ne!(run(&cluster, &workload), noisy);
}

/// A link at a fifth of its rate makes an exchange almost five times slower.
#[test]
fn a_slow_host_slows_everyone_waiting_for_it() {
    let workload = Workload { bytes: 32 << 20, ..Workload::new(WorkloadKind::Partition) };
    let mut cluster = Cluster::even(16, 16, 1).unwrap();
    let calm = end_s(&run(&cluster, &workload));
    cluster.slow.push(SlowHost { host: 3, outgoing: 0.2, incoming: 1.0 });
    let out = end_s(&run(&cluster, &workload));
    cluster.slow[0] = SlowHost { host: 3, outgoing: 1.0, incoming: 0.2 };
    let into = run(&cluster, &workload);
    let per_byte_s = CostModel::TYPICAL.other_host.per_byte_s;
    let slowed_s = 5.0 * f64::from(32 << 20) * 15.0 / 16.0 * per_byte_s;
    assert!(calm < slowed_s / 3.0 && out >= slowed_s && end_s(&into) >= slowed_s);
    assert_close(end_s(&into), slowed_s, 0.1);
}

/// Emulated hosts do not have their own cores: eight workers on two cores take four times as long to work.
#[test]
fn shared_cores_bound_the_work_of_all() {
    let mut cluster = Cluster::even(8, 4, 1).unwrap();
    let workload = Workload { points: 8000, ..Workload::new(WorkloadKind::Kmeans) };
    let own = run(&cluster, &workload);
    cluster.shared_cores = Some(2);
    let shared = run(&cluster, &workload);
    assert_close(end_s(&shared), 4.0 * own.work_s, 0.02);
}

/// Workers that wait for a dead one learn of it after the failure timeout; those that have ended before are
/// unaffected.
#[test]
fn a_dead_worker_ends_those_who_wait_for_it() {
    let mut cluster = Cluster::even(8, 8, 1).unwrap();
    cluster.failure_timeout_s = 5.0;
    cluster.failures.push(Failure { rank: 3, at_s: 0.0 });
    let outcome = collective(&cluster, Collective::Allreduce, 1 << 20, Algorithm::HalvingDoubling);
    assert_eq!(outcome.unfinished, [true; 8]);
    assert_eq!(outcome.end_s[3], 0.0);
    assert_eq!(outcome.end_s[0], 5.0);
    // Nobody waits for a leaf of a broadcast.
    let bcast = collective(&cluster, Collective::Bcast, 1 << 20, Algorithm::Binomial);
    assert_eq!(bcast.unfinished.iter().filter(|&&unfinished| unfinished).count(), 1);
    // In an exchange all workers wait for each other.
    let exchange = run(&cluster, &Workload::new(WorkloadKind::Partition));
    assert_eq!(exchange.unfinished, [true; 8]);
}

/// Steps and events simulate the same network: they must agree where both apply.
#[test]
fn steps_agree_with_events() {
    for (hosts, racks) in [(128, 1), (128, 8), (16, 1), (16, 4)] {
        for (kind, algorithm) in [
            (WorkloadKind::Alltoall, Algorithm::Pairwise),
            (WorkloadKind::Alltoall, Algorithm::Linear),
            (WorkloadKind::Allreduce, Algorithm::Ring),
        ] {
            for bytes in [128 * 64, 128 * 16384] {
                let cluster = Cluster::even(128, hosts, racks).unwrap();
                let workload = Workload { bytes, algorithm: Some(algorithm), ..Workload::new(kind) };
                let (events, steps) = (run(&cluster, &workload), workload.run_stepwise(&cluster).unwrap());
                assert_eq!(events.traffic, steps.traffic, "{algorithm}");
                let ratio = end_s(&steps) / end_s(&events);
                println!("{algorithm} {bytes} B, {hosts} hosts, {racks} racks: {ratio:.3}");
                assert!((0.97..1.03).contains(&ratio), "{algorithm} {bytes} B, {hosts} hosts: {ratio}");
            }
        }
    }
}

/// All workloads at all scales end, and the largest takes seconds and little memory.
#[test]
fn sixteen_thousand_workers_take_seconds() {
    let large = std::env::var_os("TIDEMILL_SHOW").is_some();
    let (workers, hosts, racks) = if large { (16384, 1024, 32) } else { (1024, 64, 4) };
    let mut cluster = Cluster::even(workers, hosts, racks).unwrap();
    cluster.oversubscription = 4.0;
    for (name, kind) in WorkloadKind::ALL {
        let start = Instant::now();
        let outcome = run(&cluster, &Workload { bytes: 1 << 20, ..Workload::new(kind) });
        println!(
            "{name:10} {:9.4} s predicted, {:.1} s to predict, {:?}",
            end_s(&outcome),
            start.elapsed().as_secs_f64(),
            outcome.choices
        );
        assert!(outcome.end_s.iter().all(|&end_s| end_s.is_finite() && end_s > 0.0) && !outcome.unfinished[0]);
    }
}
