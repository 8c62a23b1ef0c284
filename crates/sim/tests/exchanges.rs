//! Compares exchanges of rows, and collectives without messages, with their cost by arithmetic.

use tidemill_collective::Algorithm;
use tidemill_collective::tuner::TuneTable;
use tidemill_sim::{Cluster, CostModel, Outcome, SimulateError, WorkRates, Workload, WorkloadKind};

/// Workers on one host each, or all on one.
fn cluster(workers: u32, hosts: u32) -> Cluster {
    Cluster::even(workers, hosts, 1).unwrap()
}

fn run(workload: &Workload, cluster: &Cluster) -> Outcome {
    workload.run(cluster, &TuneTable::default()).unwrap()
}

fn last_s(workload: &Workload, cluster: &Cluster) -> f64 {
    run(workload, cluster).end_s.iter().copied().fold(0.0, f64::max)
}

/// A keyed exchange limited by links, not by processors.
fn keyed(bytes: u64) -> Workload {
    let rates = WorkRates { partition_bytes_per_s: 1e12, update_bytes_per_s: 1e12, ..WorkRates::default() };
    Workload { bytes, rates, ..Workload::new(WorkloadKind::Keyed) }
}

fn assert_near(found: f64, expected: f64, tolerance: f64, what: &str) {
    assert!((found / expected - 1.0).abs() < tolerance, "{what}: {found} s, by arithmetic {expected} s");
}

/// A window whose credit returns once per round trip allows exactly this rate.
#[test]
fn a_window_bounds_the_rate_of_a_flow() {
    let (cluster, far) = (cluster(2, 2), CostModel::TYPICAL.other_host);
    let bytes = 64 << 20;
    let flow = f64::from(bytes) / 2.0;
    // Both processors handle 512 frames.
    let whole_s = flow * far.per_byte_s + 2.0 * 512.0 * far.overhead_s;
    assert_near(last_s(&keyed(bytes as u64), &cluster), whole_s, 0.02, "no window");
    for window in [8u32 << 10, 16 << 10, 64 << 10, 256 << 10] {
        let workload = Workload { window_bytes: Some(u64::from(window)), ..keyed(bytes as u64) };
        // Two halves are in transit in turn: the next one leaves when the other is through, or its credit is back.
        let half_s = f64::from(window) / 2.0 * far.per_byte_s;
        let trip_s = (2.0 * half_s).max(half_s + 2.0 * far.latency_s + 2.0 * far.overhead_s);
        let expected_s = flow / f64::from(window) * trip_s;
        assert_near(last_s(&workload, &cluster), expected_s, 0.1, &format!("a window of {window}"));
        let pieces = 2 * (32 << 20) / u64::from(window / 2);
        assert_eq!(run(&workload, &cluster).traffic.messages, pieces, "each flow in pieces of half a window");
    }
}

/// The worker of the hottest bucket receives its part of everyone's rows, and updates their keys.
#[test]
fn the_hottest_worker_takes_longest() {
    let workers = 32;
    let cluster = cluster(workers, workers);
    let even_s = last_s(&keyed(8 << 20), &cluster);
    let per_byte_s = CostModel::TYPICAL.other_host.per_byte_s;
    assert_near(even_s, f64::from(8u32 << 20) * per_byte_s, 0.1, "evenly");
    // If a few buckets hold nearly all rows, the largest has 1 / zeta(4) of them, and they come through one link.
    let steep = Workload { skew: 4.0, ..keyed(8 << 20) };
    let hottest = f64::from(8u32 << 20) * f64::from(workers - 1) * 0.924;
    assert_near(last_s(&steep, &cluster), hottest * per_byte_s, 0.08, "by one link");
    let rates = WorkRates { update_bytes_per_s: 1e8, ..steep.rates };
    let slow = Workload { rates, ..steep };
    let all = f64::from(8u32 << 20) * f64::from(workers) * 0.924;
    assert_near(last_s(&slow, &cluster), all / 1e8, 0.08, "by one processor");
    let mild: Vec<f64> = [0.0, 0.5, 1.1, 2.0].map(|skew| last_s(&Workload { skew, ..keyed(8 << 20) }, &cluster)).into();
    assert!(mild.is_sorted(), "{mild:?}");
    assert_eq!(last_s(&steep, &cluster), last_s(&steep, &cluster), "a seed repeats it");
}

/// A sender waits for a receiver that does not receive, so the others wait too.
#[test]
fn a_narrow_window_lets_a_slow_receiver_hold_up_all() {
    let cluster = cluster(16, 16);
    let rates = WorkRates { update_bytes_per_s: 2e7, ..keyed(0).rates };
    let skewed = Workload { skew: 3.0, rates, ..keyed(16 << 20) };
    let first_s = |workload: &Workload| run(workload, &cluster).end_s.iter().copied().fold(f64::INFINITY, f64::min);
    let narrow = Workload { window_bytes: Some(64 << 10), ..skewed };
    assert!(first_s(&narrow) > 5.0 * first_s(&skewed), "{} and {}", first_s(&narrow), first_s(&skewed));
    assert_near(last_s(&narrow, &cluster), last_s(&skewed, &cluster), 0.2, "the hottest worker");
}

#[test]
fn invalid_workloads_are_refused() {
    let table = TuneTable::default();
    let bad = Workload { skew: -1.0, ..keyed(1 << 20) }.run(&cluster(4, 2), &table).unwrap_err();
    assert!(bad.to_string().contains("a skew of -1"), "{bad}");
    let narrow = Workload { window_bytes: Some(1), ..keyed(1 << 30) }.run(&cluster(64, 4), &table).unwrap_err();
    assert!(matches!(narrow, SimulateError::NarrowWindow { window_bytes: 1, workers: 64, .. }), "{narrow}");
    let direct = Workload { algorithm: Some(Algorithm::SharedMemory), ..Workload::new(WorkloadKind::Allreduce) };
    let apart = direct.run(&cluster(4, 2), &table).unwrap_err();
    assert!(apart.to_string().contains("workers of one host"), "{apart}");
    let long = Workload { kind: WorkloadKind::Alltoall, ..direct }.run(&cluster(4, 1), &table).unwrap_err();
    assert!(long.to_string().contains("32 KiB of a slot"), "{long}");
}

/// A rank that reads shared memory spends time on what it copies and combines, and on looking at each other's cache
/// line.
#[test]
fn collectives_without_messages_cost_what_they_copy() {
    let (workers, model) = (8.0, CostModel::TYPICAL);
    let host = cluster(8, 1);
    let call = |kind, algorithm, bytes: u32| {
        let outcome =
            run(&Workload { bytes: u64::from(bytes), algorithm: Some(algorithm), ..Workload::new(kind) }, &host);
        assert_eq!(outcome.traffic.messages, 0);
        outcome.end_s.iter().copied().fold(0.0, f64::max)
    };
    let look_s = model.same_host.latency_s + 7.0 * model.same_host.overhead_s;
    let n = 8192.0;
    let expected_s = n * model.copy_per_byte_s + look_s + n * workers * model.reduce_per_byte_s;
    assert_near(call(WorkloadKind::Allreduce, Algorithm::SharedMemory, 8192), expected_s, 1e-9, "shared memory");
    let n = 8.0 * 1024.0 * 1024.0;
    let expected_s = n * 7.0 / 8.0 * (model.reduce_per_byte_s + model.copy_per_byte_s) + 3.0 * look_s;
    assert_near(call(WorkloadKind::Allreduce, Algorithm::SingleCopy, 8 << 20), expected_s, 1e-9, "single copy");
    let expected_s = n * model.copy_per_byte_s + 2.0 * look_s;
    assert_near(call(WorkloadKind::Bcast, Algorithm::SingleCopy, 8 << 20), expected_s, 1e-9, "bcast");
    let single_s = call(WorkloadKind::Allreduce, Algorithm::SingleCopy, 8 << 20);
    let messages = Workload { algorithm: Some(Algorithm::Ring), ..Workload::new(WorkloadKind::Allreduce) };
    assert!(single_s < last_s(&messages, &host), "large vectors are faster without messages");
}
