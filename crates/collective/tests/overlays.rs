//! Allreduce along overlays through real communicators over the in-process transport: large messages, leftovers of a
//! call, and overlays that differ.

#[path = "schedules/any_overlay.rs"]
mod any_overlay;
#[path = "schedules/runner.rs"]
#[allow(dead_code, reason = "only its random numbers are of use here")]
mod runner;

use std::sync::Arc;

use any_overlay::{any_overlay, stars};
use runner::Random;
use tidemill_collective::overlay::Overlay;
use tidemill_collective::{
    Algorithm, CallOptions, Collective, CollectiveCall, CollectiveError, Communicator, DType, ReduceOp, run_ranks,
};
use tidemill_net::MemoryRegion;

fn region(words: &mut [i64]) -> MemoryRegion {
    MemoryRegion { ptr: words.as_mut_ptr().cast(), len: size_of_val(words) }
}

/// The sum of all ranks' `values`; in place if there is no `sum`.
fn allreduce(
    comm: &Communicator,
    values: &mut [i64],
    sum: Option<&mut [i64]>,
    chunk: Option<usize>,
    blocking: bool,
) -> Result<(), CollectiveError> {
    let count = values.len();
    let (send, recv) = match sum {
        Some(sum) => (Some(region(values)), Some(region(sum))),
        None => (None, Some(region(values))),
    };
    let call = CollectiveCall {
        dtype: DType::I64,
        op: &ReduceOp::Sum,
        count,
        send,
        recv,
        options: CallOptions { algorithm: Some(Algorithm::Overlay), chunk, repeatable: false },
        ..CollectiveCall::new(Collective::Allreduce)
    };
    if blocking {
        // SAFETY: the slices outlive the call.
        return unsafe { comm.run(&call) };
    }
    // SAFETY: the same; it is waited for.
    let request = unsafe { comm.start_nonblocking(&call)? };
    Ok(request.wait().map(|_| ())?)
}

/// A rank's contribution, and the sum over `size` ranks.
fn value(rank: u32, index: usize, round: usize) -> i64 {
    (index as i64 + 7) * i64::from(rank + 1) + round as i64
}

/// Catches a result that is incomplete at the end, or overwritten by a later call while it is still being passed on.
#[test]
fn sums_are_right_call_after_call() {
    for seed in 0..60u64 {
        let mut random = Random(seed);
        let size = 1 + random.below(9) as u32;
        let overlays: Vec<Arc<Overlay>> =
            (0..3).map(|_| any_overlay(size, &mut random)).chain([stars(size)]).map(Arc::new).collect();
        // Some slices are sent eagerly, some are offered.
        let count = [random.below(8), random.below(3000), 20_000 + random.below(20_000)][random.below(3)];
        let chunk = [None, Some(count / 5 + 1), Some(random.below(4000) + 500)][random.below(3)];
        run_ranks(size, |comm| {
            for (round, overlay) in overlays.iter().cycle().take(8).enumerate() {
                comm.set_overlay(Some(Arc::clone(overlay))).unwrap();
                let mut values: Vec<i64> = (0..count).map(|i| value(comm.rank(), i, round)).collect();
                let mut sum = vec![0; count];
                match round % 2 {
                    0 => allreduce(&comm, &mut values, Some(&mut sum), chunk, round % 4 == 0).unwrap(),
                    _ => {
                        allreduce(&comm, &mut values, None, chunk, round % 4 == 1).unwrap();
                        sum.clone_from(&values);
                    }
                }
                let expected = |i| (0..size).map(|rank| value(rank, i, round)).sum::<i64>();
                let wrong = (0..count).find(|&i| sum[i] != expected(i));
                assert_eq!(wrong, None, "rank {}, seed {seed}, round {round}: {overlay:?}", comm.rank());
            }
        })
        .unwrap();
    }
}

/// If the call's fingerprint did not cover the overlay, such ranks would wait forever.
#[test]
fn different_overlays_are_put_into_words() {
    let errors = run_ranks(3, |comm| {
        let overlay = if comm.rank() == 1 { any_overlay(3, &mut Random(5)) } else { stars(3) };
        comm.set_overlay(Some(Arc::new(overlay))).unwrap();
        // All ranks have the communicator before the job fails; a late one gets the error here and, again, below.
        let _ = comm.barrier();
        allreduce(&comm, &mut [1; 100], None, None, true).unwrap_err().to_string()
    });
    for error in errors.unwrap() {
        assert!(error.matches("algorithm=overlay, overlay ").count() >= 2, "{error}");
    }
}

/// A missing or unsuitable overlay is reported before any data move.
#[test]
fn a_missing_or_unfit_overlay_is_said() {
    run_ranks(2, |comm| {
        let missing = allreduce(&comm, &mut [1; 4], None, None, true).unwrap_err().to_string();
        assert!(missing.contains("needs an overlay: set one with `set_overlay`"), "{missing}");
        let unfit = comm.set_overlay(Some(Arc::new(stars(3)))).unwrap_err().to_string();
        assert_eq!(unfit, "an overlay for 3 ranks does not fit comm \"world\", which has 2: make one for 2");
        assert!(comm.overlay().is_none());
    })
    .unwrap();
}
