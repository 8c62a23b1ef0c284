//! The controller of a run: worker 0 hands it what all workers have counted, and carries out what it decides.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tidemill_batch::route_map::RouteMap;
use tidemill_control::{Action, ClusterReport, Controller, Limits, Mode, Rates};

use crate::rebalance::PendingRebalance;
use crate::run::RunProgress;

/// See the module. It lives as long as one run.
pub struct RunController {
    controller: Controller,
    begun: Instant,
    stepped: Option<Instant>,
    moving: Option<PendingRebalance>,
}

impl RunController {
    /// Workers tell what they have counted no more often than that.
    const INTERVAL: Duration = Duration::from_millis(500);

    /// One that knows nothing yet.
    pub fn new(mode: Mode, limits: Limits) -> Self {
        RunController { controller: Controller::new(mode, limits), begun: Instant::now(), stepped: None, moving: None }
    }

    /// Looks at the run, if a look is due: call it often, such as from a [`ProgressCallback`](crate::ProgressCallback).
    /// On other workers than 0 it does nothing, as only worker 0 knows of all. Hosts that are drained, by their numbers
    /// in the layout, get no buckets.
    pub fn look(&mut self, run: &RunProgress, drained: &BTreeSet<u32>) {
        if run.worker() != 0 || self.stepped.is_some_and(|stepped| stepped.elapsed() < Self::INTERVAL) {
            return;
        }
        self.stepped = Some(Instant::now());
        let now_s = self.begun.elapsed().as_secs_f64();
        if let Some(outcome) = self.moving.as_mut().and_then(PendingRebalance::outcome) {
            self.moving = None;
            self.controller.moved(now_s, outcome.map(drop));
        }
        let layout = run.layout().without(drained.iter().copied());
        for action in self.controller.step(now_s, &layout, &run.samples()) {
            let Action::Move(owners) = action;
            let maps = owners.into_iter().filter_map(|(task, owners)| {
                let name = &layout.tasks.get(task as usize)?.name;
                let version = run.route(name)?.version() + 1;
                Some((name.clone(), RouteMap::new(version, owners)))
            });
            self.moving = Some(run.rebalance(maps.collect()));
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
