//! Measures which algorithm is best on the workers of a communicator, and records it as rules: `tidemill tune`.

use std::time::{Duration, Instant};

use tidemill_net::MemoryRegion;

use crate::tuner::{CombineOrder, TuneQuery, TuneRule, TuneTable, candidates};
use crate::{
    Algorithm, CallOptions, Collective, CollectiveCall, CollectiveError, Communicator, DType, ReduceOp,
    direct_algorithms,
};

/// Default sizes to measure, in bytes of the vector or of one rank's blocks together.
pub const SIZES_BYTES: [usize; 8] = [8, 128, 2 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20];
/// Collectives that are measured. The vector variants follow the rule of their uniform counterparts or the cost model.
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

/// The findings for one collective and size, for progress reports.
pub struct TuneFinding {
    /// The collective.
    pub collective: Collective,
    /// Its order class.
    pub order: CombineOrder,
    /// Bytes.
    pub bytes: usize,
    /// The best algorithm with messages, its chunk in bytes and its time per call.
    pub best: (Algorithm, usize, Duration),
    /// The best algorithm without messages for a blocking call, if that is faster.
    pub blocking: Option<(Algorithm, Duration)>,
    /// Time per call of the algorithm that blocking calls use without measurements.
    pub untuned: Duration,
}

/// Measures all collectives on `comm` at `sizes_bytes` (ascending) and adds the rules to `table`. Spends `budget` of
/// time on each algorithm and size. Collective; all ranks get equal rules. Every rank calls `report` after each size.
///
/// # Errors
/// Any failure of the job.
pub fn measure(
    comm: &Communicator,
    table: &mut TuneTable,
    sizes_bytes: &[usize],
    budget: Duration,
    mut report: impl FnMut(&TuneFinding),
) -> Result<(), CollectiveError> {
    let ranks = comm.size();
    let hosts = comm.hosts();
    for collective in MEASURED {
        let orders =
            if CollectiveCall::new(collective).reduces() { &CombineOrder::ALL[..] } else { &CombineOrder::ALL[..1] };
        for &order in orders {
            let sizes = if collective == Collective::Barrier { &sizes_bytes[..1] } else { sizes_bytes };
            for &bytes in sizes {
                let query = TuneQuery {
                    collective,
                    bytes,
                    item_bytes: 8,
                    ranks,
                    hosts,
                    within_host: comm.within_host(),
                    commutative: order == CombineOrder::Any,
                    repeatable: order == CombineOrder::Repeatable,
                };
                let estimate = table.estimate(&query);
                let mut trial = TuneTrial::new(collective, bytes, ranks);
                let mut best: Option<(Algorithm, usize, Duration)> = None;
                let mut untuned = Duration::ZERO;
                for (algorithm, chunk_bytes) in candidates(&query) {
                    let chunk = chunk_bytes / query.item_bytes;
                    let options =
                        CallOptions { algorithm: Some(algorithm), chunk: Some(chunk), repeatable: query.repeatable };
                    let time = trial.time(comm, options, budget)?;
                    if (algorithm, chunk) == (estimate.algorithm, estimate.chunk) {
                        untuned = time;
                    }
                    if best.is_none_or(|(_, _, least)| time < least) {
                        best = Some((algorithm, chunk_bytes, time));
                    }
                }
                let best = best.expect("every collective has an algorithm for every order");
                let mut blocking: Option<(Algorithm, Duration)> = None;
                let repeatable = query.repeatable;
                let plain = CallOptions { repeatable, ..CallOptions::default() };
                let built_in = comm.direct_way(&trial.call(plain));
                for &direct in direct_algorithms(collective) {
                    let options = CallOptions { algorithm: Some(direct), ..plain };
                    if comm.direct_way(&trial.call(options)).is_none() {
                        continue;
                    }
                    let time = trial.time(comm, options, budget)?;
                    if built_in == Some(direct) {
                        untuned = time;
                    }
                    if time < blocking.map_or(best.2, |(_, least)| least) {
                        blocking = Some((direct, time));
                    }
                }
                let last = bytes == *sizes.last().expect("sizes are not empty");
                // A rule applies up to the midpoint (on a log scale) between its size and the next.
                let next = sizes.iter().find(|&&b| b > bytes).copied().unwrap_or(bytes);
                let bytes_max = if last { usize::MAX } else { ((bytes as f64) * (next as f64)).sqrt() as usize };
                let (algorithm, chunk_bytes, _) = best;
                table
                    .insert(TuneRule {
                        collective,
                        order,
                        hosts,
                        ranks,
                        bytes_max,
                        algorithm,
                        chunk_bytes,
                        blocking: blocking.map(|(direct, _)| direct),
                    })
                    .expect("only able algorithms are measured");
                report(&TuneFinding { collective, order, bytes, best, blocking, untuned });
            }
        }
    }
    Ok(())
}

/// Times of `repeats` consecutive calls of a collective at `bytes`, on the slowest rank: a few samples, ascending, the
/// same on all ranks. Collective.
///
/// # Errors
/// Any failure of the job.
pub fn time_collective(
    comm: &Communicator,
    collective: Collective,
    bytes: usize,
    options: CallOptions,
    repeats: u64,
) -> Result<Vec<Duration>, CollectiveError> {
    let mut trial = TuneTrial::new(collective, bytes, comm.size());
    // The first calls open links and touch memory.
    trial.run(comm, options, 2)?;
    let mut times = (0..ROUNDS).map(|_| trial.run(comm, options, repeats)).collect::<Result<Vec<_>, _>>()?;
    times.sort_unstable();
    Ok(times)
}

/// A collective of one size, together with its buffers.
struct TuneTrial {
    collective: Collective,
    count: usize,
    send: Vec<u64>,
    recv: Vec<u64>,
}

impl TuneTrial {
    fn new(collective: Collective, bytes: usize, ranks: u32) -> Self {
        use Collective::*;
        let ranks = ranks as usize;
        let in_blocks = matches!(collective, Gather | Allgather | Scatter | Alltoall | ReduceScatterBlock);
        let count = if in_blocks { (bytes / 8).div_ceil(ranks) } else { bytes / 8 };
        let send = vec![1; count * if in_blocks { ranks } else { 1 }];
        TuneTrial { collective, count, recv: send.clone(), send }
    }

    fn call(&mut self, options: CallOptions) -> CollectiveCall<'static> {
        use Collective::{Barrier, Bcast};
        let region = |data: &mut Vec<u64>| MemoryRegion { ptr: data.as_mut_ptr().cast(), len: data.len() * 8 };
        CollectiveCall {
            dtype: DType::U64,
            op: &ReduceOp::Bxor,
            count: self.count,
            send: (!matches!(self.collective, Bcast | Barrier)).then(|| region(&mut self.send)),
            recv: (self.collective != Barrier).then(|| region(&mut self.recv)),
            options,
            ..CollectiveCall::new(self.collective)
        }
    }

    /// Time per call on the slowest rank, the same on all: the median of a few rounds.
    fn time(
        &mut self,
        comm: &Communicator,
        options: CallOptions,
        budget: Duration,
    ) -> Result<Duration, CollectiveError> {
        let run = |trial: &mut Self, repeats| trial.run(comm, options, repeats);
        let once = run(self, 2)? / 2;
        let repeats = (budget.as_nanos() / (ROUNDS as u128) / once.as_nanos().max(1)).clamp(1, 10_000) as u64;
        let mut times = (0..ROUNDS).map(|_| run(self, repeats)).collect::<Result<Vec<_>, _>>()?;
        times.sort_unstable();
        Ok(times[ROUNDS / 2] / repeats as u32)
    }

    /// Time of `repeats` calls on the slowest rank, the same on all.
    fn run(&mut self, comm: &Communicator, options: CallOptions, repeats: u64) -> Result<Duration, CollectiveError> {
        let call = self.call(options);
        comm.barrier()?;
        let start = Instant::now();
        for _ in 0..repeats {
            // SAFETY: the buffers live as long as this trial, and each call is over when `run` returns.
            unsafe { comm.run(&call)? };
        }
        let mut slowest = [0u64];
        comm.allreduce(&[start.elapsed().as_nanos() as u64], &mut slowest, &ReduceOp::Max)?;
        Ok(Duration::from_nanos(slowest[0]))
    }
}
