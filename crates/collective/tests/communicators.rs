//! Communicators made by several threads, and many of them.

use std::collections::HashSet;
use std::thread;

use tidemill_collective::{ReduceOp, run_ranks};

/// Two communicators with the same number would get each other's messages. Their numbers used to be agreed on by
/// looking for unused ones, which two threads could do at the same time.
#[test]
fn threads_may_make_communicators_at_the_same_time() {
    const ROUNDS: usize = 200;
    run_ranks(3, |world| {
        let parents = [world.dup().unwrap(), world.dup().unwrap()];
        let made: Vec<Vec<u32>> = thread::scope(|scope| {
            let threads: Vec<_> = (1i64..)
                .zip(&parents)
                .map(|(mark, parent)| {
                    scope.spawn(move || {
                        let work = |round: usize| {
                            let all: Vec<u32> = (0..parent.size()).collect();
                            let made = match round % 3 {
                                0 => parent.split(Some(0), -i64::from(parent.rank())).unwrap().unwrap(),
                                1 => parent.dup().unwrap(),
                                _ => parent.create_group(&all, round as i32).unwrap(),
                            };
                            let mut sum = [0i64; 1];
                            made.allreduce(&[mark], &mut sum, &ReduceOp::Sum).unwrap();
                            assert_eq!(sum[0], 3 * mark, "another communicator's numbers");
                            made.id()
                        };
                        (0..ROUNDS).map(work).collect()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let distinct: HashSet<u32> = made.iter().flatten().copied().collect();
        assert_eq!(distinct.len(), 2 * ROUNDS);
    })
    .unwrap();
}
