//! Queries over streams whose jobs crash, stop, move buckets, spill, and resume with another number of copies, each in
//! one thread and from one seed. The results must equal those of an undisturbed run, and those of the query over the
//! same rows as a table, where the query can run on one.
//!
//! `SIMULATION_SEED=17 cargo test -p tidemill-stream stories -- --nocapture` runs the stories of seed 17;
//! `SIMULATION_QUERY=pairs` those of one query.

mod functions;
mod queries;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use tidemill_dataflow::testing::{Dice, StoryOutcome, StoryPlan, story};
use tidemill_dataset::{Engine, EngineConfig, ReadProgress};
use tidemill_sim::{SplitMix64, share_of_seeds};

use self::queries::{Query, Rows, queries};
use crate::plan::late_output::LateTo;
use crate::plan::lower::{JobLowering, JobSinks, PlannedQueries, plan};
use crate::plan::table::{StreamOutput, StreamSink};
use crate::rows::late_rows::LateRows;
use crate::sql_functions;

/// Seeds of a full run, for each query; see [`share_of_seeds`].
const SEEDS: u64 = 60;

struct SeededDice(SplitMix64);

impl Dice for SeededDice {
    fn below(&mut self, end: usize) -> usize {
        self.0.below(end)
    }
}

/// Rows as text, so that results can be compared.
fn lines(batches: &[RecordBatch]) -> Vec<Vec<String>> {
    let options = FormatOptions::default().with_null("null");
    let of_batch = |batch: &RecordBatch| {
        let columns: Vec<ArrayFormatter<'_>> =
            batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &options).unwrap()).collect();
        (0..batch.num_rows()).map(|row| columns.iter().map(|column| column.value(row).to_string()).collect()).collect()
    };
    batches.iter().flat_map(|batch| -> Vec<Vec<String>> { of_batch(batch) }).collect()
}

/// The relevant rows of a query: all of them, in any order, or the last of those that replace each other.
fn outcome(query: &Query, batches: &[RecordBatch]) -> Vec<Vec<String>> {
    let mut rows = lines(batches);
    if query.replaced_by > 0 {
        let last: BTreeMap<Vec<String>, Vec<String>> =
            rows.into_iter().map(|row| (row[..query.replaced_by].to_vec(), row)).collect();
        rows = last.into_values().collect();
    }
    rows.sort();
    rows
}

fn same(found: &[Vec<String>], expected: &[Vec<String>], what: &str) {
    if found == expected {
        return;
    }
    let mut counts: BTreeMap<&[String], i64> = BTreeMap::new();
    found.iter().for_each(|row| *counts.entry(row).or_default() += 1);
    expected.iter().for_each(|row| *counts.entry(row).or_default() -= 1);
    let more: Vec<_> = counts.iter().filter(|(_, count)| **count > 0).collect();
    let less: Vec<_> = counts.iter().filter(|(_, count)| **count < 0).collect();
    panic!(
        "{what}: {} rows too many, such as {:?}, and {} too few, such as {:?}",
        more.len(),
        &more[..more.len().min(3)],
        less.len(),
        &less[..less.len().min(3)]
    );
}

/// A query to run stories of.
struct ToldQuery {
    query: Query,
    outputs: Vec<StreamOutput>,
    plans: PlannedQueries,
    expected: Vec<Vec<String>>,
}

impl ToldQuery {
    fn new(engine: &Arc<Engine>, query: Query) -> Self {
        let of_stream = query.of(engine, Rows::Stream);
        let outputs: Vec<StreamOutput> = vec![(of_stream, StreamSink::unknown())];
        let planned = outputs.clone();
        let plans = engine.run(async move { plan(&planned, &LateTo::Nowhere).await });
        let plans = plans.unwrap_or_else(|error| panic!("{}: {error}", query.name));
        let mut told = ToldQuery { query, outputs, plans, expected: Vec::new() };
        let calm = StoryPlan { copies_max: 1, ..StoryPlan::default() };
        told.expected = outcome(&told.query, &told.tell(&calm, 0).rows[0]);
        assert!(told.expected.len() > 10, "{}: {} rows", told.query.name, told.expected.len());
        if let Some(table) = told.query.of_table(engine) {
            let rows = engine.run(table.collect(ReadProgress::default())).unwrap();
            same(
                &told.expected,
                &outcome(&told.query, &rows),
                &format!("{}, of a stream and a table", told.query.name),
            );
        }
        told
    }

    fn tell(&self, plan: &StoryPlan, seed: u64) -> StoryOutcome {
        let graph = |copies: u32| {
            let sinks = JobSinks { rows: &self.outputs, late: &LateTo::Nowhere, left_out: &LateRows::default() };
            JobLowering::graph("story", &self.plans, &sinks, copies).unwrap().graph
        };
        let mut dice = SeededDice(SplitMix64::scattered(seed));
        functions::restart_clock();
        let told = story(&graph, plan, &mut dice);
        told.unwrap_or_else(|error| panic!("{}: {error}", self.query.name))
    }

    /// Runs the story of a seed.
    fn check(&self, seed: u64, tell: bool) -> StoryOutcome {
        let mut random = SplitMix64::scattered(seed ^ 0x5eed);
        let mut one_of = |choices: &[usize]| random.one_of(choices);
        let plan = StoryPlan {
            copies_max: 3,
            budget_bytes: self.query.budget_bytes,
            faults_end: one_of(&[1000, 3000]),
            checkpoint: one_of(&[20, 60, 200]),
            stop: one_of(&[0, 1000]),
            rebalance: one_of(&[0, 100, 200]),
            crash: one_of(&[0, 200, 600]),
            snapshot_fails: one_of(&[0, 0, 30]),
            tick: one_of(&[3, 20]),
            tell,
        };
        if tell {
            println!("{}, seed {seed}: {plan:?}", self.query.name);
        }
        let told = self.tell(&plan, seed);
        same(&outcome(&self.query, &told.rows[0]), &self.expected, self.query.name);
        told
    }
}

/// A failure here means that an operator loses or duplicates state when a job resumes, when buckets move, or when
/// memory is short. The query and the seed reproduce it.
#[test]
fn queries_give_the_same_whatever_happens() {
    let config = EngineConfig { threads: 1, workers: 1, memory_bytes: None, spill_dir: None };
    let engine = Arc::new(Engine::with_functions(&config, sql_functions()).unwrap());
    let only = std::env::var("SIMULATION_QUERY").ok();
    let seed = std::env::var("SIMULATION_SEED").ok().map(|seed| seed.parse().expect("a seed is a number"));
    let mut failed = Vec::new();
    for query in queries().into_iter().filter(|query| only.as_deref().is_none_or(|only| only == query.name)) {
        let told = ToldQuery::new(&engine, query);
        if let Some(seed) = seed {
            let StoryOutcome { rows: _, steps, runs, checkpoints, moved_parts, spilled_bytes } = told.check(seed, true);
            println!(
                "{steps} steps, {runs} runs, {checkpoints} checkpoints, {moved_parts} parts moved, {spilled_bytes} bytes \
                 spilled"
            );
            continue;
        }
        let (mut all, seeds) = (StoryOutcome::default(), share_of_seeds(SEEDS));
        for seed in 0..seeds {
            let name = &told.query.name;
            match std::panic::catch_unwind(AssertUnwindSafe(|| told.check(seed, false))) {
                Ok(one) => {
                    all.steps += one.steps;
                    all.runs += one.runs;
                    all.checkpoints += one.checkpoints;
                    all.moved_parts += one.moved_parts;
                    all.spilled_bytes += one.spilled_bytes;
                }
                Err(_) => {
                    failed.push(format!("{name} with seed {seed}: SIMULATION_QUERY={name} SIMULATION_SEED={seed}"));
                    break;
                }
            }
        }
        let StoryOutcome { rows: _, steps, runs, checkpoints, moved_parts, spilled_bytes } = all;
        println!(
            "{}: {seeds} seeds, {steps} steps, {runs} runs, {checkpoints} checkpoints, {moved_parts} parts moved, \
             {spilled_bytes} bytes spilled",
            told.query.name
        );
    }
    assert!(failed.is_empty(), "failing stories, each reproduced by its variables: {failed:#?}");
}
