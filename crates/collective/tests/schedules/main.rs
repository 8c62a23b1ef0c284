//! Every collective x algorithm x 1 to 17 ranks x root x length, compared with a sequential oracle; of the cases with
//! more than 9 ranks, a share that each run draws (`SIMULATION_EFFORT`). Schedules are pure,
//! so all ranks run in one thread, with messages delivered in random order. A failure prints the case, which contains
//! its seed.

mod any_overlay;
mod oracle;
mod overlays;
mod repeatable;
mod runner;

use oracle::{Case, compose, each_collective, is_rooted, reduces};
use proptest::prelude::*;
use runner::Random;
use tidemill_collective::algorithms::{schedule, supported};
use tidemill_collective::schedule::Schedule;
use tidemill_collective::{Algorithm, Collective, UnsupportedAlgorithm};

const RANKS_MAX: u32 = 17;

fn schedules(case: &Case) -> Result<Vec<Schedule>, UnsupportedAlgorithm> {
    let one = |rank| {
        let (send_blocks, recv_blocks) = case.blocks(rank);
        schedule(case.collective, case.algorithm, &case.params(rank, &send_blocks, &recv_blocks))
    };
    (0..case.size).map(one).collect()
}

/// Runs a case and returns all ranks' `Recv`.
fn outcome(case: &Case, op: &dyn Fn(u64, u64) -> u64) -> Vec<Vec<u64>> {
    let schedules = schedules(case).unwrap();
    let (mut memory, expected): (Vec<_>, Vec<_>) = (0..case.size).map(|rank| case.memory(rank, op)).unzip();
    runner::check(&schedules, &memory);
    runner::run(&schedules, &mut memory, op, &mut Random(case.seed));
    for (rank, (memory, expected)) in memory.iter().zip(&expected).enumerate() {
        let result = if memory.recv.is_empty() { &memory.send } else { &memory.recv };
        let result = if expected.is_empty() { expected } else { &result[..expected.len()] };
        assert!(result == expected, "rank {rank}: {result:x?} instead of {expected:x?}");
    }
    memory.into_iter().map(|m| m.recv).collect()
}

/// Runs a case; a failure names it.
fn verify(case: &Case) {
    let op: &dyn Fn(u64, u64) -> u64 = if case.commutative { &u64::wrapping_add } else { &compose };
    let run = std::panic::AssertUnwindSafe(|| outcome(case, op));
    if std::panic::catch_unwind(run).is_err() {
        panic!("failed: {case:?}");
    }
}

/// Placements of ranks on hosts: one host, halves, one host each, and round-robin over three hosts.
fn host_layouts(size: u32) -> Vec<Vec<u32>> {
    vec![
        vec![],
        (0..size).map(|rank| 7 - rank * 2 / size).collect(),
        (0..size).collect(),
        (0..size).map(|rank| rank % 3 + 10).collect(),
        (0..size).map(|rank| rank * rank % 5 / 2).collect(),
    ]
}

fn exhaust(collective: Collective) {
    let (rooted, reduces) = (is_rooted(collective), reduces(collective));
    let mut seed = 0;
    for entry in supported(collective) {
        for size in 1..=RANKS_MAX {
            let p = size as usize;
            // At and around the ends of chunks of 3, and of shares of P ranks.
            let mut counts = vec![0, 1, 2, 3, 4, 5, 6, 7, 10, p - 1, p, p + 1, 3 * p + 2];
            counts.sort_unstable();
            counts.dedup();
            if collective == Collective::Barrier {
                counts.truncate(1);
            }
            let layouts = if entry.algorithm == Algorithm::TwoLevel { host_layouts(size) } else { vec![vec![]] };
            for root in 0..if rooted { size } else { 1 } {
                for &count in &counts {
                    for &chunk in [0, 1, 3].iter().filter(|&&c| c == 0 || entry.chunked && c < count) {
                        let places = if rooted { &[0, 1][..] } else { &[0, 1, 2] };
                        for (in_place, hosts) in places.iter().flat_map(|&i| layouts.iter().map(move |h| (i, h))) {
                            for commutative in [true, false] {
                                if !(commutative || reduces && entry.in_order) {
                                    continue;
                                }
                                seed += 1;
                                let case = Case {
                                    collective,
                                    algorithm: entry.algorithm,
                                    size,
                                    root,
                                    count,
                                    chunk,
                                    hosts: hosts.clone(),
                                    commutative,
                                    repeatable: false,
                                    in_place,
                                    seed,
                                };
                                if !case.is_drawn() {
                                    continue;
                                }
                                // Hosts whose ranks are not consecutive cannot keep rank order.
                                let refused = schedules(&case).is_err();
                                assert!(!refused || !commutative && !hosts.is_empty(), "refused: {case:?}");
                                if !refused {
                                    verify(&case);
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    /// Random lengths and chunks; a failing case is shrunk to the smallest one.
    #[test]
    fn any_length_and_chunk(
        collective in prop::sample::select(Collective::ALL), which in any::<prop::sample::Index>(), size in 1..=RANKS_MAX,
        root in any::<prop::sample::Index>(), count in 0usize..200, chunk in 0usize..70, hosts in 1u32..5, in_place in 0u32..3,
        commutative: bool, seed: u64,
    ) {
        let entries = supported(collective);
        let entry = entries[which.index(entries.len())];
        let case = Case {
            collective,
            algorithm: entry.algorithm,
            size,
            root: root.index(size as usize) as u32,
            count: if collective == Collective::Barrier { 0 } else { count },
            chunk,
            hosts: (0..size).map(|rank| rank * hosts / size).collect(),
            commutative: commutative || !(reduces(collective) && entry.in_order),
            repeatable: false,
            in_place: if is_rooted(collective) { in_place.min(1) } else { in_place },
            seed,
        };
        verify(&case);
    }
}

/// Problems that only show with many ranks: a distance that overflows, a mask that is one bit too short.
#[test]
fn many_ranks() {
    for &collective in Collective::ALL {
        for entry in supported(collective) {
            for size in [31, 32, 33, 64] {
                for root in [0, size - 1] {
                    let case = Case {
                        collective,
                        algorithm: entry.algorithm,
                        size,
                        root,
                        count: 3,
                        chunk: if entry.chunked { 2 } else { 0 },
                        hosts: (0..size).map(|rank| rank / 7).collect(),
                        commutative: !entry.in_order,
                        repeatable: false,
                        in_place: root % 2,
                        seed: u64::from(size),
                    };
                    verify(&case);
                }
            }
        }
    }
}

// Catches a wrong neighbor, offset, length, operand side or order of messages in any schedule of the collective.
each_collective!(exhaust);
