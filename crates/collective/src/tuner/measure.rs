//! Measures which algorithm is best on the workers of a communicator, and writes it down as rules: `tidemill tune`.

use std::time::{Duration, Instant};

use tidemill_net::Region;

use super::{Order, Query, Rule, Table, candidates};
use crate::{Algorithm, Call, Collective, CollectiveError, Communicator, DType, Op, Options};

/// Sizes to measure unless told otherwise, in bytes of the vector or of one rank's blocks together.
pub const SIZES_BYTES: [usize; 8] = [8, 128, 2 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20];
/// Collectives measured. The vector variants follow the rule of their uniform twins or the cost model.
const MEASURED: [Collective; 11] = [
    Collective::Barrier,
    Collective::Bcast,
    Collective::Reduce,
    Collective::Allreduce,
    Collective::Gather,
    Collective::Allgather,
    Collective::Scatter,
    Collective::Alltoall,
    Collective::ReduceScatterBlock,
    Collective::Scan,
    Collective::Exscan,
];
const ROUNDS: usize = 3;

/// What was found for one collective and size, for progress reports.
pub struct Finding {
    /// The collective.
    pub collective: Collective,
    /// Its order class.
    pub order: Order,
    /// Bytes.
    pub bytes: usize,
    /// The best way and its time per call.
    pub best: (Algorithm, usize, Duration),
    /// Time per call of what the cost model would have chosen.
    pub estimated: Duration,
}

/// Measures all collectives on `comm` at `sizes_bytes` (ascending), `budget` of time for each way of running one at one
/// size, and adds the rules to `table`. Collective; all ranks get equal rules. `report` is called on every rank after each size.
///
/// # Errors
/// The job's fault.
pub fn measure(
    comm: &Communicator,
    table: &mut Table,
    sizes_bytes: &[usize],
    budget: Duration,
    mut report: impl FnMut(&Finding),
) -> Result<(), CollectiveError> {
    let ranks = comm.size();
    let hosts = comm.hosts();
    for collective in MEASURED {
        let orders = if Call::new(collective).reduces() { &Order::ALL[..] } else { &Order::ALL[..1] };
        for &order in orders {
            let sizes = if collective == Collective::Barrier { &sizes_bytes[..1] } else { sizes_bytes };
            for &bytes in sizes {
                let query = Query {
                    collective,
                    bytes,
                    item_bytes: 8,
                    ranks,
                    hosts,
                    commutative: order == Order::Any,
                    repeatable: order == Order::Repeatable,
                };
                let estimate = table.estimate(&query);
                let mut best: Option<(Algorithm, usize, Duration)> = None;
                let mut estimated = Duration::ZERO;
                for (algorithm, chunk_bytes) in candidates(&query) {
                    let chunk = chunk_bytes / query.item_bytes;
                    let options =
                        Options { algorithm: Some(algorithm), chunk: Some(chunk), repeatable: query.repeatable };
                    let time = time_calls(comm, collective, bytes, options, budget)?;
                    if (algorithm, chunk) == (estimate.algorithm, estimate.chunk) {
                        estimated = time;
                    }
                    if best.is_none_or(|(_, _, least)| time < least) {
                        best = Some((algorithm, chunk_bytes, time));
                    }
                }
                let best = best.expect("every collective has an algorithm for every order");
                let last = bytes == *sizes.last().expect("sizes are not empty");
                // A rule holds to the middle (on a log scale) between its size and the next.
                let next = sizes.iter().find(|&&b| b > bytes).copied().unwrap_or(bytes);
                let bytes_max = if last { usize::MAX } else { ((bytes as f64) * (next as f64)).sqrt() as usize };
                let (algorithm, chunk_bytes, _) = best;
                table
                    .insert(Rule { collective, order, hosts, ranks, bytes_max, algorithm, chunk_bytes })
                    .expect("only able algorithms are measured");
                report(&Finding { collective, order, bytes, best, estimated });
            }
        }
    }
    Ok(())
}

/// Time per call on the slowest rank, the same on all: the median of a few rounds.
fn time_calls(
    comm: &Communicator,
    collective: Collective,
    bytes: usize,
    options: Options,
    budget: Duration,
) -> Result<Duration, CollectiveError> {
    use Collective::*;
    let ranks = comm.size() as usize;
    let in_blocks = matches!(collective, Gather | Allgather | Scatter | Alltoall | ReduceScatterBlock);
    let count = if in_blocks { (bytes / 8).div_ceil(ranks) } else { bytes / 8 };
    let mut send = vec![1u64; count * if in_blocks { ranks } else { 1 }];
    let mut recv = send.clone();
    let region = |data: &mut Vec<u64>| Region { ptr: data.as_mut_ptr().cast(), len: data.len() * 8 };
    let call = Call {
        dtype: DType::U64,
        op: &Op::Bxor,
        count,
        send: (!matches!(collective, Bcast | Barrier)).then(|| region(&mut send)),
        recv: (collective != Barrier).then(|| region(&mut recv)),
        options,
        ..Call::new(collective)
    };
    let run = |repeats: u64| -> Result<Duration, CollectiveError> {
        comm.barrier()?;
        let start = Instant::now();
        for _ in 0..repeats {
            // SAFETY: the buffers live until the end of this function, and each call is over when `run` returns.
            unsafe { comm.run(&call)? };
        }
        let mut slowest = [0u64];
        comm.allreduce(&[start.elapsed().as_nanos() as u64], &mut slowest, &Op::Max)?;
        Ok(Duration::from_nanos(slowest[0]))
    };
    let once = run(2)? / 2;
    let repeats = (budget.as_nanos() / (ROUNDS as u128) / once.as_nanos().max(1)).clamp(1, 10_000) as u64;
    let mut times = (0..ROUNDS).map(|_| run(repeats)).collect::<Result<Vec<_>, _>>()?;
    times.sort_unstable();
    Ok(times[ROUNDS / 2] / repeats as u32)
}
