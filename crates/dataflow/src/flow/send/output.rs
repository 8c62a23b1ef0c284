//! A copy's output ports: batches go in, and every edge's mover sends them on.

use std::any::TypeId;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use arrow::array::{ArrowPrimitiveType, PrimitiveArray, RecordBatch};
use arrow::datatypes::{SchemaRef, ToByteSlice};
use parking_lot::Mutex;
use tidemill_batch::gather::{Scatter, ScatterOutput};
use tidemill_batch::local::RoundUnit;
use tidemill_batch::schema::fits;
use tidemill_checkpoint::{EventTime, Mark};

use super::lane::{EdgeEnd, Lane};
use super::local_messages::LocalMessages;
use super::local_reduce::LocalReduce;
use crate::error::{DataflowError, TaskError};
use crate::flow::receive::edge::EdgeRuntime;
use crate::flow::{EdgeMover, EdgeReduction};
use crate::link::Links;
use crate::metrics;
use crate::observation::CopyClock;
use crate::partitioner::{PartitionerContext, RowAssigner, RowAssignment};
use crate::task::{CancelToken, LongTurn};
use crate::unaligned::UnalignedSignal;

enum OutletRoute {
    Nowhere,
    /// To one copy, or to all of them.
    One(Arc<Lane>),
    /// To each of several copies.
    Copies(Vec<Arc<Lane>>),
    Partition(Box<PartitionedLanes>),
    Reduce(Box<LocalReduce>),
    Messages(Box<LocalMessages>),
}

/// A stream for every target copy that it sends to.
struct PartitionedLanes {
    assign: Box<dyn RowAssigner>,
    /// Their numbers, if they are not all.
    reach: Option<Vec<u32>>,
    /// The targets of the rows of one batch; kept for its memory.
    targets: Vec<u32>,
    scatter: Scatter,
    lanes: Vec<Arc<Lane>>,
    /// Where the next batch goes as a whole, if that is known.
    next: Option<u32>,
    /// Of each network link one of the lanes that go over it.
    paced: Vec<usize>,
}

/// One copy's end of one edge.
pub(crate) struct Outlet {
    way: Arc<EdgeEnd>,
    route: OutletRoute,
    /// Rounds that were sent, where the edge goes by rounds; and of rounds that are so many rows those of the next one.
    rounds: i64,
    round_rows: u64,
    ended: bool,
}

/// The first of `targets` on each worker that a network link leads to, by its position.
fn paced(edge: &EdgeRuntime, targets: &[u32], links: &Links) -> Vec<usize> {
    let workers: Vec<u32> = targets.iter().map(|&target| edge.target_workers[target as usize]).collect();
    let is_first = |&at: &usize| links.pacer(workers[at]).is_some() && !workers[..at].contains(&workers[at]);
    (0..workers.len()).filter(is_first).collect()
}

impl Outlet {
    pub(crate) fn new(
        edge: &Arc<EdgeRuntime>,
        source: u32,
        links: &Arc<Links>,
        signal: Option<UnalignedSignal>,
        clock: &Arc<CopyClock>,
    ) -> Self {
        let (edge, links, clock) = (Arc::clone(edge), Arc::clone(links), Arc::clone(clock));
        let way = Arc::new(EdgeEnd { edge, source, links, signal, clock });
        let edge = &way.edge;
        let lane = |target: u32| Lane::to_copy(&way, target);
        let route = match &edge.mover {
            EdgeMover::Map(map) => match (map[source as usize], &edge.reduction) {
                (None, _) => OutletRoute::Nowhere,
                (Some(target), None) => OutletRoute::One(lane(target)),
                (Some(target), Some(EdgeReduction::All(to))) => {
                    OutletRoute::Reduce(Box::new(LocalReduce::new(&way, to, lane(target))))
                }
                (Some(target), Some(EdgeReduction::Messages(to))) => {
                    OutletRoute::Messages(Box::new(LocalMessages::new(&edge.schema, to, lane(target))))
                }
            },
            EdgeMover::Broadcast(_) => OutletRoute::One(Lane::to_all(&way)),
            EdgeMover::Copies => OutletRoute::Copies((0..edge.targets()).map(lane).collect()),
            EdgeMover::Partition(partitioner) => {
                let reach = partitioner.reach(source).map(<[u32]>::to_vec);
                let targets = reach.clone().unwrap_or_else(|| (0..edge.targets()).collect());
                OutletRoute::Partition(Box::new(PartitionedLanes {
                    paced: paced(edge, &targets, &way.links),
                    assign: partitioner.start(&PartitionerContext {
                        source,
                        targets: edge.targets(),
                        metrics: Arc::clone(&edge.metrics),
                        route: edge.route.clone(),
                    }),
                    targets: Vec::new(),
                    scatter: Scatter::new(&edge.schema, edge.targets(), edge.batch_bytes),
                    lanes: targets.into_iter().map(lane).collect(),
                    reach,
                    next: None,
                }))
            }
        };
        Outlet { way, route, rounds: 0, round_rows: 0, ended: false }
    }

    /// Whether its end has been sent.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended
    }

    fn lanes(&self) -> &[Arc<Lane>] {
        match &self.route {
            OutletRoute::Nowhere => &[],
            OutletRoute::One(lane) => std::slice::from_ref(lane),
            OutletRoute::Copies(lanes) => lanes,
            OutletRoute::Partition(partition) => &partition.lanes,
            OutletRoute::Reduce(folding) => std::slice::from_ref(&folding.lane),
            OutletRoute::Messages(folding) => std::slice::from_ref(&folding.lane),
        }
    }

    /// Whether any copy that it leads to still takes something; a reduction takes all.
    fn is_wanted(&self) -> bool {
        matches!(self.route, OutletRoute::Reduce(_)) || !self.lanes().iter().all(|lane| lane.is_stopped())
    }

    fn leads_nowhere(&self) -> bool {
        matches!(self.route, OutletRoute::Nowhere)
    }

    /// Whether the edge treats each message as a round.
    fn has_rounds(&self) -> bool {
        self.way.edge.rounds.is_some() || matches!(self.route, OutletRoute::Messages(_))
    }

    /// Sends a message, and the end of its round behind it.
    async fn send(&mut self, mut batch: RecordBatch) -> Result<(), TaskError> {
        if let RoundUnit::Rows(of_round) = self.way.edge.round_unit {
            while batch.num_rows() > 0 {
                let now = (of_round.get() - self.round_rows).min(batch.num_rows() as u64);
                self.send_rows(batch.slice(0, now as usize)).await?;
                batch = batch.slice(now as usize, batch.num_rows() - now as usize);
                self.round_rows += now;
                if self.round_rows == of_round.get() {
                    self.end_round().await?;
                }
            }
            return Ok(());
        }
        if batch.num_rows() > 0 {
            self.send_rows(batch).await?;
        }
        match self.way.edge.round_unit {
            RoundUnit::Message | RoundUnit::Time(_) => self.end_round().await,
            RoundUnit::Rows(_) | RoundUnit::Epoch => Ok(()),
        }
    }

    /// What was sent since the last one is a round, where the edge goes by rounds.
    async fn end_round(&mut self) -> Result<(), TaskError> {
        self.round_rows = 0;
        if let OutletRoute::Messages(folding) = &mut self.route {
            folding.end_message().await?;
        }
        if self.way.edge.rounds.is_some() {
            self.rounds += 1;
            self.flush().await?;
            let over = Mark::Watermark(EventTime(self.rounds));
            self.lanes().iter().try_for_each(|lane| lane.mark(&over))?;
        }
        Ok(())
    }

    async fn send_rows(&mut self, batch: RecordBatch) -> Result<(), TaskError> {
        match &mut self.route {
            OutletRoute::Nowhere => Ok(()),
            OutletRoute::One(lane) => lane.send(batch).await,
            OutletRoute::Copies(lanes) => {
                for lane in lanes {
                    lane.send(batch.clone()).await?;
                }
                Ok(())
            }
            OutletRoute::Partition(partition) => partition.send(batch).await,
            OutletRoute::Reduce(folding) => folding.send(batch).await,
            OutletRoute::Messages(folding) => folding.push(&batch),
        }
    }

    /// What was sent since the last barrier is a round, where it is one in a reduction.
    async fn end_epoch(&mut self) -> Result<(), TaskError> {
        match (&mut self.route, self.way.edge.round_unit) {
            (OutletRoute::Messages(folding), RoundUnit::Epoch) => folding.end_message().await,
            _ => Ok(()),
        }
    }

    /// Takes rows of the only column, given as bytes, where nobody has to wait for that. `false`: they have to be sent
    /// as a batch.
    fn pack_values(&mut self, values: &[u8], rows: usize) -> Result<bool, TaskError> {
        if self.way.edge.rounds.is_some() {
            return Ok(false);
        }
        match &mut self.route {
            OutletRoute::Nowhere => Ok(true),
            // SAFETY: who has the outlet is its lanes' only user.
            OutletRoute::One(lane) => unsafe { lane.pack_values(values, rows) },
            OutletRoute::Partition(partition) => partition.pack_values(values, rows),
            OutletRoute::Reduce(folding) => Ok(folding.push_values(values)),
            // A copy might take them, and the next one not.
            OutletRoute::Copies(_) => Ok(false),
            // Where a message ends matters.
            OutletRoute::Messages(_) => Ok(false),
        }
    }

    /// Hands rows that were collected to go to several copies over to those copies' lanes.
    async fn scatter(&mut self) -> Result<(), TaskError> {
        match &mut self.route {
            OutletRoute::Partition(partition) if !partition.scatter.is_empty() => partition.flush().await,
            _ => Ok(()),
        }
    }

    async fn flush(&mut self) -> Result<(), TaskError> {
        if let OutletRoute::Partition(partition) = &mut self.route {
            partition.assign.flush_metrics();
            partition.flush().await?;
        }
        self.lanes().iter().try_for_each(|lane| lane.flush())
    }

    /// Sends what is collected, and `mark` behind it.
    async fn mark(&mut self, mark: &Mark) -> Result<(), TaskError> {
        // Where it goes by rounds a watermark is the end of one, but for the least, which ends idleness; and only those
        // of time go on without who is idle.
        let edge = &self.way.edge;
        let passes = match mark {
            Mark::Barrier(_) => true,
            Mark::Idle | Mark::Watermark(EventTime::MIN) => {
                edge.rounds.is_none() || matches!(edge.round_unit, RoundUnit::Time(_))
            }
            Mark::Watermark(_) => edge.rounds.is_none(),
        };
        if !passes {
            return Ok(());
        }
        if matches!(mark, Mark::Barrier(_)) {
            self.end_epoch().await?;
        }
        self.flush().await?;
        let way = &self.way;
        if let (Mark::Barrier(barrier), Some(signal)) = (mark, &way.signal) {
            signal.pass(barrier.epoch);
        }
        self.lanes().iter().try_for_each(|lane| lane.mark(mark))?;
        if let (OutletRoute::Partition(partition), Mark::Barrier(barrier)) = (&mut self.route, mark)
            && let Some(map) = barrier.route_of(&self.way.edge.target_task)
        {
            partition.assign.reroute(&Arc::new(map.clone()));
        }
        Ok(())
    }

    /// The stream to one copy, past the partitioner.
    fn lane(&self, target: u32) -> &Arc<Lane> {
        match &self.route {
            OutletRoute::Partition(partition) => partition.lane(target).expect("nothing is handed over by a tree"),
            _ => unreachable!("only of edges that partition"),
        }
    }

    /// Sends what is collected and says that this was all.
    pub(crate) async fn finish(&mut self) -> Result<(), TaskError> {
        if std::mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        if let OutletRoute::Reduce(folding) = &mut self.route {
            folding.finish().await?;
        }
        if self.round_rows > 0 {
            // The last one is shorter.
            self.end_round().await?;
        }
        self.end_epoch().await?;
        self.flush().await?;
        self.lanes().iter().for_each(|lane| lane.end());
        Ok(())
    }
}

impl PartitionedLanes {
    /// The stream to a target copy.
    fn lane(&self, target: u32) -> Result<&Arc<Lane>, TaskError> {
        let at = match &self.reach {
            None => Some(target as usize),
            Some(reach) => reach.binary_search(&target).ok(),
        };
        let lane = at.and_then(|at| self.lanes.get(at));
        lane.ok_or_else(|| format!("the partitioner returned target {target}, which does not exist").into())
    }

    /// As [`Outlet::pack_values`].
    fn pack_values(&mut self, values: &[u8], rows: usize) -> Result<bool, TaskError> {
        self.next = self.next.or_else(|| self.assign.assign_unseen());
        let Some(target) = self.next else { return Ok(false) };
        // SAFETY: who has the outlet is its lanes' only user.
        let packed = unsafe { self.lanes[target as usize].pack_values(values, rows) }?;
        self.next = self.next.filter(|_| !packed);
        Ok(packed)
    }

    async fn send(&mut self, batch: RecordBatch) -> Result<(), TaskError> {
        self.targets.clear();
        if let Some(target) = self.next.take().or_else(|| self.assign.assign_unseen()) {
            return self.send_to_any(target, batch).await;
        }
        match self.assign.assign(&batch, &mut self.targets)? {
            RowAssignment::Whole(target) => self.lane(target)?.send(batch).await,
            RowAssignment::ByRow if self.scatter.collect(batch, &self.targets)? || self.is_enough() => {
                self.flush().await
            }
            RowAssignment::ByRow => Ok(()),
        }
    }

    /// Whether as much has been collected as some link takes at a time.
    fn is_enough(&self) -> bool {
        let bytes = self.scatter.target_bytes();
        self.paced.iter().any(|&lane| self.lanes[lane].collect_bytes_max() <= bytes)
    }

    /// Sends a batch to copy `first`, or to the next one behind it that has room, if that one has none. What is too
    /// much for a slow link at a time goes to others.
    async fn send_to_any(&mut self, mut first: u32, mut batch: RecordBatch) -> Result<(), TaskError> {
        loop {
            let lanes = &self.lanes;
            let target = Lane::first_with_room(lanes, first as usize).await;
            if target != first as usize {
                self.assign.reassigned(target as u32);
            }
            let (lane, rows) = (&lanes[target], batch.num_rows());
            let now = lane.rows_at_a_time(&batch);
            if now >= rows {
                return lane.send(batch).await;
            }
            lane.send(batch.slice(0, now)).await?;
            batch = batch.slice(now, rows - now);
            first = self.assign.assign_unseen().unwrap_or(first);
        }
    }

    async fn flush(&mut self) -> Result<(), TaskError> {
        match self.scatter.drain() {
            ScatterOutput::Whole(target, batch) => self.lane(target)?.send(batch).await?,
            ScatterOutput::Parts(gather, parts) => {
                for (target, part) in parts {
                    self.lane(target)?.send_part(&gather, &part).await?;
                }
            }
        }
        Ok(())
    }
}

/// An output port of a copy. When the task is done the port ends by itself.
pub struct Output {
    outlets: Vec<Outlet>,
    schema: SchemaRef,
    /// Whether any edge treats each message as a round.
    has_rounds: bool,
    /// Of which type numbers are that have been sent without a batch.
    numbers: Option<TypeId>,
    cancel: CancelToken,
    /// Where the outlets go when the task lets go of the port, to be ended if the task succeeds.
    returned: Arc<Mutex<Vec<Outlet>>>,
}

impl Output {
    pub(crate) fn new(
        outlets: Vec<Outlet>,
        schema: SchemaRef,
        cancel: CancelToken,
        returned: &Arc<Mutex<Vec<Outlet>>>,
    ) -> Self {
        let has_rounds = outlets.iter().any(Outlet::has_rounds);
        Output { outlets, schema, has_rounds, numbers: None, cancel, returned: Arc::clone(returned) }
    }

    /// The declared schema.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Rows that were to be sent here have been left out: they came too late, or have no time.
    pub(crate) fn note_late(&self, rows: usize) {
        self.outlets.iter().for_each(|outlet| metrics::add(&outlet.way.edge.metrics.late_rows, rows as u64));
    }

    /// Whether an edge that begins here treats each message as a round; if so, send a message in one call.
    pub fn has_rounds(&self) -> bool {
        self.has_rounds
    }

    /// What a row takes who receives it here, in nanoseconds; 0: not known, or so little that it does not matter.
    pub(crate) fn row_ns(&self) -> u64 {
        self.outlets.iter().map(|outlet| outlet.way.edge.row_ns()).max().unwrap_or(0)
    }

    /// Whether anybody still takes what is sent: not if all receivers have let go of their ends. Who makes rows at a
    /// cost looks, and ends early; to send on is no error.
    pub fn is_wanted(&self) -> bool {
        // Where no edge leads anywhere nobody says what is wanted.
        self.outlets.iter().all(Outlet::leads_nowhere) || self.outlets.iter().any(Outlet::is_wanted)
    }

    /// Sends a batch on all edges that begin here. Waits while a receiver has more than it can take.
    ///
    /// Rows keep their order; where a batch ends means nothing. Of small batches that a copy sends before it waits for
    /// anything (an input, credit, a timer), the first leaves at once, the others together, and arrive as one, when it
    /// waits, ends or [flushes](Output::flush). Rows that a partitioner distributes one by one are collected until
    /// there are enough for all copies, however long that takes: who waits for an answer to them flushes. Who blocks
    /// its thread uses [`Output::send_blocking`], which keeps nothing back.
    ///
    /// # Errors
    /// When the batch is not of the declared schema, or the exchange refuses it; `Cancelled`.
    pub async fn send(&mut self, batch: RecordBatch) -> Result<(), TaskError> {
        if !Arc::ptr_eq(batch.schema_ref(), &self.schema) {
            fits(batch.schema_ref(), &self.schema).map_err(|reason| format!("output port: {reason}"))?;
        }
        if batch.num_rows() == 0 && !self.has_rounds || !self.takes().await? {
            return Ok(());
        }
        let Some((last, others)) = self.outlets.split_last_mut() else { return Ok(()) };
        for outlet in others {
            outlet.send(batch.clone()).await?;
        }
        last.send(batch).await
    }

    /// Sends numbers, as rows of the port's only column: the same as to [send](Output::send) a batch of them. For many
    /// small messages, of which each takes longer to be made a batch than to be sent.
    ///
    /// # Errors
    /// When the port has other columns, or one of another type; `Cancelled`.
    pub async fn send_values<T: ArrowPrimitiveType>(&mut self, values: &[T::Native]) -> Result<(), TaskError> {
        if self.numbers != Some(TypeId::of::<T>()) {
            let types = || self.schema.fields().iter().map(|field| field.data_type());
            if !types().map(PrimitiveArray::<T>::is_compatible).eq([true]) {
                let types: Vec<_> = types().map(ToString::to_string).collect();
                return Err(
                    format!("output port: its columns are {}, not one {}", types.join(", "), T::DATA_TYPE).into()
                );
            }
            self.numbers = Some(TypeId::of::<T>());
        }
        let (bytes, rows) = (values.to_byte_slice(), values.len());
        if rows == 0 && !self.has_rounds {
            return Ok(());
        }
        if let [outlet] = self.outlets.as_mut_slice()
            && !outlet.is_ended()
            && outlet.pack_values(bytes, rows)?
        {
            return Ok(());
        }
        let column = PrimitiveArray::<T>::from_iter_values(values.iter().copied());
        let column = column.with_data_type(self.schema.field(0).data_type().clone());
        self.send(RecordBatch::try_new(SchemaRef::clone(&self.schema), vec![Arc::new(column)])?).await
    }

    /// Whether anybody takes what is sent now.
    async fn takes(&mut self) -> Result<bool, TaskError> {
        if self.outlets.iter().any(Outlet::is_ended) {
            return Err("output port: a batch arrived after its end".into());
        }
        if self.is_wanted() {
            return Ok(true);
        }
        // A sender without an end that does not look would never wait again: nobody else would have its thread, and
        // nothing could end it.
        tokio::task::yield_now().await;
        Ok(false)
    }

    /// [`Output::send`] for a copy that blocks its thread.
    ///
    /// # Errors
    /// As [`Output::send`].
    pub fn send_blocking(&mut self, batch: RecordBatch) -> Result<(), TaskError> {
        let cancel = self.cancel.clone();
        cancel.block_on(cancel.guard(self.send_whole(batch)))?
    }

    /// [`Output::send`], after which no row is kept for others to come: nothing is known of when they will.
    async fn send_whole(&mut self, batch: RecordBatch) -> Result<(), TaskError> {
        self.send(batch).await?;
        for outlet in &mut self.outlets {
            outlet.scatter().await?;
        }
        Ok(())
    }

    /// The same in a turn that goes on: small batches may wait for its end. Where it has to wait itself the turn ends,
    /// and `wait` is to call what it is given, which waits.
    ///
    /// # Errors
    /// As [`Output::send`].
    pub fn send_in_turn(
        &mut self,
        batch: RecordBatch,
        turn: &Mutex<LongTurn>,
        wait: impl FnOnce(&mut (dyn FnMut() + Send)),
    ) -> Result<(), TaskError> {
        let cancel = self.cancel.clone();
        let mut sending = pin!(self.send_whole(batch));
        let at_once = {
            let mut turn = turn.lock();
            let polled = cancel.poll_once(sending.as_mut(), &mut turn);
            if polled.is_pending() {
                turn.end();
            }
            polled
        };
        match at_once {
            Poll::Ready(sent) => sent?,
            Poll::Pending => {
                let mut sent = Err(DataflowError::Cancelled);
                wait(&mut || sent = cancel.block_on(cancel.guard(sending.as_mut())));
                sent?
            }
        }
    }

    /// Sends what is collected to make larger batches of. For streams; a task's end does it anyway.
    ///
    /// # Errors
    /// As [`Output::send`].
    pub async fn flush(&mut self) -> Result<(), TaskError> {
        for outlet in &mut self.outlets {
            outlet.flush().await?;
        }
        Ok(())
    }

    /// [`Output::flush`] for a copy that blocks its thread.
    ///
    /// # Errors
    /// As [`Output::send`].
    pub fn flush_blocking(&mut self) -> Result<(), TaskError> {
        let cancel = self.cancel.clone();
        cancel.block_on(cancel.guard(self.flush()))?
    }

    /// Sends what exchanges have collected, and a mark behind it, to every copy that the port leads to.
    ///
    /// # Errors
    /// As [`Output::send`].
    pub async fn mark(&mut self, mark: &Mark) -> Result<(), TaskError> {
        for outlet in &mut self.outlets {
            outlet.mark(mark).await?;
        }
        Ok(())
    }

    /// Sends a batch to one copy, on the only edge that begins here, past its partitioner.
    ///
    /// # Errors
    /// As [`Output::send`].
    pub(crate) async fn send_to(&mut self, target: u32, batch: RecordBatch) -> Result<(), TaskError> {
        self.outlets[0].lane(target).send(batch).await
    }

    /// Sends a mark to one copy, as [`Output::send_to`] does.
    ///
    /// # Errors
    /// As [`Output::send`].
    pub(crate) fn mark_to(&mut self, target: u32, mark: &Mark) -> Result<(), TaskError> {
        self.outlets[0].lane(target).mark(mark)
    }

    /// Ends the port before the task's end. Nothing can be sent afterwards.
    ///
    /// # Errors
    /// As [`Output::send`].
    pub async fn finish(&mut self) -> Result<(), TaskError> {
        for outlet in &mut self.outlets {
            outlet.finish().await?;
        }
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.returned.lock().append(&mut self.outlets);
    }
}

/// All output ports of a copy, in the order of the task's declaration.
pub struct Outputs(Vec<Output>);

impl Outputs {
    pub(crate) fn new(outputs: Vec<Output>) -> Self {
        Outputs(outputs)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none: the task is a sink.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One port.
    pub fn port(&mut self, index: usize) -> &mut Output {
        &mut self.0[index]
    }

    /// The ports, each to be written by itself.
    pub fn into_ports(self) -> Vec<Output> {
        self.0
    }

    /// The only port.
    ///
    /// # Panics
    /// When there are none or several.
    pub fn into_only(mut self) -> Output {
        assert_eq!(self.0.len(), 1, "the task has {} output ports", self.0.len());
        self.0.remove(0)
    }

    /// [`Output::is_wanted`] of any port, or no port at all.
    pub fn is_wanted(&self) -> bool {
        self.0.is_empty() || self.0.iter().any(Output::is_wanted)
    }

    /// [`Output::mark`] on all ports.
    ///
    /// # Errors
    /// As [`Output::send`].
    pub async fn mark(&mut self, mark: &Mark) -> Result<(), TaskError> {
        for output in &mut self.0 {
            output.mark(mark).await?;
        }
        Ok(())
    }

    /// [`Output::flush`] on all ports.
    ///
    /// # Errors
    /// As [`Output::send`].
    pub async fn flush(&mut self) -> Result<(), TaskError> {
        for output in &mut self.0 {
            output.flush().await?;
        }
        Ok(())
    }

    /// [`Output::finish`] on all ports.
    ///
    /// # Errors
    /// As [`Output::send`].
    pub async fn finish(&mut self) -> Result<(), TaskError> {
        for output in &mut self.0 {
            output.finish().await?;
        }
        Ok(())
    }
}
