//! Limits how much may wait in front of a network link, or be in transit on it, to what it carries in a moment, so
//! that a barrier passes soon, however slow the link is. Senders wait for room before they send; what they have sent
//! moves as fast as the link accepts it, so nothing that waits here can stop a link.
//!
//! A link starts with a low limit, which rises as long as the link proves faster. It falls only if the link was
//! always busy and senders had more for it: a link with little traffic shows nothing.
//!
//! What the kernel holds counts where it matters, on a slow link: there, a switch's queue alone may be seconds long.
//! The kernel does not report when it has sent something, so it is polled at intervals, and senders may have to wait
//! for the next poll.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidemill_net::LinkInfo;

use super::rate::{LinkRate, life_rate};

/// The queue of a link should take it about this long, which is longer than the time between two looks.
const AHEAD: Duration = Duration::from_millis(150);
/// The initial limit of a link,
const FIRST_BYTES: u64 = 64 << 10;
/// its minimum,
const BYTES_MIN: u64 = 4 << 10;
/// and its maximum, with which a link is never idle, however fast.
const BYTES_MAX: u64 = 8 << 20;
/// A message is at most this fraction (1 / `BLOCK_PART`) of it,
const BLOCK_PART: u64 = 8;
/// but not less than this, or than half of it: each message costs its receiver something.
const BLOCK_BYTES_MIN: u64 = 16 << 10;
/// Between two looks the limit changes at most by this factor, since a single look may mislead.
const STEP_MAX: f64 = 4.0;
/// The time between looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(25);
/// Below this limit, what the kernel holds counts. Above it, room that is noticed late would leave the link idle.
const SLOW_BYTES: u64 = 256 << 10;
/// The kernel may hold, in addition to that limit, this fraction of it (1 / `UNSENT_PART`) that it cannot send yet,
const UNSENT_PART: u64 = 3;
/// and at least this much: it must not run out between two looks.
const UNSENT_BYTES_MIN: u64 = 16 << 10;

/// The limiter that the module describes.
#[derive(Default)]
pub(crate) struct LinkPacer {
    limit_bytes: AtomicU64,
    /// What waits, or is in transit and not accepted by the kernel yet.
    queued_bytes: AtomicU64,
    /// What the kernel held at the last look, plus what it has been given since.
    kernel_bytes: AtomicU64,
    /// Whether the link is known to be slow.
    is_slow: AtomicBool,
    /// Whether someone has waited since the last look.
    has_held: AtomicBool,
    /// Senders that wait for room.
    waiting: Mutex<Vec<Waker>>,
    looks: Mutex<PacerLooks>,
}

#[derive(Default)]
struct PacerLooks {
    rate: LinkRate,
    last: Option<Instant>,
    /// The limit on unsent bytes that the kernel was last given.
    unsent_bytes: Option<u64>,
}

impl LinkPacer {
    /// The pacer of a link about which `info` is known.
    pub(crate) fn new(info: Option<LinkInfo>) -> LinkPacer {
        let known = info.as_ref().and_then(life_rate).map_or(0, |rate| (rate * AHEAD.as_secs_f64()) as u64);
        let limit_bytes = AtomicU64::new(known.clamp(FIRST_BYTES, BYTES_MAX));
        LinkPacer { limit_bytes, ..LinkPacer::default() }
    }

    fn limit(&self) -> u64 {
        self.limit_bytes.load(Ordering::Relaxed)
    }

    /// The largest message that leaves room for other messages in between. A sender that waits here also has rows for
    /// other links: with large messages those links would run dry meanwhile, unless this link is fast.
    pub(crate) fn block_bytes_max(&self) -> u64 {
        let limit = self.limit();
        if limit == BYTES_MAX {
            return limit / 2;
        }
        (limit / BLOCK_PART).max(BLOCK_BYTES_MIN.min(limit / 2)).max(BYTES_MIN)
    }

    /// Whether the link is known to be slow.
    pub(crate) fn is_slow(&self) -> bool {
        self.is_slow.load(Ordering::Relaxed)
    }

    /// Ready when there is room for a message, whatever its size. Otherwise the waker is woken later, once.
    pub(crate) fn poll_room(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.has_room() {
            return Poll::Ready(());
        }
        let mut waiting = self.waiting.lock();
        // Room made in the meantime was not reported; room made from here on will be.
        if self.has_room() {
            return Poll::Ready(());
        }
        self.has_held.store(true, Ordering::Relaxed);
        if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            waiting.push(context.waker().clone());
        }
        Poll::Pending
    }

    /// Whether there is room, so that a sender need not wait.
    pub(crate) fn has_room(&self) -> bool {
        let queued = self.queued_bytes.load(Ordering::SeqCst);
        let kernel = if self.is_slow() { self.kernel_bytes.load(Ordering::SeqCst) } else { 0 };
        queued + kernel < self.limit()
    }

    /// Records that something has been queued.
    pub(crate) fn queue(&self, bytes: usize) {
        self.queued_bytes.fetch_add(bytes as u64, Ordering::SeqCst);
    }

    /// Records that the kernel has accepted something that was queued.
    pub(crate) fn pass(&self, bytes: usize) {
        self.kernel_bytes.fetch_add(bytes as u64, Ordering::SeqCst);
        self.discard(bytes);
    }

    /// Records that something that was queued will not be sent.
    pub(crate) fn discard(&self, bytes: usize) {
        self.queued_bytes.fetch_sub(bytes as u64, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        let mut waiting = self.waiting.lock();
        let woken = if self.has_room() { std::mem::take(&mut *waiting) } else { Vec::new() };
        drop(waiting);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Whether it is time to ask the kernel: something is in transit, and the last time is long enough ago.
    pub(crate) fn is_look_due(&self, now: Instant) -> bool {
        let is_busy = self.queued_bytes.load(Ordering::Relaxed) > 0 || self.kernel_bytes.load(Ordering::Relaxed) > 0;
        is_busy && self.looks.lock().last.is_none_or(|last| now.duration_since(last) >= LOOK_INTERVAL)
    }

    /// Learns from what the kernel reports about the link (`None` before and after its connection). Returns the new
    /// limit on unsent bytes in the kernel, if it has changed.
    pub(crate) fn look(&self, now: Instant, info: Option<&LinkInfo>) -> Option<u64> {
        let mut looks = self.looks.lock();
        looks.last = Some(now);
        let held = info.map_or(0, |info| info.buffered_bytes);
        self.kernel_bytes.store(held, Ordering::SeqCst);
        let has_held = self.has_held.swap(false, Ordering::Relaxed);
        if let Some(info) = info
            && let Some(estimate) = looks.rate.sample(now, info)
        {
            let before = self.limit();
            let is_wanted = has_held || self.queued_bytes.load(Ordering::SeqCst) > 0 || 2 * held >= before;
            let ahead = AHEAD + Duration::from_micros(2 * info.min_rtt_us);
            let (least, most) = (before as f64 / STEP_MAX, before as f64 * STEP_MAX);
            let next = (estimate.bytes_s * ahead.as_secs_f64()).clamp(least, most) as u64;
            let next = next.clamp(BYTES_MIN, BYTES_MAX);
            if next > before || estimate.is_busy && is_wanted {
                self.limit_bytes.store(next, Ordering::Relaxed);
                self.is_slow.store(next < SLOW_BYTES, Ordering::Relaxed);
            }
        }
        let unsent_bytes = info.map(|_| (self.limit() / UNSENT_PART).max(UNSENT_BYTES_MIN));
        let told = std::mem::replace(&mut looks.unsent_bytes, unsent_bytes);
        drop(looks);
        self.wake();
        unsent_bytes.filter(|_| told != unsent_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicU64);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A link with a kernel in front of it, and a sender that always has more.
    struct TestLink {
        pacer: LinkPacer,
        now: Instant,
        info: LinkInfo,
        /// What the kernel has not accepted.
        queue: VecDeque<u64>,
        /// How much the kernel accepts.
        kernel_bytes_max: u64,
        wakes: Arc<Wakes>,
    }

    impl TestLink {
        fn new() -> TestLink {
            TestLink {
                pacer: LinkPacer::new(None),
                now: Instant::now(),
                info: LinkInfo::default(),
                queue: VecDeque::new(),
                kernel_bytes_max: 4 << 20,
                wakes: Arc::default(),
            }
        }

        fn has_room(&self) -> bool {
            let waker = Arc::clone(&self.wakes).into();
            self.pacer.poll_room(&mut Context::from_waker(&waker)).is_ready()
        }

        /// Forgets what has been sent.
        fn empty(&mut self) {
            self.info.buffered_bytes = 0;
            self.queue.drain(..).for_each(|block| self.pacer.discard(block as usize));
        }

        /// Sends for `time`. Returns the longest time that the link would have needed for everything ahead of a
        /// block.
        fn run(&mut self, bytes_s: u64, time: Duration) -> Duration {
            let mut longest = 0;
            // Time advances in small steps for the kernel and the link.
            for _ in 0..10 * time.as_millis() {
                while self.has_room() {
                    let block = self.pacer.block_bytes_max();
                    self.pacer.queue(block as usize);
                    self.queue.push_back(block);
                    longest = longest.max(self.queue.iter().sum::<u64>() + self.info.buffered_bytes);
                    self.take();
                }
                self.take();
                let carried = (bytes_s / 10_000).min(self.info.buffered_bytes);
                self.info.buffered_bytes -= carried;
                self.info.acked_bytes += carried;
                self.info.busy_us += 100 * u64::from(carried > 0);
                self.now += Duration::from_micros(100);
                if self.pacer.is_look_due(self.now)
                    && let Some(unsent) = self.pacer.look(self.now, Some(&self.info))
                {
                    self.kernel_bytes_max = unsent + (64 << 10);
                }
            }
            Duration::from_secs_f64(longest as f64 / bytes_s as f64)
        }

        fn take(&mut self) {
            while self.info.buffered_bytes < self.kernel_bytes_max
                && let Some(block) = self.queue.pop_front()
            {
                self.info.buffered_bytes += block;
                self.pacer.pass(block as usize);
            }
        }
    }

    /// With a high limit a barrier would wait behind everything sent before it; with a low one a fast link would be
    /// idle.
    #[test]
    fn what_is_ahead_follows_the_rate() {
        let ms = Duration::from_millis;
        let mut link = TestLink::new();
        link.run(2_000_000_000, ms(200));
        assert_eq!(link.pacer.limit(), BYTES_MAX, "a fast link has it all soon");
        // It becomes slow. What was sent before still takes its time.
        for _ in 0..3 {
            link.empty();
            link.run(50_000, ms(1000));
        }
        let before = link.info.acked_bytes;
        let delay = link.run(50_000, ms(3000));
        assert!(delay <= ms(500), "{delay:?}");
        let carried = link.info.acked_bytes - before;
        assert!(carried >= 147_000, "{carried}: it is never idle");
        link.run(2_000_000_000, ms(2000));
        assert_eq!(link.pacer.limit(), BYTES_MAX, "fast again");
    }

    /// A link that has carried little must not be considered slow.
    #[test]
    fn a_link_with_little_traffic_is_not_slow() {
        let mut link = TestLink::new();
        link.run(100_000_000, Duration::from_millis(300));
        link.empty();
        let limit = link.pacer.limit();
        for _ in 0..40 {
            link.pacer.queue(64);
            link.pacer.pass(64);
            link.info.acked_bytes += 64;
            link.info.busy_us += 25_000;
            link.now += LOOK_INTERVAL;
            link.pacer.look(link.now, Some(&link.info));
        }
        assert_eq!(link.pacer.limit(), limit);
    }

    /// A lost wake-up would stop a sender forever.
    #[test]
    fn a_sender_that_waits_for_room_is_woken_once() {
        let link = TestLink::new();
        link.pacer.queue(FIRST_BYTES as usize);
        assert!(!link.has_room() && !link.has_room());
        link.pacer.queue(1000);
        link.pacer.pass(1000);
        assert_eq!(link.wakes.0.load(Ordering::SeqCst), 0, "there is still no room");
        link.pacer.discard(1);
        assert_eq!(link.wakes.0.load(Ordering::SeqCst), 1);
        assert!(link.has_room());
    }

    /// What a lost connection held is never sent: nobody may wait for it.
    #[test]
    fn without_a_connection_the_kernel_holds_nothing() {
        let mut link = TestLink::new();
        link.run(50_000, Duration::from_millis(5000));
        link.empty();
        while link.has_room() {
            link.pacer.queue(1000);
            link.pacer.pass(1000);
        }
        link.pacer.look(link.now, None);
        assert!(link.has_room());
    }
}
