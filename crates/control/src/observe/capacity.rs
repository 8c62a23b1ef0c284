//! What a link, a host or its CPUs can carry: learned while it is full, forgotten when it may have changed.

/// After this many seconds, a capacity that has not been observed again is forgotten.
const MEMORY_S: f64 = 60.0;
/// After this many seconds of as much traffic without a queue, a capacity is forgotten.
const DOUBT_S: f64 = 5.0;
/// A queue present for less than this fraction of the time shows that more could flow,
const EASY: f64 = 0.4;
/// and one present for more than this fraction shows that hardly more could.
const HARD: f64 = 0.7;
/// The number of seconds in which a peak falls to about a third.
const PEAK_S: f64 = 600.0;
/// What is full with less than this fraction of what it has just carried has become slower,
const SLOWER: f64 = 0.7;
/// if that is so for this many observations.
const SLOWER_TIMES: u32 = 2;

/// What something can carry, as far as observed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Capacity {
    value: Option<f64>,
    /// When it was last observed.
    shown_s: f64,
    /// Since when as much has flowed without a queue.
    doubted_s: Option<f64>,
    peak: f64,
    updated_s: f64,
    /// How many times it has been full with much less than before.
    slower: u32,
}

impl Capacity {
    /// Checks the traffic of the last second, and whether it was full then, against the traffic of a longer time.
    /// Returns whether it has become slower, so that what was observed earlier no longer holds.
    pub(super) fn has_become_slower(&mut self, now_s: f64, flow: f64, full: bool, longer_flow: f64) -> bool {
        let before = self.value.unwrap_or(longer_flow).max(longer_flow);
        self.slower = if full && flow > 0.0 && flow < SLOWER * before { self.slower + 1 } else { 0 };
        let has = self.slower >= SLOWER_TIMES;
        if has {
            (self.value, self.shown_s, self.doubted_s, self.slower) = (Some(flow), now_s, None, 0);
        }
        has
    }

    /// Updates it with the current traffic, the fraction of time in which something waits for more, and whether it is
    /// full.
    pub(super) fn update(&mut self, now_s: f64, flow: f64, busy: f64, full: bool) {
        self.update_eased(now_s, flow, busy, full, false);
    }

    /// The same, where something else than its traffic may show that more could flow.
    pub(super) fn update_eased(&mut self, now_s: f64, flow: f64, busy: f64, full: bool, eased: bool) {
        let passed_s = (now_s - self.updated_s).clamp(0.0, PEAK_S);
        self.peak = flow.max(self.peak * (-passed_s / PEAK_S).exp());
        self.updated_s = now_s;
        if full && flow > 0.0 {
            (self.value, self.shown_s, self.doubted_s) = (Some(flow), now_s, None);
            return;
        }
        let Some(value) = self.value else { return };
        if flow > value {
            self.value = Some(flow);
        }
        let near = flow > 0.85 * value;
        if eased || near && busy < EASY {
            let since_s = *self.doubted_s.get_or_insert(now_s);
            if now_s - since_s > DOUBT_S {
                (self.value, self.doubted_s) = (None, None);
            }
        } else {
            self.doubted_s = None;
            if near && busy > HARD {
                self.shown_s = now_s;
            }
        }
        if now_s - self.shown_s > MEMORY_S {
            self.value = None;
        }
    }

    /// What it can carry, if that has been observed.
    pub(super) fn value(&self) -> Option<f64> {
        self.value
    }

    /// The highest recent traffic.
    pub(super) fn peak(&self) -> f64 {
        self.peak
    }
}
