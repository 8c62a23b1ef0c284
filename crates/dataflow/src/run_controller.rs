//! The controller of a run: worker 0 hands it what all workers have counted, and carries out what it decides.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tidemill_control::{Action, ClusterReport, Controller, Decision, Limits, Mode, Rates};

use crate::look_timer::LookTimer;
use crate::rebalance::PendingRebalance;
use crate::run::RunProgress;

/// See the module. It lives as long as one run.
pub struct RunController {
    controller: Controller,
    begun: Instant,
    timer: LookTimer,
    moving: Option<PendingRebalance>,
}

impl RunController {
    /// Workers tell what they have counted no more often than that.
    const INTERVAL: Duration = Duration::from_millis(500);

    /// One that knows nothing yet.
    pub fn new(mode: Mode, limits: Limits) -> Self {
        let (controller, timer) = (Controller::new(mode, limits), LookTimer::new(Self::INTERVAL));
        RunController { controller, begun: Instant::now(), timer, moving: None }
    }

    /// Counts actions of runs before this one against the limits; they were so many seconds ago.
    pub fn count_earlier(&mut self, ago_s: impl IntoIterator<Item = f64>) {
        self.controller.count_earlier(ago_s);
    }

    /// What it has decided in this run, oldest first: the newest hundred.
    pub fn decisions(&self) -> impl Iterator<Item = &Decision> {
        self.controller.decisions()
    }

    /// Looks at the run, if a look is due: call it often, such as from a [`ProgressCallback`](crate::ProgressCallback).
    /// On other workers than 0 it does nothing, as only worker 0 knows of all. Hosts that are drained, by their numbers
    /// in the layout, get no buckets.
    pub fn look(&mut self, run: &RunProgress, drained: &BTreeSet<u32>) {
        if run.worker() != 0 || !self.timer.is_due() {
            return;
        }
        let now_s = self.begun.elapsed().as_secs_f64();
        if let Some(outcome) = self.moving.as_mut().and_then(PendingRebalance::outcome) {
            self.moving = None;
            self.controller.moved(now_s, outcome.map(drop));
        }
        let layout = run.layout().without(drained.iter().copied());
        for action in self.controller.step(now_s, &layout, &run.samples()) {
            let Action::Move(owners) = action;
            self.moving = Some(run.move_buckets(&layout, &owners));
        }
    }

    /// What flows, and what hosts and links can carry, as of the last look.
    pub fn rates(&self) -> &Rates {
        self.controller.observer().rates()
    }

    /// What it has to say, as of the last look.
    pub fn report(&self) -> ClusterReport {
        self.controller.report()
    }
}
