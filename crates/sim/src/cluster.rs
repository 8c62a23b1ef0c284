//! The machines of a simulation: who works where, what links cost, and which faults they have.

use tidemill_collective::overlay::HostRate;
use tidemill_collective::tuner::CostModel;
use tidemill_net::topology::HostLinks;

use crate::SplitMix64;

/// A cluster, and the seed of all its randomness.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The host of each worker. Hosts count from 0, and each has a worker.
    pub host_of: Vec<u32>,
    /// The rack of each host; racks count from 0.
    pub rack_of: Vec<u32>,
    /// How many times more the hosts of a rack can send together than its link to the other racks carries. 1 means
    /// that the link carries everything.
    pub oversubscription: f64,
    /// The latency of a message to another rack, in seconds. Its bytes cost as much as those to another host.
    pub other_rack_latency_s: f64,
    /// What messages and local work cost.
    pub model: CostModel,
    /// How workers exchange messages within a host.
    pub within_host: HostLinks,
    /// A message of at least this many bytes is sent only as fast as its receiver receives it: the sender is done
    /// with it when it has arrived. A shorter message is done when it has left. `usize::MAX` makes all messages
    /// short.
    pub rendezvous_bytes_min: usize,
    /// The number of cores that all workers share, as on emulated hosts; `None`: each worker has its own.
    pub shared_cores: Option<u32>,
    /// Hosts with slow links.
    pub slow: Vec<SlowHost>,
    /// How much messages and computations vary.
    pub jitter: Jitter,
    /// Workers that die.
    pub failures: Vec<Failure>,
    /// How many seconds pass before the others give up on a dead worker.
    pub failure_timeout_s: f64,
    /// The seed; the same seed repeats the run.
    pub seed: u64,
}

/// A host whose links run at a fraction of their rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowHost {
    /// The host.
    pub host: u32,
    /// The fraction of its sending rate that remains; 1 is the full rate.
    pub outgoing: f64,
    /// The fraction of its receiving rate that remains; 1 is the full rate.
    pub incoming: f64,
}

/// A worker that dies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Failure {
    /// The worker.
    pub rank: u32,
    /// When, in seconds from the start.
    pub at_s: f64,
}

/// An error in the description of a cluster.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct BadCluster(pub String);

impl Cluster {
    /// Spreads `workers` evenly over `hosts`, and these over `racks`, with neighbors together; with typical costs and
    /// without faults.
    ///
    /// # Errors
    /// If there are no workers, more hosts than workers, or more racks than hosts.
    pub fn even(workers: u32, hosts: u32, racks: u32) -> Result<Cluster, BadCluster> {
        if workers == 0 || hosts == 0 || racks == 0 {
            return Err(BadCluster("a cluster has at least one worker, one host and one rack".into()));
        }
        if hosts > workers {
            return Err(BadCluster(format!(
                "{hosts} hosts for {workers} workers: ask for at most one host per worker"
            )));
        }
        if racks > hosts {
            return Err(BadCluster(format!("{racks} racks for {hosts} hosts: ask for at most one rack per host")));
        }
        Ok(Cluster::new(spread(workers, hosts), spread(hosts, racks), CostModel::TYPICAL))
    }

    /// Workers on the hosts of `host_of`, which are in the racks of `rack_of`; without faults.
    pub fn new(host_of: Vec<u32>, rack_of: Vec<u32>, model: CostModel) -> Cluster {
        Cluster {
            host_of,
            rack_of,
            oversubscription: 1.0,
            other_rack_latency_s: model.other_host.latency_s,
            model,
            within_host: HostLinks::BEST,
            rendezvous_bytes_min: usize::MAX,
            shared_cores: None,
            slow: Vec::new(),
            jitter: Jitter::none(),
            failures: Vec::new(),
            failure_timeout_s: 10.0,
            seed: 0,
        }
    }

    /// One worker on each host, with these rates.
    pub fn of_rates(rates: &[HostRate], model: CostModel) -> Cluster {
        let slow = |(host, rate): (u32, &HostRate)| SlowHost {
            host,
            outgoing: rate.output * model.other_host.per_byte_s,
            incoming: rate.input * model.other_host.per_byte_s,
        };
        let slow = (0..).zip(rates).map(slow).collect();
        Cluster { slow, ..Cluster::new((0..rates.len() as u32).collect(), vec![0; rates.len()], model) }
    }

    /// The number of workers.
    pub fn workers(&self) -> u32 {
        self.host_of.len() as u32
    }

    /// The number of hosts.
    pub fn hosts(&self) -> u32 {
        self.rack_of.len() as u32
    }

    /// The number of racks.
    pub fn racks(&self) -> u32 {
        self.rack_of.iter().max().map_or(1, |rack| rack + 1)
    }

    /// Checks that everything named exists and every number is in range.
    pub(crate) fn check(&self) -> Result<(), BadCluster> {
        let bad = |text: String| Err(BadCluster(text));
        if self.host_of.is_empty() || self.rack_of.is_empty() {
            return bad("a cluster has at least one worker, one host and one rack".into());
        }
        let (workers, hosts) = (self.workers(), self.hosts());
        if let Some(host) = self.host_of.iter().find(|&&host| host >= hosts) {
            return bad(format!("there is no host {host}: the last of {hosts} hosts is {}", hosts - 1));
        }
        if !(self.oversubscription >= 1.0 && self.oversubscription.is_finite()) {
            return bad(format!("an oversubscription of {} is not at least 1", self.oversubscription));
        }
        for slow in &self.slow {
            if slow.host >= hosts {
                return bad(format!("slow host {} does not exist: the last host is {}", slow.host, hosts - 1));
            }
            for rate in [slow.outgoing, slow.incoming] {
                if !(rate > 0.0 && rate.is_finite()) {
                    return bad(format!("the rate factor {rate} of host {} is not above 0", slow.host));
                }
            }
        }
        for failure in &self.failures {
            if failure.rank >= workers {
                return bad(format!("worker {} cannot die: the last worker is {}", failure.rank, workers - 1));
            }
            if failure.at_s.is_nan() || failure.at_s < 0.0 {
                return bad(format!("worker {} cannot die at {} s; give 0 or later", failure.rank, failure.at_s));
            }
        }
        match self.shared_cores {
            Some(0) => bad("workers cannot share 0 cores; give at least 1".into()),
            _ => Ok(()),
        }
    }
}

/// Assigns `items` to `places`, with neighbors together.
fn spread(items: u32, places: u32) -> Vec<u32> {
    (0..u64::from(items)).map(|item| (item * u64::from(places) / u64::from(items)) as u32).collect()
}

/// A distribution of factors that multiply times.
#[derive(Clone, Debug, PartialEq)]
pub struct Jitter {
    /// Each is drawn with equal probability; empty: the factor is always 1.
    factors: Vec<f64>,
}

/// How many factors represent a log-normal distribution.
const QUANTILES: usize = 4096;

impl Jitter {
    /// No variation.
    pub fn none() -> Jitter {
        Jitter { factors: Vec::new() }
    }

    /// Log-normal factors with median 1, whose logarithm has the standard deviation `sigma`.
    ///
    /// # Errors
    /// If `sigma` is negative or not a number, or so large (above 3) that factors of thousands would be common.
    pub fn log_normal(sigma: f64) -> Result<Jitter, BadCluster> {
        if !(0.0..=3.0).contains(&sigma) {
            return Err(BadCluster(format!("noise of {sigma} is not a standard deviation from 0 to 3")));
        }
        if sigma == 0.0 {
            return Ok(Jitter::none());
        }
        let middle = |i: usize| (i as f64 + 0.5) / QUANTILES as f64;
        Ok(Jitter { factors: (0..QUANTILES).map(|i| (sigma * normal_quantile(middle(i))).exp()).collect() })
    }

    /// Measured times of the same operation, relative to their median.
    ///
    /// # Errors
    /// If there are none, or one is not above 0.
    pub fn measured(samples_s: &[f64]) -> Result<Jitter, BadCluster> {
        if samples_s.is_empty() || samples_s.iter().any(|&s| !(s > 0.0 && s.is_finite())) {
            return Err(BadCluster("jitter needs at least one sample, and every sample must be above 0".into()));
        }
        let mut sorted = samples_s.to_vec();
        sorted.sort_by(f64::total_cmp);
        let median = sorted[sorted.len() / 2];
        Ok(Jitter { factors: sorted.iter().map(|s| s / median).collect() })
    }

    /// Draws one factor.
    pub(crate) fn draw(&self, random: &mut SplitMix64) -> f64 {
        if self.factors.is_empty() { 1.0 } else { self.factors[random.below(self.factors.len())] }
    }
}

/// The value below which the fraction `p` of the standard normal distribution lies. Bisects its integral, which needs
/// no table of coefficients.
fn normal_quantile(p: f64) -> f64 {
    // The integral from 0 to x of the density, by its power series; exact enough up to 6 standard deviations.
    let below = |x: f64| {
        let (mut term, mut sum, mut k) = (x, x, 0.0);
        while f64::abs(term) > 1e-17 && k < 200.0 {
            k += 1.0;
            term *= x * x / (2.0 * k + 1.0);
            sum += term;
        }
        0.5 + sum * (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt()
    };
    let (mut low, mut high) = (-6.0, 6.0);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if below(middle) < p { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A distribution with a shifted median would make every prediction with noise slower or faster than one without.
    #[test]
    fn noise_has_median_one_and_the_deviation_asked_for() {
        let jitter = Jitter::log_normal(0.1).unwrap();
        let logs: Vec<f64> = jitter.factors.iter().map(|f| f.ln()).collect();
        let mean = logs.iter().sum::<f64>() / logs.len() as f64;
        let deviation = (logs.iter().map(|l| l * l).sum::<f64>() / logs.len() as f64).sqrt();
        assert!(mean.abs() < 1e-9, "{mean}");
        assert!((deviation - 0.1).abs() < 1e-3, "{deviation}");
    }

    /// Impossible clusters are errors that name the problem, rather than being simulated.
    #[test]
    fn errors_name_what_does_not_exist() {
        assert!(Cluster::even(4, 5, 1).unwrap_err().0.contains("5 hosts for 4 workers"));
        let mut cluster = Cluster::even(4, 2, 1).unwrap();
        cluster.slow.push(SlowHost { host: 2, outgoing: 0.5, incoming: 0.5 });
        assert!(cluster.check().unwrap_err().0.contains("slow host 2 does not exist"));
        assert!(Jitter::log_normal(-1.0).is_err() && Jitter::measured(&[]).is_err());
    }
}
