//! Running a graph: the runner makes the flow, starts this worker's copies, and moves bytes until all are done.
//!
//! The thread that calls [`Runner::run`] becomes the worker's I/O thread: it waits in the endpoint, which polls for a
//! moment and then sleeps. Copies run on the runner's pool, or on their own threads. A run ends when every worker knows
//! that all others have sent their last frames ([`ending`]).

mod copy_comms;
mod ending;
mod fault;
mod layout;
mod lower;
mod meter;
mod resume;
mod state;
mod task_copy;

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::Mutex;
use tidemill_checkpoint::CheckpointSettings;
use tidemill_checkpoint::store::StoreHold;
use tidemill_collective::{Communicator, ReduceOp};
use tidemill_control::spare_workers;
use tidemill_net::topology::HostShare;
use tidemill_net::{CallDescriber, CallWait, Endpoint, Engine, GroupId, Rank, interruptible, notice};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::mpsc;

pub(crate) use fault::RunFault;
pub use state::{RunProgress, WorkerStatus};
use tidemill_batch::memory::{Governor, MemorySettings};

use self::copy_comms::{CopyComm, CopyComms};
use self::layout::RunLayout;
pub(crate) use self::lower::lower;
use self::state::RunState;
use self::task_copy::TaskCopy;
use crate::checkpoint::{
    CheckpointClient, CoordinatorInput, CopyStates, InFlightReplay, InFlightRouting, ResumePlan, open_rounds,
};
use crate::error::DataflowError;
use crate::flow::{
    BucketHandover, EdgeLimits, EdgeRuntime, FlowEdge, FlowGraph, Handover, Inlet, Input, Inputs, Outlet, Output,
    Outputs, RoundReplay, SplitHandover,
};
use crate::graph::{Graph, fingerprint};
use crate::link::{Links, MemoryLoans, ReceivePump};
use crate::metrics::RunReport;
use crate::overlay::WorkerNetwork;
use crate::placement::{Placement, PlacementPlan, RoundRobin, WorkerInfo};
use crate::source_progress::StallMonitor;
use crate::task::{ContextState, Executor, TaskContext, TaskFuture};

/// Plans may be deep, and are run within each other; of what is not used there is only the address.
const STACK_BYTES: usize = 64 << 20;

/// How a worker runs graphs.
#[derive(Clone, Debug)]
pub struct RunnerSettings {
    /// Threads of the pool; 0 is as many as the worker has cores.
    pub threads: usize,
    /// What all streams of an edge into one copy may have queued, or on their way, together.
    pub queue_bytes: u64,
    /// What exchanges put small pieces together to before they send them.
    pub batch_bytes: u64,
    /// The worker's memory budget, and where it spills to.
    pub memory: MemorySettings,
    /// How many others a worker passes on reports of to worker 0, at most; `None`: as on the control plane, where up to
    /// 256 workers tell worker 0 themselves.
    pub report_fanout: Option<u32>,
}

impl Default for RunnerSettings {
    fn default() -> Self {
        let memory = MemorySettings::default();
        RunnerSettings { threads: 0, queue_bytes: 16 << 20, batch_bytes: 1 << 20, memory, report_fanout: None }
    }
}

/// Called every so often while a run waits, for who has signals to look at, or progress to tell or to show. An error
/// gives the run up on all workers.
pub type ProgressCallback<'a> = &'a mut dyn FnMut(&RunProgress) -> Result<(), String>;

/// Runs graphs on the workers of a communicator. Every worker makes one, and runs the same graphs in the same order.
///
/// # Examples
/// ```
/// use std::sync::Arc;
///
/// use arrow::array::{Int64Array, RecordBatch};
/// use arrow::datatypes::{DataType, Field, Schema};
/// use tidemill_collective::run_ranks;
/// use tidemill_dataflow::exchange::Partition;
/// use tidemill_dataflow::{Graph, StreamElement, Runner, RunnerSettings, TaskSpec};
///
/// let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]));
/// let rows = run_ranks(2, |comm| {
///     let runner = Runner::new(&comm, RunnerSettings::default()).unwrap();
///     let (sender, seen) = std::sync::mpsc::channel();
///     let (schema, of_batch) = (schema.clone(), schema.clone());
///     let mut graph = Graph::new("count");
///     let source = graph.add(TaskSpec::new("numbers", move |_, outputs, _| {
///         let schema = of_batch.clone();
///         async move {
///             let batch = RecordBatch::try_new(schema, vec![Arc::new(Int64Array::from_iter_values(0..100))])?;
///             outputs.into_only().send(batch).await
///         }
///     }).output("out", schema));
///     let sink = graph.add(TaskSpec::new("count", move |inputs, _, _| {
///         let sender = sender.clone();
///         async move {
///             let mut input = inputs.into_only();
///             while let Some(StreamElement::Batch(batch)) = input.recv().await? {
///                 sender.send(batch.num_rows())?;
///             }
///             Ok(())
///         }
///     }).input("in"));
///     graph.connect(source, sink, Partition::by_key(["n"]));
///     runner.run(&graph).unwrap();
///     drop(graph);
///     seen.iter().sum::<usize>()
/// });
/// assert_eq!(rows.unwrap().iter().sum::<usize>(), 200);
/// ```
pub struct Runner {
    comm: Communicator,
    settings: RunnerSettings,
    pool: CopyPool,
    workers: Vec<WorkerInfo>,
    hosts: Vec<u32>,
    governor: Governor,
    pub(crate) loans: Arc<MemoryLoans>,
    runs: AtomicU32,
    /// How many workers are active when the next run begins.
    active: AtomicU32,
    /// Held while a run starts: what workers agree on then are collective calls. Only a lone worker runs several graphs
    /// at once.
    starting: Mutex<()>,
}

impl Runner {
    /// A runner on the workers of `comm`. Collective.
    ///
    /// # Errors
    /// The job's fault; when threads cannot be started.
    pub fn new(comm: &Communicator, settings: RunnerSettings) -> Result<Self, DataflowError> {
        let governor = Governor::new(settings.memory.clone());
        Self::governed(comm, settings, governor)
    }

    /// [`Runner::new`] under a governor that the process has already, made with `settings.memory`.
    ///
    /// # Errors
    /// As [`Runner::new`].
    pub fn governed(comm: &Communicator, settings: RunnerSettings, governor: Governor) -> Result<Self, DataflowError> {
        let comm = comm.dup()?;
        comm.set_name("dataflow");
        let loans = MemoryLoans::agree(&comm, settings.memory.budget_bytes)?;
        let mut memory = vec![0u64; comm.size() as usize];
        comm.allgather(&[settings.memory.budget_bytes], &mut memory)?;
        let placements = comm.endpoint().placements();
        let places: Vec<_> = comm.world_ranks().iter().map(|rank| &placements[rank.index()]).collect();
        let hosts = places
            .iter()
            .map(|place| places.iter().position(|other| other.host == place.host).expect("it equals itself") as u32);
        let info = |(place, memory): (&&tidemill_net::topology::WorkerPlacement, u64)| WorkerInfo {
            host: place.hostname.clone(),
            location: place.location.clone(),
            cores: place.cores_allowed as f32,
            memory_bytes: if memory == 0 { u64::MAX } else { memory },
        };
        let workers = places.iter().zip(memory).map(info).collect();
        let threads = match settings.threads {
            0 => HostShare::of(placements, comm.world_ranks()[comm.rank() as usize].index()).threads,
            threads => threads,
        };
        let pool = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("tidemill-exec")
            .thread_stack_size(STACK_BYTES)
            .enable_all()
            .build()
            .map(|pool| CopyPool(Some(pool)))
            .map_err(|error| DataflowError::Thread(format!("cannot start {threads} threads: {error}")))?;
        let hosts = hosts.collect();
        let (runs, starting) = (AtomicU32::new(0), Mutex::new(()));
        let active = AtomicU32::new(u32::MAX);
        Ok(Runner { comm, settings, pool, workers, hosts, governor, loans, runs, active, starting })
    }

    /// For tests: workers are taken to be on these hosts, each named by the first worker that is on it.
    #[doc(hidden)]
    #[must_use]
    pub fn on_hosts(mut self, hosts: Vec<u32>) -> Self {
        self.hosts = hosts;
        self
    }

    /// This worker's number in the runs.
    pub fn worker(&self) -> u32 {
        self.comm.rank()
    }

    /// The governor of this worker's memory: others may hold reservations of it, too.
    pub fn governor(&self) -> &Governor {
        &self.governor
    }

    /// What placements know of the workers.
    pub fn workers(&self) -> &[WorkerInfo] {
        &self.workers
    }

    /// Runs a graph to its end, its copies placed in turn. Collective: every worker calls it with the same graph.
    ///
    /// # Errors
    /// The same on every worker: what is wrong with the graph, or what failed first. After an error of the graph or of
    /// a task the runner can run again; after the job's fault it cannot.
    pub fn run(&self, graph: &Graph) -> Result<RunReport, DataflowError> {
        self.run_placed(graph, &RoundRobin, &mut |_| Ok(()))
    }

    /// The plan that [`Runner::run_placed`] would follow.
    ///
    /// # Errors
    /// When the graph makes no sense or the placement cannot be done.
    pub fn plan(&self, graph: &Graph, placement: &dyn Placement) -> Result<PlacementPlan, DataflowError> {
        graph.plan(placement, &self.workers)
    }

    /// [`Runner::run`] with a placement of one's own, and with `look` called every 100 ms or so.
    ///
    /// # Errors
    /// As [`Runner::run`].
    pub fn run_placed(
        &self,
        graph: &Graph,
        placement: &dyn Placement,
        look: ProgressCallback<'_>,
    ) -> Result<RunReport, DataflowError> {
        self.run_job(graph, placement, None, look)
    }

    /// [`Runner::run_placed`], making checkpoints, and going on from the last one that is there: every row counts once,
    /// whatever failed between. All tasks must be [streaming](crate::TaskSpec::streaming).
    ///
    /// # Errors
    /// As [`Runner::run`]; `Checkpoint`, when the job cannot begin from what is there.
    pub fn run_job(
        &self,
        graph: &Graph,
        placement: &dyn Placement,
        checkpoints: Option<&CheckpointSettings>,
        look: ProgressCallback<'_>,
    ) -> Result<RunReport, DataflowError> {
        let checked = graph.checked(self.comm.size());
        let mut parts =
            checked.as_ref().map_or_else(|errors| vec![errors.to_string()], |e| fingerprint::parts(graph, e));
        let says = if checkpoints.is_some() { "checkpoints" } else { "no checkpoints" };
        parts.push(format!("a job that makes {says}"));
        let plan = match &checked {
            Ok(_) => PlacementPlan::make(graph, placement, &self.workers),
            Err(errors) => Err(errors.clone().into()),
        };
        let starting = self.starting.lock();
        // Also with an error: another worker whose graph is sound would wait for this one.
        self.compare(&parts, &plan)?;
        let (edges, plan) = (checked?, plan?);
        let mut flow = lower(graph, &edges, &plan, &self.network());
        let spares = self.agree_on_spares()?;
        flow.leave_out(&spares);
        let comms = flow.tasks.iter().map(|task| CopyComms::open(&self.comm, task)).collect::<Result<Vec<_>, _>>()?;
        let agree = |settings| {
            let (comm, pool, governor) = (&self.comm, self.pool.handle(), &self.governor);
            ResumePlan::agree(comm, pool, governor, &flow, graph.name(), settings, &spares)
        };
        let resume = checkpoints.map(agree).transpose()?;
        if let Some(resume) = &resume {
            flow.edges.iter_mut().for_each(|edge| edge.route.clone_from(&resume.members[edge.target.task].route));
            flow.add_handovers();
        }
        let active = ActiveRun::start(self, &flow, comms, resume, &spares)?;
        drop(starting);
        active.drive(look)
    }

    /// Sets how many workers get buckets and splits when the next run begins, worker 0 among them. The others are spare
    /// until the run is scaled ([`RunProgress::scale`]). Only what is set on worker 0 counts. By default, all workers
    /// are active.
    pub fn set_active_workers(&self, active: u32) {
        self.active.store(active, Ordering::Relaxed);
    }

    /// Collective: the workers that are spare when a run begins.
    fn agree_on_spares(&self) -> Result<BTreeSet<u32>, DataflowError> {
        let mut active = [self.active.load(Ordering::Relaxed)];
        self.comm.bcast(&mut active, 0)?;
        Ok(spare_workers(&self.hosts, active[0] as usize))
    }

    /// The job's table may have been measured anew since the last run.
    fn network(&self) -> WorkerNetwork {
        WorkerNetwork { hosts: self.hosts.clone(), model: *self.comm.table().model() }
    }

    /// Whether all workers have the same graph and plan.
    fn compare(&self, parts: &[String], plan: &Result<PlacementPlan, DataflowError>) -> Result<(), DataflowError> {
        let mut all = parts.to_vec();
        all.push(match plan {
            Ok(plan) => format!("plan {plan:?}"),
            Err(error) => format!("plan error {error}"),
        });
        let hashes = fingerprint::hashes(&all);
        let size = self.comm.size() as usize;
        let mut longest = [0u64];
        self.comm.allreduce(&[hashes.len() as u64], &mut longest, &ReduceOp::Max)?;
        let longest = longest[0] as usize;
        let mut mine = hashes;
        mine.resize(longest, 0);
        let mut everybody = vec![0u64; longest * size];
        self.comm.allgather(&mine, &mut everybody)?;
        for (worker, theirs) in everybody.chunks_exact(longest).enumerate() {
            if let Some(at) = (0..longest).find(|&at| theirs[at] != mine[at]) {
                let rank = |worker: u32| self.comm.world_rank(worker);
                return Err(DataflowError::Differs {
                    ours: all.get(at).cloned().unwrap_or_else(|| "nothing".into()),
                    our_worker: rank(self.comm.rank()),
                    theirs: if theirs[at] == 0 { "nothing".into() } else { format!("another ({:016x})", theirs[at]) },
                    their_worker: rank(worker as u32),
                });
            }
        }
        Ok(())
    }
}

/// The bytes of worker `root`, of any length, on every worker. Collective.
fn share_bytes(comm: &Communicator, root: u32, mut bytes: Vec<u8>) -> Result<Vec<u8>, DataflowError> {
    let mut len = [bytes.len() as u64];
    comm.bcast(&mut len, root)?;
    bytes.resize(len[0] as usize, 0);
    comm.bcast(&mut bytes, root)?;
    Ok(bytes)
}

/// The threads that copies run on; there until it is dropped.
struct CopyPool(Option<Runtime>);

impl CopyPool {
    fn handle(&self) -> &Handle {
        self.0.as_ref().expect("there until it is dropped").handle()
    }
}

impl Drop for CopyPool {
    fn drop(&mut self) {
        // Not waiting: no copy is left, and in a forked child there are no threads to wait for.
        if let Some(pool) = self.0.take() {
            pool.shutdown_background();
        }
    }
}

/// A run under way on this worker.
struct ActiveRun {
    state: Arc<RunState>,
    links: Arc<Links>,
    endpoint: Endpoint,
    pump: GroupId,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    begun: Instant,
    governor: Governor,
    spilled_before: u64,
    /// Of a run that makes checkpoints.
    client: Option<Arc<CheckpointClient>>,
    /// Of each task; they end with the run.
    comms: Vec<CopyComms>,
    /// On worker 0: what keeps other jobs out of their place.
    hold: Option<StoreHold>,
    pool: Handle,
}

/// Gives an input port of a copy its part in checkpoints.
fn join_checkpoints(
    input: &mut Input,
    flow: &FlowGraph,
    (index, port): (usize, usize),
    copy: u32,
    states: &Arc<CopyStates>,
) {
    let task = &flow.tasks[index];
    let from: Vec<&FlowEdge> = flow.edges.iter().filter(|edge| edge.target.is(index, port)).collect();
    let (port, copies) = (port as u32, task.workers.len() as u32);
    let by_rounds = from.iter().any(|edge| edge.rounds.is_some());
    // What is broadcast would be in flight to some copies and not to others: dealt anew, it would come to all again.
    // Copies that call each other must have had the same rows when a barrier passes. And open rounds are saved by
    // stream, as what is in flight is not.
    let stays_behind = task.comm || task.saves_rounds || by_rounds;
    if !stays_behind && from.iter().all(|edge| !edge.mover.is_to_all()) {
        input.enable_unaligned(port, states);
    }
    let dealing = || match from.iter().find_map(|edge| edge.partitioner_of(copies)) {
        Some(assign) => InFlightRouting::Assigned(assign),
        None => InFlightRouting::ByCopy,
    };
    if by_rounds {
        let replay = states.restored().map(|restored| RoundReplay {
            parts: open_rounds::shared(restored, &open_rounds::port_name(port)),
            copy,
            dealing: restored.rescaled.then(dealing),
        });
        input.save_rounds(port, states, replay);
    }
    input.replay_first(InFlightReplay::of(states.restored(), port, (copy, copies), dealing));
}

impl ActiveRun {
    fn start(
        runner: &Runner,
        flow: &FlowGraph,
        comms: Vec<CopyComms>,
        mut resume: Option<ResumePlan>,
        spares: &BTreeSet<u32>,
    ) -> Result<ActiveRun, DataflowError> {
        let comm = &runner.comm;
        let (me, endpoint) = (comm.rank(), comm.endpoint().clone());
        let run = runner.runs.fetch_add(1, Ordering::Relaxed);
        let (context, fanout) = (comm.message_context(), runner.settings.report_fanout);
        let links = Links::new(endpoint.clone(), context, me, run, comm.world_ranks(), fanout, &runner.loans);
        let copies: usize = flow.tasks.iter().map(|task| task.workers.iter().filter(|&&w| w == me).count()).sum();
        let (client, heard) = match &resume {
            Some(resume) => {
                let below = links.subtree();
                let workers = flow.tasks.iter().flat_map(|task| &task.workers);
                let reporting = workers.filter(|worker| below.contains(worker)).count();
                let (client, heard) = CheckpointClient::new(resume, &links, reporting);
                (Some(client), heard)
            }
            None => (None, None),
        };
        // The coordinator ends as copies do.
        let state = RunState::new(&links, copies + usize::from(heard.is_some()), client.clone());

        // The queues of each task's input ports, by copy; then the edges between them.
        let queues: Vec<Vec<Vec<Option<Arc<Inlet>>>>> = flow
            .tasks
            .iter()
            .enumerate()
            .map(|(index, task)| {
                let queue = |&worker: &u32| (worker == me).then(Arc::default);
                let inputs = task.inputs + usize::from(flow.handover(index).is_some());
                (0..inputs).map(|_| task.workers.iter().map(queue).collect()).collect()
            })
            .collect();
        let limits = edge_limits(&runner.settings, &runner.governor);
        let edges: Vec<Arc<EdgeRuntime>> = flow
            .edges
            .iter()
            .enumerate()
            .map(|(id, edge)| {
                let workers = |task: usize| flow.tasks[task].workers.clone();
                let ends = (workers(edge.source.task), workers(edge.target.task));
                let inlets = &queues[edge.target.task][edge.target.port];
                let name = |task: usize| flow.tasks[task].name.as_str();
                let named = (edge, name(edge.source.task), name(edge.target.task));
                Arc::new(EdgeRuntime::new(id as u32, named, ends, inlets, &links, &runner.hosts, limits.clone()))
            })
            .collect();
        state.set_edges(edges.clone());
        let places: Vec<_> = comm.world_ranks().iter().map(|rank| &endpoint.placements()[rank.index()]).collect();
        // No frame has come yet.
        drop(state.progress.measurements.layout.set(RunLayout::new(flow, &places, &runner.hosts, spares)));

        let stop = Arc::new(AtomicBool::new(false));
        let pump = ReceivePump::new(&links, Arc::clone(&state) as _, &stop);
        let pump = endpoint.lock().add_task(Box::new(pump));
        let begun = Instant::now();
        let governor = runner.governor.clone();
        let spilled_before = governor.spilled_bytes();
        let threads = Vec::new();
        let hold = resume.as_mut().and_then(|resume| resume.hold.take());
        let (of_run, pool) = (client.clone(), runner.pool.handle().clone());
        let mut run = ActiveRun {
            state,
            links,
            endpoint,
            pump,
            stop,
            threads,
            begun,
            governor,
            spilled_before,
            client: of_run,
            comms,
            hold,
            pool,
        };
        let mut restored = resume.as_ref().map(|resume| resume.restored.clone()).unwrap_or_default();
        for (index, task) in flow.tasks.iter().enumerate() {
            for copy in (0..task.workers.len()).filter(|&copy| task.workers[copy] == me) {
                let (id, comm) = ((index as u32, copy as u32), run.comms[index].of(copy as u32));
                let states = client.as_ref().map(|client| Arc::new(CopyStates::new(client, id, restored.remove(&id))));
                run.start_copy(runner, flow, id, &edges, &queues[index], (comm, states))?;
            }
        }
        if let (Some(client), Some(heard), Some(resume)) = (client, heard, resume) {
            run.start_coordinator(runner, client, heard, resume);
        }
        Ok(run)
    }

    fn start_coordinator(
        &self,
        runner: &Runner,
        client: Arc<CheckpointClient>,
        heard: mpsc::UnboundedReceiver<CoordinatorInput>,
        resume: ResumePlan,
    ) {
        let (state, cancel) = (Arc::clone(&self.state), self.state.cancel.token());
        runner.pool.handle().spawn(async move {
            let work = Arc::clone(&client).coordinate(resume, heard);
            if let Ok(Err(message)) = cancel.guard(work).await {
                let rank = state.links.rank(state.links.me).0;
                state.fail(RunFault { rank, task: "(checkpoints)".into(), copy: 0, message });
            }
            client.settle_with_timeout().await;
            state.copy_done();
        });
    }

    fn start_copy(
        &mut self,
        runner: &Runner,
        flow: &FlowGraph,
        (index, copy): (u32, u32),
        edges: &[Arc<EdgeRuntime>],
        queues: &[Vec<Option<Arc<Inlet>>>],
        (comm, states): (Option<CopyComm>, Option<Arc<CopyStates>>),
    ) -> Result<(), DataflowError> {
        let (index, task) = (index as usize, &flow.tasks[index as usize]);
        let (cancel, in_loop) = (self.state.cancel.token(), flow.is_in_loop(index));
        let input = |port: usize, streaming: bool| {
            let queue = queues[port][copy as usize].as_ref().expect("a copy of this worker has its queues");
            let mut input = Input::new(Arc::clone(queue), copy, streaming, in_loop, self.state.cancel.token());
            let leads_here = |edge: &&Arc<EdgeRuntime>| flow.edges[edge.id as usize].target.is(index, port);
            edges.iter().filter(leads_here).for_each(|edge| input.add_edge(edge));
            input
        };
        let mut inputs: Vec<Input> = (0..task.inputs).map(|port| input(port, task.streaming)).collect();
        if let Some(states) = &states {
            for (port, input) in inputs.iter_mut().enumerate() {
                join_checkpoints(input, flow, (index, port), copy, states);
            }
        }
        let signal = || states.as_ref().map(|states| states.unaligned_signal());
        let clock = self.state.progress.measurements.clock(index as u32);
        let outlet = |edge, signal| Outlet::new(edge, copy, &self.links, signal, &clock);
        let (returned, mut outlets_total) = (Arc::<Mutex<Vec<Outlet>>>::default(), 0);
        let outputs = task.outputs.iter().enumerate().map(|(port, schema)| {
            let begins_here = |edge: &&Arc<EdgeRuntime>| flow.edges[edge.id as usize].source.is(index, port);
            let outlets: Vec<Outlet> = edges.iter().filter(begins_here).map(|edge| outlet(edge, signal())).collect();
            outlets_total += outlets.len();
            Output::new(outlets, Arc::clone(schema), self.state.cancel.token(), &returned)
        });
        let outputs = Outputs::new(outputs.collect());
        let handover = flow.handover(index).map(|edge| {
            outlets_total += 1;
            let (outlet, schema) = (outlet(&edges[edge], None), Arc::clone(&edges[edge].schema));
            let output = Output::new(vec![outlet], schema, self.state.cancel.token(), &returned);
            // Its marks are each copy's own.
            let input = input(task.inputs, false);
            match flow.route(index) {
                Ok(route) => Handover::Buckets(BucketHandover { copy, route, output, input }),
                // A source.
                Err(_) => Handover::Splits(SplitHandover::new((copy, task.workers.len() as u32), output, input)),
            }
        });
        let inputs = Inputs::new(inputs, handover);
        let context = TaskContext(Arc::new(ContextState {
            task: task.name.clone(),
            copy,
            copies: task.workers.len() as u32,
            active: flow.active_copies(index, &self.state.progress.spares()),
            worker: self.links.me,
            workers: self.links.workers(),
            comm: comm.as_ref().map(|of| of.comm.clone()),
            governor: self.governor.clone(),
            checkpoints: states.as_deref().map(CopyStates::view),
            states: states.clone(),
            sources: Arc::clone(&self.state.progress.sources),
            works: Arc::clone(&self.state.progress.works),
            clock: Arc::clone(&clock),
        }));
        let running = TaskCopy {
            task: task.name.clone(),
            copy,
            state: Arc::clone(&self.state),
            cancel,
            clock,
            outlets: outlets_total,
            comm,
            states,
            returned,
        };
        let factory = Arc::clone(&task.factory);
        let start = move || -> TaskFuture { factory(inputs, outputs, context) };
        match task.executor {
            Executor::Pool => drop(runner.pool.handle().spawn(running.run(start))),
            Executor::Thread => {
                let handle = runner.pool.handle().clone();
                let work = move || {
                    // For code that uses the pool's timers or spawns on it.
                    let _entered = handle.enter();
                    // Calls on the task's communicator, whose peers may never come.
                    let (given_up, waits) = (running.cancel.clone(), running.cancel.clone());
                    interruptible(Rc::new(move || given_up.is_raised()), || waits.block_on(running.run(start)));
                };
                let name = format!("tidemill-{}", task.name.chars().take(6).collect::<String>());
                let spawned = std::thread::Builder::new().name(name).spawn(work);
                self.threads.push(spawned.map_err(|e| DataflowError::Thread(format!("cannot start a thread: {e}")))?);
            }
        }
        Ok(())
    }

    /// Moves bytes until every worker is done, and leaves the place of the checkpoints to the next.
    fn drive(mut self, look: ProgressCallback<'_>) -> Result<RunReport, DataflowError> {
        let report = self.drive_to_end(look);
        if report.is_ok() {
            self.comms.iter_mut().for_each(CopyComms::leave);
        }
        if let Some(client) = self.client.take() {
            self.pool.block_on(client.leave(report.is_ok(), self.hold.take()));
        }
        report
    }

    fn drive_to_end(&mut self, look: ProgressCallback<'_>) -> Result<RunReport, DataflowError> {
        let state = Arc::clone(&self.state);
        let done = self.wait(look, || state.is_done());
        // Without the job there is nobody to agree with, but this worker's copies still have to end.
        if done.is_err() {
            while !state.copies_done() {
                std::thread::park_timeout(std::time::Duration::from_millis(1));
            }
        }
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
        if state.cancel.is_raised() {
            self.links.discard_queued();
            state.spread_abort();
        }
        state.edges().iter().for_each(|edge| edge.clear());
        done?;
        let links = Arc::clone(&self.links);
        state.close();
        // Whoever hears of the end goes on, and takes nothing more.
        self.wait(look, || links.is_empty())?;
        state.finish();
        self.wait(look, || state.is_over() && links.is_empty())?;
        self.stop.store(true, Ordering::SeqCst);
        let pump = self.pump;
        self.endpoint.lock().note_moved();
        self.endpoint.wait(&RunDescriber(&self.links), |engine| engine.is_complete(pump).then(|| engine.take(pump)))?;
        state.outcome()?;
        let mut report = RunReport { wall_ns: self.begun.elapsed().as_nanos() as u64, ..RunReport::default() };
        report.spilled_bytes = self.governor.spilled_bytes() - self.spilled_before;
        report.edges = state.progress.edges();
        Ok(report)
    }

    /// Drives the engine until `until`; the job's fault ends it early.
    fn wait(&self, look: ProgressCallback<'_>, until: impl Fn() -> bool) -> Result<(), DataflowError> {
        let (state, links) = (&self.state, &self.links);
        let mut told = 0;
        let mut stalls = StallMonitor::new(self.endpoint.stall_warning());
        loop {
            // A wait of its own for each slice: a run that takes long is no stall.
            let waited = self.endpoint.wait_slice(&mut CallWait::giving_way(), &RunDescriber(links), |engine| {
                if links.is_dirty() {
                    links.pump(engine);
                    engine.flush();
                }
                if state.cancel.is_raised()
                    && let Some(error) = state.net_error()
                {
                    return Some(Err(error));
                }
                until().then_some(Ok(()))
            });
            match waited {
                Ok(Some(())) => return Ok(()),
                Ok(None) => {
                    links.look_at_links();
                    let overdrawn = self.governor.overdrawn().map_or(Ok(()), Err);
                    if let Err(message) = look(&state.progress).and(overdrawn) {
                        let rank = self.links.rank(self.links.me).0;
                        state.fail(RunFault { rank, task: "(run)".into(), copy: 0, message });
                    }
                    told = state.send_progress(told);
                    state.measure();
                    self.client.iter().for_each(|client| client.flush_reports());
                    for stall in state.progress.stalls(&mut stalls) {
                        notice!("{stall}");
                    }
                }
                Err(error) => {
                    state.fail_net(error.clone());
                    return Err(error.into());
                }
            }
        }
    }
}

impl Drop for ActiveRun {
    fn drop(&mut self) {
        // After a run that ended well both are so already; else nothing of it stays behind in the engine.
        self.state.cancel.raise();
        self.stop.store(true, Ordering::SeqCst);
        self.endpoint.lock().note_moved();
    }
}

/// What this worker is doing, for those who ask.
const CALL: &str = "a dataflow run";

/// For stall reports of others.
struct RunDescriber<'a>(&'a Links);

impl CallDescriber for RunDescriber<'_> {
    fn describe(&self, text: &mut String) {
        text.push_str(CALL);
    }

    fn waiting_for(&self, _engine: &Engine) -> Vec<Option<Rank>> {
        self.0.others().map(|worker| Some(self.0.rank(worker))).collect()
    }
}

/// What the settings allow an edge.
fn edge_limits(settings: &RunnerSettings, governor: &Governor) -> EdgeLimits {
    EdgeLimits { governor: governor.clone(), queue_bytes: settings.queue_bytes, batch_bytes: settings.batch_bytes }
}
