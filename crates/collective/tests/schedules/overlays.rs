//! Allreduce along overlays: any trees, parts and shares, with slices of any length.

use proptest::prelude::*;
use tidemill_collective::algorithms::{ScheduleParams, schedule};
use tidemill_collective::overlay::Overlay;
use tidemill_collective::{Algorithm, Collective};

use crate::any_overlay::{any_overlay, stars};
use crate::oracle::Case;
use crate::runner::{self, Random};

fn verify(overlay: &Overlay, count: usize, chunk: usize, in_place: u32, seed: u64) {
    let case = Case {
        collective: Collective::Allreduce,
        algorithm: Algorithm::Overlay,
        size: overlay.size(),
        root: 0,
        count,
        chunk,
        hosts: vec![],
        commutative: true,
        repeatable: false,
        in_place,
        seed,
    };
    let one = |rank| {
        let params = ScheduleParams { overlay: Some(overlay), ..case.params(rank, &[], &[]) };
        schedule(case.collective, case.algorithm, &params).unwrap()
    };
    let schedules: Vec<_> = (0..case.size).map(one).collect();
    let (mut memory, expected): (Vec<_>, Vec<_>) =
        (0..case.size).map(|rank| case.memory(rank, &u64::wrapping_add)).unzip();
    runner::check(&schedules, &memory);
    runner::run(&schedules, &mut memory, &u64::wrapping_add, &mut Random(seed));
    for (rank, (memory, expected)) in memory.iter().zip(&expected).enumerate() {
        assert!(memory.recv == *expected, "rank {rank} of {case:?} along {overlay:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Catches a slice in the wrong place, on the wrong channel, or written while it is still being sent.
    #[test]
    fn any_trees_and_slices(size in 1u32..=9, count in 0usize..300, chunk in 0usize..70, in_place in 0u32..3, seed: u64) {
        let mut random = Random(seed);
        verify(&any_overlay(size, &mut random), count, chunk, in_place, seed);
        verify(&stars(size), count, chunk, in_place, seed);
    }
}

/// Unsupported requests are rejected with the remedy.
#[test]
fn what_an_overlay_cannot_do_is_said() {
    let overlay = stars(3);
    let params = ScheduleParams { overlay: Some(&overlay), ..ScheduleParams::new(0, 3) };
    let refusal =
        |collective, params: &ScheduleParams| schedule(collective, Algorithm::Overlay, params).unwrap_err().to_string();
    let without = refusal(Collective::Allreduce, &ScheduleParams { overlay: None, ..params });
    assert!(without.contains("set one with `set_overlay`"), "{without}");
    let ordered = refusal(Collective::Allreduce, &ScheduleParams { commutative: false, ..params });
    assert!(ordered.contains("non-commutative") && ordered.contains("one of: flat"), "{ordered}");
    let larger = refusal(Collective::Allreduce, &ScheduleParams { size: 4, ..params });
    assert!(larger.contains("another number of ranks"), "{larger}");
    let scan = refusal(Collective::Scan, &params);
    assert!(scan.contains("no such schedule"), "{scan}");
}
