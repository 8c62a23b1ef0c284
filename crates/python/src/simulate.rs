//! Programs on simulated clusters, and what the simulator needs to know about real ones.

use std::path::PathBuf;

use numpy::PyArray1;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tidemill_collective::measure::time_collective as time_calls;
use tidemill_collective::measure_links::measure_links as measure;
use tidemill_collective::tuner::{CostModel, LinkCost, TuneTable};
use tidemill_collective::{Algorithm, CallOptions, Collective};
use tidemill_net::measure::measure_control as control_costs;
use tidemill_sim::{Cluster, ControlRates, Failure, Jitter, Outcome, SlowHost, WorkRates, Workload, WorkloadKind};

use crate::comm::Comm;
use crate::errors::from_collective;
use crate::wait::detach;

/// All parameters of a simulation except its links and rates: see `tidemill.apps.simulate`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct SimulateRequest {
    workload: String,
    workers: u32,
    hosts: u32,
    racks: u32,
    /// The host of each worker; if empty, workers are evenly spread.
    host_of: Vec<u32>,
    oversubscription: f64,
    bytes: u64,
    points: u64,
    dimensions: u32,
    clusters: u32,
    steps: u32,
    algorithm: Option<String>,
    fanout: Option<u32>,
    skew: f64,
    window_bytes: Option<u64>,
    table: Option<PathBuf>,
    slow: Vec<(u32, f64, f64)>,
    noise: f64,
    round_trips_s: Vec<f64>,
    failures: Vec<(u32, f64)>,
    failure_timeout_s: f64,
    shared_cores: Option<u32>,
    seed: u64,
    costs: LinkCosts,
    rates: Rates,
}

/// Seconds per message and per byte.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct LinkCosts {
    same_host: (f64, f64, f64),
    other_host: (f64, f64, f64),
    other_rack_latency_s: f64,
    reduce_per_byte_s: f64,
    copy_per_byte_s: f64,
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Rates {
    flops_per_s: f64,
    pairs_per_s: f64,
    partition_bytes_per_s: f64,
    update_bytes_per_s: f64,
    sort_bytes_per_s: f64,
    read_bytes_per_s: f64,
    write_bytes_per_s: f64,
    message_s: f64,
    handshake_s: f64,
    report_s: f64,
    pass_s: f64,
}

fn bad(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn link(numbers: (f64, f64, f64)) -> LinkCost {
    LinkCost { latency_s: numbers.0, overhead_s: numbers.1, per_byte_s: numbers.2 }
}

fn numbers(link: LinkCost) -> (f64, f64, f64) {
    (link.latency_s, link.overhead_s, link.per_byte_s)
}

impl SimulateRequest {
    fn cluster(&self) -> PyResult<Cluster> {
        let mut cluster = Cluster::even(self.workers, self.hosts, self.racks).map_err(bad)?;
        if !self.host_of.is_empty() {
            cluster.host_of = self.host_of.clone();
        }
        let costs = &self.costs;
        cluster.model = CostModel {
            same_host: link(costs.same_host),
            other_host: link(costs.other_host),
            reduce_per_byte_s: costs.reduce_per_byte_s,
            copy_per_byte_s: costs.copy_per_byte_s,
            ..CostModel::TYPICAL
        };
        cluster.other_rack_latency_s = costs.other_rack_latency_s;
        cluster.oversubscription = self.oversubscription;
        cluster.shared_cores = self.shared_cores;
        let slow = |&(host, outgoing, incoming): &(u32, f64, f64)| SlowHost { host, outgoing, incoming };
        cluster.slow = self.slow.iter().map(slow).collect();
        cluster.failures = self.failures.iter().map(|&(rank, at_s)| Failure { rank, at_s }).collect();
        cluster.failure_timeout_s = self.failure_timeout_s;
        cluster.seed = self.seed;
        cluster.jitter = match &self.round_trips_s[..] {
            [] => Jitter::log_normal(self.noise).map_err(bad)?,
            samples_s => Jitter::measured(samples_s).map_err(bad)?,
        };
        Ok(cluster)
    }

    fn workload(&self) -> PyResult<Workload> {
        let algorithm = self.algorithm.as_deref().map(str::parse::<Algorithm>).transpose().map_err(bad)?;
        let rates = &self.rates;
        Ok(Workload {
            kind: self.workload.parse::<WorkloadKind>().map_err(bad)?,
            bytes: self.bytes,
            points: self.points,
            dimensions: self.dimensions,
            clusters: self.clusters,
            steps: self.steps,
            algorithm,
            fanout: self.fanout,
            skew: self.skew,
            window_bytes: self.window_bytes,
            rates: WorkRates {
                flops_per_s: rates.flops_per_s,
                pairs_per_s: rates.pairs_per_s,
                partition_bytes_per_s: rates.partition_bytes_per_s,
                update_bytes_per_s: rates.update_bytes_per_s,
                sort_bytes_per_s: rates.sort_bytes_per_s,
                read_bytes_per_s: rates.read_bytes_per_s,
                write_bytes_per_s: rates.write_bytes_per_s,
                control: ControlRates {
                    message_s: rates.message_s,
                    handshake_s: rates.handshake_s,
                    report_s: rates.report_s,
                    pass_s: rates.pass_s,
                },
            },
        })
    }
}

/// Runs a workload on a simulated cluster; `request` has all keys of [`SimulateRequest`]. Returns the end time of each
/// worker and what was sent. Raises `ValueError` for invalid parameters, `OSError` if a table cannot be read.
#[pyfunction]
fn simulate<'py>(py: Python<'py>, request: SimulateRequest) -> PyResult<Bound<'py, PyDict>> {
    let table = match &request.table {
        Some(path) => TuneTable::load(path).map_err(|error| PyOSError::new_err(error.to_string()))?,
        None => TuneTable::default(),
    };
    let (cluster, workload) = (request.cluster()?, request.workload()?);
    let outcome = detach(py, || workload.run(&cluster, &table)).map_err(bad)?;
    answer(py, outcome)
}

fn answer(py: Python<'_>, outcome: Outcome) -> PyResult<Bound<'_, PyDict>> {
    let choices: Vec<(&str, &str, usize)> =
        outcome.choices.iter().map(|(call, how)| (call.name(), how.algorithm.name(), how.chunk * 8)).collect();
    let (traffic, busy) = (outcome.traffic, outcome.busy);
    let dict = PyDict::new(py);
    dict.set_item("end_s", PyArray1::from_vec(py, outcome.end_s))?;
    dict.set_item("unfinished", PyArray1::from_vec(py, outcome.unfinished))?;
    dict.set_item("messages", traffic.messages)?;
    dict.set_item("bytes", traffic.bytes)?;
    dict.set_item("bytes_between_hosts", traffic.bytes_between_hosts)?;
    dict.set_item("bytes_between_racks", traffic.bytes_between_racks)?;
    dict.set_item("work_s", outcome.work_s)?;
    dict.set_item("overhead_s", busy.overhead_s)?;
    dict.set_item("memory_s", busy.memory_s)?;
    dict.set_item("host_out_s", busy.host_out_s)?;
    dict.set_item("host_in_s", busy.host_in_s)?;
    dict.set_item("rack_s", busy.rack_s)?;
    dict.set_item("choices", choices)?;
    Ok(dict)
}

/// Returns the default costs, rates and sizes of a simulation of `workload`.
#[pyfunction]
fn simulate_defaults<'py>(py: Python<'py>, workload: &str) -> PyResult<Bound<'py, PyDict>> {
    let workload = Workload::new(workload.parse::<WorkloadKind>().map_err(bad)?);
    let model = CostModel::TYPICAL;
    let costs = PyDict::new(py);
    costs.set_item("same_host", numbers(model.same_host))?;
    costs.set_item("other_host", numbers(model.other_host))?;
    costs.set_item("other_rack_latency_s", model.other_host.latency_s)?;
    costs.set_item("reduce_per_byte_s", model.reduce_per_byte_s)?;
    costs.set_item("copy_per_byte_s", model.copy_per_byte_s)?;
    let rates = PyDict::new(py);
    rates.set_item("flops_per_s", workload.rates.flops_per_s)?;
    rates.set_item("pairs_per_s", workload.rates.pairs_per_s)?;
    rates.set_item("partition_bytes_per_s", workload.rates.partition_bytes_per_s)?;
    rates.set_item("update_bytes_per_s", workload.rates.update_bytes_per_s)?;
    rates.set_item("sort_bytes_per_s", workload.rates.sort_bytes_per_s)?;
    rates.set_item("read_bytes_per_s", workload.rates.read_bytes_per_s)?;
    rates.set_item("write_bytes_per_s", workload.rates.write_bytes_per_s)?;
    rates.set_item("message_s", workload.rates.control.message_s)?;
    rates.set_item("handshake_s", workload.rates.control.handshake_s)?;
    rates.set_item("report_s", workload.rates.control.report_s)?;
    rates.set_item("pass_s", workload.rates.control.pass_s)?;
    let dict = PyDict::new(py);
    dict.set_item("costs", costs)?;
    dict.set_item("rates", rates)?;
    dict.set_item("bytes", workload.bytes)?;
    dict.set_item("points", workload.points)?;
    dict.set_item("dimensions", workload.dimensions)?;
    dict.set_item("clusters", workload.clusters)?;
    dict.set_item("steps", workload.steps)?;
    Ok(dict)
}

/// Measures the cost of messages between the workers of `comm`. Collective. Returns costs in the form for `simulate`,
/// without those that cannot be measured here, and on rank 0, single round trips in seconds.
#[pyfunction]
fn measure_links<'py>(py: Python<'py>, comm: &Comm) -> PyResult<Bound<'py, PyDict>> {
    let comm = comm.get(py)?.clone();
    let measured = detach(py, || measure(&comm)).map_err(|e| from_collective(py, &e))?;
    let dict = PyDict::new(py);
    if let Some(link) = measured.same_host {
        dict.set_item("same_host", numbers(link))?;
    }
    if let Some(link) = measured.other_host {
        dict.set_item("other_host", numbers(link))?;
    }
    dict.set_item("reduce_per_byte_s", measured.reduce_per_byte_s)?;
    dict.set_item("copy_per_byte_s", measured.copy_per_byte_s)?;
    dict.set_item("round_trips_s", measured.round_trips_s)?;
    Ok(dict)
}

/// Measures what messages of the control plane and handshakes take of this machine's processor, in seconds, as rates
/// for `simulate`. Takes about a second; needs no job. Raises `OSError` if loopback connections fail.
#[pyfunction]
fn measure_control(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let costs = detach(py, control_costs).map_err(|error| PyOSError::new_err(error.to_string()))?;
    let dict = PyDict::new(py);
    dict.set_item("message_s", costs.message_s)?;
    dict.set_item("handshake_s", costs.handshake_s)?;
    Ok(dict)
}

/// Returns times of `repeats` successive calls of a collective on the slowest worker, in seconds, ascending.
/// Collective. `chunk_bytes`: 0 for no chunks.
#[pyfunction]
fn time_collective(
    py: Python<'_>,
    comm: &Comm,
    collective: &str,
    bytes: usize,
    algorithm: &str,
    chunk_bytes: usize,
    repeats: u64,
) -> PyResult<Vec<f64>> {
    let comm = comm.get(py)?.clone();
    let collective = collective.parse::<Collective>().map_err(bad)?;
    let algorithm = algorithm.parse::<Algorithm>().map_err(bad)?;
    let options = CallOptions { algorithm: Some(algorithm), chunk: Some(chunk_bytes / 8), ..CallOptions::default() };
    let times = detach(py, || time_calls(&comm, collective, bytes, options, repeats));
    let times = times.map_err(|e| from_collective(py, &e))?;
    Ok(times.into_iter().map(|time| time.as_secs_f64()).collect())
}

/// Adds the functions to the module.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(simulate, m)?)?;
    m.add_function(wrap_pyfunction!(simulate_defaults, m)?)?;
    m.add_function(wrap_pyfunction!(measure_links, m)?)?;
    m.add_function(wrap_pyfunction!(measure_control, m)?)?;
    m.add_function(wrap_pyfunction!(time_collective, m)?)?;
    Ok(())
}
