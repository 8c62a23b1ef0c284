//! What a task is: its ports, how many copies of it run, what they need, and the function that each copy runs.

use std::future::Future;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use tidemill_checkpoint::StateSchema;

use crate::error::TaskError;
use crate::flow::{Inputs, Outputs, TaskFactory};
use crate::operator::{self, BatchMapper, Operator};
use crate::rebalance::StateKind;
use crate::stream::sink::{self, Sink};
use crate::stream::source::{self, MakeSource, Source, WatermarkStrategy};
use crate::task::{Executor, TaskContext};

/// How many copies of a task run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parallelism {
    /// This many in all.
    Total(u32),
    /// This many on every worker: copy `i` is on worker `i % workers`, whatever the placement says about other tasks.
    PerWorker(u32),
}

impl Parallelism {
    /// The number of copies in a job of `workers` workers.
    pub fn copies(self, workers: u32) -> u32 {
        match self {
            Parallelism::Total(n) => n,
            Parallelism::PerWorker(n) => n * workers,
        }
    }
}

/// What a copy needs; some placements put the copy where that is available.
#[derive(Clone, Debug, Default)]
pub struct Resources {
    /// Processor cores.
    pub cores: f32,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// For each copy, the hosts that hold its data, as names or as paths such as `zone-a/rack-3/host-7`. Missing or
    /// empty entries mean any host.
    pub data_hosts: Vec<Vec<String>>,
}

#[derive(Clone)]
pub(crate) struct InPort {
    pub name: String,
    /// The required schema; `None` accepts any.
    pub schema: Option<SchemaRef>,
}

#[derive(Clone)]
pub(crate) struct OutPort {
    pub name: String,
    pub schema: SchemaRef,
}

/// A task to be added to a graph.
#[derive(Clone)]
pub struct TaskSpec {
    pub(crate) name: String,
    pub(crate) detail: String,
    pub(crate) inputs: Vec<InPort>,
    pub(crate) outputs: Vec<OutPort>,
    pub(crate) parallelism: Parallelism,
    pub(crate) resources: Resources,
    pub(crate) executor: Executor,
    pub(crate) comm: bool,
    pub(crate) streaming: bool,
    pub(crate) state: Option<StateSchema>,
    pub(crate) keeps: StateKind,
    pub(crate) factory: TaskFactory,
    pub(crate) body: TaskBody,
}

/// What the copies of a task are, for callers that drive them by hand, such as simulations.
#[derive(Clone, Default)]
pub(crate) enum TaskBody {
    Operator(MakeOperator),
    Source(MakeSource, Option<WatermarkStrategy>),
    Sink,
    /// A function with its own loop.
    #[default]
    Function,
}

/// Makes the operator of one copy.
pub(crate) type MakeOperator = Arc<dyn Fn(&TaskContext) -> Result<Box<dyn Operator>, TaskError> + Send + Sync>;

impl TaskSpec {
    /// A task each of whose copies runs `body`: an async function of its inputs, its outputs and its context. When it
    /// returns, its outputs end, and what is left in its inputs is dropped.
    pub fn new<F, R>(name: impl Into<String>, body: F) -> Self
    where
        F: Fn(Inputs, Outputs, TaskContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), TaskError>> + Send + 'static,
    {
        Self::from_factory(name, Arc::new(move |inputs, outputs, context| Box::pin(body(inputs, outputs, context))))
    }

    /// A task whose copies are operators: they receive batches one by one, without a loop of their own.
    pub fn operator<F, O>(name: impl Into<String>, make: F) -> Self
    where
        F: Fn(&TaskContext) -> Result<O, TaskError> + Send + Sync + 'static,
        O: Operator + 'static,
    {
        let make = Arc::new(make);
        let boxed = Arc::clone(&make);
        let task = Self::new(name, move |inputs, outputs, context| {
            let make = Arc::clone(&make);
            async move {
                let operator = make(&context)?;
                operator::drive(operator, inputs, outputs, &context).await
            }
        });
        let body = TaskBody::Operator(Arc::new(move |context| Ok(Box::new(boxed(context)?))));
        TaskSpec { keeps: if O::moves() { StateKind::ByBucket } else { StateKind::Unknown }, body, ..task }
    }

    /// A task whose copies call `function` on each batch separately, and send its result, if any, from the only
    /// output port. A failed call is repeated with the same batch, at most `retries` times, and reported on standard
    /// error: it receives only the batch, and nothing that it produced has been sent. If all attempts fail, the last
    /// error fails the task.
    pub fn each<F>(name: impl Into<String>, retries: u32, function: F) -> Self
    where
        F: Fn(&RecordBatch, &TaskContext) -> Result<Option<RecordBatch>, TaskError> + Send + Sync + 'static,
    {
        let function = Arc::new(function);
        Self::operator(name, move |context| Ok(BatchMapper::new(&function, retries, context)))
    }

    /// A task whose copies are sources. Add the output port for their rows and, unless invalid input is skipped,
    /// another one for records that cannot become rows. `times` says how rows tell time.
    pub fn source<F, S>(name: impl Into<String>, times: Option<WatermarkStrategy>, make: F) -> Self
    where
        F: Fn(&TaskContext) -> Result<S, TaskError> + Send + Sync + 'static,
        S: Source + 'static,
    {
        Self::any_source(name, (times, false), make)
    }

    /// Like [`TaskSpec::source`], but the rows have no time although tasks after it wait for time: at run time, a
    /// message names what holds these tasks back.
    pub fn source_without_time<F, S>(name: impl Into<String>, make: F) -> Self
    where
        F: Fn(&TaskContext) -> Result<S, TaskError> + Send + Sync + 'static,
        S: Source + 'static,
    {
        Self::any_source(name, (None, true), make)
    }

    fn any_source<F, S>(name: impl Into<String>, times: (Option<WatermarkStrategy>, bool), make: F) -> Self
    where
        F: Fn(&TaskContext) -> Result<S, TaskError> + Send + Sync + 'static,
        S: Source + 'static,
    {
        let make = Arc::new(make);
        let boxed = Arc::clone(&make);
        let body = TaskBody::Source(Arc::new(move |context| Ok(Box::new(boxed(context)?))), times.0.clone());
        let task = Self::new(name, move |mut inputs, outputs, context| {
            let (make, (times, missed)) = (Arc::clone(&make), times.clone());
            async move {
                let source = make(&context)?;
                source::drive(source, times, missed, outputs, (inputs.take_split_handover(), &context)).await
            }
        });
        TaskSpec { body, ..task.streaming() }
    }

    /// Declares that splits of a source can move to other copies while the job runs, through
    /// [`Source::release`] and [`Source::acquire`].
    #[must_use]
    pub fn movable_splits(mut self) -> Self {
        self.keeps = StateKind::Splits;
        self
    }

    /// A task whose copies are sinks; add its input ports.
    pub fn sink<F, S>(name: impl Into<String>, make: F) -> Self
    where
        F: Fn(&TaskContext) -> Result<S, TaskError> + Send + Sync + 'static,
        S: Sink + 'static,
    {
        let make = Arc::new(make);
        let task = Self::new(name, move |inputs, _, context| {
            let make = Arc::clone(&make);
            async move {
                let sink = make(&context)?;
                sink::drive(sink, inputs, &context).await
            }
        });
        TaskSpec { keeps: StateKind::Nothing, body: TaskBody::Sink, ..task.streaming() }
    }

    /// A task whose copies are blocking functions, each on its own thread; they use the `_blocking` calls of their
    /// inputs and outputs.
    pub fn blocking<F>(name: impl Into<String>, body: F) -> Self
    where
        F: Fn(Inputs, Outputs, TaskContext) -> Result<(), TaskError> + Send + Sync + 'static,
    {
        let body = Arc::new(body);
        let task = Self::new(name, move |inputs, outputs, context| {
            let body = Arc::clone(&body);
            async move { body(inputs, outputs, context) }
        });
        task.executor(Executor::Thread)
    }

    /// A task from a function that makes its copies' futures.
    pub fn from_factory(name: impl Into<String>, factory: TaskFactory) -> Self {
        TaskSpec {
            name: name.into(),
            detail: String::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            parallelism: Parallelism::PerWorker(1),
            resources: Resources::default(),
            executor: Executor::Pool,
            comm: false,
            streaming: false,
            state: None,
            keeps: StateKind::Unknown,
            factory,
            body: TaskBody::default(),
        }
    }

    /// Sets what the task does, if the name does not say everything: a graph does not run if its details differ
    /// between workers.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }

    /// Adds an input port that accepts batches of any schema.
    #[must_use]
    pub fn input(mut self, name: &str) -> Self {
        self.inputs.push(InPort { name: name.into(), schema: None });
        self
    }

    /// Adds an input port that only accepts this schema.
    #[must_use]
    pub fn input_of(mut self, name: &str, schema: SchemaRef) -> Self {
        self.inputs.push(InPort { name: name.into(), schema: Some(schema) });
        self
    }

    /// Adds an output port.
    #[must_use]
    pub fn output(mut self, name: &str, schema: SchemaRef) -> Self {
        self.outputs.push(OutPort { name: name.into(), schema });
        self
    }

    /// Sets how many copies run; one per worker by default.
    #[must_use]
    pub fn parallelism(mut self, parallelism: Parallelism) -> Self {
        self.parallelism = parallelism;
        self
    }

    /// Sets the total number of copies.
    #[must_use]
    pub fn copies(self, copies: u32) -> Self {
        self.parallelism(Parallelism::Total(copies))
    }

    /// Sets what each copy needs.
    #[must_use]
    pub fn resources(mut self, resources: Resources) -> Self {
        self.resources = resources;
        self
    }

    /// Sets the threads on which its copies run.
    #[must_use]
    pub fn executor(mut self, executor: Executor) -> Self {
        self.executor = executor;
        self
    }

    /// Declares that its copies handle marks: they receive time and barriers with their batches, save their state
    /// when a barrier passes, and send marks on. Operators do all that by themselves. A job that makes checkpoints
    /// cannot contain tasks that are not streaming.
    #[must_use]
    pub fn streaming(mut self) -> Self {
        self.streaming = true;
        self
    }

    /// Declares what its copies keep by bucket. Checkpoints record it, and a job whose states differ from those of
    /// its checkpoint does not start, unless only nullable fields were added: then
    /// [`RestoredState::schema`](crate::checkpoint::RestoredState::schema) tells its copies what they start with, and
    /// their next snapshot must be complete.
    #[must_use]
    pub fn state(mut self, schema: StateSchema) -> Self {
        self.state = Some(schema);
        self
    }

    /// Gives its copies their own communicator, [`TaskContext::comm`], ranked by copy. A worker may run several
    /// copies.
    #[must_use]
    pub fn with_comm(mut self) -> Self {
        self.comm = true;
        self
    }
}
