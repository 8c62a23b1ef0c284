//! Tests the pool: all threads run, none runs twice, barriers hold, and a panic reaches the caller and leaves the pool
//! usable.

use super::*;
use std::sync::atomic::AtomicUsize;

fn pools() -> Vec<Pool> {
    let mut pools = Vec::new();
    for mode in [PoolMode::Bsp, PoolMode::ForkJoin] {
        for threads in [1, 2, 5] {
            for spins in [0, 500] {
                pools.push(Pool::new(PoolConfig { threads, mode, spins, ..PoolConfig::default() }));
            }
        }
    }
    pools.push(Pool::new(PoolConfig { threads: 2, affinity: CpuAffinity::Core, ..PoolConfig::default() }));
    pools
}

#[test]
fn every_thread_runs_once_in_each_run() {
    for pool in pools() {
        let mut counts = vec![0; pool.threads()];
        for _ in 0..200 {
            pool.each(&mut counts, |worker, count| {
                assert_eq!(worker.threads, pool.threads());
                *count += 1;
            });
        }
        assert!(counts.iter().all(|&count| count == 200), "{counts:?}");
    }
}

#[test]
fn a_barrier_separates_before_from_after() {
    for pool in pools() {
        let arrived = AtomicUsize::new(0);
        pool.run(|worker| {
            for round in 1..=50 {
                arrived.fetch_add(1, Ordering::Relaxed);
                worker.barrier();
                assert_eq!(arrived.load(Ordering::Relaxed), round * worker.threads);
                worker.barrier();
            }
        });
    }
}

/// A thread that panics before a barrier must not leave the others waiting there forever.
#[test]
fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
    for pool in pools() {
        for bad in 0..pool.threads() {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(|worker| {
                    worker.barrier();
                    assert!(worker.thread != bad, "on purpose");
                    worker.barrier();
                    worker.barrier();
                });
            }));
            assert!(result.is_err());
            let count = AtomicUsize::new(0);
            pool.run(|worker| {
                worker.barrier();
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.into_inner(), pool.threads());
        }
    }
}

#[test]
fn callers_from_several_threads_take_turns() {
    let pool = Pool::new(PoolConfig { threads: 2, ..PoolConfig::default() });
    let count = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    pool.run(|_| {
                        count.fetch_add(1, Ordering::Relaxed);
                    });
                }
            });
        }
    });
    assert_eq!(count.into_inner(), 4 * 50 * 2);
}

#[test]
fn shares_cover_everything_once() {
    for n in [0, 1, 7, 64, 1000] {
        for threads in [1, 2, 3, 8] {
            let mut next = 0;
            for thread in 0..threads {
                let part = share(n, 16, thread, threads);
                assert_eq!(part.start, next);
                assert!(part.is_empty() || part.start.is_multiple_of(16));
                next = part.end;
            }
            assert_eq!(next, n);
        }
    }
}

#[test]
fn the_caller_is_free_again_after_a_run() {
    let before = current();
    let pool =
        Pool::new(PoolConfig { threads: 2.min(current().len()), affinity: CpuAffinity::Core, ..PoolConfig::default() });
    assert!(pool.is_bound());
    pool.run(|_| {});
    assert_eq!(current(), before);
}

/// Bound threads next to another program used to take several times as long as a single thread.
#[test]
fn threads_are_let_go_when_others_take_their_processor() {
    use std::time::{Duration, Instant};

    let own = current();
    for affinity in [CpuAffinity::Auto, CpuAffinity::Core] {
        let pool = Pool::new(PoolConfig { threads: 1, affinity, ..PoolConfig::default() });
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                bind(&place(CpuAffinity::Core, 1, (0, 1), &Machine::here()).expect("there is a processor")[0]);
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let work = || {
                let begin = Instant::now();
                while begin.elapsed() < Duration::from_millis(5) {
                    std::hint::spin_loop();
                }
            };
            // Unlimited if the threads must be released; a pool that must not release them has had enough time after
            // this.
            let runs = if affinity == CpuAffinity::Auto { usize::MAX } else { 200 };
            let ran = (0..runs).take_while(|_| pool.is_bound()).map(|_| pool.run(|_| work())).count();
            over.store(true, Ordering::Relaxed);
            assert!(ran > 0);
        });
        assert_eq!(pool.is_bound(), affinity == CpuAffinity::Core);
        assert_eq!(current(), own);
    }
}

/// A lost wake-up hangs here: two threads take turns, asleep in between.
#[test]
fn turns_are_never_lost() {
    for spins in [0, 100] {
        let (ping, pong) = (ThreadGate::new(), ThreadGate::new());
        thread::scope(|scope| {
            scope.spawn(|| {
                for turn in 1..=2000 {
                    ping.wait_for(turn, spins);
                    pong.advance();
                }
            });
            for turn in 1..=2000 {
                ping.advance();
                pong.wait_for(turn, spins);
            }
        });
    }
}
