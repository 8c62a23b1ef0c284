//! Runs queries on all workers of a job. Every worker plans the same query, with one partition for each thread of the
//! job. The plan is split into stages ([`stages`]), which become tasks of a dataflow graph with one copy per partition;
//! the cuts become exchanges.
//!
//! A plan with a step that is not known to work across processes runs entirely on worker 0, and `explain` says why.

mod analyze;
mod arrival;
mod broadcast;
pub(crate) mod distributed_table;
mod prepare;
mod same_files;
mod same_folders;
mod stages;
mod write;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::ScalarValue;
use datafusion::common::hash_utils::create_hashes;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::limit::LocalLimitExec;
use datafusion::physical_plan::repartition::REPARTITION_RANDOM_STATE;
use datafusion::physical_plan::scalar_subquery::ScalarSubqueryExec;
use datafusion::physical_plan::{ExecutionPlan, collect_partitioned, displayable};
use futures::StreamExt;
use tidemill_collective::{CollectiveError, Communicator, ReduceOp};
use tidemill_dataflow::exchange::{Broadcast, Direct, Exchange, Gather, Partition, Sort};
use tidemill_dataflow::flow::batch_bytes;
use tidemill_dataflow::memory::AllocationSet;
use tidemill_dataflow::placement::RoundRobin;
use tidemill_dataflow::{BatchError, DataflowError, Graph, Outputs, RunReport, Runner, RunnerSettings, TaskSpec};

use crate::dataset::DataSet;
use crate::distribute::distributed_table::{PartsTable, TableSize, differences};
use crate::engine::{Engine, EngineConfig};
use crate::error::DataSetError;
use crate::exec::progress::ReadProgress;
use crate::exec::step::as_planned;
use crate::files::sources::SourceFiles;
use crate::plan::tables::each_table;
use arrival::Rows;
use prepare::{PreparedQuery, ResultDivision, prepare};
use same_files::{ObservedFiles, contents};
use stages::{RowExchange, StageEdge, StageRole, StagedPlan};

/// Why an action of several workers failed; the same on all of them.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ActionError {
    /// The query failed.
    #[error(transparent)]
    DataSet(#[from] DataSetError),
    /// The job failed.
    #[error(transparent)]
    Job(#[from] CollectiveError),
}

type Result<T, E = ActionError> = std::result::Result<T, E>;

/// Which workers get the rows of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultTarget {
    /// Every worker gets all rows.
    All,
    /// One worker gets all rows.
    One(u32),
    /// Every worker gets the rows that it has made. Rows that do not fit into its memory are mapped from its disk.
    Each,
    /// No worker: the rows are only computed.
    None,
}

/// Called now and then while an action runs, with the reading progress: on worker 0 that of all workers, elsewhere that
/// of the worker itself. An error aborts the action on all workers.
pub type Watch<'a> = &'a mut dyn FnMut(&ReadProgress) -> Result<(), String>;

/// An action in progress: what its runs share.
struct QueryRun<'a> {
    context: Arc<TaskContext>,
    sources: Arc<SourceFiles>,
    reading: ReadProgress,
    watch: Watch<'a>,
}

/// The workers of a job, as a group that runs queries.
pub struct WorkerGroup {
    comm: Communicator,
    runner: Runner,
    /// Partitions per query: one for each thread of all workers.
    partitions: usize,
    /// The smallest memory budget of any worker. Plans depend on it, and must be the same on all workers.
    memory_bytes: Option<usize>,
    /// The name of each worker's host; empty if all are on one host.
    hosts: Vec<String>,
}

impl WorkerGroup {
    /// Prepares the workers of `comm`. Collective.
    ///
    /// # Errors
    /// Any failure of the job; `Internal` if threads cannot be started.
    pub fn new(comm: &Communicator, engine: &Engine, config: &EngineConfig) -> Result<Self> {
        let comm = comm.dup()?;
        comm.set_name("queries");
        let mut threads = [0u64];
        comm.allreduce(&[config.threads as u64], &mut threads, &ReduceOp::Max)?;
        let memory = engine.governor().settings().clone();
        let settings = RunnerSettings { threads: config.threads, memory, ..RunnerSettings::default() };
        let runner = Runner::governed(&comm, settings, engine.governor().clone()).map_err(failed)?;
        let partitions = threads[0] as usize * comm.size() as usize;
        let mut memory = [0u64];
        let mine = engine.governor().settings().budget_bytes;
        comm.allreduce(&[if mine == 0 { u64::MAX } else { mine }], &mut memory, &ReduceOp::Min)?;
        let memory_bytes = usize::try_from(memory[0]).ok().filter(|&bytes| bytes < usize::MAX);
        let placements = comm.endpoint().placements();
        let places = || comm.world_ranks().iter().map(|rank| &placements[rank.index()]);
        let is_one_host = places().all(|place| place.host == placements[comm.world_ranks()[0].index()].host);
        let hosts = if is_one_host { Vec::new() } else { places().map(|place| place.hostname.clone()).collect() };
        Ok(WorkerGroup { comm, runner, partitions, memory_bytes, hosts })
    }

    /// The number of partitions of a query: one for each thread of all workers.
    pub fn partitions(&self) -> usize {
        self.partitions
    }

    /// The runner of its tasks.
    pub fn runner(&self) -> &Runner {
        &self.runner
    }

    /// Runs a query. Collective: every worker calls it with the same query.
    ///
    /// Rows come in the order of the query's partitions, without empty batches.
    ///
    /// # Errors
    /// The first failure, the same on every worker.
    pub fn collect(
        &self,
        engine: &Engine,
        set: &DataSet,
        to: ResultTarget,
        watch: Watch<'_>,
    ) -> Result<Vec<RecordBatch>> {
        Ok(self.collect_partitions(engine, set, None, to, watch)?.concat())
    }

    /// Runs a query; each worker gets the rows that it has made, by partition number. Collective, as
    /// [`WorkerGroup::collect`].
    ///
    /// If [`DataSet::is_in_order`], partitions are in source order: files in the order of their paths, and positions
    /// within them.
    ///
    /// # Errors
    /// The first failure, the same on every worker.
    pub fn collect_in_order(&self, engine: &Engine, set: &DataSet, watch: Watch<'_>) -> Result<Vec<Vec<RecordBatch>>> {
        self.collect_partitions(engine, &set.undealt()?, None, ResultTarget::Each, watch)
    }

    /// As [`DataSet::collect_first`], for worker `root`. Collective, as [`WorkerGroup::collect`].
    ///
    /// # Errors
    /// The first failure, the same on every worker.
    pub fn collect_first(
        &self,
        engine: &Engine,
        set: &DataSet,
        rows: usize,
        root: u32,
        watch: Watch<'_>,
    ) -> Result<Vec<RecordBatch>> {
        let (heads, each) = set.heads(rows)?;
        Ok(self.collect_partitions(engine, &heads, each, ResultTarget::One(root), watch)?.concat())
    }

    /// With at most `rows` rows per partition, if given.
    fn collect_partitions(
        &self,
        engine: &Engine,
        set: &DataSet,
        rows: Option<usize>,
        to: ResultTarget,
        watch: Watch<'_>,
    ) -> Result<Vec<Vec<RecordBatch>>> {
        let share = if to == ResultTarget::Each { ResultDivision::Even } else { ResultDivision::AsMade };
        let (plan, mut action) = self.begin(engine, set, share, watch)?;
        let mut plan = self.resolve(plan, &mut action)?;
        if let Some(rows) = rows {
            plan = Arc::new(LocalLimitExec::new(plan, rows));
        }
        let stages = StagedPlan::of(&plan)?.counted(&action.reading)?;
        Ok(self.run(&stages, to, &mut action)?.0)
    }

    /// Plans an action.
    fn begin<'a>(
        &self,
        engine: &Engine,
        set: &DataSet,
        share: ResultDivision,
        watch: Watch<'a>,
    ) -> Result<(Arc<dyn ExecutionPlan>, QueryRun<'a>)> {
        let sources = Arc::new(SourceFiles::of(set.frame()));
        let PreparedQuery { plan, state } = self.prepare(engine, set, &sources, share)?;
        let reading = ReadProgress::default();
        reading.expect(&plan);
        Ok((plan, QueryRun { context: state.task_ctx(), sources, reading, watch }))
    }

    /// The plan of [`WorkerGroup::collect`], as text. Collective.
    ///
    /// # Errors
    /// As for [`WorkerGroup::collect`], as far as planning is concerned.
    pub fn explain(&self, engine: &Engine, set: &DataSet) -> Result<String> {
        let sources = Arc::new(SourceFiles::of(set.frame()));
        let plan = self.prepare(engine, set, &sources, ResultDivision::AsMade)?.plan;
        let mut text = String::new();
        // As in `resolve`: scalar subqueries come first.
        let plan = plan.transform_up(|node| {
            let Some(asked) = node.downcast_ref::<ScalarSubqueryExec>() else { return Ok(Transformed::no(node)) };
            for link in asked.subqueries() {
                let stages = StagedPlan::of(&link.plan).map_err(DataFusionError::from)?;
                text += &format!("first, subquery {}:\n{}", link.index.as_usize(), stages.describe());
            }
            Ok(Transformed::yes(Arc::clone(asked.input())))
        });
        let plan = plan.map_err(|error| sources.name_in(error))?.data;
        Ok(text + &StagedPlan::of(&plan)?.describe())
    }

    fn prepare(
        &self,
        engine: &Engine,
        set: &DataSet,
        sources: &SourceFiles,
        share: ResultDivision,
    ) -> Result<PreparedQuery> {
        let now = self.tell_sizes(set)?;
        let (frame, partitions, memory_bytes) = (set.frame().clone(), self.partitions, self.memory_bytes);
        let governor = engine.governor().clone();
        let planned = engine.run(async move {
            let prepared = prepare(frame, partitions, memory_bytes, &governor, now, share).await;
            // Errors elsewhere name their files, where the sources are.
            Ok(prepared)
        });
        let prepared = self.agree(planned.and_then(|prepared| prepared.map_err(|error| sources.name_in(error))))?;
        if !self.hosts.is_empty() {
            self.same_files(self.agree(ObservedFiles::of(set.frame(), &prepared.plan))?)?;
        }
        Ok(prepared)
    }

    /// Fails on all workers if files differ between hosts.
    fn same_files(&self, mut seen: ObservedFiles) -> Result<()> {
        let digest = seen.digest();
        let mut ends = [0u64; 2];
        self.comm.allreduce(&[digest, !digest], &mut ends, &ReduceOp::Max)?;
        if ends[0] == !ends[1] {
            return Ok(());
        }
        let first = ObservedFiles::from_text(&self.tell(0, seen.to_text())?);
        self.find_copies(&first, &mut seen)?;
        let (mine, theirs) = (&self.hosts[self.comm.rank() as usize], &self.hosts[0]);
        self.agree(match first.difference(theirs, &seen, mine) {
            Some(difference) => Err(DataSetError::Query(difference)),
            None => Ok(()),
        })
    }

    /// Gives files with the same contents as the first worker's the times of those.
    fn find_copies(&self, first: &ObservedFiles, seen: &mut ObservedFiles) -> Result<()> {
        let mut retimed = first.retimed(seen);
        self.comm.allreduce(&retimed.clone(), &mut retimed, &ReduceOp::Max)?;
        let (compared, is_first) = (first.compared(&retimed), self.comm.rank() == 0);
        let sum = |path: &String| if is_first || first.is_retimed(path, seen) { contents(path) } else { Ok(0) };
        let mine = self.agree(compared.iter().map(sum).collect::<Result<Vec<u64>, DataSetError>>())?;
        let mut sums = mine.clone();
        self.comm.bcast(&mut sums, 0)?;
        let same = compared.iter().zip(mine.iter().zip(&sums)).filter(|(_, (mine, first))| mine == first);
        same.for_each(|(path, _)| seen.take_time(path, first));
        Ok(())
    }

    /// Tells all workers the sizes of tables of which each has a part, and the current time, which comes from a single
    /// clock. Checks that parts have the same columns.
    fn tell_sizes(&self, set: &DataSet) -> Result<i64> {
        /// Sizes of further tables are not exchanged: workers whose queries differ must still make the same call.
        const TABLES_MAX: usize = 32;
        const WORDS: usize = 3;
        let mut sums = [0u64; 1 + WORDS * TABLES_MAX];
        if self.comm.rank() == 0 {
            sums[0] = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        }
        let mut places = sums[1..].chunks_exact_mut(WORDS);
        each_table(set.frame().logical_plan(), &mut |table| {
            if let (Some(table), Some(place)) = (table.downcast_ref::<PartsTable>(), places.next()) {
                let TableSize { rows, loose_bytes } = table.mine();
                place.copy_from_slice(&[rows, loose_bytes, table.columns_sum()]);
            }
        });
        let mut whole = sums;
        self.comm.allreduce(&sums, &mut whole, &ReduceOp::Sum)?;
        let size = u64::from(self.comm.size());
        let mut sums_of_columns = sums[1..].chunks_exact(WORDS).zip(whole[1..].chunks_exact(WORDS));
        if !sums_of_columns.all(|(mine, whole)| mine[2] * size == whole[2]) {
            return Err(self.columns_differ(set)?.into());
        }
        let mut places = whole[1..].chunks_exact(WORDS);
        each_table(set.frame().logical_plan(), &mut |table| {
            if let (Some(table), Some(place)) = (table.downcast_ref::<PartsTable>(), places.next()) {
                table.tell(TableSize { rows: place[0], loose_bytes: place[1] });
            }
        });
        Ok(whole[0] as i64)
    }

    /// The error if workers' parts of a table have different columns.
    fn columns_differ(&self, set: &DataSet) -> Result<DataSetError> {
        let mut mine = Vec::new();
        each_table(set.frame().logical_plan(), &mut |table| {
            mine.extend(table.downcast_ref::<PartsTable>().map(PartsTable::columns));
        });
        let told = |root| self.tell(root, mine.join("\n"));
        let all = (0..self.comm.size()).map(told).collect::<Result<Vec<_>>>()?;
        let tables: Vec<Vec<&str>> = all.iter().map(|of_worker| of_worker.lines().collect()).collect();
        let count = tables.iter().map(Vec::len).max().unwrap_or_default();
        if tables.iter().any(|of_worker| of_worker.len() != count) {
            return Ok(different_queries(""));
        }
        let of_table = |at: usize| differences(&tables.iter().map(|of_worker| of_worker[at]).collect::<Vec<_>>());
        let columns = (0..count).find_map(of_table).unwrap_or_default();
        Ok(DataSetError::Query(format!(
            "from_local: the parts of a table have different columns: {columns}; give every worker the same ones with \
             select and cast"
        )))
    }

    /// Combines the workers' individual results: the error of the lowest worker becomes the error of all.
    pub fn agree<T>(&self, mine: Result<T, DataSetError>) -> Result<T> {
        let size = u64::from(self.comm.size());
        let (mut first, me) = ([size], u64::from(self.comm.rank()));
        self.comm.allreduce(&[if mine.is_err() { me } else { size }], &mut first, &ReduceOp::Min)?;
        if first[0] == size {
            return Ok(mine?);
        }
        let text = mine.as_ref().err().map(ToString::to_string);
        let text = self.tell(first[0] as u32, text.unwrap_or_default())?;
        match mine {
            Err(error) if first[0] == me => Err(error.into()),
            _ => Err(DataSetError::Query(text).into()),
        }
    }

    /// Sends a text from `root` to the others.
    fn tell(&self, root: u32, text: String) -> Result<String> {
        let mut length = [text.len() as u64];
        self.comm.bcast(&mut length, root)?;
        let mut bytes = text.into_bytes();
        bytes.resize(length[0] as usize, 0);
        self.comm.bcast(&mut bytes, root)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The plan with scalar subqueries replaced by their values. They run first, because stages on other workers cannot
    /// wait for them.
    fn resolve(&self, plan: Arc<dyn ExecutionPlan>, action: &mut QueryRun<'_>) -> Result<Arc<dyn ExecutionPlan>> {
        let mut fault = None;
        let resolved = plan.transform_up(|node| {
            let Some(asked) = node.downcast_ref::<ScalarSubqueryExec>() else { return Ok(Transformed::no(node)) };
            for link in asked.subqueries() {
                let asked_for = StagedPlan::of(&link.plan).and_then(|stages| stages.counted(&action.reading));
                let asked_for = asked_for.map_err(DataFusionError::from)?;
                let value = match self.run(&asked_for, ResultTarget::All, action) {
                    Ok((parts, _)) => only_value(&parts.concat(), &link.plan.schema())?,
                    Err(error) => {
                        fault = Some(error);
                        return Err(DataFusionError::Internal("a subquery failed".into()));
                    }
                };
                asked.results().set(link.index, value)?;
            }
            Ok(Transformed::yes(Arc::clone(asked.input())))
        });
        match (resolved, fault) {
            (_, Some(error)) => Err(error),
            (resolved, None) => Ok(resolved.map_err(|error| action.sources.name_in(error))?.data),
        }
    }

    /// Runs stages. Returns the rows of each partition that come to this worker, and the outcome.
    fn run(
        &self,
        stages: &StagedPlan,
        to: ResultTarget,
        action: &mut QueryRun<'_>,
    ) -> Result<(Vec<Vec<RecordBatch>>, RunReport)> {
        let mut graph = Graph::new("query");
        let tasks: Vec<_> = (0..stages.stages.len()).map(|id| graph.add(stage_task(stages, id, action))).collect();
        for (number, cut) in stages.cuts.iter().enumerate() {
            let target = tasks[cut.target].port(&port(number));
            match exchange(cut, stages.stages[cut.target].copies) {
                ExchangeHandle::Partition(exchange) => graph.connect(tasks[cut.source], target, exchange),
                ExchangeHandle::Gather(exchange) => graph.connect(tasks[cut.source], target, exchange),
                ExchangeHandle::Broadcast(exchange) => graph.connect(tasks[cut.source], target, exchange),
                ExchangeHandle::Sort(exchange) => graph.connect(tasks[cut.source], target, exchange),
            };
        }
        let kept: Arc<Mutex<Vec<Vec<RecordBatch>>>> = Arc::default();
        let copies = match to {
            ResultTarget::Each | ResultTarget::None => stages.stages[0].copies as u32,
            ResultTarget::All | ResultTarget::One(_) => self.comm.size(),
        };
        let result = result_task((to != ResultTarget::None).then(|| Arc::clone(&kept)), to == ResultTarget::Each);
        let result = graph.add(result.copies(copies));
        match to {
            ResultTarget::All => deliver(&mut graph, tasks[0], result, Broadcast::default()),
            ResultTarget::One(root) => deliver(&mut graph, tasks[0], result, Gather::to(root)),
            ResultTarget::Each | ResultTarget::None => deliver(&mut graph, tasks[0], result, Direct),
        }
        let QueryRun { reading, watch, .. } = action;
        let ran = self.runner.run_placed(&graph, &RoundRobin, &mut |progress| {
            progress.tell(reading.rows_here());
            reading.learn(progress.elsewhere());
            watch(reading)
        });
        // The graph owns the plan, which owns the collected rows.
        drop(graph);
        let report = ran.map_err(failed)?;
        let kept = std::mem::take(&mut *kept.lock().expect("nothing panics with it locked"));
        Ok((kept, report))
    }
}

fn deliver(
    graph: &mut Graph,
    from: tidemill_dataflow::TaskId,
    to: tidemill_dataflow::TaskId,
    exchange: impl Exchange + 'static,
) {
    graph.connect(from, to, exchange);
}

fn port(cut: usize) -> String {
    format!("cut {cut}")
}

/// The exchange that implements a cut.
enum ExchangeHandle {
    Partition(Partition),
    Gather(Gather),
    Broadcast(Broadcast),
    Sort(Sort),
}

fn exchange(cut: &StageEdge, target_copies: usize) -> ExchangeHandle {
    let (start, count) = (cut.copies.start as u32, cut.copies.len() as u32);
    let name = format!("{} to copies {start} to {}", cut.way.describe(), start + count - 1);
    match &cut.way {
        RowExchange::Hash(keys) => {
            let keys = keys.clone();
            ExchangeHandle::Partition(Partition::with(name, move |batch, _| Ok(by_hash(&keys, batch, start, count)?)))
        }
        RowExchange::Turn if cut.copies == (0..target_copies) => ExchangeHandle::Partition(Partition::in_turn()),
        RowExchange::Turn => {
            let next = AtomicU32::new(0);
            ExchangeHandle::Partition(Partition::with(name, move |batch, _| {
                Ok(vec![start + next.fetch_add(1, Ordering::Relaxed) % count; batch.num_rows()])
            }))
        }
        RowExchange::Gather => ExchangeHandle::Gather(Gather::to(start)),
        RowExchange::Broadcast => ExchangeHandle::Broadcast(Broadcast::default()),
        RowExchange::Sort(keys) => ExchangeHandle::Sort(Sort::by(keys.clone())),
    }
}

/// The copy of each row, among `count` copies from `start` on. Hashes like DataFusion's own repartitioning, so that
/// values it considers equal go to the same copy.
fn by_hash(
    keys: &[Arc<dyn PhysicalExpr>],
    batch: &RecordBatch,
    start: u32,
    count: u32,
) -> datafusion::error::Result<Vec<u32>> {
    let rows = batch.num_rows();
    let values = keys.iter().map(|key| key.evaluate(batch)?.into_array(rows)).collect::<Result<Vec<_>, _>>()?;
    let mut hashes = vec![0; rows];
    create_hashes(&values, REPARTITION_RANDOM_STATE.random_state(), &mut hashes)?;
    // The high bits decide, because hash tables on the receiving side use the low ones.
    Ok(hashes.iter().map(|&hash| start + ((u128::from(hash) * u128::from(count)) >> 64) as u32).collect())
}

fn stage_task(stages: &StagedPlan, id: usize, action: &QueryRun<'_>) -> TaskSpec {
    let stage = &stages.stages[id];
    let (plan, kind) = (Arc::clone(&stage.plan), stage.kind.clone());
    let (context, sources) = (Arc::clone(&action.context), Arc::clone(&action.sources));
    let arrivals: Vec<_> = stages
        .cuts
        .iter()
        .enumerate()
        .filter(|(_, cut)| cut.target == id)
        .map(|(number, cut)| (number, Arc::clone(&cut.arrival), cut.copies.clone(), cut.way.clone()))
        .collect();
    let ports: Vec<String> = arrivals.iter().map(|(number, ..)| port(*number)).collect();
    let schema = match &stage.kind {
        StageRole::Write(sinks) => sinks[0].schema(),
        StageRole::Partition | StageRole::Whole => plan.schema(),
    };
    let detail = format!(
        "{}tables in memory: {:016x}",
        displayable(plan.as_ref()).indent(true),
        tables_in_memory(&plan).map_or(0, |hash| hash)
    );
    let task = TaskSpec::new(format!("stage {id}"), move |inputs, outputs, copy| {
        let (plan, context, sources) = (Arc::clone(&plan), Arc::clone(&context), Arc::clone(&sources));
        let (number, kind) = (copy.copy() as usize, kind.clone());
        for (input, (_, arrival, copies, way)) in inputs.into_ports().into_iter().zip(&arrivals) {
            if !copies.contains(&number) {
                continue;
            }
            match way {
                RowExchange::Gather => input
                    .into_streams()
                    .into_iter()
                    .enumerate()
                    .for_each(|(partition, stream)| arrival.give(partition, rows(stream))),
                RowExchange::Broadcast => arrival.give(0, rows(input)),
                RowExchange::Hash(_) | RowExchange::Turn | RowExchange::Sort(_) => {
                    arrival.give(number - copies.start, rows(input))
                }
            }
        }
        async move {
            let ran = match kind {
                StageRole::Partition => run_partition(plan.as_ref(), number, context, outputs).await,
                StageRole::Whole => run_whole(plan, context, outputs).await,
                StageRole::Write(sinks) => {
                    let sink = &sinks[number % sinks.len()];
                    write::run_sink(sink, plan.as_ref(), number, context, outputs).await
                }
            };
            Ok(ran.map_err(|error| sources.name_in(error))?)
        }
    });
    let task = ports.iter().fold(task, |task, port| task.input(port));
    task.output("out", schema).copies(stage.copies as u32).detail(detail)
}

/// A checksum of the in-memory tables of a plan, from a sample of their rows. Each worker reads a share of its own
/// tables, so they have to be the same.
fn tables_in_memory(plan: &Arc<dyn ExecutionPlan>) -> datafusion::error::Result<u64> {
    const ROWS_SEEN: usize = 64;
    let mut all = 0_u64;
    let mut see = |batch: RecordBatch| -> datafusion::error::Result<()> {
        let mut hashes = vec![0; batch.num_rows()];
        create_hashes(batch.columns(), REPARTITION_RANDOM_STATE.random_state(), &mut hashes)?;
        hashes.iter().for_each(|&hash| all = all.rotate_left(5) ^ hash);
        Ok(())
    };
    plan.apply(|node| {
        let source = node.downcast_ref::<DataSourceExec>().map(|scan| scan.data_source());
        if let Some(memory) = source.and_then(|source| source.downcast_ref::<MemorySourceConfig>()) {
            for batch in memory.partitions().iter().flatten() {
                let rows = batch.num_rows();
                see(batch.slice(0, rows.min(ROWS_SEEN)))?;
                see(batch.slice(rows.saturating_sub(ROWS_SEEN), rows.min(ROWS_SEEN)))?;
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(all)
}

fn rows(stream: impl futures::Stream<Item = Result<RecordBatch, DataflowError>> + Send + 'static) -> Rows {
    Box::pin(stream.map(|batch| batch.map_err(|error| DataFusionError::External(Box::new(error)))))
}

async fn run_partition(
    plan: &dyn ExecutionPlan,
    partition: usize,
    context: Arc<TaskContext>,
    outputs: Outputs,
) -> datafusion::error::Result<()> {
    let mut output = outputs.into_only();
    let schema = SchemaRef::clone(output.schema());
    let mut stream = plan.execute(partition, context)?;
    // A later limit may have all the rows it needs.
    while output.is_wanted()
        && let Some(batch) = stream.next().await
    {
        output.send(as_planned(batch?, &schema)?).await.map_err(DataFusionError::External)?;
    }
    Ok(())
}

async fn run_whole(
    plan: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
    outputs: Outputs,
) -> datafusion::error::Result<()> {
    let mut output = outputs.into_only();
    let schema = SchemaRef::clone(output.schema());
    for batch in collect_partitioned(plan, context).await?.into_iter().flatten() {
        output.send(as_planned(batch, &schema)?).await.map_err(DataFusionError::External)?;
    }
    Ok(())
}

/// Keeps the arriving rows, if they are wanted, in the order of the sending copies. With `may_map`, rows that do not
/// fit into memory go to disk and are mapped.
fn result_task(kept: Option<Arc<Mutex<Vec<Vec<RecordBatch>>>>>, may_map: bool) -> TaskSpec {
    TaskSpec::new("result", move |inputs, _, copy| {
        let kept = kept.clone();
        async move {
            let mut input = inputs.into_only();
            let Some(kept) = kept else {
                while input.recv().await?.is_some() {}
                return Ok(());
            };
            let (held, mut allocations) = (copy.reservation(), AllocationSet::default());
            let mut rows = vec![Vec::new(); input.streams() as usize];
            while let Some((stream, item)) = input.recv_from().await? {
                let Some(mut batch) = item.into_batch() else { continue };
                let bytes = batch_bytes(&batch);
                if !may_map {
                    // For an in-memory table that the program owns, only the rows that come out count.
                    held.grow(allocations.add(&batch).min(bytes))?;
                } else if !held.try_grow(bytes) {
                    batch = copy.governor().map(&batch)?;
                }
                rows[stream as usize].push(batch);
            }
            let mut kept = kept.lock().expect("nothing panics with it locked");
            if kept.is_empty() {
                *kept = rows;
            } else {
                // Copies on one worker receive disjoint streams.
                kept.iter_mut().zip(rows).for_each(|(all, rows)| all.extend(rows));
            }
            Ok(())
        }
    })
    .input("rows")
}

/// The value of a scalar subquery; null if there are no rows.
pub fn only_value(batches: &[RecordBatch], schema: &SchemaRef) -> datafusion::error::Result<ScalarValue> {
    let mut rows = batches.iter().filter(|batch| batch.num_rows() > 0);
    match (rows.next(), rows.next()) {
        (None, _) => ScalarValue::try_new_null(schema.field(0).data_type()),
        (Some(batch), None) if batch.num_rows() == 1 => ScalarValue::try_from_array(batch.column(0), 0),
        _ => Err(DataFusionError::Execution("a scalar subquery returned more than one row".into())),
    }
}

fn different_queries(seen: &str) -> DataSetError {
    DataSetError::Query(format!(
        "the workers do not run the same query{seen}: they build it differently, see different files, or were given \
         different tables; a table from memory must be the same on every worker, while from_local takes one part per \
         worker"
    ))
}

/// Converts a run's error for users who write queries and do not know about tasks.
pub fn failed(error: DataflowError) -> ActionError {
    match error {
        DataflowError::Net(error) => CollectiveError::from(error).into(),
        DataflowError::Collective(error) => error.into(),
        DataflowError::Task { message, worker, .. } => {
            DataSetError::Data(format!("{message} (on worker {worker})")).into()
        }
        DataflowError::Batch(BatchError::Spill { .. }) => DataSetError::Io(error.to_string()).into(),
        DataflowError::Checkpoint(reason) => DataSetError::Query(reason).into(),
        DataflowError::Batch(BatchError::Memory { .. }) => DataSetError::Memory(error.to_string()).into(),
        DataflowError::Differs { ours, .. } => {
            let seen = ours.split(" (").next().unwrap_or_default();
            different_queries(&format!(" (first seen in {seen})")).into()
        }
        other => DataSetError::Internal(other.to_string()).into(),
    }
}
