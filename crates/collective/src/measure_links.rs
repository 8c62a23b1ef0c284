//! Measures the cost of messages between the workers of a communicator, in the parameters of [`CostModel`], from which
//! the simulator predicts.
//!
//! Rank 0 exchanges messages with another rank on its host and with one on another host, while all others wait. A
//! ping-pong of 8 bytes gives the latency. A flood of such messages (or the processor time, if workers share cores)
//! gives the overhead. Consecutive long messages give the time per byte. After Hoefler et al., "Netgauge: a network
//! performance measurement framework" (2007).

use std::time::Instant;

use crate::tuner::{CostModel, LinkCost};
use crate::{CollectiveError, Communicator};

/// Round trips measured, and messages in a flood.
const ROUND_TRIPS: usize = 500;
/// Round trips, and messages of a flood, before measuring starts.
const WARM_UP: usize = 50;
/// Long messages have this many bytes each. A few are sent, then more of them; the difference excludes the startup
/// cost.
const LONG_BYTES: usize = 1 << 20;
const LONG_FEW: usize = 2;
const LONG_MANY: usize = 8;
const ROUNDS: usize = 3;
const TAG: i32 = 1;

/// The measured costs.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredLinks {
    /// Between ranks of one host; `None` if rank 0 is alone on its host.
    pub same_host: Option<LinkCost>,
    /// Between ranks of different hosts; `None` if there is only one host.
    pub other_host: Option<LinkCost>,
    /// Seconds per byte of a result to combine two operands.
    pub reduce_per_byte_s: f64,
    /// Seconds per byte to copy.
    pub copy_per_byte_s: f64,
    /// Times of single round trips of 8 bytes, in seconds, ascending: between hosts if there are several. Only rank 0
    /// has them.
    pub round_trips_s: Vec<f64>,
}

/// Measures on the ranks of `comm`. Collective; all ranks get the same result, except for the round trips.
///
/// # Errors
/// Any failure of the job.
pub fn measure_links(comm: &Communicator) -> Result<MeasuredLinks, CollectiveError> {
    let host = |rank: u32| comm.0.hosts.get(rank as usize).copied().unwrap_or(0);
    let near = (1..comm.size()).find(|&rank| host(rank) == host(0));
    let far = (1..comm.size()).find(|&rank| host(rank) != host(0));
    let mut round_trips_s = Vec::new();
    let mut links = [None, None];
    for (link, peer) in links.iter_mut().zip([near, far]) {
        if let Some(peer) = peer {
            let (cost, trips) = measure_pair(comm, peer)?;
            *link = Some(cost);
            round_trips_s = trips;
        }
    }
    let mut local = [reduce_per_byte_s(), copy_per_byte_s()];
    comm.bcast(&mut local, 0)?;
    let [same_host, other_host] = links;
    Ok(MeasuredLinks { same_host, other_host, reduce_per_byte_s: local[0], copy_per_byte_s: local[1], round_trips_s })
}

/// The cost of messages between rank 0 and `peer`. All ranks call it.
fn measure_pair(comm: &Communicator, peer: u32) -> Result<(LinkCost, Vec<f64>), CollectiveError> {
    let pair = LinkPair { comm, peer };
    comm.barrier()?;
    let (mut numbers, mut trips) = ([0.0f64; 3], Vec::new());
    if comm.rank() == 0 || comm.rank() == peer {
        (0..WARM_UP).try_for_each(|_| pair.round_trip())?;
        let busy = processor_s();
        for _ in 0..ROUND_TRIPS {
            let start = Instant::now();
            pair.round_trip()?;
            trips.push(start.elapsed().as_secs_f64());
        }
        // A round trip is one message sent and one received.
        let processor_s = (processor_s() - busy) / (2 * ROUND_TRIPS) as f64;
        trips.sort_by(f64::total_cmp);
        pair.send_many(&[0u8; 8], WARM_UP)?;
        let gap_s =
            median(&mut (0..ROUNDS).map(|_| pair.timed(&[0u8; 8], ROUND_TRIPS)).collect::<Result<Vec<_>, _>>()?)
                / ROUND_TRIPS as f64;
        let long = vec![1u8; LONG_BYTES];
        pair.send_many(&long, 1)?;
        let mut per_byte_s = Vec::new();
        for _ in 0..ROUNDS {
            let (few, many) = (pair.timed(&long, LONG_FEW)?, pair.timed(&long, LONG_MANY)?);
            per_byte_s.push((many - few).max(1e-9) / ((LONG_MANY - LONG_FEW) * LONG_BYTES) as f64);
        }
        let one_way_s = trips[trips.len() / 2] / 2.0;
        let overhead_s = if comm.within_host().own_cores { gap_s } else { processor_s };
        let overhead_s = overhead_s.min(one_way_s / 2.0);
        numbers = [one_way_s - 2.0 * overhead_s, overhead_s, median(&mut per_byte_s)];
    }
    comm.bcast(&mut numbers, 0)?;
    let [latency_s, overhead_s, per_byte_s] = numbers;
    Ok((LinkCost { latency_s, overhead_s, per_byte_s }, trips))
}

/// Rank 0 and one other rank.
struct LinkPair<'a> {
    comm: &'a Communicator,
    peer: u32,
}

impl LinkPair<'_> {
    fn is_first(&self) -> bool {
        self.comm.rank() == 0
    }

    fn round_trip(&self) -> Result<(), CollectiveError> {
        let (mut answer, other) = ([0u8; 8], if self.is_first() { self.peer } else { 0 });
        if self.is_first() {
            self.comm.send_slice(&[0u8; 8], other, TAG)?;
        }
        self.comm.recv_slice(&mut answer, Some(other), Some(TAG))?;
        if !self.is_first() {
            self.comm.send_slice(&answer, other, TAG)?;
        }
        Ok(())
    }

    /// Sends `count` messages from rank 0, and an answer once all have arrived.
    fn send_many(&self, message: &[u8], count: usize) -> Result<(), CollectiveError> {
        if self.is_first() {
            (0..count).try_for_each(|_| self.comm.send_slice(message, self.peer, TAG))?;
        } else {
            let mut place = vec![0u8; message.len()];
            for _ in 0..count {
                self.comm.recv_slice(&mut place, Some(0), Some(TAG))?;
            }
        }
        self.round_trip()
    }

    fn timed(&self, message: &[u8], count: usize) -> Result<f64, CollectiveError> {
        self.round_trip()?;
        let start = Instant::now();
        self.send_many(message, count)?;
        Ok(start.elapsed().as_secs_f64())
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Seconds that this process has kept processors busy.
fn processor_s() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists on every Linux, and `time` is ours to write.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert!(status == 0, "the clock of a process's processor time cannot be read");
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Seconds per byte to add vectors of float64 that come out of the last-level cache, or memory.
fn reduce_per_byte_s() -> f64 {
    let left = vec![1.0f64; LONG_BYTES / 8];
    let mut right = vec![2.0f64; LONG_BYTES / 8];
    per_byte_s(|| {
        right.iter_mut().zip(&left).for_each(|(right, left)| *right += left);
        std::hint::black_box(&mut right);
    })
}

fn copy_per_byte_s() -> f64 {
    let from = vec![1u8; LONG_BYTES];
    let mut into = vec![0u8; LONG_BYTES];
    per_byte_s(|| {
        into.copy_from_slice(&from);
        std::hint::black_box(&mut into);
    })
}

/// Seconds per byte of `work` on [`LONG_BYTES`].
fn per_byte_s(mut work: impl FnMut()) -> f64 {
    work();
    let time = |work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    median(&mut (0..2 * ROUNDS + 1).map(|_| time(&mut work)).collect::<Vec<_>>()) / LONG_BYTES as f64
}

impl MeasuredLinks {
    /// The measured costs; the values of `other` for what could not be measured here.
    pub fn model(&self, other: &CostModel) -> CostModel {
        CostModel {
            same_host: self.same_host.unwrap_or(other.same_host),
            other_host: self.other_host.unwrap_or(other.other_host),
            reduce_per_byte_s: self.reduce_per_byte_s,
            copy_per_byte_s: self.copy_per_byte_s,
            // The overheads include the cost of a wake-up.
            switch_s: 0.0,
            ..*other
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_ranks;

    /// A pair that waits for the wrong rank hangs; a difference with the wrong sign makes links faster than light.
    #[test]
    fn links_of_threads_have_costs() {
        let measured = run_ranks(3, |comm| measure_links(&comm).unwrap()).unwrap();
        let link = measured[0].same_host.expect("threads are on one host");
        assert!(link.latency_s >= 0.0 && link.overhead_s > 0.0 && link.per_byte_s > 0.0, "{link:?}");
        assert_eq!(measured[2].same_host, Some(link));
        assert_eq!(measured[1].other_host, None);
        assert_eq!(measured[0].round_trips_s.len(), ROUND_TRIPS);
        let model = measured[0].model(&CostModel::TYPICAL);
        assert_eq!((model.same_host, model.other_host), (link, CostModel::TYPICAL.other_host));
    }
}
