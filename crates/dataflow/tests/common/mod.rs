//! Graphs of the tests' own: sources that send given batches, sinks that keep what they get, and rows in a form that
//! can be compared.
#![allow(dead_code, reason = "not every test uses all of it")]

pub mod counting;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::row::{RowConverter, SortField};
use tidemill_collective::{Communicator, run_ranks};
use tidemill_dataflow::{
    DataflowError, Graph, Overlay, RunReport, Runner, RunnerSettings, Shape, StreamElement, TaskSpec,
};

/// One of each kind.
pub const OVERLAYS: [Overlay; 8] = [
    Overlay::Serial,
    Overlay::Flat,
    Overlay::Binary,
    Overlay::Binomial,
    Overlay::Chain,
    Overlay::Ring,
    Overlay::Double,
    Overlay::Levels { hosts: Shape::Flat, workers: Shape::Binary },
];

pub fn schema(fields: &[(&str, DataType)]) -> SchemaRef {
    let fields: Vec<Field> = fields.iter().map(|(name, t)| Field::new(*name, t.clone(), true)).collect();
    Arc::new(Schema::new(fields))
}

/// What copy `copy` of a source sends: a pure function of the copy, so that every worker and the reference agree.
pub type Data = Arc<dyn Fn(u32) -> Vec<RecordBatch> + Send + Sync>;

pub fn source(name: &str, schema: &SchemaRef, copies: u32, data: &Data) -> TaskSpec {
    let data = Arc::clone(data);
    TaskSpec::new(name, move |_, outputs, context| {
        let batches = data(context.copy());
        async move {
            let mut output = outputs.into_only();
            for batch in batches {
                output.send(batch).await?;
            }
            Ok(())
        }
    })
    .output("out", schema.clone())
    .copies(copies)
}

/// What arrived, by copy, in order.
pub type Kept = Arc<Mutex<BTreeMap<u32, Vec<RecordBatch>>>>;

pub fn sink(name: &str, copies: u32, kept: &Kept) -> TaskSpec {
    let kept = Arc::clone(kept);
    TaskSpec::new(name, move |inputs, _, context| {
        let kept = Arc::clone(&kept);
        async move {
            let mut input = inputs.into_only();
            while let Some(StreamElement::Batch(batch)) = input.recv().await? {
                kept.lock().unwrap().entry(context.copy()).or_default().push(batch);
            }
            Ok(())
        }
    })
    .input("in")
    .copies(copies)
}

/// Small windows and batches, so that little data already waits for credit and crosses in several blocks.
pub fn tight() -> RunnerSettings {
    RunnerSettings { threads: 1, queue_bytes: 1, batch_bytes: 4 << 10, ..RunnerSettings::default() }
}

/// What arrived by copy of the sink, and the workers' reports.
pub type Outcome = Result<(BTreeMap<u32, Vec<RecordBatch>>, Vec<RunReport>), DataflowError>;

/// Runs on `workers` threads the graph that `build` adds sources and exchanges to, given the sinks' store.
pub fn run_graph(workers: u32, settings: &RunnerSettings, build: impl Fn(&mut Graph, &Kept) + Sync) -> Outcome {
    run_graph_on(&vec![0; workers as usize], settings, build)
}

/// [`run_graph`] on workers of these hosts, as it were.
pub fn run_graph_on(hosts: &[u32], settings: &RunnerSettings, build: impl Fn(&mut Graph, &Kept) + Sync) -> Outcome {
    let first = |host| hosts.iter().position(|other| other == host).unwrap() as u32;
    let firsts: Vec<u32> = hosts.iter().map(first).collect();
    let results: Vec<Result<_, DataflowError>> = run_ranks(hosts.len() as u32, |comm: Communicator| {
        let kept = Kept::default();
        let mut graph = Graph::new("test");
        build(&mut graph, &kept);
        let runner = Runner::new(&comm, settings.clone())?.on_hosts(firsts.clone());
        let report = runner.run(&graph)?;
        let kept = std::mem::take(&mut *kept.lock().unwrap());
        Ok((kept, report))
    })
    .unwrap();
    let mut all = BTreeMap::new();
    let mut reports = Vec::new();
    for result in results {
        let (kept, report) = result?;
        for (copy, batches) in kept {
            assert!(all.insert(copy, batches).is_none(), "copy {copy} ran on two workers");
        }
        reports.push(report);
    }
    Ok((all, reports))
}

/// Rows as comparable bytes, in order.
pub fn rows(batches: &[RecordBatch]) -> Vec<Vec<u8>> {
    let Some(first) = batches.first() else { return Vec::new() };
    let fields = first.columns().iter().map(|c| SortField::new(c.data_type().clone())).collect();
    let converter = RowConverter::new(fields).unwrap();
    let of = |batch: &RecordBatch| -> Vec<Vec<u8>> {
        let rows = converter.convert_columns(batch.columns()).unwrap();
        rows.iter().map(|row| row.as_ref().to_vec()).collect()
    };
    batches.iter().flat_map(of).collect()
}

/// Rows in no order.
pub fn sorted_rows(batches: &[RecordBatch]) -> Vec<Vec<u8>> {
    let mut rows = rows(batches);
    rows.sort_unstable();
    rows
}

/// All rows of all copies, in no order.
pub fn all_rows(kept: &BTreeMap<u32, Vec<RecordBatch>>) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = kept.values().flat_map(|batches| rows(batches)).collect();
    all.sort_unstable();
    all
}
