//! Repeatable reductions: every algorithm that claims to be repeatable combines every element in the single canonical
//! order, whatever the length, chunk, root and placement. This shows in the last bit of floating-point sums.

use crate::oracle::Case;
use crate::runner::{self, Random};
use crate::schedules;
use tidemill_collective::Collective;
use tidemill_collective::algorithms::supported;
use tidemill_collective::schedule::Schedule;

fn add(left: u64, right: u64) -> u64 {
    (f64::from_bits(left) + f64::from_bits(right)).to_bits()
}

/// Numbers of different sizes and signs, so that nearly every order of adding them rounds differently.
fn value(salt: u64, rank: u32) -> u64 {
    let raw = Random(salt << 32 | u64::from(rank)).next();
    let scale = f64::from(1u32 << (raw % 5));
    ((raw >> 11) as f64 * scale * if raw & (1 << 35) == 0 { 1.0 } else { -1.0 }).to_bits()
}

/// Sets of values with which every case is tried.
const SALTS: std::ops::Range<u64> = 0..12;

/// The canonical order by its definition: pairs of the first ranks until a power of two is left, then halves.
fn canonical(values: &[u64]) -> u64 {
    fn halves(values: &[u64]) -> u64 {
        match values {
            [one] => *one,
            _ => add(halves(&values[..values.len() / 2]), halves(&values[values.len() / 2..])),
        }
    }
    let power = 1 << values.len().ilog2();
    let (paired, alone) = values.split_at(2 * (values.len() - power));
    let groups: Vec<u64> = paired.chunks(2).map(|p| add(p[0], p[1])).chain(alone.iter().copied()).collect();
    halves(&groups)
}

/// Catches a combination in another order in any algorithm, for any part of the vector.
#[test]
fn every_repeatable_algorithm_combines_in_the_canonical_order() {
    use Collective::*;
    for collective in [Reduce, Allreduce, ReduceScatterBlock, ReduceScatter, Scan, Exscan] {
        for entry in supported(collective) {
            for size in 2..=17u32 {
                for root in if collective == Reduce { 0..size } else { 0..1 } {
                    for count in [1, 5, 2 * size as usize + 3] {
                        for chunk in if entry.chunked { vec![0, 2] } else { vec![0] } {
                            for in_place in [0, 1] {
                                let case = Case {
                                    collective,
                                    algorithm: entry.algorithm,
                                    size,
                                    root,
                                    count,
                                    chunk,
                                    hosts: (0..size).map(|rank| rank % 3).collect(),
                                    commutative: true,
                                    repeatable: true,
                                    in_place,
                                    seed: u64::from(size),
                                };
                                verify(&case, entry.repeatable);
                            }
                        }
                    }
                }
            }
        }
    }
}

fn verify(case: &Case, repeatable: bool) {
    let schedules = match schedules(case) {
        Ok(schedules) => schedules,
        Err(error) => return assert!(!repeatable, "{error}"),
    };
    assert!(repeatable, "a schedule that cannot be repeatable must be refused: {case:?}");
    SALTS.for_each(|salt| verify_with(case, &schedules, &|rank| value(salt, rank)));
}

fn verify_with(case: &Case, schedules: &[Schedule], value: &dyn Fn(u32) -> u64) {
    let mut memory: Vec<_> = (0..case.size).map(|rank| case.memory(rank, &add).0).collect();
    for (rank, memory) in memory.iter_mut().enumerate() {
        memory.fill_contribution(value(rank as u32));
    }
    runner::run(schedules, &mut memory, &add, &mut Random(case.seed));
    let values: Vec<u64> = (0..case.size).map(value).collect();
    for (rank, memory) in memory.iter().enumerate() {
        let fold = |values: &[u64]| values.iter().copied().reduce(add);
        let expected = match case.collective {
            Collective::Reduce if rank as u32 != case.root => continue,
            Collective::Exscan if rank == 0 => continue,
            Collective::Scan => fold(&values[..=rank]).unwrap(),
            Collective::Exscan => fold(&values[..rank]).unwrap(),
            _ => canonical(&values),
        };
        let len = match case.collective {
            Collective::ReduceScatter => case.blocks(rank as u32).0[rank].len,
            _ => case.count,
        };
        for (i, &result) in memory.recv[..len].iter().enumerate() {
            assert_eq!(result, expected, "element {i} on rank {rank} of {case:?}");
        }
    }
}

/// The orders really differ on these inputs; otherwise the test above would prove nothing.
#[test]
fn orders_can_be_told_apart() {
    for size in 4..=17 {
        let differs = |other: &dyn Fn(&[u64]) -> u64| {
            SALTS
                .map(|salt| (0..size).map(|rank| value(salt, rank)).collect::<Vec<_>>())
                .any(|v| other(&v) != canonical(&v))
        };
        assert!(differs(&|v| v.iter().copied().reduce(add).unwrap()), "{size} ranks, from the lowest up");
        assert!(
            differs(&|v| v.iter().rev().copied().reduce(|r, l| add(l, r)).unwrap()),
            "{size} ranks, from the top down"
        );
    }
}
