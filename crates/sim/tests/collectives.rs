//! Runs real engines and the real executor on the simulated network: every collective x algorithm x 1 to 17 ranks x
//! root x length, with all ranks stepped in one thread. The seed decides which frames are late, overtaken, cut or out
//! of credit. Other tests kill workers in the middle.

#[path = "../../collective/tests/schedules/any_overlay.rs"]
mod any_overlay;
#[path = "../../collective/tests/schedules/oracle.rs"]
mod oracle;
#[path = "../../collective/tests/schedules/runner.rs"]
#[allow(dead_code, reason = "only its memory and random numbers are of use here")]
mod runner;

use std::sync::Arc;

use any_overlay::{any_overlay, stars};
use oracle::{Case, compose, each_collective, is_rooted, reduces};
use runner::{Alias, Memory};
use tidemill_collective::algorithms::{AlgorithmEntry, schedule, supported};
use tidemill_collective::overlay::{Overlay, OverlayPart};
use tidemill_collective::{Algorithm, Collective, DType, ReduceOp, ScheduleExecution, ScheduleParams, UserOp};
use tidemill_net::{Engine, Envelope, FaultRegistry, GroupId, MemoryRegion, NetError, Rank};
use tidemill_sim::{SimNetwork, SimOptions, SplitMix64};

/// The context and number of the only collective in a run.
const ENVELOPE: Envelope = Envelope { context: 1, tag: 0, seq: 1, signature: 1 };

struct Worker {
    engine: Engine,
    faults: Arc<FaultRegistry>,
    group: GroupId,
    memory: Memory,
    expected: Vec<u64>,
}

fn region(words: &mut [u64]) -> MemoryRegion {
    MemoryRegion { ptr: words.as_mut_ptr().cast(), len: size_of_val(words) }
}

/// The `Send` and `Recv` buffers of the call, as the communicator would pass them.
fn buffers(memory: &mut Memory) -> (MemoryRegion, MemoryRegion) {
    let (send, recv) = (region(&mut memory.send), region(&mut memory.recv));
    let inside = |region: MemoryRegion, at: usize| MemoryRegion {
        // SAFETY: the oracle places one buffer within the other.
        ptr: unsafe { region.ptr.add(at * size_of::<u64>()) },
        len: region.len - at * size_of::<u64>(),
    };
    match memory.alias {
        Alias::None => (send, recv),
        Alias::SendInRecv(at) => (inside(recv, at), recv),
        Alias::RecvInSend(at) => (send, inside(send, at)),
    }
}

/// Starts the collective of `case` on every rank of a new simulated job.
fn start(case: &Case) -> (SimNetwork, Vec<Worker>) {
    match case.seed % 3 {
        0 => start_along(case, &stars(case.size)),
        _ => start_along(case, &any_overlay(case.size, &mut runner::Random(case.seed))),
    }
}

fn start_along(case: &Case, overlay: &Overlay) -> (SimNetwork, Vec<Worker>) {
    let mut random = SplitMix64::new(case.seed);
    let frame_bytes_max = [64, 300, 4096][random.below(3)];
    let options = SimOptions {
        seed: case.seed,
        frame_bytes_max,
        eager_bytes_max: frame_bytes_max.min([0, 64, 1000][random.below(3)]),
        in_flight_bytes_max: [100, 1000, 1 << 20][random.below(3)],
        hosts: (0..case.size).map(|rank| rank / 2).collect(),
        ..SimOptions::default()
    };
    let (network, transports) = SimNetwork::with_options(case.size, options);
    let plain: &dyn Fn(u64, u64) -> u64 = if case.commutative { &u64::wrapping_add } else { &compose };
    let op = match case.commutative {
        true => ReduceOp::Sum,
        false => ReduceOp::User(UserOp::new("compose", false, |left, right, _| {
            for (l, r) in left.as_chunks().0.iter().zip(right.as_chunks_mut().0) {
                *r = compose(u64::from_ne_bytes(*l), u64::from_ne_bytes(*r)).to_ne_bytes();
            }
            Ok(())
        })),
    };
    let ranks: Arc<[Rank]> = (0..case.size).map(Rank).collect();
    let worker = |(rank, transport)| {
        let rank = rank as u32;
        let faults = Arc::new(FaultRegistry::default());
        let routes: Vec<Option<usize>> = (0..case.size).map(|peer| (peer != rank).then_some(0)).collect();
        let mut engine = Engine::new(Rank(rank), vec![Box::new(transport)], &routes, Arc::clone(&faults));
        engine.open_context(ENVELOPE.context);
        let (send_blocks, recv_blocks) = case.blocks(rank);
        let params = ScheduleParams { overlay: Some(overlay), ..case.params(rank, &send_blocks, &recv_blocks) };
        let schedule = Arc::new(schedule(case.collective, case.algorithm, &params).unwrap());
        let (mut memory, expected) = case.memory(rank, plain);
        let (send, recv) = buffers(&mut memory);
        // SAFETY: the vectors of `memory` stay where they are until the worker is dropped, the engine with it.
        let execution = unsafe {
            ScheduleExecution::new(schedule, Arc::clone(&ranks), ENVELOPE, DType::U64, op.clone(), send, recv)
        };
        let group = engine.add_task(Box::new(execution));
        Worker { engine, faults, group, memory, expected }
    };
    (network, transports.into_iter().enumerate().map(worker).collect())
}

/// Steps all workers in random order. Returns whether anything moved.
fn step(workers: &mut [Worker], random: &mut SplitMix64) -> bool {
    let first = random.below(workers.len());
    let mut moved = false;
    for i in 0..workers.len() {
        let count = workers.len();
        let worker = &mut workers[(first + i) % count];
        moved |= worker.engine.progress();
        worker.engine.flush();
    }
    moved
}

fn verify(case: &Case) {
    let (network, mut workers) = start(case);
    let mut random = SplitMix64::new(!case.seed);
    while step(&mut workers, &mut random) || network.advance() {}
    for (rank, worker) in workers.iter_mut().enumerate() {
        assert!(worker.engine.is_complete(worker.group), "rank {rank} hangs in {case:?}");
        worker.engine.take(worker.group).unwrap_or_else(|error| panic!("rank {rank}: {error} in {case:?}"));
        let aliased = matches!(worker.memory.alias, Alias::RecvInSend(_));
        let result = if aliased { &worker.memory.send } else { &worker.memory.recv };
        assert!(result[..worker.expected.len()] == worker.expected, "rank {rank}: wrong result of {case:?}");
    }
}

const RANKS_MAX: u32 = 17;
/// The number of elements in a pipelined chunk when all lengths run.
const CHUNK: usize = 3;

/// One call. `seed` decides which ranks work in place, whether the operation commutes, and everything the network
/// does.
fn case(
    collective: Collective,
    entry: AlgorithmEntry,
    size: u32,
    root: u32,
    count: usize,
    chunk: usize,
    seed: u64,
) -> Case {
    Case {
        collective,
        algorithm: entry.algorithm,
        size,
        root,
        count: if collective == Collective::Barrier { 0 } else { count },
        chunk: if entry.chunked { chunk } else { 0 },
        hosts: (0..size).map(|rank| rank / 2).collect(),
        commutative: !(reduces(collective) && entry.in_order && seed.is_multiple_of(2)),
        repeatable: false,
        in_place: (seed / 2 % 2) as u32,
        seed,
    }
}

/// Every algorithm of the collective x 1 to 17 ranks x root x length: lengths at and around the ends of chunks and of
/// even shares, and, with few ranks, longer than many frames.
fn all_cases(collective: Collective) -> Vec<Case> {
    let mut cases = Vec::new();
    for &entry in supported(collective) {
        for size in 1..=RANKS_MAX {
            let p = size as usize;
            let mut counts = vec![0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 1];
            counts.extend([p - 1, p, p + 1, 3 * p + 2]);
            counts.sort_unstable();
            counts.dedup();
            let mut lengths: Vec<(usize, usize)> = counts.into_iter().map(|count| (count, CHUNK)).collect();
            if size <= 5 {
                lengths.extend([(60, 20), (700, 233)]);
            }
            if collective == Collective::Barrier {
                lengths.truncate(1);
            }
            for root in 0..if is_rooted(collective) { size } else { 1 } {
                for &(count, chunk) in &lengths {
                    let seed = cases.len() as u64 + 1;
                    cases.push(case(collective, entry, size, root, count, if count > chunk { chunk } else { 0 }, seed));
                }
            }
        }
    }
    cases
}

/// Allreduce along an overlay whose shape the seed decides.
fn overlay_cases(seeds: std::ops::Range<u64>) -> impl Iterator<Item = Case> {
    let entry = AlgorithmEntry { algorithm: Algorithm::Overlay, in_order: false, repeatable: false, chunked: true };
    seeds.map(move |seed| {
        let (size, count) = (1 + seed as u32 % 9, [0, 1, 7, 60, 700, 3000][seed as usize / 9 % 6]);
        case(Collective::Allreduce, entry, size, 0, count, [0, 1 + count / 7, 100][seed as usize % 3], seed)
    })
}

/// Cases with one root each, for tests that run a case in many ways.
fn some_cases() -> impl Iterator<Item = Case> {
    let mut seed = 0;
    let combinations =
        Collective::ALL.iter().flat_map(|&collective| supported(collective).iter().map(move |e| (collective, *e)));
    let cases = combinations.flat_map(move |(collective, entry)| {
        let mut cases = Vec::new();
        for size in [1, 2, 3, 4, 5, 8, 11, RANKS_MAX] {
            for count in [0, 1, 7, 60, 700] {
                if size == RANKS_MAX && count > 7 {
                    continue;
                }
                seed += 1;
                cases.push(case(collective, entry, size, seed as u32 * 7 % size, count, count / 3, seed));
            }
        }
        cases
    });
    cases.chain(overlay_cases(5000..5200))
}

fn exhaust(collective: Collective) {
    all_cases(collective).iter().filter(|case| case.is_drawn()).for_each(verify);
}

// Catches a frame lost, doubled or wrongly matched between the executor and the wire, under any delay and lack of
// credit.
each_collective!(exhaust);

/// Catches a slice that is mistaken for one of another strand, or is gone when it is read: scratch is dropped with
/// the call.
#[test]
fn overlays() {
    overlay_cases(0..500).for_each(|case| verify(&case));
}

/// What a slow child has not received yet must not delay its parent, nor be read from memory that the parent's caller
/// may already be reusing.
#[test]
fn a_rank_is_done_before_its_slow_child() {
    let (reduce, broadcast) = (vec![None, Some(0), Some(0)], vec![None, Some(0), Some(1)]);
    let overlay = Overlay::new(3, vec![OverlayPart { share: 1, reduce, broadcast }]).unwrap();
    for (seed, mut case) in overlay_cases(0..40).enumerate() {
        (case.size, case.count, case.chunk, case.seed) = (3, 3000, [0, 500][seed % 2], seed as u64);
        case.hosts = vec![];
        let (network, mut workers) = start_along(&case, &overlay);
        let mut random = SplitMix64::new(case.seed);
        while !workers[1].engine.is_complete(workers[1].group) {
            // The last rank does not move once the rank above it has all results, for which that one needs its help.
            let has_all = workers[1].memory.recv == workers[1].expected;
            let stepped = if has_all { &mut workers[..2] } else { &mut workers[..] };
            assert!(step(stepped, &mut random) || network.advance(), "the parent waits for its child: seed {seed}");
        }
        let held_up = !workers[2].engine.is_complete(workers[2].group);
        assert!(held_up, "the child was to be late: seed {seed}");
        workers[1].memory.recv.fill(runner::POISON);
        while step(&mut workers, &mut random) || network.advance() {}
        assert!(workers[2].memory.recv == workers[2].expected, "seed {seed}");
    }
}

/// A worker dies at a random moment: all others must learn of it, or be done. Users fear a hang most.
#[test]
fn a_lost_worker_ends_the_collective_everywhere() {
    for case in some_cases().filter(|case| case.size > 1) {
        let (network, mut workers) = start(&case);
        let mut random = SplitMix64::new(case.seed * 31);
        let victim = random.below(case.size as usize);
        for _ in 0..random.below(40) {
            if !step(&mut workers, &mut random) && !network.advance() {
                break;
            }
        }
        network.kill(Rank(victim as u32));
        workers.remove(victim);
        for _ in 0..random.below(10) {
            step(&mut workers, &mut random);
            network.advance();
        }
        // In a job the control plane distributes the verdict.
        let lost = NetError::WorkerLost { rank: Rank(victim as u32), reason: "killed by the test".into() };
        workers.iter().for_each(|worker| worker.faults.fail(lost.clone()));
        // A worker that has given up never receives frames, so time could be advanced forever.
        let ended = |workers: &[Worker]| workers.iter().all(|worker| worker.engine.is_complete(worker.group));
        for _ in 0..100_000 {
            if ended(&workers) || !step(&mut workers, &mut random) && !network.advance() {
                break;
            }
        }
        for worker in &mut workers {
            assert!(worker.engine.is_complete(worker.group), "a worker hangs in {case:?} without {victim}");
            match worker.engine.take(worker.group) {
                Ok(_) => {}
                Err(NetError::WorkerLost { rank, .. }) => assert_eq!(rank, Rank(victim as u32)),
                Err(other) => panic!("{other} in {case:?}"),
            }
        }
    }
}
