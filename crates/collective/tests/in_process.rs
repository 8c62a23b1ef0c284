//! Whole communicators over the in-process transport.

use tidemill_collective::{Op, run_ranks};

/// Point to point: eager, offered and to oneself.
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

/// Small ones go direct, large ones by messages; both must add up, repeatedly.
#[test]
fn allreduce_adds_up() {
    for size in [1u32, 2, 3, 4, 7] {
        for len in [0usize, 1, 6, 7, 100, 5000, 70_000] {
            run_ranks(size, |comm| {
                for round in 0..20i64 {
                    let send: Vec<i64> = (0..len as i64).map(|i| i + round + i64::from(comm.rank())).collect();
                    let mut recv = vec![0; len];
                    comm.allreduce(&send, &mut recv, &Op::Sum).unwrap();
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

/// Communicators of parts of the job work beside each other.
#[test]
fn split_communicators_are_apart() {
    run_ranks(6, |comm| {
        let part = comm.split(Some(comm.rank() % 2), -i64::from(comm.rank())).unwrap().unwrap();
        assert_eq!(part.size(), 3);
        assert_eq!(part.rank(), 2 - comm.rank() / 2);
        let mut sum = [0i64];
        part.allreduce(&[i64::from(comm.rank())], &mut sum, &Op::Sum).unwrap();
        assert_eq!(sum[0], if comm.rank() % 2 == 0 { 6 } else { 9 });
        let dup = part.dup().unwrap();
        let mut buffer = [i32::from(part.rank() == 1) * 42; 3];
        dup.bcast(&mut buffer, 1).unwrap();
        assert_eq!(buffer, [42; 3]);
    })
    .unwrap();
}
