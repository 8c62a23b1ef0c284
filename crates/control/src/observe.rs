//! Turns counters into rates: what flows, who waits, and what hosts and links can carry.
//!
//! Rates cover the last three seconds of each worker's own clock, or less after a host or a link has become slower: a
//! mean of both states is true of neither. A link shows what it can carry only while it is
//! full: something waits in front of it most of the time, and TCP reports that neither the sender nor the receiver
//! limited it. Its traffic then is its capacity (`control.md`, section 4).

mod capacity;
mod history;
mod links;
pub(crate) mod smoothing;

use std::collections::BTreeMap;

use self::{
    capacity::Capacity,
    history::{History, Span},
    links::{Flows, Fullness},
    smoothing::{smooth, smooth_work},
};
use crate::{
    layout::{ClusterLayout, TaskRole},
    report::{HeavyKeyReport, HostLinkReport, HostReport, TaskWorkerReport},
    sample::{TaskCounters, WorkerSample},
};

/// How many heavy keys are kept per task.
const HEAVY_KEYS_MAX: usize = 10;

/// A job's rates, and what it could carry.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates {
    /// The number of seconds that rates cover.
    pub span_s: f64,
    /// By host, as in the layout.
    pub hosts: Vec<HostReport>,
    /// By host: what is known about its limits.
    pub limits: Vec<HostLimits>,
    /// Between different hosts, where anything is sent, by sender and then receiver.
    pub links: Vec<HostLinkReport>,
    /// By entry of `links`: whether it is full now and neither of its hosts explains it.
    pub link_full: Vec<bool>,
    /// By task, as in the layout.
    pub tasks: Vec<TaskRates>,
    /// The rows per second of all sources over the last second.
    pub source_rows_s: f64,
}

/// What a host could carry, as far as observed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostLimits {
    /// The CPUs that others leave to the job, if they have taken some.
    pub cpus: Option<f64>,
    /// Whether other programs take its CPUs now.
    pub cpus_taken: bool,
    /// Whether what it receives fills its link now.
    pub in_full: bool,
    /// Whether what it sends fills its link now.
    pub out_full: bool,
    /// The most that it has recently received per second.
    pub in_peak: f64,
    /// The most that it has recently sent per second.
    pub out_peak: f64,
    /// The fraction of the time in which something waits in front of everything it receives.
    pub in_busy: f64,
    /// How many senders on the host itself waited for credit of its copies, on average.
    pub local_credit_wait: f64,
}

/// A task's rates.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskRates {
    /// By worker that has copies of it.
    pub workers: Vec<TaskWorkerReport>,
    /// By entry of `workers`: the fraction of a second in which functions ran in the interpreter or waited for it,
    /// over all copies.
    pub interpreter: Vec<f64>,
    /// By bucket: rows per second; empty if the task is not partitioned by key.
    pub rows_s: Vec<f64>,
    /// By bucket: the fraction of a CPU that works on it.
    pub work: Vec<f64>,
    /// By bucket, and within a bucket by sending host: bytes per second.
    pub sent_bytes_s: Vec<f64>,
    /// Its most frequent keys, the heaviest first.
    pub heavy_keys: Vec<HeavyKeyReport>,
}

impl TaskRates {
    /// The bytes per second to a bucket from all hosts.
    pub fn bytes_s(&self, bucket: usize) -> f64 {
        let hosts = self.sent_bytes_s.len().checked_div(self.rows_s.len()).unwrap_or(0);
        self.sent_bytes_s.iter().skip(bucket * hosts).take(hosts).sum()
    }
}

/// Keeps the recent samples of each worker, and what hosts and links could carry when they were full.
#[derive(Debug, Default)]
pub struct Observer {
    now_s: f64,
    worker_hosts: Vec<u32>,
    workers: Vec<History>,
    cpus: Vec<Capacity>,
    inbound: Vec<Capacity>,
    outbound: Vec<Capacity>,
    links: BTreeMap<(u32, u32), Capacity>,
    slowed_s: Option<f64>,
    rates: Rates,
}

impl Observer {
    /// An observer without observations.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the newest sample of each worker, about twice a second; skips one that it already has.
    pub fn add(&mut self, now_s: f64, layout: &ClusterLayout, samples: &[WorkerSample]) {
        if self.worker_hosts != layout.worker_hosts || self.inbound.len() != layout.hosts.len() {
            let hosts = layout.hosts.len();
            *self = Self {
                worker_hosts: layout.worker_hosts.clone(),
                workers: layout.worker_hosts.iter().map(|_| History::default()).collect(),
                cpus: vec![Capacity::default(); hosts],
                inbound: vec![Capacity::default(); hosts],
                outbound: vec![Capacity::default(); hosts],
                ..Self::default()
            };
        }
        self.now_s = now_s;
        for sample in samples {
            if let Some(history) = self.workers.get_mut(sample.worker as usize) {
                history.push(now_s, sample);
            }
        }
        for history in &mut self.workers {
            history.forget_if_silent(now_s);
        }
        if self.has_become_slower(layout) {
            self.slowed_s = Some(now_s);
            self.workers.iter_mut().for_each(History::keep_last_second);
        }
        self.count(layout);
        self.learn(layout);
    }

    /// When a host or one of its links was last found to have become slower. Rates then cover the second before, and
    /// what follows.
    pub fn slowed_s(&self) -> Option<f64> {
        self.slowed_s
    }

    /// Whether a host or a link carries much less in the last second than before, and is full with that.
    fn has_become_slower(&mut self, layout: &ClusterLayout) -> bool {
        let hosts = layout.hosts.len();
        let flows = |span: for<'a> fn(&'a History) -> Option<Span<'a>>| {
            let (mut flows, mut cpus) = (Flows::new(hosts), Self::idle_hosts(layout));
            for (_, host, history) in self.known(layout) {
                if let Some(span) = span(history) {
                    flows.add(host, &span, &layout.worker_hosts);
                    add_cpus(&mut cpus[host], &span);
                }
            }
            (flows, cpus)
        };
        let ((now, now_cpus), (longer, longer_cpus)) = (flows(History::last_second), flows(History::span));
        let (fullness, short) = (Fullness::of(&now), cpus_short(&now_cpus));
        let mut has = false;
        for host in 0..hosts {
            let (cpus, longer_cpus) = (now_cpus[host].cpus_used, longer_cpus[host].cpus_used);
            let (inbound, outbound) = (now.inbound(host).bytes_s, now.outbound(host).bytes_s);
            let (longer_in, longer_out) = (longer.inbound(host).bytes_s, longer.outbound(host).bytes_s);
            let now_s = self.now_s;
            has |= self.cpus[host].has_become_slower(now_s, cpus, short[host].short, longer_cpus);
            has |= self.inbound[host].has_become_slower(now_s, inbound, fullness.inbound[host], longer_in);
            has |= self.outbound[host].has_become_slower(now_s, outbound, fullness.outbound[host], longer_out);
        }
        has
    }

    /// The layout's hosts, without any load.
    fn idle_hosts(layout: &ClusterLayout) -> Vec<HostReport> {
        let host = |host: &crate::layout::HostLayout| HostReport {
            name: host.name.clone(),
            cores: host.cores,
            ..HostReport::default()
        };
        layout.hosts.iter().map(host).collect()
    }

    /// The rates over the last seconds.
    pub fn rates(&self) -> &Rates {
        &self.rates
    }

    /// The workers with rates, each with its host and history.
    fn known<'a>(&'a self, layout: &'a ClusterLayout) -> impl Iterator<Item = (usize, usize, &'a History)> {
        let hosts = layout.worker_hosts.iter().map(|host| *host as usize);
        let known = self.workers.iter().zip(hosts).enumerate().map(|(worker, (history, host))| (worker, host, history));
        known.filter(|(_, host, history)| *host < layout.hosts.len() && history.span().is_some())
    }

    /// Recomputes all rates.
    fn count(&mut self, layout: &ClusterLayout) {
        let mut rates = Rates {
            hosts: Self::idle_hosts(layout),
            limits: vec![HostLimits::default(); layout.hosts.len()],
            tasks: self.tasks(layout),
            ..Rates::default()
        };
        for (worker, host) in layout.worker_hosts.iter().enumerate() {
            if let Some(host) = rates.hosts.get_mut(*host as usize) {
                host.workers.push(worker as u32);
            }
        }
        for (_, host, history) in self.known(layout) {
            let Some(span) = history.span() else { continue };
            rates.span_s = rates.span_s.max(span.seconds);
            add_cpus(&mut rates.hosts[host], &span);
            let is_source =
                |task: u32| layout.tasks.get(task as usize).is_some_and(|task| task.role == TaskRole::Source);
            if let Some(last) = history.last_second() {
                rates.source_rows_s += last.rate(|sample| {
                    let rows = sample.tasks.iter().filter(|task| is_source(task.task)).map(|task| task.rows_out);
                    rows.fold(0, u64::saturating_add)
                });
            }
        }
        self.rates = rates;
    }

    /// Computes the rates of tasks and their buckets.
    fn tasks(&self, layout: &ClusterLayout) -> Vec<TaskRates> {
        let hosts = layout.hosts.len();
        let mut tasks: Vec<TaskRates> = (layout.tasks.iter())
            .map(|task| TaskRates {
                rows_s: vec![0.0; task.owners.len()],
                work: vec![0.0; task.owners.len()],
                sent_bytes_s: vec![0.0; task.owners.len() * hosts],
                ..TaskRates::default()
            })
            .collect();
        for (worker, host, history) in self.known(layout) {
            let Some(span) = history.span() else { continue };
            for new in &span.newest.tasks {
                let Some((rates, task)) = tasks.get_mut(new.task as usize).zip(layout.tasks.get(new.task as usize))
                else {
                    continue;
                };
                let nothing = TaskCounters::default();
                let old = span.oldest.tasks.iter().find(|old| old.task == new.task).unwrap_or(&nothing);
                let rate = |of: fn(&TaskCounters) -> u64| of(new).saturating_sub(of(old)) as f64 / span.seconds;
                let share = |of| (rate(of) / 1e9 / f64::from(new.copies.max(1))).min(1.0);
                rates.workers.push(TaskWorkerReport {
                    worker: worker as u32,
                    copies: new.copies,
                    busy: share(|task| task.busy_ns),
                    blocked: share(|task| task.blocked_ns),
                    idle: share(|task| task.idle_ns),
                    rows_s: rate(if task.role == TaskRole::Source {
                        |task| task.rows_out
                    } else {
                        |task| task.rows_in
                    }),
                });
                rates.interpreter.push(rate(|task| task.interpreter_ns) / 1e9);
            }
            let Some(seconds) = span.bucket_seconds() else { continue };
            let on_cpu = on_cpu(&span, seconds);
            // A bucket missing from the older sample had counted nothing then.
            for (sample, sign) in [(span.newest, 1.0), (span.oldest, -1.0)] {
                for bucket in &sample.buckets {
                    let at = bucket.bucket as usize;
                    if let Some(rates) = tasks.get_mut(bucket.task as usize).filter(|rates| at < rates.rows_s.len()) {
                        let weight = sign / seconds;
                        rates.rows_s[at] += weight * bucket.rows as f64;
                        rates.work[at] += weight * on_cpu * bucket.work_ns as f64 / 1e9;
                        rates.sent_bytes_s[at * hosts + host] += weight * bucket.bytes as f64;
                    }
                }
            }
        }
        for rates in &mut tasks {
            // Restarted counters would give negative rates, and rounding tiny ones.
            for rate in rates.rows_s.iter_mut().chain(&mut rates.work).chain(&mut rates.sent_bytes_s) {
                if *rate < 1e-9 {
                    *rate = 0.0;
                }
            }
        }
        self.smooth(layout, &mut tasks);
        self.heavy_keys(layout, &mut tasks);
        tasks
    }

    /// Takes chance out of the rates of buckets.
    fn smooth(&self, layout: &ClusterLayout, tasks: &mut [TaskRates]) {
        let hosts = layout.hosts.len();
        let spans = self.known(layout).filter_map(|(_, _, history)| history.span()?.bucket_seconds());
        let Some(seconds) = spans.reduce(f64::min) else { return };
        for (rates, task) in tasks.iter_mut().zip(&layout.tasks) {
            let rows_s: f64 = rates.rows_s.iter().sum();
            let is_of_copies = task.owners.iter().all(|owner| (*owner as usize) < task.copy_workers.len());
            if rows_s <= 0.0 || !is_of_copies {
                continue;
            }
            let bytes_per_row = rates.sent_bytes_s.iter().sum::<f64>() / rows_s;
            let in_use: Vec<bool> = rates.rows_s.iter().map(|rows_s| *rows_s > 0.0).collect();
            smooth(&mut rates.rows_s, &in_use, &task.owners, 1.0 / seconds);
            smooth_work(&mut rates.work, &rates.rows_s, &task.owners, seconds);
            for host in 0..hosts {
                let mut sent: Vec<f64> = rates.sent_bytes_s.iter().skip(host).step_by(hosts).copied().collect();
                smooth(&mut sent, &in_use, &task.owners, bytes_per_row / seconds);
                for (bucket, bytes_s) in sent.into_iter().enumerate() {
                    rates.sent_bytes_s[bucket * hosts + host] = bytes_s;
                }
            }
        }
    }

    /// Combines the shares of frequent keys in what each worker sends. A worker without such keys still has its part in
    /// all rows, so shares are weighted by the rows that workers send now.
    fn heavy_keys(&self, layout: &ClusterLayout, tasks: &mut [TaskRates]) {
        let mut rows: BTreeMap<(u32, u32, &str), f64> = BTreeMap::new();
        let mut all_rows = vec![0.0; tasks.len()];
        for (_, _, history) in self.known(layout) {
            let Some(span) = history.span() else { continue };
            let Some(seconds) = span.bucket_seconds() else { continue };
            let mut sent = vec![0.0; tasks.len()];
            for (sample, sign) in [(span.newest, 1.0), (span.oldest, -1.0)] {
                for bucket in &sample.buckets {
                    if let Some(sent) = sent.get_mut(bucket.task as usize) {
                        *sent += sign * bucket.rows as f64 / seconds;
                    }
                }
            }
            // Restarted counters would give negative rates.
            sent.iter_mut().for_each(|sent| *sent = sent.max(0.0));
            sent.iter().zip(&mut all_rows).for_each(|(sent, all)| *all += sent);
            for key in &span.newest.heavy_keys {
                let sent = sent.get(key.task as usize).copied().unwrap_or(0.0);
                let share = (key.rows as f64 / key.all_rows.max(1) as f64).min(1.0);
                *rows.entry((key.task, key.bucket, &key.key)).or_default() += share * sent;
            }
        }
        for ((task, bucket, key), rows) in rows {
            let task = task as usize;
            if task < tasks.len() && (bucket as usize) < tasks[task].rows_s.len() && all_rows[task] > 0.0 {
                let share = (rows / all_rows[task]).min(1.0);
                tasks[task].heavy_keys.push(HeavyKeyReport { key: key.to_owned(), bucket, share });
            }
        }
        for task in tasks {
            task.heavy_keys.sort_by(|a, b| b.share.total_cmp(&a.share));
            task.heavy_keys.truncate(HEAVY_KEYS_MAX);
        }
    }

    /// Adds the traffic of links to the rates, and learns from full links.
    fn learn(&mut self, layout: &ClusterLayout) {
        let hosts = layout.hosts.len();
        let mut flows = Flows::new(hosts);
        for (_, host, history) in self.known(layout) {
            if let Some(span) = history.span() {
                flows.add(host, &span, &layout.worker_hosts);
            }
        }
        let fullness = Fullness::of(&flows);
        let now_s = self.now_s;
        for (host, CpuShortage { short, taken, usual }) in cpus_short(&self.rates.hosts).into_iter().enumerate() {
            let (report, limits) = (&mut self.rates.hosts[host], &mut self.rates.limits[host]);
            (report.in_bytes_s, report.out_bytes_s) = (flows.inbound(host).bytes_s, flows.outbound(host).bytes_s);
            let waits = report.cpus_waited / (report.cpus_used + report.cpus_waited).max(1e-9);
            self.cpus[host].update_eased(now_s, report.cpus_used, waits, short, usual);
            self.inbound[host].update(now_s, report.in_bytes_s, flows.inbound(host).busy, fullness.inbound[host]);
            self.outbound[host].update(now_s, report.out_bytes_s, flows.outbound(host).busy, fullness.outbound[host]);
            report.in_capacity = self.inbound[host].value();
            report.out_capacity = self.outbound[host].value();
            *limits = HostLimits {
                cpus: self.cpus[host].value(),
                cpus_taken: taken,
                in_full: fullness.inbound[host],
                out_full: fullness.outbound[host],
                in_peak: self.inbound[host].peak(),
                out_peak: self.outbound[host].peak(),
                in_busy: flows.inbound(host).busy,
                local_credit_wait: flows.local_credit_wait(host),
            };
        }
        for ((from, to), flow) in flows.pairs() {
            let full = fullness.pair(from, to);
            let capacity = self.links.entry((from as u32, to as u32)).or_default();
            capacity.update(now_s, flow.bytes_s, flow.busy, full);
            self.rates.links.push(HostLinkReport {
                from: from as u32,
                to: to as u32,
                bytes_s: flow.bytes_s,
                capacity: capacity.value(),
                busy: flow.busy,
                link_wait: flow.link_wait,
                credit_wait: flow.credit_wait,
                queued_bytes: flow.queued_bytes,
                rtt_us: flow.rtt_us,
            });
            self.rates.link_full.push(full);
        }
    }
}

/// Adds the CPUs that a worker on a host has used, and waited for.
fn add_cpus(host: &mut HostReport, span: &Span<'_>) {
    host.cpus_used += span.rate(|sample| sample.cpu_ns) / 1e9;
    host.cpus_waited += span.rate(|sample| sample.cpu_wait_ns) / 1e9;
}

/// Which fraction of its work on buckets a worker had a CPU for. Work is measured by a clock that runs on while the
/// thread waits for a CPU; buckets would look the heavier the less of its CPUs a host gets, and others would seem to
/// have no room for them.
fn on_cpu(span: &Span<'_>, bucket_seconds: f64) -> f64 {
    let work = |sample: &WorkerSample| sample.buckets.iter().map(|bucket| bucket.work_ns).fold(0, u64::saturating_add);
    let worked = work(span.newest).saturating_sub(work(span.oldest)) as f64 / 1e9 / bucket_seconds;
    let (used, waited) = (span.rate(|sample| sample.cpu_ns) / 1e9, span.rate(|sample| sample.cpu_wait_ns) / 1e9);
    if used <= 0.0 || worked <= 0.0 {
        return 1.0;
    }
    // Functions may also wait for something else, which occupies their copy: that stays work.
    (used / worked).max(used / (used + waited)).min(1.0)
}

/// How much of its CPUs a host has.
struct CpuShortage {
    /// Threads wait for CPUs although the job uses fewer than it may, so that it has no more than it uses. This may be
    /// so on all hosts: their number of CPUs is a whole one, of which a container may have a fraction.
    short: bool,
    /// Other programs take them.
    taken: bool,
    /// Threads wait no longer than those of other hosts: what took CPUs before is over, however few the job uses now.
    usual: bool,
}

/// By host.
fn cpus_short(hosts: &[HostReport]) -> Vec<CpuShortage> {
    let waits = |host: &HostReport| host.cpus_waited / host.cpus_used.max(1e-9);
    let mut all: Vec<f64> = hosts.iter().map(waits).collect();
    all.sort_by(f64::total_cmp);
    // If the threads of all hosts wait alike, as on one machine that emulates many hosts, no host is to blame.
    let usual = if all.len() < 3 { 0.0 } else { all[(all.len() - 1) / 2] };
    let short = |host: &HostReport| {
        let demand = host.cpus_used + host.cpus_waited;
        // Threads that wake together wait for each other even on CPUs that are mostly idle.
        let short = host.cpus_used < 0.85 * host.cores && demand > 0.9 * host.cores;
        short && waits(host) > 0.5
    };
    let of = |host: &HostReport| CpuShortage {
        short: short(host),
        taken: short(host) && waits(host) > 2.0 * usual,
        usual: waits(host) <= 1.5 * usual,
    };
    hosts.iter().map(of).collect()
}

#[cfg(test)]
mod tests;
