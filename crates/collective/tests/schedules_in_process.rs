//! Every collective x algorithm through real communicators over the in-process transport, against the same oracle as the
//! schedules alone: what could still be wrong is the executor, the matching of messages, large messages, and the
//! collectives that bypass schedules.

#[path = "schedules/oracle.rs"]
mod oracle;
#[path = "schedules/runner.rs"]
#[allow(dead_code, reason = "only its memory and random numbers are of use here")]
mod runner;

use oracle::{Case, compose};
use runner::Alias;
use tidemill_collective::algorithms::supported;
use tidemill_collective::{Algorithm, Call, Collective, Communicator, DType, Op, Options, UserOp, run_ranks};
use tidemill_net::Region;

fn region(words: &mut [u64]) -> Region {
    Region { ptr: words.as_mut_ptr().cast(), len: size_of_val(words) }
}

/// Makes the call on this rank and compares. `algorithm`: the case's, or whatever the communicator chooses.
fn verify(comm: &Communicator, case: &Case, algorithm: Option<Algorithm>, ops: &[Op; 2]) {
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
    let call = Call {
        dtype: DType::U64,
        op: &ops[usize::from(!case.commutative)],
        root: case.root,
        count: case.params(rank, &send_blocks, &recv_blocks).count,
        send: if case.collective == Collective::Bcast { None } else { send },
        recv,
        send_blocks: &send_blocks,
        recv_blocks: &recv_blocks,
        options: Options { algorithm, chunk: Some(case.chunk), repeatable: case.repeatable },
        ..Call::new(case.collective)
    };
    // SAFETY: `memory` outlives the call, which is blocking.
    if let Err(error) = unsafe { comm.run(&call) } {
        panic!("rank {rank}: {error} in {case:?}");
    }
    let result = if matches!(memory.alias, Alias::RecvInSend(_)) { &memory.send } else { &memory.recv };
    assert!(result[..expected.len()] == expected, "rank {rank}: wrong result of {case:?}, run with {algorithm:?}");
}

fn cases(collective: Collective, size: u32) -> Vec<(Case, Option<Algorithm>)> {
    use Collective::*;
    let rooted = matches!(collective, Bcast | Reduce | Gather | Gatherv | Scatter | Scatterv);
    let reduces = matches!(collective, Reduce | Allreduce | ReduceScatter | ReduceScatterBlock | Scan | Exscan);
    let p = size as usize;
    let mut cases = Vec::new();
    for root in 0..if rooted { size } else { 1 } {
        // The last two travel in several pieces.
        for count in [0, 1, p + 1, 3000, 40_000] {
            if count > 1000 && root > 1 || collective == Barrier && count > 0 {
                continue;
            }
            for in_place in 0..2 {
                for commutative in [true, false] {
                    for algorithm in [None].into_iter().chain(supported(collective).iter().map(Some)) {
                        if !(commutative || reduces && algorithm.is_none_or(|entry| entry.in_order)) {
                            continue;
                        }
                        let case = Case {
                            collective,
                            algorithm: algorithm.map_or(Algorithm::Flat, |entry| entry.algorithm),
                            size,
                            root,
                            count,
                            chunk: if count > 1000 && algorithm.is_some_and(|entry| entry.chunked) {
                                count / 3
                            } else {
                                0
                            },
                            hosts: vec![],
                            commutative,
                            repeatable: algorithm.is_none() && in_place == 1 && reduces && commutative,
                            in_place,
                            seed: cases.len() as u64,
                        };
                        cases.push((case, algorithm.map(|entry| entry.algorithm)));
                    }
                }
            }
        }
    }
    cases
}

fn exhaust(collective: Collective) {
    for size in [1, 2, 3, 5] {
        let cases = cases(collective, size);
        run_ranks(size, |comm| {
            let compose = UserOp::new("compose", false, |left, right, _| {
                for (l, r) in left.as_chunks().0.iter().zip(right.as_chunks_mut().0) {
                    *r = compose(u64::from_ne_bytes(*l), u64::from_ne_bytes(*r)).to_ne_bytes();
                }
                Ok(())
            });
            let ops = [Op::Sum, Op::User(compose)];
            cases.iter().for_each(|(case, algorithm)| verify(&comm, case, *algorithm, &ops));
        })
        .unwrap();
    }
}

macro_rules! exhaustive {
    ($($name:ident: $collective:ident,)*) => {$(
        /// Anything the executor or a direct collective does otherwise than the schedule's plain reading.
        #[test]
        fn $name() {
            exhaust(Collective::$collective);
        }
    )*};
}
exhaustive! {
    barrier: Barrier,
    bcast: Bcast,
    reduce: Reduce,
    allreduce: Allreduce,
    gather: Gather,
    gatherv: Gatherv,
    allgather: Allgather,
    allgatherv: Allgatherv,
    scatter: Scatter,
    scatterv: Scatterv,
    alltoall: Alltoall,
    alltoallv: Alltoallv,
    reduce_scatter_block: ReduceScatterBlock,
    reduce_scatter: ReduceScatter,
    scan: Scan,
    exscan: Exscan,
}
