//! All-reduces whose overlay follows the rates of links.
//!
//! Before some calls, every host sends every other host a message at the same time and records when the others'
//! messages arrive. All ranks then share all times, so they all make the same decision ([`AdaptiveOverlay`]). Ranks of
//! a host share its links, so only one of them measures.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tidemill_net::{CallDescriber, Engine, Envelope, GroupId, MatchPattern, MemoryRegion, NetError, Rank};

use crate::call::CollectiveCall;
use crate::communicator::{CollectiveError, Communicator};
use crate::overlay::{ADAPTIVE_BYTES_MIN, AdaptiveOverlay, OverlayKind};
use crate::{Algorithm, Collective};

/// The tag of the messages that are measured. Nothing else in the context of collectives uses it.
const PROBE_TAG: i32 = i32::MIN;
/// Unsent bytes that the kernel may buffer for a host that receives slowly.
const UNSENT_BYTES: u32 = 16 << 10;
/// Asks for adaptive overlays in a whole program.
const VARIABLE: &str = "TIDEMILL_OVERLAY";

impl Communicator {
    /// The value of `TIDEMILL_OVERLAY` as a number, which rank 0 sends to all ranks.
    pub(crate) fn overlay_setting() -> u64 {
        match std::env::var(VARIABLE).as_deref() {
            Err(_) | Ok("") => 0,
            Ok("adaptive") => 1,
            Ok(_) => 2,
        }
    }

    /// Uses rank 0's setting.
    pub(crate) fn set_overlay_setting(&self, setting: u64) -> Result<(), CollectiveError> {
        if setting > 1 {
            let text = format!("{VARIABLE} must be \"adaptive\", or not set, on rank 0");
            return Err(NetError::Operation(text).into());
        }
        self.0.is_adaptive.store(setting == 1, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the call uses an adaptive overlay, because of its own options or those of the whole program.
    #[inline]
    pub(crate) fn is_adaptive(&self, call: &CollectiveCall) -> bool {
        let is_asked = match call.options.algorithm {
            None => self.0.is_adaptive.load(Ordering::Relaxed),
            algorithm => algorithm == Some(Algorithm::Adaptive),
        };
        is_asked && call.collective == Collective::Allreduce
    }

    /// The size of a call that requires all ranks to call [`Communicator::adapt`] first; `None` for other calls.
    #[inline]
    pub fn adaptive_bytes(&self, call: &CollectiveCall) -> Option<u64> {
        // Other calls are too short to show a rate, or need an order that trees do not keep.
        let bytes = || (call.count * call.dtype.size_bytes()) as u64;
        let fits = || bytes() >= ADAPTIVE_BYTES_MIN && call.op.is_commutative() && !call.options.repeatable;
        (self.is_adaptive(call) && fits()).then(bytes)
    }

    /// The call as it will run: as last decided, or else as the tuner chooses.
    #[cold]
    pub(crate) fn adapted<'a>(&self, call: &CollectiveCall<'a>) -> CollectiveCall<'a> {
        let mut adapted = *call;
        adapted.options.chunk = None;
        let kind = || Some(self.0.adaptive.lock().as_ref()?.choice()?.kind);
        adapted.options.algorithm = self.adaptive_bytes(call).and_then(|_| kind()).map(|kind| match kind {
            OverlayKind::Ring => Algorithm::Ring,
            OverlayKind::HalvingDoubling => Algorithm::HalvingDoubling,
            OverlayKind::Shards | OverlayKind::Tree(_) | OverlayKind::DoubleTree(_) => Algorithm::Overlay,
        });
        adapted
    }

    /// Prepares a blocking adaptive all-reduce of `bytes` bytes: measures the links when a measurement is due, and
    /// changes the overlay if that pays. Collective.
    ///
    /// # Errors
    /// Any failure of the job; an interrupt.
    pub fn adapt(&self, bytes: u64) -> Result<(), CollectiveError> {
        let message = self.with_adaptive(|adaptive| adaptive.begin_call(bytes));
        let Some(message) = message else { return Ok(()) };
        // A rank that makes a different call is reported by that call. Measuring starts only once all ranks are here.
        if self.allgather_words(&mut [bytes])?.iter().any(|&theirs| theirs != bytes) {
            return Ok(());
        }
        let slow_before = self.with_adaptive(|adaptive| adaptive.slow_inputs());
        let seconds = self.measure_links(message as usize, None)?;
        let slow = self.with_adaptive(|adaptive| {
            adaptive.measure(&seconds, message);
            adaptive.slow_receivers()
        });
        if let Some(slow) = slow {
            let seconds = self.measure_links(message as usize, Some(&slow))?;
            self.with_adaptive(|adaptive| adaptive.refine(&seconds, message));
        }
        let (overlay, slow) = self.with_adaptive(|adaptive| {
            let is_change = adaptive.decide(bytes);
            let overlay = is_change.then(|| adaptive.choice().and_then(|choice| choice.overlay.clone()));
            (overlay, adaptive.slow_inputs())
        });
        self.limit_links(&slow_before, &slow);
        overlay.map_or(Ok(()), |overlay| self.set_overlay(overlay.map(Arc::new)))
    }

    /// Limits what the kernel buffers for hosts that receive slowly: data that such a host needs before it can continue
    /// sending would queue behind it.
    fn limit_links(&self, before: &[bool], now: &[bool]) {
        let engine = self.0.endpoint.lock();
        for (rank, host) in (0..).zip(self.host_of()) {
            match (before[host as usize], now[host as usize]) {
                (false, true) => engine.limit_unsent(self.world_rank(rank), UNSENT_BYTES),
                (true, false) => engine.limit_unsent(self.world_rank(rank), u32::MAX),
                _ => {}
            }
        }
    }

    /// Describes the overlay that adaptive all-reduces use, and the reason for it.
    pub fn describe_overlay(&self) -> String {
        self.with_adaptive(|adaptive| adaptive.to_string())
    }

    fn with_adaptive<R>(&self, work: impl FnOnce(&mut AdaptiveOverlay) -> R) -> R {
        let mut adaptive = self.0.adaptive.lock();
        work(adaptive.get_or_insert_with(|| AdaptiveOverlay::new(&self.host_of())))
    }

    fn host_of(&self) -> Vec<u32> {
        if self.0.hosts.is_empty() { vec![0; self.size() as usize] } else { self.0.hosts.to_vec() }
    }

    /// For each host, the seconds until each other host's message arrived; the same on all ranks. Skipped hosts receive
    /// nothing. Collective.
    fn measure_links(&self, bytes: usize, skipped: Option<&[bool]>) -> Result<Vec<Vec<f64>>, CollectiveError> {
        let host_of = self.host_of();
        let hosts = self.hosts() as usize;
        let first = |host| host_of.iter().position(|&of| of as usize == host).expect("every host has a rank");
        let leaders: Vec<usize> = (0..hosts).map(first).collect();
        let mut nanoseconds = vec![0; hosts];
        if let Some(me) = leaders.iter().position(|&leader| leader == self.rank() as usize) {
            // A first exchange opens the connections and lets them find their pace. It also synchronizes the hosts: a
            // host that has received all messages starts the second exchange together with the others.
            self.exchange(&leaders, me, bytes.div_ceil(8), skipped)?;
            nanoseconds = self.exchange(&leaders, me, bytes, skipped)?;
        }
        let all = self.allgather_words(&mut nanoseconds)?;
        let seconds = |&leader: &usize| all[leader * hosts..][..hosts].iter().map(|&ns| ns as f64 * 1e-9).collect();
        Ok(leaders.iter().map(seconds).collect())
    }

    /// Sends a message to every other leader that is not skipped and receives theirs. Returns the nanoseconds until
    /// each one arrived.
    fn exchange(
        &self,
        leaders: &[usize],
        me: usize,
        bytes: usize,
        skipped: Option<&[bool]>,
    ) -> Result<Vec<u64>, CollectiveError> {
        let hosts = leaders.len();
        let receives = |host: usize| skipped.is_none_or(|skipped| !skipped[host]);
        let context = self.collective_context();
        // Written to, so that the receives do not fault in new pages. If the wait is given up, both buffers go to the
        // engine.
        let mut memory = (vec![1_u8; bytes], vec![1_u8; bytes * hosts]);
        let sent = MemoryRegion::of(&memory.0);
        let mut received: Vec<MemoryRegion> = memory.1.chunks_exact_mut(bytes).map(MemoryRegion::of_mut).collect();
        let memory = Arc::new(memory);
        let mut engine = self.0.endpoint.lock();
        let mut pending = Vec::with_capacity(hosts);
        // Each leader starts with a different receiver.
        let others = || (1..hosts).map(|step| (me + step) % hosts);
        for from in others().filter(|_| receives(me)) {
            let (group, source) = (engine.new_group(), Some(self.world_rank(leaders[from] as u32)));
            let pattern = MatchPattern { source, tag: Some(PROBE_TAG), seq: 0 };
            let region = std::mem::replace(&mut received[from], MemoryRegion::EMPTY);
            // SAFETY: `memory` contains the region, nothing else accesses it, and it outlives the group: it is owned
            // here, or by the engine (`detach`).
            unsafe { engine.post_recv(group, context, pattern, region) };
            pending.push((Some(from), group));
        }
        let start = Instant::now();
        let group = engine.new_group();
        let envelope = Envelope { context, tag: PROBE_TAG, seq: 0, signature: 0 };
        for to in others().filter(|&to| receives(to)) {
            // SAFETY: as above; the region is only read.
            unsafe { engine.post_send(group, self.world_rank(leaders[to] as u32), &envelope, sent) };
        }
        pending.push((None, group));
        engine.flush();
        drop(engine);
        let mut nanoseconds = vec![0; hosts];
        let groups = pending.iter().map(|&(_, group)| group).collect();
        let waited = self.0.endpoint.wait(&LinkMeasurement { comm: self, groups }, |engine| {
            while let Some(at) = pending.iter().position(|&(_, group)| engine.is_complete(group)) {
                let (from, group) = pending.swap_remove(at);
                if let Err(error) = engine.take(group) {
                    return Some(Err(error));
                }
                if let Some(from) = from {
                    nanoseconds[from] = (start.elapsed().as_nanos() as u64).max(1);
                }
            }
            pending.is_empty().then_some(Ok(()))
        });
        if let Err(error) = waited {
            let mut engine = self.0.endpoint.lock();
            for (_, group) in pending {
                engine.detach(group, Some(Box::new(Arc::clone(&memory))));
            }
            drop(engine);
            self.abandon();
            return Err(error.into());
        }
        drop(memory);
        Ok(nanoseconds)
    }
}

/// An exchange of messages under way.
struct LinkMeasurement<'a> {
    comm: &'a Communicator,
    groups: Vec<GroupId>,
}

impl CallDescriber for LinkMeasurement<'_> {
    fn describe(&self, text: &mut String) {
        text.push_str(&format!("measurement of links on comm \"{}\"", self.comm.name()));
    }

    fn waiting_for(&self, engine: &Engine) -> Vec<Option<Rank>> {
        self.groups.iter().flat_map(|&group| engine.waiting_for(group)).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::{ReduceOp, run_ranks};

    /// A single host offers no way around a slow link, and calls without a named algorithm must not be treated as
    /// adaptive over and over.
    #[test]
    fn a_whole_program_can_be_adaptive() {
        let sums = run_ranks(2, |comm| {
            comm.set_overlay_setting(1).unwrap();
            let part = comm.split(Some(0), 0).unwrap().unwrap();
            let mut sum = vec![0; 1 << 18];
            for comm in [&comm, &part] {
                comm.allreduce(&vec![1_i64; 1 << 18], &mut sum, &ReduceOp::Sum).unwrap();
                comm.start_allreduce(vec![1_i64], &ReduceOp::Sum).unwrap().wait().unwrap();
                assert!(comm.is_adaptive(&crate::CollectiveCall::new(crate::Collective::Allreduce)));
                assert!(comm.describe_overlay().contains("one host"), "{}", comm.describe_overlay());
            }
            assert!(comm.set_overlay_setting(2).unwrap_err().to_string().contains("TIDEMILL_OVERLAY"));
            sum
        });
        assert!(sums.unwrap().iter().flatten().all(|&sum| sum == 2));
    }
}
