//! Tests the cost model on real schedules: it agrees with results computed by hand, and the tuner's formulas, which
//! never see a schedule, choose nearly as well as trying all of them.

use tidemill_collective::algorithms::{schedule, supported};
use tidemill_collective::tuner::{TuneQuery, TuneTable};
use tidemill_collective::{Algorithm, Collective, ScheduleParams};
use tidemill_net::topology::HostLinks;
use tidemill_sim::{CostModel, RunCost, cost};

const ITEM_BYTES: usize = 8;

/// Ranks spread evenly over hosts, neighbors together.
fn hosts(ranks: u32, count: u32) -> Vec<u32> {
    (0..ranks).map(|rank| rank * count / ranks).collect()
}

fn simulate(q: &TuneQuery, algorithm: Algorithm, chunk: usize) -> RunCost {
    let hosts = hosts(q.ranks, q.hosts);
    let blocks = |collective| {
        use Collective::*;
        matches!(collective, Gather | Scatter | Allgather | Alltoall | ReduceScatterBlock)
    };
    let elements = q.bytes / ITEM_BYTES;
    let count = if blocks(q.collective) { elements / q.ranks as usize } else { elements };
    let one = |rank| {
        let params = ScheduleParams {
            count,
            chunk,
            hosts: &hosts,
            commutative: q.commutative,
            repeatable: q.repeatable,
            ..ScheduleParams::new(rank, q.ranks)
        };
        schedule(q.collective, algorithm, &params).unwrap()
    };
    let schedules: Vec<_> = (0..q.ranks).map(one).collect();
    let (same_host, other_host) = CostModel::TYPICAL.links(q.within_host);
    cost(&schedules, ITEM_BYTES, &hosts, &CostModel { same_host, other_host, ..CostModel::TYPICAL })
}

fn query(collective: Collective, bytes: usize, ranks: u32, hosts: u32) -> TuneQuery {
    let within_host = HostLinks::BEST;
    TuneQuery {
        collective,
        bytes,
        item_bytes: ITEM_BYTES,
        ranks,
        hosts,
        within_host,
        commutative: true,
        repeatable: false,
    }
}

/// Catches a message counted twice, or a link shared by mistake.
#[test]
fn simple_collectives_cost_what_they_must() {
    let model = CostModel::TYPICAL;
    let message =
        |bytes: f64| model.same_host.latency_s + 2.0 * model.same_host.overhead_s + bytes * model.same_host.per_byte_s;
    let close = |found: f64, expected: f64| (found - expected).abs() < 1e-9 * expected;

    let barrier = simulate(&query(Collective::Barrier, 0, 8, 1), Algorithm::Dissemination, 0);
    assert!(close(barrier.seconds, 3.0 * message(0.0)), "{barrier:?}");
    assert_eq!((barrier.messages, barrier.bytes), (24, 0));

    let n = 1 << 20;
    let chain = simulate(&query(Collective::Bcast, n, 5, 1), Algorithm::Chain, 0);
    assert!(close(chain.seconds, 4.0 * message(n as f64)), "{chain:?}");

    let ring = simulate(&query(Collective::Allreduce, n, 4, 1), Algorithm::Ring, 0);
    let piece = n as f64 / 4.0;
    assert!(close(ring.seconds, 6.0 * message(piece) + 3.0 * piece * model.reduce_per_byte_s), "{ring:?}");
    assert_eq!(ring.bytes as usize, 4 * 6 * n / 4);
}

/// Two-level algorithms must send to each host only once, however many ranks it has.
#[test]
fn two_levels_send_to_each_host_once() {
    let n = 1 << 16;
    for (collective, times) in [(Collective::Bcast, 3), (Collective::Reduce, 3)] {
        let cost = simulate(&query(collective, n, 16, 4), Algorithm::TwoLevel, 0);
        assert_eq!(cost.bytes_between_hosts as usize, times * n, "{collective}");
    }
}

/// If pipelining did not overlap, a chunked chain would be as slow as a whole one.
#[test]
fn chunks_overlap_on_a_chain() {
    let q = query(Collective::Bcast, 16 << 20, 8, 1);
    let (whole, chunked) = (simulate(&q, Algorithm::Chain, 0), simulate(&q, Algorithm::Chain, 16 << 10));
    assert!(chunked.seconds < whole.seconds / 3.0, "{chunked:?} {whole:?}");
}

/// A formula that is wrong by a factor picks algorithms that are slower by that factor.
#[test]
fn the_tuner_chooses_nearly_the_best() {
    for (shared_memory, own_cores) in [(true, true), (false, true), (true, false), (false, false)] {
        chooses_nearly_the_best(HostLinks { shared_memory, own_cores });
    }
}

fn chooses_nearly_the_best(within_host: HostLinks) {
    let table = TuneTable::default();
    let (mut log_sum, mut samples, mut worst) = (0.0, 0, (1.0, String::new()));
    for &collective in Collective::ALL {
        use Collective::*;
        if matches!(collective, Gatherv | Scatterv | Alltoallv | Allgatherv | ReduceScatter) {
            continue; // The same formulas, with blocks.
        }
        let layouts = [(2, 1), (3, 1), (4, 1), (8, 1), (12, 1), (4, 4), (8, 2), (16, 4), (12, 3), (32, 2)];
        // With several hosts, the formulas assume that links within a host cost almost nothing.
        let fit = |&(_, hosts): &(u32, u32)| within_host == HostLinks::BEST || hosts == 1;
        for (ranks, hosts) in layouts.into_iter().filter(fit) {
            for bytes in [8, 512, 8 << 10, 128 << 10, 2 << 20, 32 << 20] {
                let bytes = bytes.max(ranks as usize * ITEM_BYTES);
                let q = query(collective, if collective == Barrier { 0 } else { bytes }, ranks, hosts);
                let q = TuneQuery { within_host, ..q };
                let mut tried = Vec::new();
                for entry in supported(collective) {
                    for chunk_bytes in if entry.chunked { vec![0, 8 << 10, 128 << 10, 2 << 20] } else { vec![0] } {
                        if chunk_bytes == 0 || chunk_bytes < q.bytes {
                            let seconds = simulate(&q, entry.algorithm, chunk_bytes / ITEM_BYTES).seconds;
                            tried.push((seconds, entry.algorithm, chunk_bytes));
                        }
                    }
                }
                let best = *tried.iter().min_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
                let choice = table.choose(&q);
                let ratio = simulate(&q, choice.algorithm, choice.chunk).seconds / best.0;
                if std::env::var_os("TIDEMILL_SHOW").is_some() && ratio > 1.3 {
                    println!(
                        "{ratio:.2} {collective} {bytes} B on {ranks} ranks, {hosts} hosts: {choice:?}, best {best:?}"
                    );
                }
                log_sum += f64::ln(ratio.max(1.0));
                samples += 1;
                if ratio > worst.0 {
                    worst = (ratio, format!("{q:?}: {choice:?} instead of {best:?}"));
                }
            }
        }
    }
    let mean = f64::exp(log_sum / f64::from(samples));
    println!("{within_host:?}: geometric mean of cost over the best: {mean:.3}, worst {worst:?}");
    assert!(mean < 1.1, "{within_host:?}: mean {mean}");
    assert!(worst.0 < 2.0, "{worst:?}");
}
