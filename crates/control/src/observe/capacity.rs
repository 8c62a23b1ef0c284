//! What a link, a host or its CPUs can carry: learned while it is full, forgotten when it may have changed.

/// Seconds after which a capacity that has not shown again is forgotten.
const MEMORY_S: f64 = 60.0;
/// Seconds after which a capacity is forgotten if as much flows without a queue.
const DOUBT_S: f64 = 5.0;
/// A queue that is there for less than this share of the time shows that more could flow,
const EASY: f64 = 0.4;
/// and one that is there for more, that hardly more could.
const HARD: f64 = 0.7;
/// Seconds in which a peak falls to a third.
const PEAK_S: f64 = 600.0;

/// What something can carry, as far as it has shown.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Capacity {
    value: Option<f64>,
    /// When it last showed.
    shown_s: f64,
    /// Since when as much flows without a queue.
    doubted_s: Option<f64>,
    peak: f64,
    updated_s: f64,
}

impl Capacity {
    /// Takes what flows now, the share of time in which something waits for more, and whether it is full.
    pub(super) fn update(&mut self, now_s: f64, flow: f64, busy: f64, full: bool) {
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
        if near && busy < EASY {
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

    /// What it can carry, if that has shown.
    pub(super) fn value(&self) -> Option<f64> {
        self.value
    }

    /// The most that has flowed lately.
    pub(super) fn peak(&self) -> f64 {
        self.peak
    }
}
