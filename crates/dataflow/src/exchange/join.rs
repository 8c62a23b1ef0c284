//! Rows of two sources that have equal keys, side by side. Both are partitioned by key; each copy joins what it gets:
//! the right side is put into a table first, so it should be the smaller one. What does not fit goes to disk. The left
//! side waits at its senders meanwhile, unless others wait for what they send, too: who is stopped would stop those,
//! and one of them may be what the right side comes from. Then it is kept here.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use tidemill_batch::local::{HashJoiner, JoinInput, JoinKind};
use tidemill_batch::memory::SpillQueue;
use tidemill_batch::route_map::BUCKETS;
use tidemill_batch::schema::columns;

use super::partition::describe_buckets;
use super::{EdgeSignature, Exchange, Partition};
use crate::error::TaskError;
use crate::flow::TaskFactory;
use crate::flow::{EdgeMover, Lowering};
use crate::operator::{self, EmitStatus, Emitter, Operator};
use crate::overlay::OverlayChoice;
use crate::task::Executor;

/// How large the blocks are taken to be in which a right side is broadcast: it ends, and is sent at once.
const BLOCK_BYTES: u64 = 1 << 20;

/// See the module. An edge of two sources: the left one, then the right one.
#[derive(Clone)]
pub struct Join {
    kind: JoinKind,
    on: Vec<(String, String)>,
    broadcast: bool,
    buckets: u32,
}

impl Join {
    /// Joins where each pair of columns, of the left and of the right side, is equal. A null equals nothing.
    pub fn new<L: Into<String>, R: Into<String>>(kind: JoinKind, on: impl IntoIterator<Item = (L, R)>) -> Self {
        let on = on.into_iter().map(|(left, right)| (left.into(), right.into())).collect();
        Join { kind, on, broadcast: false, buckets: BUCKETS }
    }

    /// With so many buckets of keys, as [`Partition::buckets`].
    #[must_use]
    pub fn buckets(self, count: u32) -> Self {
        Join { buckets: count, ..self }
    }

    /// Sends all of the right side to every copy and leaves the left side where it is: for a right side that is small.
    /// The left source has as many copies as the target. Not for joins that keep right rows without partner.
    #[must_use]
    pub fn broadcast_right(mut self) -> Self {
        self.broadcast = true;
        self
    }

    fn keys(&self) -> (Vec<String>, Vec<String>) {
        self.on.iter().cloned().unzip()
    }
}

impl Exchange for Join {
    fn describe(&self) -> String {
        let on: Vec<String> = self.on.iter().map(|(left, right)| format!("{left} = {right}")).collect();
        let how = if self.broadcast { ", right side to all".into() } else { describe_buckets(self.buckets) };
        format!("{} join on {}{how}", format!("{:?}", self.kind).to_lowercase(), on.join(", "))
    }

    fn check(&self, ends: &EdgeSignature<'_>) -> Result<SchemaRef, String> {
        let [left, right] = ends.schemas else {
            return Err(format!("a join needs two sources, not {}", ends.schemas.len()));
        };
        let (left_keys, right_keys) = self.keys();
        for (schema, keys) in [(left, &left_keys), (right, &right_keys)] {
            let copies = vec![1];
            let ends = EdgeSignature { schemas: std::slice::from_ref(schema), source_copies: copies, target_copies: 1 };
            Partition::by_key(keys.clone()).buckets(self.buckets).check(&ends)?;
        }
        for (l, r) in columns(left, &left_keys)?.into_iter().zip(columns(right, &right_keys)?) {
            let (l, r) = (left.field(l), right.field(r));
            if l.data_type() != r.data_type() {
                let (lt, rt) = (l.data_type(), r.data_type());
                return Err(format!(
                    "columns \"{}\" ({lt}) and \"{}\" ({rt}) have different types; cast one",
                    l.name(),
                    r.name()
                ));
            }
        }
        if self.broadcast && matches!(self.kind, JoinKind::Right | JoinKind::Full) {
            return Err("a broadcast right side does not support right or full joins".into());
        }
        if self.broadcast && ends.source_copies[0] != ends.target_copies {
            return Err(format!(
                "the left side has {} copies but the join has {}; a broadcast join needs the same number",
                ends.source_copies[0], ends.target_copies
            ));
        }
        self.kind.schema(left, right)
    }

    fn lower(&self, lowering: &mut Lowering<'_>) {
        let (left, right, target) = (lowering.sources()[0], lowering.sources()[1], lowering.target());
        let (left_keys, right_keys) = self.keys();
        let side = |at: usize, keys: &[String]| {
            let schema = SchemaRef::clone(&lowering.source_schemas()[at]);
            JoinInput { keys: columns(&schema, keys).expect("checked before"), schema }
        };
        let (left_side, right_side) = (side(0, &left_keys), side(1, &right_keys));
        let (kind, l, r) = (self.kind, left_side.clone(), right_side.clone());
        let keep_left = lowering.has_dependents(0);
        let factory: TaskFactory = Arc::new(move |inputs, outputs, context| {
            let (left, right) = (l.clone(), r.clone());
            Box::pin(async move {
                let name = format!("{}, copy {}", context.task(), context.copy());
                let kept = keep_left.then(|| SpillQueue::new(&left.schema, context.governor(), &name));
                let joiner = HashJoiner::new(kind, left, right, context.governor(), &name)?;
                let join = JoinOperator { joiner, kept, right_ended: false, left_ended: false };
                operator::drive(join, inputs, outputs, &context).await
            })
        });
        let (workers, schemas) =
            (lowering.workers_of(target).to_vec(), vec![SchemaRef::clone(lowering.target_schema())]);
        let copies = workers.len() as u32;
        let join = lowering.stage("join", workers, 2, schemas, Executor::Thread, factory);
        if self.broadcast {
            lowering.connect_direct(left, join.input(0));
            let (root, members) = (lowering.workers_of(right)[0], lowering.workers_of(target));
            let overlay = lowering.overlay(OverlayChoice::ForMessages(BLOCK_BYTES), root, members);
            lowering.connect(right, join.input(1), EdgeMover::Broadcast(overlay));
        } else {
            let by = |keys: Vec<String>| Partition::by_key(keys).buckets(self.buckets);
            lowering.connect(left, join.input(0), by(left_keys).mover(&left_side.schema, copies));
            lowering.connect(right, join.input(1), by(right_keys).mover(&right_side.schema, copies));
        }
        lowering.connect_direct(join.output(0), target);
    }
}

struct JoinOperator {
    joiner: HashJoiner,
    /// Left batches that came before the right side's end, where they cannot wait elsewhere.
    kept: Option<SpillQueue>,
    right_ended: bool,
    left_ended: bool,
}

impl JoinOperator {
    fn emit(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        loop {
            if let Some(batch) = self.joiner.next_batch()? {
                emit.send(batch);
                return Ok(EmitStatus::More);
            }
            if !self.right_ended {
                return Ok(EmitStatus::Done);
            }
            if let Some(kept) = &mut self.kept {
                match kept.pop()? {
                    Some(batch) => self.joiner.push_left(batch)?,
                    None => self.kept = None,
                }
            } else if std::mem::take(&mut self.left_ended) {
                self.joiner.end_left()?;
            } else {
                return Ok(EmitStatus::Done);
            }
        }
    }
}

impl Operator for JoinOperator {
    fn on_batch(&mut self, input: usize, batch: RecordBatch, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        match (input, &mut self.kept) {
            (1, _) => self.joiner.push_right(batch)?,
            (_, Some(kept)) => kept.push(batch)?,
            (_, None) => self.joiner.push_left(batch)?,
        }
        self.emit(emit)
    }

    fn on_input_end(&mut self, input: usize, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        if input == 1 {
            self.right_ended = true;
            self.joiner.end_right()?;
        } else {
            self.left_ended = true;
        }
        self.emit(emit)
    }

    fn more(&mut self, emit: &mut Emitter) -> Result<EmitStatus, TaskError> {
        self.emit(emit)
    }

    fn wants(&self, input: usize) -> bool {
        input == 1 || self.right_ended || self.kept.is_some()
    }
}
