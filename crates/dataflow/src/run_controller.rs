//! The controller of a run: worker 0 passes it what all workers have counted, and carries out its decisions.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tidemill_control::{Action, ClusterReport, Controller, Decision, Limits, Mode, Rates};

use crate::look_timer::LookTimer;
use crate::rebalance::PendingRebalance;
use crate::run::RunProgress;

/// The controller that the module describes, for one run.
pub struct RunController {
    controller: Controller,
    begun: Instant,
    timer: LookTimer,
    moving: Option<PendingRebalance>,
}

impl RunController {
    /// Workers report their counters no more often than this.
    const INTERVAL: Duration = Duration::from_millis(500);

    /// A controller without observations.
    pub fn new(mode: Mode, limits: Limits) -> Self {
        let (controller, timer) = (Controller::new(mode, limits), LookTimer::new(Self::INTERVAL));
        RunController { controller, begun: Instant::now(), timer, moving: None }
    }

    /// Counts actions of earlier runs, which happened `ago_s` seconds ago, against the limits.
    pub fn count_earlier(&mut self, ago_s: impl IntoIterator<Item = f64>) {
        self.controller.count_earlier(ago_s);
    }

    /// The last hundred decisions of this run, oldest first.
    pub fn decisions(&self) -> impl Iterator<Item = &Decision> {
        self.controller.decisions()
    }

    /// Looks at the run, if a look is due. Call it often, for example from a
    /// [`ProgressCallback`](crate::ProgressCallback). It only acts on worker 0, which alone has the data of all
    /// workers. Drained hosts, given by their numbers in the layout, get no buckets.
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
            // What it wants to move back may have been on workers that are spare now.
            match layout.spare_owner(&owners) {
                Some(worker) => self.controller.moved(now_s, Err(format!("worker {worker} has become spare"))),
                None => self.moving = Some(run.move_buckets(&layout, &owners)),
            }
        }
    }

    /// Rates of flow, and the capacity of hosts and links, as of the last look.
    pub fn rates(&self) -> &Rates {
        self.controller.observer().rates()
    }

    /// Its report, as of the last look.
    pub fn report(&self) -> ClusterReport {
        self.controller.report()
    }
}
