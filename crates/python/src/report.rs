//! Reports of runs as dicts.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tidemill_dataflow::{EdgeReport, RunReport};

/// The edges of a run with what they have moved. Times are in seconds.
pub fn described<'py>(py: Python<'py>, report: &RunReport) -> PyResult<Bound<'py, PyDict>> {
    let edge = |edge: &EdgeReport| {
        let dict = PyDict::new(py);
        dict.set_item("edge", &edge.edge)?;
        dict.set_item("rows_sent", edge.rows_sent)?;
        dict.set_item("rows_received", edge.rows_received)?;
        dict.set_item("local_blocks", edge.local_blocks)?;
        dict.set_item("local_bytes", edge.local_bytes)?;
        dict.set_item("remote_blocks", edge.remote_blocks)?;
        dict.set_item("remote_bytes", edge.remote_bytes)?;
        dict.set_item("late_rows", edge.late_rows)?;
        dict.set_item("blocked_s", edge.blocked_ns as f64 / 1e9)?;
        dict.set_item("queue_bytes_max", edge.queue_bytes_max)?;
        dict.set_item("bucket_rows", &edge.bucket_rows)?;
        dict.set_item("bucket_bytes", &edge.bucket_bytes)?;
        dict.set_item("bucket_work_s", edge.bucket_work_ns.iter().map(|&ns| ns as f64 / 1e9).collect::<Vec<_>>())?;
        Ok(dict)
    };
    let dict = PyDict::new(py);
    dict.set_item("wall_s", report.wall_ns as f64 / 1e9)?;
    dict.set_item("spilled_bytes", report.spilled_bytes)?;
    dict.set_item("edges", report.edges.iter().map(edge).collect::<PyResult<Vec<_>>>()?)?;
    Ok(dict)
}
