//! The engine: threads that run queries, the memory they may use, and the functions they know. One per process.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use datafusion::common::config::{ConfigOptions, SpillCompression};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::DataFusionError;
use datafusion::execution::disk_manager::DiskManagerBuilder;
use datafusion::execution::memory_pool::{
    FairSpillPool, MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation, TrackConsumersPool,
};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::logical_expr::ScalarUDF;
use datafusion::optimizer::{Analyzer, AnalyzerRule};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::{SessionConfig, SessionContext};
use tidemill_dataflow::memory::{Governor, MemorySettings, Reservation, address_bytes_left};
use tidemill_storage::{ObjectStores, StorageOptions, StoreLocation};
use tokio::runtime::{Handle, Runtime};
use tokio::task::AbortHandle;

use crate::bad_rows::{BadRow, BadRows};
use crate::error::{DataSetError, Result};
use crate::exec::explode_split::SplitExec;
use crate::exec::group::ByNumber;
use crate::exec::replaced_exec::ReplacedExec;
use crate::exec::spill::SpillFiles;
use crate::exec::spilling_rule::SpillingRule;
use crate::exec::spread::{SettleSpreads, SpreadRows};
use crate::plan::frames::{CheckFrames, SqlFrames};
use crate::plan::guards::GuardConditions;
use crate::plan::numbers::{CheckArithmetic, CompareFloats, DecimalsAsFloats, aggregate_functions, number_functions};
use crate::plan::operators::SqlOperators;
use crate::plan::optimizer::{ListsOfColumns, logical_rules, physical_rules};
use crate::plan::sql::planning_functions;
use crate::plan::times::{DatesAsTimes, time_functions};

/// Time between checks of the machine's memory while a caller waits for a query.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// The fraction of the budget that an operator that can spill may always hold.
const FLOOR_SHARE: u64 = 8;
/// A Parquet row group is written when it has the usual number of rows, or sooner if a fourth of a thread's memory is
/// less than this.
const ROW_GROUP_BYTES: usize = 128 << 20;
/// The fraction of a thread's memory that a merge of spilled runs may take. It merges as many runs as it can get memory
/// for, and leaves none to others.
const MERGE_SHARE: usize = 2;
/// Approximate memory of a merge per run: two batches of 8192 rows of a hundred bytes, and as much again for sorting
/// them.
const RUN_BYTES: usize = 3 << 20;
/// Stack for plans and expressions as deep as `deep` allows; unused stack only takes address space.
const STACK_BYTES: usize = 64 << 20;
/// Number of operators named in a memory error, starting with the largest.
const HOLDERS_NAMED: NonZeroUsize = NonZeroUsize::new(3).expect("it is 3");

/// The resources of the machine that an engine may use.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Threads that run queries; at least 1.
    pub threads: usize,
    /// Workers of the job, each with an engine; at least 1.
    pub workers: usize,
    /// Memory for queries and exchanges. Beyond it, sorts, aggregations, joins and exchanges spill. `None`: no limit.
    pub memory_bytes: Option<usize>,
    /// The folder for spilled data; `None`: the system's folder for temporary files.
    pub spill_dir: Option<PathBuf>,
}

impl EngineConfig {
    /// Address space for the threads and their file reading.
    fn address_bytes(&self) -> u64 {
        const BESIDE_STACKS: u64 = 64 << 20;
        self.threads as u64 * (STACK_BYTES as u64 + BESIDE_STACKS) + 2 * BESIDE_STACKS
    }

    /// A thread's share of the memory.
    fn thread_bytes(&self) -> Option<usize> {
        self.memory_bytes.map(|bytes| bytes / self.threads)
    }
}

/// Runs queries. Cheap to call, expensive to make: keep one for the lifetime of the process.
pub struct Engine {
    /// Set until the engine is dropped.
    runtime: Option<Runtime>,
    threads: Handle,
    context: SessionContext,
    /// Functions supplied by the creator of the engine.
    functions: Vec<ScalarUDF>,
    governor: Governor,
    stores: ObjectStores,
    bad_rows: Arc<BadRows>,
    partitions: usize,
}

/// DataFusion's memory pool, as a part of the memory that the worker's governor tracks. Operators share their memory
/// fairly, and spill for the memory of exchanges and the rest of the process; exchanges slow down and spill for the
/// memory of operators.
#[derive(Debug)]
struct GovernedPool {
    fair: FairSpillPool,
    governor: Governor,
    /// The memory of each kind of operator, by name.
    kinds: Mutex<HashMap<String, Arc<Reservation>>>,
    /// The same by the number of each existing operator copy: a copy changes its memory with every batch, so its name
    /// is looked up only when it starts.
    held: RwLock<HashMap<usize, Arc<Reservation>>>,
}

impl GovernedPool {
    fn new(bytes: usize, governor: &Governor) -> Self {
        GovernedPool {
            fair: FairSpillPool::new(bytes),
            governor: governor.clone(),
            kinds: Mutex::default(),
            held: RwLock::default(),
        }
    }

    /// Reports a change to the governor, whose errors name the operator with the most memory.
    fn note(&self, reservation: &MemoryReservation, change: impl FnOnce(&Reservation)) {
        let held = self.held.read().expect("nothing panics with it");
        change(held.get(&reservation.consumer().id()).expect("an operator with memory is registered"));
    }

    /// The reservation of operators of a kind. The copies of one are called `Name[copy]`.
    fn kind(&self, name: &str) -> Arc<Reservation> {
        let kind = name.split_once('[').map_or(name, |(kind, _)| kind);
        let mut kinds = self.kinds.lock().expect("nothing panics with it");
        match kinds.get(kind) {
            Some(held) => Arc::clone(held),
            None => {
                let held = Arc::new(self.governor.reservation(format!("the query's {kind}")));
                kinds.insert(kind.to_owned(), Arc::clone(&held));
                held
            }
        }
    }

    /// Why an operator cannot get `additional` bytes, and which budget would suffice.
    fn refusal(&self, reservation: &MemoryReservation, additional: usize) -> DataFusionError {
        let (budget, held) = (self.governor.settings().budget_bytes, self.governor.reserved_bytes());
        // The percentage of the budget that is shared among operators that can spill.
        let percent = (100 * self.governor.limit_bytes()).checked_div(budget).unwrap_or(100).max(1);
        let can_spill = reservation.consumer().can_spill();
        let least = (held + additional as u64) * 100 / if can_spill { percent } else { 100 };
        DataFusionError::ResourcesExhausted(format!(
            "{} asked for {additional} bytes while holding {}; the worker's budget is {budget} bytes, of which \
             exchanges and queries hold {held}; it needs a budget of at least {} MiB",
            reservation.consumer().name(),
            reservation.size(),
            // If the shares of other operators were in the way, more than the current budget.
            least.max(budget + 1).div_ceil(1 << 20),
        ))
    }

    /// Whether the worker as a whole has room for `additional` bytes for an operator. An operator that cannot spill, or
    /// has little to spill, is rejected only if the memory really does not exist, because it would fail. The whole
    /// process counts, too: operators do not know about memory besides their rows, such as copies made while spilling.
    fn has_room(&self, reservation: &MemoryReservation, additional: usize) -> bool {
        let (held, wanted) = (reservation.size() as u64, additional as u64);
        let (all, budget) = (self.governor.reserved_bytes() + wanted, self.governor.settings().budget_bytes);
        if !reservation.consumer().can_spill() {
            return all <= budget;
        }
        let floor = budget / FLOOR_SHARE;
        let is_within = || all <= self.governor.limit_bytes() && (held <= floor || !self.governor.is_full());
        held == 0 || held + wanted <= floor || is_within()
    }
}

impl fmt::Display for GovernedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fair.fmt(f)
    }
}

impl MemoryPool for GovernedPool {
    fn name(&self) -> &str {
        "governed"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.fair.register(consumer);
        let held = self.kind(consumer.name());
        self.held.write().expect("nothing panics with it").insert(consumer.id(), held);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.fair.unregister(consumer);
        self.held.write().expect("nothing panics with it").remove(&consumer.id());
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.fair.grow(reservation, additional);
        self.note(reservation, |held| held.force_grow(additional as u64));
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.fair.shrink(reservation, shrink);
        self.note(reservation, |held| held.shrink(shrink as u64));
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> datafusion::error::Result<()> {
        // A request for zero bytes needs no room, even if others hold more than there is.
        if additional > 0 && !self.has_room(reservation, additional) {
            return Err(self.refusal(reservation, additional));
        }
        self.fair.try_grow(reservation, additional).map_err(|_| self.refusal(reservation, additional))?;
        self.note(reservation, |held| held.force_grow(additional as u64));
        Ok(())
    }

    fn reserved(&self) -> usize {
        self.fair.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.fair.memory_limit()
    }
}

impl Engine {
    /// Starts the threads.
    ///
    /// # Errors
    /// `Query` without threads; `Io` if threads or the spill folder cannot be created.
    pub fn new(config: &EngineConfig) -> Result<Self> {
        Self::with_functions(config, Vec::new())
    }

    /// As [`Engine::new`], with additional `functions` for queries, such as those of streams.
    ///
    /// # Errors
    /// As for [`Engine::new`].
    pub fn with_functions(config: &EngineConfig, functions: Vec<ScalarUDF>) -> Result<Self> {
        let governor = Governor::new(MemorySettings {
            budget_bytes: config.memory_bytes.unwrap_or(0) as u64,
            spill_dir: config.spill_dir.clone().unwrap_or_else(std::env::temp_dir),
            ..MemorySettings::default()
        });
        Self::governed(config, functions, governor)
    }

    /// A second engine for some of the workers, which shares the memory of this one; `config` must repeat its limit.
    ///
    /// # Errors
    /// As for [`Engine::new`].
    pub fn beside(&self, config: &EngineConfig) -> Result<Self> {
        Self::governed(config, self.functions.clone(), self.governor.clone())
    }

    fn governed(config: &EngineConfig, functions: Vec<ScalarUDF>, governor: Governor) -> Result<Self> {
        if config.threads == 0 {
            return Err(DataSetError::Query("an engine needs at least one thread".into()));
        }
        if let Some(left) = address_bytes_left()
            && left < config.address_bytes()
        {
            return Err(DataSetError::Io(format!(
                "`ulimit -v` leaves this process {} MiB of address space, but {} query threads take {} MiB, most of \
                 which they never touch: raise it, start fewer threads (--threads), or limit memory with --memory \
                 instead",
                left >> 20,
                config.threads,
                config.address_bytes() >> 20
            )));
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(config.threads)
            .thread_name("tidemill-query")
            .thread_stack_size(STACK_BYTES)
            .enable_all()
            .build()
            .map_err(|error| DataSetError::Io(format!("cannot start query threads: {error}")))?;
        // A folder may have been rewritten since it was last listed. Cached file metadata, in contrast, are checked
        // against time and size.
        let mut environment = RuntimeEnvBuilder::new().with_object_list_cache_limit(0);
        if let Some(bytes) = config.memory_bytes {
            let pool = GovernedPool::new(bytes, &governor);
            environment = environment.with_memory_pool(Arc::new(TrackConsumersPool::new(pool, HOLDERS_NAMED)));
        }
        // The writer reports errors here.
        let _ = std::fs::create_dir_all(&governor.settings().spill_dir);
        let mut spilled = DiskManagerBuilder::default().with_temp_file_factory(Arc::new(SpillFiles(governor.clone())));
        if let Some(bytes) = config.thread_bytes() {
            spilled.set_max_spill_merge_fan_in((bytes / MERGE_SHARE / RUN_BYTES).max(2));
        }
        environment = environment.with_disk_manager_builder(spilled);
        let session = sparing(SessionConfig::new(), config)
            .with_target_partitions(config.threads)
            .with_spill_compression(SpillCompression::Lz4Frame)
            // Names are case-sensitive: `Price` in SQL is the column `Price`, as in Python.
            .set_bool("datafusion.sql_parser.enable_ident_normalization", false)
            // It confuses qualified and unqualified columns when a struct's field is read (apache/datafusion#25446).
            .set_bool("datafusion.optimizer.enable_leaf_expression_pushdown", false)
            // It considers a column nullable that the plan knows is not: `CASE WHEN x IS NOT NULL THEN x ELSE 0 END`,
            // `x IS NOT FALSE`. No rows depend on that.
            .set_bool("datafusion.execution.skip_physical_aggregate_schema_check", true);
        let context = session_of(session, environment.build_arc()?, &governor, &functions);
        Ok(Engine {
            threads: runtime.handle().clone(),
            runtime: Some(runtime),
            context,
            functions,
            governor,
            stores: ObjectStores::default(),
            bad_rows: Arc::default(),
            partitions: config.threads * config.workers.max(1),
        })
    }

    /// The number of partitions of sources: one for each thread of the job.
    pub fn partitions(&self) -> usize {
        self.partitions
    }

    /// The governor of this process's memory.
    pub fn governor(&self) -> &Governor {
        &self.governor
    }

    /// The object stores that are open in this process.
    pub fn object_stores(&self) -> &ObjectStores {
        &self.stores
    }

    /// The location that a URL refers to, in a store that is also registered with DataFusion.
    pub(crate) fn locate(&self, text: &str, options: &StorageOptions) -> Result<StoreLocation> {
        let at = self.stores.locate(text, options)?;
        // Every time, because the store may have been opened elsewhere.
        self.context.runtime_env().register_object_store(&at.store.url, Arc::clone(&at.store.objects));
        Ok(at)
    }

    /// The threads that run queries.
    pub(crate) fn threads(&self) -> &Handle {
        &self.threads
    }

    pub(crate) fn bad_rows(&self) -> &Arc<BadRows> {
        &self.bad_rows
    }

    /// The number of rows skipped since the last call, and the first of them by file and line.
    pub fn take_bad_rows(&self) -> (u64, Option<BadRow>) {
        self.bad_rows.take()
    }

    /// A session with the engine's settings and without tables.
    pub(crate) fn session(&self) -> SessionContext {
        session_of(self.context.copied_config(), self.context.runtime_env(), &self.governor, &self.functions)
    }

    /// DataFusion's session of this engine.
    pub fn context(&self) -> &SessionContext {
        &self.context
    }

    /// Starts `work` on the engine's threads.
    pub fn start<T, F>(&self, work: F) -> ActionHandle<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        // One slot: the result waits there until it is requested.
        let (sender, outcome) = sync_channel(1);
        let task = self.threads.spawn(async move {
            // The caller may have given up and dropped the receiver.
            let _ = sender.send(work.await);
        });
        ActionHandle { outcome, task: task.abort_handle(), governor: self.governor.clone() }
    }

    /// Runs `work` to completion. Must not be called from one of the engine's threads.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn run<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let running = self.start(work);
        loop {
            if let Some(outcome) = running.wait(LOOK_INTERVAL) {
                return outcome;
            }
        }
    }
}

/// Returns the replacement of a step, if it has one.
type Other = fn(&Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>>;

/// A rule that replaces DataFusion's steps with ours where possible.
#[derive(Debug)]
struct ReplaceSteps {
    name: &'static str,
    by: Other,
}

impl PhysicalOptimizerRule for ReplaceSteps {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _: &ConfigOptions,
    ) -> datafusion::error::Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|node| Ok((self.by)(&node).map_or_else(|| Transformed::no(node), Transformed::yes))).data()
    }

    fn name(&self) -> &'static str {
        self.name
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// With little memory, limits what a step reserves, or gathers before it writes, so that other steps have room.
fn sparing(session: SessionConfig, config: &EngineConfig) -> SessionConfig {
    let Some(share) = config.thread_bytes() else { return session };
    let reserve = session.options().execution.sort_spill_reservation_bytes;
    let session = session.with_sort_spill_reservation_bytes(reserve.min(share / 8));
    if share / 4 >= ROW_GROUP_BYTES {
        return session;
    }
    // If several threads encode the columns of one file, the gathered data are not bounded.
    session
        .set_bool("datafusion.execution.parquet.allow_single_file_parallelism", false)
        .set_str("datafusion.execution.parquet.max_row_group_bytes", &(share / 4).max(1).to_string())
}

/// A session with our own steps. The rule for strings comes first, because the following ones handle partitions and
/// orders. The rules for groups and for spilling come last, when both are known.
fn session_of(
    config: SessionConfig,
    runtime: Arc<RuntimeEnv>,
    governor: &Governor,
    functions: &[ScalarUDF],
) -> SessionContext {
    let mut rules: Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> = vec![
        Arc::new(ReplaceSteps { name: "split_texts", by: |node| Some(Arc::new(SplitExec::try_replace(node)?)) }),
        Arc::new(SpreadRows),
    ];
    rules.extend(physical_rules());
    rules.push(Arc::new(SettleSpreads));
    rules.push(Arc::new(CheckFrames));
    rules.push(Arc::new(ReplaceSteps { name: "group_by_numbers", by: |node| ReplacedExec::of(node, &ByNumber) }));
    let (budget_bytes, threads) = (governor.settings().budget_bytes, config.target_partitions());
    rules.push(Arc::new(SpillingRule { governor: governor.clone(), budget_bytes, threads, is_alone: true }));
    let builder = SessionStateBuilder::new().with_config(config).with_runtime_env(runtime);
    let builder = builder.with_expr_planners(vec![Arc::new(SqlOperators), Arc::new(SqlFrames)]).with_default_features();
    let mut analyzer: Vec<Arc<dyn AnalyzerRule + Send + Sync>> =
        vec![Arc::new(DatesAsTimes), Arc::new(DecimalsAsFloats), Arc::new(ListsOfColumns)];
    analyzer.extend(Analyzer::new().rules);
    // After all types are known.
    analyzer.extend([Arc::new(CheckArithmetic) as _, Arc::new(CompareFloats) as _, Arc::new(GuardConditions) as _]);
    let builder = builder.with_optimizer_rules(logical_rules());
    let builder = builder.with_physical_optimizer_rules(rules).with_analyzer_rules(analyzer);
    let context = SessionContext::new_with_state(builder.build());
    let functions = functions.iter().cloned().chain(time_functions()).chain(number_functions());
    let functions = functions.chain(planning_functions());
    functions.for_each(|function| context.register_udf(function));
    aggregate_functions().for_each(|function| context.register_udaf(function));
    context
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Without waiting for threads: one may be deep in a join whose rows are no longer wanted, and the process
            // should end now.
            runtime.shutdown_background();
        }
    }
}

/// An action in progress. Dropping it cancels the action.
pub struct ActionHandle<T> {
    outcome: Receiver<Result<T>>,
    task: AbortHandle,
    governor: Governor,
}

impl<T> ActionHandle<T> {
    /// Waits for the end for up to `at_most`; `None`: not finished yet. Also ends with `Memory` if almost no memory is
    /// left.
    pub fn wait(&self, at_most: Duration) -> Option<Result<T>> {
        match self.outcome.recv_timeout(at_most) {
            Ok(outcome) => Some(outcome),
            Err(RecvTimeoutError::Timeout) => self.governor.overdrawn().map(|text| Err(DataSetError::Memory(text))),
            // The task ended without a result: it panicked, and the panic has been printed.
            Err(RecvTimeoutError::Disconnected) => {
                Some(Err(DataSetError::Internal("the query's task panicked; its message is above".into())))
            }
        }
    }
}

impl<T> ActionHandle<T> {
    /// Cancels the action, and waits a moment for it to release its resources.
    pub fn cancel(self) {
        const AT_MOST: Duration = Duration::from_millis(200);
        let since = Instant::now();
        self.task.abort();
        while !self.task.is_finished() && since.elapsed() < AT_MOST {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl<T> Drop for ActionHandle<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn config() -> EngineConfig {
        EngineConfig { threads: 2, workers: 1, memory_bytes: None, spill_dir: None }
    }

    #[test]
    fn runs_and_returns_errors() {
        let engine = Engine::new(&config()).unwrap();
        assert_eq!(engine.run(async { Ok(3) }).unwrap(), 3);
        let error = engine.run::<(), _>(async { Err(DataSetError::Data("x".into())) }).unwrap_err();
        assert_eq!(error, DataSetError::Data("x".into()));
    }

    /// A panic in a query must come back as an error, not as an endless wait.
    #[test]
    fn a_panic_is_an_error() {
        let engine = Engine::new(&config()).unwrap();
        let error = engine.run::<(), _>(async { panic!("on purpose") }).unwrap_err();
        assert!(matches!(error, DataSetError::Internal(_)), "{error}");
    }

    /// Ctrl-C drops a running action, which must really end.
    #[test]
    fn dropping_cancels() {
        let engine = Engine::new(&config()).unwrap();
        let (alive, gone) = tokio::sync::oneshot::channel::<()>();
        let running = engine.start(async move {
            let _alive = alive;
            std::future::pending::<Result<()>>().await
        });
        assert!(running.wait(Duration::from_millis(10)).is_none());
        drop(running);
        assert!(engine.run(async move { Ok(gone.await) }).unwrap().is_err());
    }

    /// The end of a program must not wait for a canceled query whose thread has not noticed yet.
    #[test]
    fn dropping_the_engine_does_not_wait() {
        let engine = Engine::new(&config()).unwrap();
        let (release, held) = std::sync::mpsc::channel::<()>();
        let (started, running) = std::sync::mpsc::channel();
        drop(engine.start(async move {
            started.send(()).unwrap();
            let _ = held.recv();
            Ok(())
        }));
        // Canceled before or after it began; in the latter case, its thread is blocked until the last line.
        let _ = running.recv();
        drop(engine);
        drop(release);
    }

    /// Memory held by exchanges is not available to queries: operators are told to spill to make room, and the error of
    /// one that cannot names the holder.
    #[test]
    fn queries_make_room_for_exchanges() {
        let engine = Engine::new(&EngineConfig { memory_bytes: Some(64 << 20), ..config() }).unwrap();
        let environment = engine.context().runtime_env();
        let exchange = engine.governor().reservation("exchange");
        let sort = MemoryConsumer::new("sort").with_can_spill(true).register(&environment.memory_pool);
        sort.try_grow(10 << 20).unwrap();
        exchange.force_grow(48 << 20);
        assert!(sort.try_grow(1 << 20).is_err());
        sort.free();
        sort.try_grow(9 << 20).expect("there is something to sort, at least");
        let join = MemoryConsumer::new("join").register(&environment.memory_pool);
        join.try_grow(4 << 20).unwrap();
        let error = DataSetError::from(join.try_grow(16 << 20).unwrap_err()).to_string();
        assert!(
            ["join", "sort", "of which exchanges and queries hold"].iter().all(|part| error.contains(part)),
            "{error}"
        );
    }

    /// The memory of an operator's copies counts for their kind, and is returned. Otherwise errors would name no
    /// operator, or one that ended long ago.
    #[test]
    fn copies_count_for_their_kind() {
        let engine = Engine::new(&EngineConfig { memory_bytes: Some(64 << 20), ..config() }).unwrap();
        let pool = Arc::clone(&engine.context().runtime_env().memory_pool);
        let copies = [0, 1].map(|copy| MemoryConsumer::new(format!("group-by[{copy}]")).register(&pool));
        copies.iter().for_each(|copy| copy.try_grow(6 << 20).unwrap());
        let apart = copies[0].split(2 << 20);
        let other = MemoryConsumer::new("window").register(&pool);
        other.try_grow(8 << 20).unwrap();
        let exchange = engine.governor().reservation("exchange");
        let error = exchange.grow(60 << 20).unwrap_err().to_string();
        assert!(error.contains(&format!("\"the query's group-by\" holds the most ({} bytes)", 12 << 20)), "{error}");
        drop((copies, apart));
        assert_eq!(engine.governor().reserved_bytes(), 8 << 20);
        let error = exchange.grow(60 << 20).unwrap_err().to_string();
        assert!(error.contains("\"the query's window\" holds the most"), "{error}");
    }

    #[test]
    fn no_threads_no_engine() {
        assert!(Engine::new(&EngineConfig { threads: 0, ..config() }).is_err());
    }
}
