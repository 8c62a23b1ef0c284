//! Whole communicators over the in-process transport.

use tidemill_collective::{ReduceOp, StartResult, run_ranks};
use tidemill_net::MemoryRegion;

/// Point to point: eager, offered, and to itself.
#[test]
fn messages_of_all_sizes_arrive() {
    for size in [1u32, 2, 3, 5] {
        for len in [0usize, 1, 7, 1000, 20_000, 1_000_000] {
            let sums = run_ranks(size, |comm| {
                let me = comm.rank();
                let next = (me + 1) % comm.size();
                let prev = (me + comm.size() - 1) % comm.size();
                let data = vec![me as i32; len];
                let mut got = vec![-1i32; len + 3];
                if me % 2 == 0 && comm.size() > 1 {
                    comm.send_slice(&data, next, 5).unwrap();
                    comm.recv_slice(&mut got, Some(prev), None).unwrap();
                } else if comm.size() > 1 {
                    comm.recv_slice(&mut got, None, Some(5)).unwrap();
                    comm.send_slice(&data, next, 5).unwrap();
                }
                (0..3).for_each(|i| assert_eq!(got[len + i], -1));
                got[..len].iter().all(|&x| comm.size() == 1 || x == prev as i32)
            })
            .unwrap();
            assert!(sums.iter().all(|&ok| ok), "size {size}, length {len}");
        }
    }
}

/// Small ones go direct, large ones use messages; both must add up, repeatedly.
#[test]
fn allreduce_adds_up() {
    for size in [1u32, 2, 3, 4, 7] {
        for len in [0usize, 1, 6, 7, 100, 5000, 70_000] {
            run_ranks(size, |comm| {
                for round in 0..20i64 {
                    let send: Vec<i64> = (0..len as i64).map(|i| i + round + i64::from(comm.rank())).collect();
                    let mut recv = vec![0; len];
                    comm.allreduce(&send, &mut recv, &ReduceOp::Sum).unwrap();
                    let p = i64::from(size);
                    for (i, &x) in recv.iter().enumerate() {
                        assert_eq!(x, p * (i as i64 + round) + p * (p - 1) / 2, "size {size} len {len} round {round}");
                    }
                }
                comm.barrier().unwrap();
            })
            .unwrap();
        }
    }
}

/// A superfluous descriptor, thread or buffer per pair would show here.
#[test]
fn two_hundred_and_fifty_six_workers_open_and_reduce() {
    let sums = run_ranks(256, |comm| {
        let mut sums = [0.0; 100];
        comm.allreduce(&[f64::from(comm.rank()); 100], &mut sums, &ReduceOp::Sum).unwrap();
        sums
    });
    assert!(sums.unwrap().into_iter().flatten().all(|sum| sum == f64::from(255 * 256 / 2)));
}

/// Communicators for parts of the job work independently.
#[test]
fn split_communicators_are_apart() {
    run_ranks(6, |comm| {
        let part = comm.split(Some(comm.rank() % 2), -i64::from(comm.rank())).unwrap().unwrap();
        assert_eq!(part.size(), 3);
        assert_eq!(part.rank(), 2 - comm.rank() / 2);
        let mut sum = [0i64];
        part.allreduce(&[i64::from(comm.rank())], &mut sum, &ReduceOp::Sum).unwrap();
        assert_eq!(sum[0], if comm.rank() % 2 == 0 { 6 } else { 9 });
        let dup = part.dup().unwrap();
        let mut buffer = [i32::from(part.rank() == 1) * 42; 3];
        dup.bcast(&mut buffer, 1).unwrap();
        assert_eq!(buffer, [42; 3]);
    })
    .unwrap();
}

/// Many large messages of one pair in flight, in both directions and to itself. Both sides copy them one after the
/// other; one side alone finishes a message that was begun, and a long message lets others have their turn. A part
/// copied to the wrong place or twice, or a missing chunk, shows in the numbers.
#[test]
fn many_large_messages_under_way_arrive_whole() {
    let number = |from: u32, message: usize, i: usize| ((i * 31) ^ (message << 20) ^ ((from as usize) << 28)) as u32;
    for size in [1u32, 2, 3] {
        for lens in [
            vec![20_000usize; 40],
            vec![262_144; 9],
            vec![3_000_001, 20_000, 262_147, 5, 40_000, 1_500_000],
            vec![5_000, 16_500, 16_384, 17_000, 900_000],
        ] {
            run_ranks(size, |comm| {
                let me = comm.rank();
                let sent: Vec<Vec<u32>> =
                    lens.iter().enumerate().map(|(m, &len)| (0..len).map(|i| number(me, m, i)).collect()).collect();
                // With extra room: a receiver takes what was sent, not what would fit.
                let mut got: Vec<Vec<u32>> =
                    (0..size).flat_map(|_| lens.iter().map(|len| vec![u32::MAX; len + 2])).collect();
                let mut requests = Vec::new();
                let mut start = |started: StartResult| match started {
                    StartResult::Done(_) => {}
                    StartResult::Pending(request) => requests.push(request),
                };
                for (k, buffer) in got.iter_mut().enumerate() {
                    let (source, tag) = ((k / lens.len()) as u32, (k % lens.len()) as i32);
                    let region = MemoryRegion { ptr: buffer.as_mut_ptr().cast(), len: size_of_val(&buffer[..]) };
                    // SAFETY: all requests end before `got` does.
                    start(unsafe { comm.recv(Some(source), Some(tag), region) }.unwrap());
                }
                for dest in 0..size {
                    for (m, data) in sent.iter().enumerate() {
                        let region = MemoryRegion { ptr: data.as_ptr().cast_mut().cast(), len: size_of_val(&data[..]) };
                        // SAFETY: all requests end before `sent` does.
                        start(unsafe { comm.send(dest, m as i32, region) }.unwrap());
                    }
                }
                for request in requests {
                    request.wait().unwrap();
                }
                for (k, buffer) in got.iter().enumerate() {
                    let (source, m) = ((k / lens.len()) as u32, k % lens.len());
                    let wrong = (0..lens[m]).find(|&i| buffer[i] != number(source, m, i));
                    assert_eq!(wrong, None, "message {m} of {source} to {me}, {size} workers, lengths {lens:?}");
                    assert_eq!(buffer[lens[m]..], [u32::MAX; 2]);
                }
            })
            .unwrap();
        }
    }
}
