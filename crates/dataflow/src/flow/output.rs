//! A copy's output ports: batches go in, credit is waited for, and every edge's mover sends them on.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use parking_lot::Mutex;

use super::edge::Edge;
use super::inlet::{Inlet, Packet};
use super::scatter::{Assign, Assignment, Scatter, Seat};
use super::{Mover, batch_bytes};
use crate::error::TaskError;
use crate::graph::check::fits;
use crate::link::{Account, Guard, Links, Valve};
use crate::metrics;
use crate::run::{CancelToken, block_on};
use crate::stream::{Hurry, Mark};
use crate::wire::{Encoder, Frame, Header, Kind};

/// A block is not much larger than this: batches that are, are cut.
const BLOCK_BYTES_MAX: u64 = 4 << 20;

/// What all streams of one copy's end of an edge share: whose they are, and what carries them.
struct Way {
    edge: Arc<Edge>,
    source: u32,
    links: Arc<Links>,
    /// Barriers that are not to wait for credit with what lies before them.
    hurry: Option<Hurry>,
}

/// The sending end of the stream to one target copy.
struct Lane {
    target: u32,
    place: Place,
    account: Arc<Account>,
    blocks: u64,
    rows: u64,
}

enum Place {
    Here { inlet: Arc<Inlet>, stream: u32, valve: Arc<Valve> },
    There { worker: u32, encoder: Option<Box<Encoder>> },
}

enum Route {
    Nowhere,
    One(Lane),
    Broadcast(Box<Broadcast>),
    Partition(Box<Partition>),
}

/// A stream for every target copy.
struct Partition {
    assign: Box<dyn Assign>,
    /// The targets of the rows of one batch; kept for its memory.
    targets: Vec<u32>,
    scatter: Scatter,
    lanes: Vec<Lane>,
}

/// One stream for all workers, and one for each copy of this one.
struct Broadcast {
    lanes: Vec<Lane>,
    encoder: Option<Box<Encoder>>,
    blocks: u64,
    rows: u64,
}

/// One copy's end of one edge.
pub(crate) struct Outlet {
    way: Way,
    route: Route,
    ended: bool,
}

impl Outlet {
    pub(crate) fn new(edge: &Arc<Edge>, source: u32, links: &Arc<Links>, hurry: Option<Hurry>) -> Self {
        let lane = |target: u32| {
            let (place, account) = match edge.inlet(source, target) {
                Some((inlet, stream)) => {
                    let valve = Valve::new(&edge.governor, edge.window_bytes);
                    (Place::Here { inlet, stream, valve }, Account::new(edge.window_bytes))
                }
                None => {
                    let worker = edge.target_workers[target as usize];
                    (Place::There { worker, encoder: None }, Arc::clone(edge.account(source, target)))
                }
            };
            Lane { target, place, account, blocks: 0, rows: 0 }
        };
        let route = match &edge.mover {
            Mover::Map(map) => map[source as usize].map_or(Route::Nowhere, |target| Route::One(lane(target))),
            Mover::Broadcast(_) => Route::Broadcast(Box::new(Broadcast {
                lanes: edge.neighbours(source).map(lane).collect(),
                encoder: None,
                blocks: 0,
                rows: 0,
            })),
            Mover::Partition(partitioner) => Route::Partition(Box::new(Partition {
                assign: partitioner.start(&Seat {
                    source,
                    targets: edge.targets(),
                    metrics: Arc::clone(&edge.metrics),
                    route: edge.route.clone(),
                }),
                targets: Vec::new(),
                scatter: Scatter::new(&edge.schema, edge.targets(), edge.batch_bytes),
                lanes: (0..edge.targets()).map(lane).collect(),
            })),
        };
        let way = Way { edge: Arc::clone(edge), source, links: Arc::clone(links), hurry };
        Outlet { way, route, ended: false }
    }

    /// Whether its end has been sent.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended
    }

    /// Whether any copy that it leads to still takes something. Of a broadcast, and of an edge that leads nowhere, nobody asks.
    fn is_wanted(&self) -> bool {
        match &self.route {
            Route::Nowhere | Route::Broadcast(_) => true,
            Route::One(lane) => !lane.is_stopped(),
            Route::Partition(partition) => !partition.lanes.iter().all(Lane::is_stopped),
        }
    }

    async fn send(&mut self, batch: RecordBatch) -> Result<(), TaskError> {
        metrics::add(&self.way.edge.metrics.rows_sent, batch.num_rows() as u64);
        match &mut self.route {
            Route::Nowhere => Ok(()),
            Route::One(lane) => lane.send(batch, &self.way).await,
            Route::Broadcast(broadcast) => broadcast.send(batch, &self.way).await,
            Route::Partition(partition) => partition.send(batch, &self.way).await,
        }
    }

    async fn flush(&mut self) -> Result<(), TaskError> {
        match &mut self.route {
            Route::Partition(partition) => partition.flush(&self.way).await,
            _ => Ok(()),
        }
    }

    /// Sends what is collected, and `mark` behind it.
    async fn mark(&mut self, mark: &Mark) -> Result<(), TaskError> {
        self.flush().await?;
        let way = &self.way;
        if let (Mark::Barrier(barrier), Some(hurry)) = (mark, &way.hurry) {
            hurry.pass(barrier.epoch);
        }
        match &mut self.route {
            Route::Nowhere => {}
            Route::One(lane) => lane.mark(mark, way),
            Route::Broadcast(broadcast) => {
                for &child in way.edge.children(way.source) {
                    way.links.send(child, mark.frame(way.header(Kind::Idle, u32::MAX, broadcast.blocks, 0)));
                }
                broadcast.lanes.iter().for_each(|lane| lane.mark(mark, way));
            }
            Route::Partition(partition) => {
                partition.lanes.iter().for_each(|lane| lane.mark(mark, way));
                if let Mark::Barrier(barrier) = mark
                    && let Some(map) = barrier.route_of(&way.edge.target_task)
                {
                    partition.assign.reroute(&Arc::new(map.clone()));
                }
            }
        }
        Ok(())
    }

    /// The stream to one copy, past the partitioner.
    fn lane(&mut self, target: u32) -> (&mut Lane, &Way) {
        match &mut self.route {
            Route::Partition(partition) => (&mut partition.lanes[target as usize], &self.way),
            _ => unreachable!("only of edges that partition"),
        }
    }

    /// Sends what is collected and says that this was all.
    pub(crate) async fn finish(&mut self) -> Result<(), TaskError> {
        if std::mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        self.flush().await?;
        let way = &self.way;
        match &self.route {
            Route::Nowhere => {}
            Route::One(lane) => lane.end(way),
            Route::Broadcast(broadcast) => {
                let header = way.header(Kind::End, u32::MAX, broadcast.blocks, broadcast.rows);
                let children = way.edge.children(way.source).iter();
                children.for_each(|&child| way.links.send(child, Frame::bare(&header)));
                broadcast.lanes.iter().for_each(|lane| lane.end(way));
            }
            Route::Partition(partition) => partition.lanes.iter().for_each(|lane| lane.end(way)),
        }
        Ok(())
    }
}

impl Way {
    /// `target` is `u32::MAX` for the one stream to all workers.
    fn header(&self, kind: Kind, target: u32, seq: u64, rows: u64) -> Header {
        Header { edge: self.edge.id, source: self.source, target, seq, rows, ..Header::new(kind, self.links.run) }
    }

    /// The frame of block `seq` of a stream, whose encoder is made with its first.
    fn block(
        &self,
        encoder: &mut Option<Box<Encoder>>,
        target: u32,
        seq: u64,
        piece: &RecordBatch,
    ) -> Result<Frame, TaskError> {
        let encoder = match encoder {
            Some(encoder) => encoder,
            None => encoder.insert(Box::new(Encoder::new(&self.edge.schema)?)),
        };
        let parts = encoder.encode(piece)?;
        Ok(Frame::new(&self.header(Kind::Batch, target, seq, piece.num_rows() as u64), &parts))
    }
}

/// The batch, in pieces that are not too large for a block.
fn pieces(batch: RecordBatch) -> impl Iterator<Item = RecordBatch> {
    let pieces = batch_bytes(&batch).div_ceil(BLOCK_BYTES_MAX).max(1) as usize;
    let rows = batch.num_rows();
    let step = rows.div_ceil(pieces).max(1);
    (0..rows).step_by(step).map(move |from| batch.slice(from, step.min(rows - from)))
}

impl Lane {
    /// Whether the receiver has let go of its end.
    fn is_stopped(&self) -> bool {
        match &self.place {
            Place::Here { inlet, stream, .. } => inlet.is_closed(*stream),
            Place::There { .. } => self.account.is_stopped(),
        }
    }

    async fn send(&mut self, batch: RecordBatch, way: &Way) -> Result<(), TaskError> {
        if self.is_stopped() {
            return Ok(());
        }
        let metrics = &way.edge.metrics;
        let waited = match &mut self.place {
            Place::Here { inlet, stream, valve } => {
                let bytes = batch_bytes(&batch) + 64;
                let waited = self.account.acquire(bytes, way.hurry.as_ref()).await;
                self.blocks += 1;
                self.rows += batch.num_rows() as u64;
                metrics::add(&metrics.local_blocks, 1);
                metrics::add(&metrics.local_bytes, bytes);
                inlet.push(*stream, Packet::Batch(batch, Arc::new(Guard::local(&self.account, valve, bytes))));
                waited
            }
            Place::There { worker, encoder } => {
                let mut waited = 0;
                for piece in pieces(batch) {
                    let frame = way.block(encoder, self.target, self.blocks, &piece)?;
                    waited += self.account.acquire(frame.len(), way.hurry.as_ref()).await;
                    self.blocks += 1;
                    self.rows += piece.num_rows() as u64;
                    metrics::add(&metrics.remote_blocks, 1);
                    metrics::add(&metrics.remote_bytes, frame.len());
                    way.links.send(*worker, frame);
                }
                waited
            }
        };
        metrics::add(&metrics.blocked_ns, waited);
        Ok(())
    }

    fn mark(&self, mark: &Mark, way: &Way) {
        match &self.place {
            Place::Here { inlet, stream, .. } => {
                inlet.push(*stream, Packet::Mark { mark: mark.clone(), blocks: self.blocks });
            }
            Place::There { worker, .. } => {
                way.links.send(*worker, mark.frame(way.header(Kind::Idle, self.target, self.blocks, 0)));
            }
        }
    }

    fn end(&self, way: &Way) {
        let (blocks, rows) = (self.blocks, self.rows);
        match &self.place {
            Place::Here { inlet, stream, .. } => inlet.push(*stream, Packet::End { blocks, rows }),
            Place::There { worker, .. } => {
                way.links.send(*worker, Frame::bare(&way.header(Kind::End, self.target, blocks, rows)));
            }
        }
    }
}

impl Partition {
    async fn send(&mut self, batch: RecordBatch, way: &Way) -> Result<(), TaskError> {
        self.targets.clear();
        match self.assign.assign(&batch, &mut self.targets)? {
            Assignment::Whole(target) => {
                let lane = self.lanes.get_mut(target as usize);
                let lane = lane.ok_or_else(|| format!("the partitioner named copy {target}, which there is not"))?;
                lane.send(batch, way).await
            }
            Assignment::ByRow if self.scatter.collect(batch, &self.targets)? => self.flush(way).await,
            Assignment::ByRow => Ok(()),
        }
    }

    async fn flush(&mut self, way: &Way) -> Result<(), TaskError> {
        for (target, batch) in self.scatter.drain()? {
            self.lanes[target as usize].send(batch, way).await?;
        }
        Ok(())
    }
}

impl Broadcast {
    async fn send(&mut self, batch: RecordBatch, way: &Way) -> Result<(), TaskError> {
        let edge = &way.edge;
        let children = edge.children(way.source);
        if !children.is_empty() {
            for piece in pieces(batch.clone()) {
                let frame = way.block(&mut self.encoder, u32::MAX, self.blocks, &piece)?.into_buffer();
                for &child in children {
                    let waited = edge.account(way.source, child).acquire(frame.len() as u64, None).await;
                    metrics::add(&edge.metrics.blocked_ns, waited);
                    metrics::add(&edge.metrics.remote_blocks, 1);
                    metrics::add(&edge.metrics.remote_bytes, frame.len() as u64);
                    way.links.send_shared(child, frame.clone());
                }
                self.blocks += 1;
                self.rows += piece.num_rows() as u64;
            }
        }
        for lane in &mut self.lanes {
            lane.send(batch.clone(), way).await?;
        }
        Ok(())
    }
}

/// An output port of a copy. When the task is done the port ends by itself.
pub struct Output {
    outlets: Vec<Outlet>,
    schema: SchemaRef,
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
        Output { outlets, schema, cancel, returned: Arc::clone(returned) }
    }

    /// The declared schema.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Whether anybody still takes what is sent: not if all receivers have let go of their ends. Who makes rows at a cost
    /// looks, and ends early; to send on is no error.
    pub fn is_wanted(&self) -> bool {
        self.outlets.is_empty() || self.outlets.iter().any(Outlet::is_wanted)
    }

    /// Sends a batch on all edges that begin here. Waits while a receiver has more than it can take.
    ///
    /// # Errors
    /// When the batch is not of the declared schema, or the exchange refuses it; `Cancelled`.
    pub async fn send(&mut self, batch: RecordBatch) -> Result<(), TaskError> {
        if !Arc::ptr_eq(batch.schema_ref(), &self.schema) {
            fits(batch.schema_ref(), &self.schema).map_err(|reason| format!("output port: {reason}"))?;
        }
        if batch.num_rows() == 0 {
            return Ok(());
        }
        if self.outlets.iter().any(Outlet::is_ended) {
            return Err("output port: a batch after its end".into());
        }
        if !self.is_wanted() {
            // A sender without an end that does not look would never wait again: nobody else would have its thread, and nothing
            // could end it.
            tokio::task::yield_now().await;
            return Ok(());
        }
        let Some((last, others)) = self.outlets.split_last_mut() else { return Ok(()) };
        for outlet in others {
            outlet.send(batch.clone()).await?;
        }
        last.send(batch).await
    }

    /// [`Output::send`] for a copy that blocks its thread.
    ///
    /// # Errors
    /// As [`Output::send`].
    pub fn send_blocking(&mut self, batch: RecordBatch) -> Result<(), TaskError> {
        let cancel = self.cancel.clone();
        block_on(cancel.guard(self.send(batch)))?
    }

    /// Sends what exchanges have collected to make larger batches of. For streams; a task's end does it anyway.
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
        block_on(cancel.guard(self.flush()))?
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
        let (lane, way) = self.outlets[0].lane(target);
        metrics::add(&way.edge.metrics.rows_sent, batch.num_rows() as u64);
        lane.send(batch, way).await
    }

    /// Sends a mark to one copy, as [`Output::send_to`] does.
    pub(crate) fn mark_to(&mut self, target: u32, mark: &Mark) {
        let (lane, way) = self.outlets[0].lane(target);
        lane.mark(mark, way);
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
}
