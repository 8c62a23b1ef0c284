//! Failures are named on every rank, and nothing hangs.

use std::time::Duration;

use tidemill_collective::{
    CallOptions, Collective, CollectiveCall, CollectiveError, Communicator, DType, ReduceOp, VectorBlock, run_ranks,
};
use tidemill_net::{MemoryRegion, NetError};

fn net_error(result: Result<(), CollectiveError>) -> NetError {
    match result {
        Err(CollectiveError::Net(error)) => error,
        other => panic!("expected an error of the job, got {other:?}"),
    }
}

/// Every way in which a call can differ between ranks, direct and with messages, must be described on every rank.
#[test]
fn different_collectives_are_named_on_every_rank() {
    type Call = fn(&tidemill_collective::Communicator) -> Result<(), CollectiveError>;
    let sum: Call = |c| c.allreduce(&[1i64; 3], &mut [0; 3], &ReduceOp::Sum);
    let long_sum: Call = |c| c.allreduce(&vec![1i64; 200_000], &mut vec![0; 200_000], &ReduceOp::Sum);
    let cases: [(&str, Call, Call, [&str; 2]); 6] = [
        ("count", sum, |c| c.allreduce(&[1i64; 4], &mut [0; 4], &ReduceOp::Sum), ["3 x int64", "4 x int64"]),
        ("dtype", sum, |c| c.allreduce(&[1f64; 3], &mut [0.0; 3], &ReduceOp::Sum), ["int64", "float64"]),
        ("op", sum, |c| c.allreduce(&[1i64; 3], &mut [0; 3], &ReduceOp::Max), ["op=sum", "op=max"]),
        ("root", |c| c.bcast(&mut [1i64], 0), |c| c.bcast(&mut [1i64], 1), ["root=0", "root=1"]),
        ("order", |c| c.barrier(), sum, ["barrier()", "allreduce"]),
        ("direct and by messages", long_sum, |c| c.barrier(), ["barrier()", "200000 x int64"]),
    ];
    for (name, usual, odd, words) in cases {
        let errors = run_ranks(3, |comm| {
            comm.barrier().unwrap();
            let result = if comm.rank() == 1 { odd(&comm) } else { usual(&comm) };
            // A root that has sent may learn of it only in its next call.
            net_error(result.and_then(|()| (0..1000).try_for_each(|_| comm.barrier())))
        })
        .unwrap();
        for error in errors {
            let NetError::Mismatch(text) = &error else { panic!("{name}: {error}") };
            words.iter().for_each(|word| assert!(text.contains(word), "{name}: {text}"));
            assert!(text.contains("rank 1 called") && text.contains("\"world\""), "{name}: {text}");
        }
    }
}

/// A vector collective with blocks of the lengths `lens`; `count` is this rank's own length.
fn vector(comm: &Communicator, collective: Collective, lens: [usize; 3], count: usize) -> Result<(), CollectiveError> {
    use Collective::*;
    let (mut send, mut recv) = ([1i64; 20], [0i64; 20]);
    let region = |items: &mut [i64; 20]| MemoryRegion { ptr: items.as_mut_ptr().cast(), len: size_of_val(items) };
    let starts = [0, lens[0], lens[0] + lens[1]];
    let blocks = [0, 1, 2].map(|i| VectorBlock { start: starts[i], len: lens[i] });
    let at_root = comm.rank() == 0;
    let sends_blocks = matches!(collective, Alltoallv | ReduceScatter) || collective == Scatterv && at_root;
    let receives_blocks = matches!(collective, Alltoallv | Allgatherv) || collective == Gatherv && at_root;
    let call = CollectiveCall {
        dtype: DType::I64,
        op: &ReduceOp::Sum,
        count,
        send: Some(region(&mut send)),
        recv: Some(region(&mut recv)),
        send_blocks: if sends_blocks { &blocks } else { &[] },
        recv_blocks: if receives_blocks { &blocks } else { &[] },
        ..CollectiveCall::new(collective)
    };
    // SAFETY: both arrays live until this returns.
    unsafe { comm.run(&call) }
}

/// Counts that only the two ends of a message know are not in the fingerprint: a message that was too long used to be
/// an error on one rank alone, and one that was too short on none.
#[test]
fn different_counts_of_vector_collectives_are_named_on_every_rank() {
    use Collective::*;
    let cases = [
        (Gatherv, [2, 2, 2], 1, "sent 8 bytes"),
        (Scatterv, [2, 2, 2], 3, "expected 24"),
        (Alltoallv, [3, 2, 2], 2, "do both pass the same counts"),
        (Allgatherv, [2, 1, 2], 1, "5 x int64"),
        (Allgatherv, [3, 1, 2], 1, "counts with digest"),
        (ReduceScatter, [3, 1, 2], 6, "counts with digest"),
    ];
    // Also with messages that wait for their receiver.
    for ((collective, lens, count, words), late) in cases.into_iter().flat_map(|case| [(case, false), (case, true)]) {
        let errors = run_ranks(3, |comm| {
            comm.barrier().unwrap();
            if late && comm.rank() != 1 {
                std::thread::sleep(Duration::from_millis(20));
            }
            let usual = if collective == ReduceScatter { 6 } else { 2 };
            let (lens, count) = if comm.rank() == 1 { (lens, count) } else { ([2; 3], usual) };
            net_error(vector(&comm, collective, lens, count).and_then(|()| (0..1000).try_for_each(|_| comm.barrier())))
        })
        .unwrap();
        for error in errors {
            let NetError::Mismatch(text) = &error else { panic!("{collective}: {error}") };
            assert!(text.contains(words) && text.contains("rank 1 called"), "{collective}: {text}");
        }
    }
    // And messages that fit go through.
    run_ranks(3, |comm| {
        for collective in [Gatherv, Scatterv, Alltoallv, Allgatherv] {
            vector(&comm, collective, [2; 3], 2).unwrap();
        }
    })
    .unwrap();
}

/// A blocking collective and a non-blocking one take different paths, on which they would never meet.
#[test]
fn a_collective_that_does_not_block_is_told_from_one_that_does() {
    let errors = run_ranks(3, |comm| {
        comm.barrier().unwrap();
        let result = if comm.rank() == 1 {
            // SAFETY: a barrier has no buffers.
            let request = unsafe { comm.start_nonblocking(&CollectiveCall::new(Collective::Barrier)) }.unwrap();
            request.wait().map(|_| ()).map_err(CollectiveError::from)
        } else {
            comm.barrier()
        };
        net_error(result.and_then(|()| (0..1000).try_for_each(|_| comm.barrier())))
    })
    .unwrap();
    for error in errors {
        let NetError::Mismatch(text) = &error else { panic!("{error}") };
        assert!(text.contains("called ibarrier()") && text.contains("called barrier()"), "{text}");
    }
}

/// A worker that fails wakes all others, wherever they wait.
#[test]
fn a_failure_reaches_blocked_calls() {
    let errors = run_ranks(4, |comm| {
        comm.barrier().unwrap();
        match comm.rank() {
            0 => {
                std::thread::sleep(Duration::from_millis(300));
                comm.endpoint().report_failure("Traceback: it broke");
                None
            }
            1 => comm.recv_slice(&mut [0u8; 8], Some(2), None).err(),
            2 => comm.recv_slice(&mut [0u8; 8], None, None).err(),
            _ => comm.barrier().err(),
        }
    })
    .unwrap();
    for error in errors.into_iter().skip(1) {
        let Some(CollectiveError::Net(NetError::PeerFailed { rank, traceback })) = error else { panic!("{error:?}") };
        assert_eq!((rank.0, traceback.as_str()), (0, "Traceback: it broke"));
    }
}

/// A worker whose program has ended cannot be waited for, but what it sent before that still arrives.
#[test]
fn messages_of_a_worker_that_left_still_arrive() {
    run_ranks(2, |comm| {
        if comm.rank() == 0 {
            for i in 0..100i32 {
                comm.send_slice(&[i; 50], 1, 0).unwrap();
            }
            return;
        }
        std::thread::sleep(Duration::from_millis(300));
        let mut got = [0i32; 50];
        for i in 0..100 {
            comm.recv_slice(&mut got, Some(0), None).unwrap();
            assert_eq!(got, [i; 50]);
        }
        let error = comm.recv_slice(&mut got, Some(0), None).unwrap_err();
        assert!(matches!(error, CollectiveError::Net(NetError::PeerLeft { rank }) if rank.0 == 0), "{error}");
        let error = comm.recv_slice(&mut got, None, None).unwrap_err();
        assert!(matches!(error, CollectiveError::Net(NetError::PeerLeft { .. })), "{error}");
        let error = comm.barrier().unwrap_err();
        assert!(matches!(error, CollectiveError::Net(NetError::PeerLeft { .. })), "{error}");
    })
    .unwrap();
}

/// A message that does not fit is an error at the receiver, and does not affect the next one.
#[test]
fn truncation_is_an_error_and_no_damage() {
    for len in [10usize, 5000, 300_000, 2_000_000] {
        run_ranks(2, |comm| {
            if comm.rank() == 0 {
                comm.send_slice(&vec![7u8; len], 1, 1).unwrap();
                comm.send_slice(&[9u8; 4], 1, 1).unwrap();
            } else {
                let mut short = [0u8; 9];
                let error = comm.recv_slice(&mut short[..8], Some(0), Some(1)).unwrap_err();
                assert!(matches!(error, CollectiveError::Net(NetError::Truncated { .. })), "{error}");
                assert_eq!(short[8], 0);
                let mut next = [0u8; 4];
                comm.recv_slice(&mut next, Some(0), Some(1)).unwrap();
                assert_eq!(next, [9; 4]);
            }
        })
        .unwrap();
    }
}

/// Options that cannot be satisfied are rejected on every rank before any data move.
#[test]
fn impossible_algorithms_are_refused() {
    run_ranks(2, |comm| {
        let call = tidemill_collective::CollectiveCall {
            options: CallOptions { algorithm: Some("chain".parse().unwrap()), ..CallOptions::default() },
            ..tidemill_collective::CollectiveCall::new(tidemill_collective::Collective::Barrier)
        };
        // SAFETY: a barrier has no buffers.
        let error = unsafe { comm.run(&call) }.unwrap_err();
        assert!(matches!(error, CollectiveError::Unsupported(_)), "{error}");
        comm.barrier().unwrap();
    })
    .unwrap();
}

/// Algorithms without messages report why they cannot run a call; the communicator stays usable.
#[test]
fn direct_algorithms_say_what_they_cannot_do() {
    use tidemill_collective::Algorithm;
    run_ranks(3, |comm| {
        let mut data = vec![0i64; 3 * 5000];
        let mut other = data.clone();
        let region = |data: &mut Vec<i64>| Some(MemoryRegion { ptr: data.as_mut_ptr().cast(), len: data.len() * 8 });
        let (send, recv) = (region(&mut data), region(&mut other));
        let by = |algorithm| CallOptions { algorithm: Some(algorithm), ..CallOptions::default() };
        let call = |collective, algorithm| CollectiveCall {
            dtype: DType::I64,
            op: &ReduceOp::Sum,
            count: 5000,
            send,
            recv,
            options: by(algorithm),
            ..CollectiveCall::new(collective)
        };
        use Algorithm::{SharedMemory, SingleCopy};
        use Collective::{Allgather, Allreduce, Alltoall, Barrier};
        let repeatable = CallOptions { repeatable: true, ..by(SharedMemory) };
        for (call, words) in [
            (call(Allgather, SharedMemory), "32 KiB"),
            (call(Barrier, SingleCopy), "does not run this"),
            (CollectiveCall { send: None, ..call(Alltoall, SingleCopy) }, "in place"),
            (CollectiveCall { options: repeatable, ..call(Allreduce, SharedMemory) }, "canonical"),
        ] {
            // SAFETY: the buffers outlive the call, and no other is under way.
            let error = unsafe { comm.run(&call) }.unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("it can be one of"), "{error}");
        }
        // SAFETY: as above; it is rejected.
        let error = unsafe { comm.start_nonblocking(&call(Allreduce, SingleCopy)) }.map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("blocking calls"), "{error}");
        comm.barrier().unwrap();
    })
    .unwrap();
}
