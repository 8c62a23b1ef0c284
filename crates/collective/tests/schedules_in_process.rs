//! Every collective x algorithm x 1 to 17 ranks x root x length through real communicators over the in-process
//! transport, compared with the same oracle as the schedules alone. This additionally tests the executor, the matching
//! of messages, large messages, and the collectives that bypass schedules.

#[path = "schedules/oracle.rs"]
mod oracle;
#[path = "schedules/runner.rs"]
#[allow(dead_code, reason = "only its memory and random numbers are of use here")]
mod runner;

use oracle::{Case, compose, each_collective, is_rooted, reduces};
use runner::Alias;
use tidemill_collective::algorithms::supported;
use tidemill_collective::{
    Algorithm, CallOptions, Collective, CollectiveCall, Communicator, DType, ReduceOp, UserOp, direct_algorithms,
    run_ranks,
};
use tidemill_net::MemoryRegion;

fn region(words: &mut [u64]) -> MemoryRegion {
    MemoryRegion { ptr: words.as_mut_ptr().cast(), len: size_of_val(words) }
}

/// Makes the call on this rank and compares. `algorithm`: the case's, or the communicator's choice.
fn verify(comm: &Communicator, case: &Case, algorithm: Option<Algorithm>, ops: &[ReduceOp; 2]) {
    let rank = comm.rank();
    let plain: &dyn Fn(u64, u64) -> u64 = if case.commutative { &u64::wrapping_add } else { &compose };
    let (mut memory, expected) = case.memory(rank, plain);
    let (send_blocks, recv_blocks) = case.blocks(rank);
    let (send, recv) = (region(&mut memory.send), region(&mut memory.recv));
    let (send, recv) = match memory.alias {
        Alias::None => (Some(send), Some(recv)),
        Alias::SendInRecv(_) => (None, Some(recv)),
        Alias::RecvInSend(_) => (Some(send), None),
    };
    let call = CollectiveCall {
        dtype: DType::U64,
        op: &ops[usize::from(!case.commutative)],
        root: case.root,
        count: case.params(rank, &send_blocks, &recv_blocks).count,
        send: if case.collective == Collective::Bcast { None } else { send },
        recv,
        send_blocks: &send_blocks,
        recv_blocks: &recv_blocks,
        options: CallOptions { algorithm, chunk: Some(case.chunk), repeatable: case.repeatable },
        ..CollectiveCall::new(case.collective)
    };
    // SAFETY: `memory` outlives the call, which is blocking.
    if let Err(error) = unsafe { comm.run(&call) } {
        panic!("rank {rank}: {error} in {case:?}");
    }
    let result = if matches!(memory.alias, Alias::RecvInSend(_)) { &memory.send } else { &memory.recv };
    assert!(result[..expected.len()] == expected, "rank {rank}: wrong result of {case:?}, run with {algorithm:?}");
}

const RANKS_MAX: u32 = 17;
/// Up to this number of ranks every combination of short calls runs; beyond, in-place calls and operations that do not
/// commute alternate.
const RANKS_FEW: u32 = 5;
/// Elements of a pipelined chunk.
const CHUNK: usize = 3;
/// Elements of 32 KiB: a slot of shared memory, and a piece of a message; half of it is the longest that is sent
/// eagerly.
const SLOT: usize = 4096;

/// Counts at and around every boundary for `size` ranks, each with its chunk: none, one, the ends of chunks and several
/// of these; or, for algorithms without chunks, fewer elements than ranks, and even and uneven shares.
fn small_counts(size: usize, chunked: bool) -> Vec<(usize, usize)> {
    let mut counts = match chunked {
        true => vec![0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 1],
        false => vec![0, 1, size - 1, size, size + 1, 3 * size + 2],
    };
    counts.sort_unstable();
    counts.dedup();
    counts.into_iter().map(|count| (count, CHUNK)).collect()
}

/// Counts at the boundaries of the transport and of the slots, with a chunk that divides them into several. Each rank
/// computes the contributions of all others, so only few ranks use all of these counts.
fn large_counts(size: u32) -> &'static [(usize, usize)] {
    match size {
        ..=RANKS_FEW => &[
            (SLOT / 2, SLOT / 2 - 1),
            (SLOT / 2 + 1, SLOT / 2),
            (SLOT - 1, SLOT / 3),
            (SLOT, SLOT / 2),
            (SLOT + 1, SLOT),
            (3 * SLOT + 1, SLOT / 2 + 1),
            (40_000, 13_000),
        ],
        8 | 13 | RANKS_MAX => &[(SLOT + 1, SLOT / 2)],
        _ => &[],
    }
}

/// Whether the algorithm runs the collective; those without messages cannot always.
fn is_able(collective: Collective, algorithm: Option<Algorithm>, size: usize, count: usize, in_place: bool) -> bool {
    use Collective::*;
    match algorithm {
        Some(Algorithm::SharedMemory) => {
            let part = match collective {
                Gather | Allgather | Scan | Exscan => count,
                // Blocks of vector variants are shorter than three times the count.
                Allgatherv => 3 * count,
                Scatter | Alltoall | ReduceScatterBlock => count * size,
                ReduceScatter => 3 * count * size,
                _ => 0,
            };
            part <= SLOT
        }
        Some(Algorithm::SingleCopy) => collective != Alltoall || !in_place,
        _ => true,
    }
}

fn cases(collective: Collective, size: u32) -> Vec<(Case, Option<Algorithm>)> {
    let (rooted, reduces) = (is_rooted(collective), reduces(collective));
    // The communicator's own choice, all schedules, all algorithms without messages.
    let chosen = [(None, true, false)];
    let schedules = supported(collective).iter().map(|entry| (Some(entry.algorithm), entry.in_order, entry.chunked));
    let direct = direct_algorithms(collective).iter().map(|&algorithm| (Some(algorithm), true, false));
    let (mut cases, mut seed) = (Vec::new(), 0);
    for (algorithm, in_order, chunked) in chosen.into_iter().chain(schedules).chain(direct) {
        let mut counts = small_counts(size as usize, chunked);
        counts.extend(large_counts(size));
        if collective == Collective::Barrier {
            counts.truncate(1);
        }
        for root in 0..if rooted { size } else { 1 } {
            for &(count, chunk) in &counts {
                let all = size <= RANKS_FEW && count < SLOT / 2;
                for (in_place, commutative) in [(0, true), (1, true), (0, false), (1, false)] {
                    let turn = count + root as usize;
                    if !(commutative || reduces && in_order)
                        || !is_able(collective, algorithm, size as usize, count, in_place == 1)
                        || !all && turn % 2 != in_place as usize
                        || !all && reduces && in_order && commutative == (turn / 2).is_multiple_of(2)
                    {
                        continue;
                    }
                    seed += 1;
                    let case = Case {
                        collective,
                        algorithm: algorithm.unwrap_or(Algorithm::Flat),
                        size,
                        root,
                        count,
                        chunk: if chunked && count > chunk { chunk } else { 0 },
                        hosts: vec![],
                        commutative,
                        repeatable: algorithm.is_none() && in_place == 1 && reduces && commutative,
                        in_place,
                        seed,
                    };
                    if case.is_drawn() {
                        cases.push((case, algorithm));
                    }
                }
            }
        }
    }
    cases
}

fn exhaust(collective: Collective) {
    for size in 1..=RANKS_MAX {
        let cases = cases(collective, size);
        run_ranks(size, |comm| {
            let compose = UserOp::new("compose", false, |left, right, _| {
                for (l, r) in left.as_chunks().0.iter().zip(right.as_chunks_mut().0) {
                    *r = compose(u64::from_ne_bytes(*l), u64::from_ne_bytes(*r)).to_ne_bytes();
                }
                Ok(())
            });
            let ops = [ReduceOp::Sum, ReduceOp::User(compose)];
            cases.iter().for_each(|(case, algorithm)| verify(&comm, case, *algorithm, &ops));
        })
        .unwrap();
    }
}

// Catches anything that the executor or a direct collective does differently from a plain reading of the schedule.
each_collective!(exhaust);
