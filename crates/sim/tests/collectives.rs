//! Real engines and the real executor on the simulated network: every collective x algorithm, all ranks stepped in one
//! thread, with frames late, overtaken, cut and out of credit as the seed says; and workers killed in the middle.

#[path = "../../collective/tests/schedules/oracle.rs"]
mod oracle;
#[path = "../../collective/tests/schedules/runner.rs"]
#[allow(dead_code, reason = "only its memory and random numbers are of use here")]
mod runner;

use std::sync::Arc;

use oracle::{Case, compose};
use runner::{Alias, Memory};
use tidemill_collective::algorithms::{schedule, supported};
use tidemill_collective::{Collective, DType, Execution, Op, UserOp};
use tidemill_net::{Engine, Envelope, Faults, GroupId, NetError, Rank, Region};
use tidemill_sim::{Random, SimNetwork, SimOptions};

/// The context and number of the one collective of a run.
const ENVELOPE: Envelope = Envelope { context: 1, tag: 0, seq: 1, signature: 1 };

struct Worker {
    engine: Engine,
    faults: Arc<Faults>,
    group: GroupId,
    memory: Memory,
    expected: Vec<u64>,
}

fn region(words: &mut [u64]) -> Region {
    Region { ptr: words.as_mut_ptr().cast(), len: size_of_val(words) }
}

/// Where `Send` and `Recv` of the call are, as the communicator would have it.
fn buffers(memory: &mut Memory) -> (Region, Region) {
    let (send, recv) = (region(&mut memory.send), region(&mut memory.recv));
    let inside = |region: Region, at: usize| Region {
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

/// Starts the collective of `case` on every rank of a fresh simulated job.
fn start(case: &Case) -> (SimNetwork, Vec<Worker>) {
    let mut random = Random::new(case.seed);
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
        true => Op::Sum,
        false => Op::User(UserOp::new("compose", false, |left, right, _| {
            for (l, r) in left.as_chunks().0.iter().zip(right.as_chunks_mut().0) {
                *r = compose(u64::from_ne_bytes(*l), u64::from_ne_bytes(*r)).to_ne_bytes();
            }
            Ok(())
        })),
    };
    let ranks: Arc<[Rank]> = (0..case.size).map(Rank).collect();
    let worker = |(rank, transport)| {
        let rank = rank as u32;
        let faults = Arc::new(Faults::default());
        let routes: Vec<Option<usize>> = (0..case.size).map(|peer| (peer != rank).then_some(0)).collect();
        let mut engine = Engine::new(Rank(rank), vec![Box::new(transport)], &routes, Arc::clone(&faults));
        engine.open_context(ENVELOPE.context);
        let (send_blocks, recv_blocks) = case.blocks(rank);
        let params = case.params(rank, &send_blocks, &recv_blocks);
        let schedule = Arc::new(schedule(case.collective, case.algorithm, &params).unwrap());
        let (mut memory, expected) = case.memory(rank, plain);
        let (send, recv) = buffers(&mut memory);
        // SAFETY: the vectors of `memory` stay where they are until the worker is dropped, the engine with it.
        let execution =
            unsafe { Execution::new(schedule, Arc::clone(&ranks), ENVELOPE, DType::U64, op.clone(), send, recv) };
        let group = engine.add_task(Box::new(execution));
        Worker { engine, faults, group, memory, expected }
    };
    (network, transports.into_iter().enumerate().map(worker).collect())
}

/// Steps everybody in random order. Returns whether anything moved.
fn step(workers: &mut [Worker], random: &mut Random) -> bool {
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
    let mut random = Random::new(!case.seed);
    while step(&mut workers, &mut random) || network.advance() {}
    for (rank, worker) in workers.iter_mut().enumerate() {
        assert!(worker.engine.is_complete(worker.group), "rank {rank} hangs in {case:?}");
        worker.engine.take(worker.group).unwrap_or_else(|error| panic!("rank {rank}: {error} in {case:?}"));
        let aliased = matches!(worker.memory.alias, Alias::RecvInSend(_));
        let result = if aliased { &worker.memory.send } else { &worker.memory.recv };
        assert!(result[..worker.expected.len()] == worker.expected, "rank {rank}: wrong result of {case:?}");
    }
}

fn cases() -> impl Iterator<Item = Case> {
    let reduces = |collective| {
        use Collective::*;
        matches!(collective, Reduce | Allreduce | ReduceScatter | ReduceScatterBlock | Scan | Exscan)
    };
    let mut seed = 0;
    let combinations =
        Collective::ALL.iter().flat_map(|&collective| supported(collective).iter().map(move |e| (collective, *e)));
    combinations.flat_map(move |(collective, entry)| {
        let mut cases = Vec::new();
        for size in [1, 2, 3, 4, 5, 8, 11] {
            for count in [0, 1, 7, 60, 700] {
                seed += 1;
                cases.push(Case {
                    collective,
                    algorithm: entry.algorithm,
                    size,
                    root: seed as u32 * 7 % size,
                    count: if collective == Collective::Barrier { 0 } else { count },
                    chunk: if entry.chunked { count / 3 } else { 0 },
                    hosts: (0..size).map(|rank| rank / 2).collect(),
                    commutative: !(reduces(collective) && entry.in_order && seed % 2 == 0),
                    repeatable: false,
                    in_place: (seed / 2 % 2) as u32,
                    seed,
                });
            }
        }
        cases
    })
}

/// A frame lost, doubled or matched wrongly between the executor and the wire, under any delay and lack of credit.
#[test]
fn collectives_are_right_on_a_hostile_network() {
    cases().for_each(|case| verify(&case));
}

/// A worker dies at a random moment: everybody else must be told, or be done; a hang is what users fear most.
#[test]
fn a_lost_worker_ends_the_collective_everywhere() {
    for case in cases().filter(|case| case.size > 1) {
        let (network, mut workers) = start(&case);
        let mut random = Random::new(case.seed * 31);
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
        // In a job the control channel passes the verdict on.
        let lost = NetError::WorkerLost { rank: Rank(victim as u32), reason: "killed by the test".into() };
        workers.iter().for_each(|worker| worker.faults.fail(lost.clone()));
        // Frames to who has given up are never taken, so time could be advanced for ever.
        let ended = |workers: &[Worker]| workers.iter().all(|worker| worker.engine.is_complete(worker.group));
        for _ in 0..100_000 {
            if ended(&workers) || !step(&mut workers, &mut random) && !network.advance() {
                break;
            }
        }
        for worker in &mut workers {
            assert!(worker.engine.is_complete(worker.group), "somebody hangs in {case:?} without {victim}");
            match worker.engine.take(worker.group) {
                Ok(_) => {}
                Err(NetError::WorkerLost { rank, .. }) => assert_eq!(rank, Rank(victim as u32)),
                Err(other) => panic!("{other} in {case:?}"),
            }
        }
    }
}
