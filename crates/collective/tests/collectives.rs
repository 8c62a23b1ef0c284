//! Every collective with every algorithm on real communicators, compared with a serial version: tests the executor,
//! in-place calls, direct collectives, and several non-blocking ones in flight. (`schedules/` checks that the schedules
//! themselves are right for every count, root and size.)

use tidemill_collective::{
    Algorithm, CallOptions, Collective, CollectiveCall, Communicator, DType, ReduceOp, StartResult, VectorBlock,
    algorithms, direct_algorithms, run_ranks,
};
use tidemill_net::MemoryRegion;

fn region(data: &mut [i64]) -> MemoryRegion {
    MemoryRegion { ptr: data.as_mut_ptr().cast(), len: size_of_val(data) }
}

/// Element `i` of rank `rank`'s contribution.
fn value(rank: usize, i: usize) -> i64 {
    (rank as i64 + 1) * 1_000_003 + i as i64 * 7
}

/// Uneven blocks, some of them empty, with a gap between them.
fn blocks(ranks: usize, count: usize) -> Vec<VectorBlock> {
    let mut start = 0;
    (0..ranks)
        .map(|r| {
            let block = VectorBlock { start, len: count * (r % 3) };
            start += block.len + 2;
            block
        })
        .collect()
}

fn packed(ranks: usize, count: usize) -> Vec<VectorBlock> {
    let mut start = 0;
    (0..ranks)
        .map(|r| {
            let block = VectorBlock { start, len: count * (r % 3) };
            start += block.len;
            block
        })
        .collect()
}

struct Case {
    collective: Collective,
    algorithm: Option<Algorithm>,
    root: usize,
    count: usize,
    in_place: bool,
}

/// One rank's buffers of a case, and their expected contents.
struct Plan {
    send: Vec<i64>,
    recv: Vec<i64>,
    expected: Option<Vec<i64>>,
    send_blocks: Vec<VectorBlock>,
    recv_blocks: Vec<VectorBlock>,
    count: usize,
    send_used: bool,
    recv_used: bool,
}

const GAP: i64 = -1;

fn plan(case: &Case, me: usize, p: usize) -> Plan {
    use Collective::*;
    let Case { collective, root, count: n, in_place, .. } = *case;
    let sum = |range: std::ops::Range<usize>, i: usize| range.map(|r| value(r, i)).sum::<i64>();
    let own: Vec<i64> = (0..n).map(|i| value(me, i)).collect();
    let at_root = me == root;
    let end = |blocks: &[VectorBlock]| blocks.iter().map(|b| b.start + b.len).max().unwrap_or(0);
    let mut plan = Plan {
        send: own.clone(),
        recv: Vec::new(),
        expected: None,
        send_blocks: Vec::new(),
        recv_blocks: Vec::new(),
        count: n,
        send_used: true,
        recv_used: true,
    };
    match collective {
        Barrier => (plan.send_used, plan.recv_used) = (false, false),
        Bcast => {
            plan.send_used = false;
            plan.recv = if at_root { own } else { vec![GAP; n] };
            plan.expected = Some((0..n).map(|i| value(root, i)).collect());
        }
        Reduce => {
            plan.recv = if at_root { vec![GAP; n] } else { Vec::new() };
            plan.recv_used = at_root;
            plan.expected = at_root.then(|| (0..n).map(|i| sum(0..p, i)).collect());
        }
        Allreduce => {
            plan.recv = vec![GAP; n];
            plan.expected = Some((0..n).map(|i| sum(0..p, i)).collect());
        }
        Scan => {
            plan.recv = vec![GAP; n];
            plan.expected = Some((0..n).map(|i| sum(0..me + 1, i)).collect());
        }
        Exscan => {
            plan.recv = vec![GAP; n];
            plan.expected = (me > 0).then(|| (0..n).map(|i| sum(0..me, i)).collect());
        }
        Gather | Allgather => {
            let gets = at_root || collective == Allgather;
            plan.recv = if gets { vec![GAP; n * p] } else { Vec::new() };
            plan.recv_used = gets;
            plan.expected = gets.then(|| (0..n * p).map(|i| value(i / n, i % n)).collect());
        }
        Gatherv | Allgatherv => {
            let gets = at_root || collective == Allgatherv;
            let all = blocks(p, n);
            plan.count = all[me].len;
            plan.send = (0..plan.count).map(|i| value(me, i)).collect();
            plan.recv_used = gets;
            if gets {
                plan.recv = vec![GAP; end(&all)];
                let mut expected = plan.recv.clone();
                all.iter().enumerate().for_each(|(r, b)| (0..b.len).for_each(|i| expected[b.start + i] = value(r, i)));
                plan.expected = Some(expected);
                plan.recv_blocks = all;
            }
        }
        Scatter => {
            plan.send = if at_root { (0..n * p).map(|i| value(root, i)).collect() } else { Vec::new() };
            plan.send_used = at_root;
            plan.recv = vec![GAP; n];
            plan.expected = Some((0..n).map(|i| value(root, me * n + i)).collect());
        }
        Scatterv => {
            let all = blocks(p, n);
            plan.count = all[me].len;
            plan.recv = vec![GAP; plan.count];
            plan.expected = Some((0..plan.count).map(|i| value(root, all[me].start + i)).collect());
            plan.send = if at_root { (0..end(&all)).map(|i| value(root, i)).collect() } else { Vec::new() };
            plan.send_used = at_root;
            plan.send_blocks = if at_root { all } else { Vec::new() };
        }
        Alltoall => {
            plan.send = (0..n * p).map(|i| value(me, i)).collect();
            plan.recv = vec![GAP; n * p];
            plan.expected = Some((0..n * p).map(|i| value(i / n, me * n + i % n)).collect());
        }
        Alltoallv => {
            // From rank r to rank s: n * ((r + s) % 3) elements, so that both sides know.
            let layout = |me: usize| -> Vec<VectorBlock> {
                let mut start = 0;
                (0..p)
                    .map(|r| {
                        let block = VectorBlock { start, len: n * ((me + r) % 3) };
                        start += block.len + 1;
                        block
                    })
                    .collect()
            };
            let mine = layout(me);
            plan.send = (0..end(&mine)).map(|i| value(me, i)).collect();
            plan.recv = vec![GAP; end(&mine)];
            let mut expected = plan.recv.clone();
            for (r, block) in mine.iter().enumerate() {
                let theirs = layout(r)[me];
                (0..block.len).for_each(|i| expected[block.start + i] = value(r, theirs.start + i));
            }
            plan.expected = Some(expected);
            plan.send_blocks = mine.clone();
            plan.recv_blocks = mine;
        }
        ReduceScatterBlock => {
            plan.send = (0..n * p).map(|i| value(me, i)).collect();
            plan.recv = vec![GAP; n];
            plan.expected = Some((0..n).map(|i| sum(0..p, me * n + i)).collect());
        }
        ReduceScatter => {
            let all = packed(p, n);
            plan.send = (0..end(&all)).map(|i| value(me, i)).collect();
            plan.recv = vec![GAP; all[me].len];
            plan.expected = Some((0..all[me].len).map(|i| sum(0..p, all[me].start + i)).collect());
            plan.send_blocks = all;
        }
    }
    if in_place {
        go_in_place(&mut plan, case, me, p);
    }
    plan
}

/// Turns a plan into its in-place form, if the standard has one.
fn go_in_place(plan: &mut Plan, case: &Case, me: usize, p: usize) {
    use Collective::*;
    let n = case.count;
    let at_root = me == case.root;
    match case.collective {
        Reduce if at_root => (plan.recv, plan.send_used) = (plan.send.clone(), false),
        Allreduce | Scan | Exscan | Alltoall => (plan.recv, plan.send_used) = (plan.send.clone(), false),
        Alltoallv => {
            (plan.recv, plan.send_used) = (plan.send.clone(), false);
            let expected = plan.expected.as_mut().expect("everybody gets something");
            // The gaps keep their previous contents.
            let mut merged = plan.recv.clone();
            plan.recv_blocks
                .iter()
                .for_each(|b| merged[b.start..b.start + b.len].copy_from_slice(&expected[b.start..b.start + b.len]));
            *expected = merged;
        }
        Gather if at_root => {
            plan.recv[me * n..][..n].copy_from_slice(&plan.send);
            plan.send_used = false;
        }
        Allgather => {
            plan.recv[me * n..][..n].copy_from_slice(&plan.send);
            plan.send_used = false;
        }
        Gatherv | Allgatherv if !plan.recv_blocks.is_empty() => {
            let block = plan.recv_blocks[me];
            plan.recv[block.start..][..block.len].copy_from_slice(&plan.send);
            plan.send_used = false;
        }
        ReduceScatterBlock | ReduceScatter => {
            let mut whole = plan.send.clone();
            let got = plan.expected.take().expect("everybody gets a block");
            plan.send_used = false;
            plan.recv = whole.clone();
            whole[..got.len()].copy_from_slice(&got);
            // The contents after the result are unspecified: only the result is compared.
            plan.expected = Some(got);
        }
        Scatter | Scatterv if at_root => plan.recv_used = false,
        _ => {}
    }
    let _ = p;
}

fn call<'a>(case: &Case, plan: &'a mut Plan) -> CollectiveCall<'a> {
    CollectiveCall {
        dtype: DType::I64,
        op: &ReduceOp::Sum,
        root: case.root as u32,
        count: plan.count,
        send: plan.send_used.then(|| region(&mut plan.send)),
        recv: plan.recv_used.then(|| region(&mut plan.recv)),
        send_blocks: &plan.send_blocks,
        recv_blocks: &plan.recv_blocks,
        options: CallOptions {
            algorithm: case.algorithm,
            chunk: case.algorithm.map(|_| 1 + case.count / 7),
            repeatable: false,
        },
        ..CollectiveCall::new(case.collective)
    }
}

fn check(case: &Case, plan: &Plan, me: usize, p: usize) {
    let Some(expected) = &plan.expected else { return };
    if !plan.recv_used {
        return;
    }
    let Case { collective, algorithm, root, count, in_place } = case;
    assert_eq!(
        plan.recv[..expected.len()],
        expected[..],
        "{collective} by {algorithm:?}, rank {me} of {p}, root {root}, count {count}, in place {in_place}"
    );
}

fn cases(p: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for &collective in Collective::ALL {
        let by = algorithms::supported(collective).iter().map(|entry| Some(entry.algorithm)).chain([None]);
        for algorithm in by {
            for root in [0, p - 1] {
                for count in [0, 1, 13, 5000] {
                    for in_place in [false, true] {
                        cases.push(Case { collective, algorithm, root, count, in_place });
                    }
                }
            }
        }
    }
    cases
}

/// The same with the algorithms without messages, if they support the case.
fn direct_cases(p: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for &collective in Collective::ALL {
        for &algorithm in direct_algorithms(collective) {
            for root in [0, p - 1] {
                for count in [0, 1, 13, 500, 70_000] {
                    for in_place in [false, true] {
                        let is_chunked = matches!(
                            collective,
                            Collective::Barrier | Collective::Bcast | Collective::Reduce | Collective::Allreduce
                        );
                        let is_able = match algorithm {
                            Algorithm::SharedMemory => is_chunked || count <= 500,
                            _ => collective != Collective::Alltoall || !in_place,
                        };
                        if is_able {
                            cases.push(Case { collective, algorithm: Some(algorithm), root, count, in_place });
                        }
                    }
                }
            }
        }
    }
    cases
}

fn blocking(comm: &Communicator, p: usize) {
    let me = comm.rank() as usize;
    for case in cases(p).into_iter().chain(direct_cases(p)) {
        let mut plan = plan(&case, me, p);
        // SAFETY: the plan's buffers live until `run` returns.
        if let Err(error) = unsafe { comm.run(&call(&case, &mut plan)) } {
            panic!("{} by {:?}: {error}", case.collective, case.algorithm);
        }
        check(&case, &plan, me, p);
    }
}

#[test]
fn blocking_collectives_equal_the_serial_version() {
    for p in [1usize, 2, 3, 4, 5, 8] {
        run_ranks(p as u32, |comm| blocking(&comm, p)).unwrap();
    }
}

/// Non-blocking collectives of all kinds in flight at once, completed in reverse order, beside blocking ones.
#[test]
fn nonblocking_collectives_overlap() {
    for p in [1usize, 2, 3, 5] {
        run_ranks(p as u32, |comm| {
            let me = comm.rank() as usize;
            let cases: Vec<Case> = cases(p).into_iter().filter(|c| c.count != 1).collect();
            for batch in cases.chunks(16) {
                let mut plans: Vec<Plan> = batch.iter().map(|case| plan(case, me, p)).collect();
                let requests: Vec<_> = batch
                    .iter()
                    .zip(&mut plans)
                    // SAFETY: the plans live until all requests are over.
                    .map(|(case, plan)| unsafe { comm.start_nonblocking(&call(case, plan)) }.unwrap())
                    .collect();
                comm.barrier().unwrap();
                for request in requests.into_iter().rev() {
                    request.wait().unwrap();
                }
                batch.iter().zip(&plans).for_each(|(case, plan)| check(case, plan, me, p));
            }
        })
        .unwrap();
    }
}

/// The result is bitwise the same however the message is divided, as long as the ranks are the same.
#[test]
fn repeatable_reductions_do_not_depend_on_size_or_neighbours() {
    for p in [2u32, 3, 5, 8] {
        let results = run_ranks(p, |comm| {
            let data: Vec<f32> =
                (0..50_000).map(|i| ((i * 7919 + comm.rank() * 104_729) % 10_007) as f32 * 1e-3).collect();
            let mut results = Vec::new();
            for len in [1usize, 10, 1000, 50_000] {
                let (mut send, mut recv) = (data[..len].to_vec(), vec![0f32; len]);
                let call = CollectiveCall {
                    dtype: DType::F32,
                    op: &ReduceOp::Sum,
                    count: len,
                    send: Some(MemoryRegion { ptr: send.as_mut_ptr().cast(), len: len * 4 }),
                    recv: Some(MemoryRegion { ptr: recv.as_mut_ptr().cast(), len: len * 4 }),
                    options: CallOptions { repeatable: true, ..CallOptions::default() },
                    ..CollectiveCall::new(Collective::Allreduce)
                };
                // SAFETY: the buffers live until `start`'s request is over.
                match unsafe { comm.start(&call) }.unwrap() {
                    StartResult::Done(_) => {}
                    StartResult::Pending(request) => {
                        request.wait().unwrap();
                    }
                }
                results.push(recv);
            }
            results
        })
        .unwrap();
        for ranks in &results {
            for (short, long) in ranks.iter().zip(&results[0][3..].iter().cycle().take(4).collect::<Vec<_>>()) {
                assert!(short.iter().zip(long.iter()).all(|(a, b)| a.to_bits() == b.to_bits()), "{p} ranks");
            }
        }
    }
}

/// The guide must list the names that can be requested.
#[test]
fn the_guide_lists_every_algorithm() {
    let guide = include_str!("../../../docs/mpi.md");
    let table =
        guide.split("| collective | algorithms |\n|---|---|\n").nth(1).expect("the guide has a table of algorithms");
    let mut listed = Vec::new();
    for row in table.lines().take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        for name in cells[0].split(", ") {
            let collective: Collective = name.parse().unwrap();
            let names: Vec<&str> = algorithms::supported(collective).iter().map(|e| e.algorithm.name()).collect();
            assert_eq!(cells[1], names.join(", "), "{collective}");
            listed.push(collective);
        }
    }
    listed.sort();
    assert_eq!(listed, Collective::ALL);
    for &algorithm in Algorithm::ALL {
        assert!(guide.contains(algorithm.name()), "{algorithm}");
    }
}
