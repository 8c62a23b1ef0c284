//! A task that receives data, and the source that emits them, with a bounded queue in between. Senders may get a reply
//! when their rows have been taken, or when a checkpoint contains them.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use tidemill_dataflow::TaskError;
use tidemill_dataflow::stream::source::{Source, SourceEvent};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::bad_records::Decoded;

/// Number of batches that wait to be taken.
const QUEUE: usize = 64;
/// Small batches are emitted together, up to this many rows.
const ROWS_MAX: usize = 8192;
/// When a job ends: how long senders have to receive their replies.
const LAST_WORD: Duration = Duration::from_secs(2);

/// Tells the sender that its rows have arrived; dropping it, that they have not.
pub(crate) type Answer = oneshot::Sender<()>;
/// Rows with the bad records among them, and the sender to reply to.
pub(crate) type Taken = (Decoded, Option<Answer>);
/// The queue that the task writes to.
pub(crate) type Sender = mpsc::Sender<Taken>;

type Run = Box<dyn FnOnce(Sender) -> BoxFuture<'static, Result<(), TaskError>> + Send>;

/// Sends rows once there is room. Returns false if no more are wanted.
pub(crate) async fn give(sender: &Sender, (rows, bad): Decoded) -> bool {
    rows.num_rows() == 0 && bad.is_none() || sender.send(((rows, bad), None)).await.is_ok()
}

/// The source.
pub(crate) struct LineTap {
    schema: SchemaRef,
    /// Set until it runs.
    run: Option<Run>,
    task: Option<JoinHandle<Result<(), TaskError>>>,
    taken: mpsc::Receiver<Taken>,
    sender: Option<Sender>,
    /// Whether replies wait for checkpoints.
    waits: bool,
    told_end: bool,
    current: Vec<Answer>,
    /// Replies by the epoch of the barrier.
    pending: BTreeMap<u64, Vec<Answer>>,
}

impl LineTap {
    /// A source of what `run` sends, until it returns.
    pub(crate) fn new<F>(schema: SchemaRef, waits: bool, run: impl FnOnce(Sender) -> F + Send + 'static) -> Self
    where
        F: Future<Output = Result<(), TaskError>> + Send + 'static,
    {
        let (sender, taken) = mpsc::channel(QUEUE);
        LineTap {
            schema,
            run: Some(Box::new(|sender| Box::pin(run(sender)))),
            task: None,
            taken,
            sender: Some(sender),
            waits,
            told_end: false,
            current: Vec::new(),
            pending: BTreeMap::new(),
        }
    }

    fn answer(answers: Vec<Answer>) {
        for answer in answers {
            // The sender may be gone.
            let _ = answer.send(());
        }
    }

    /// How the task has ended.
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<Result<(), TaskError>> {
        let Some(task) = &mut self.task else { return Poll::Ready(Ok(())) };
        let Poll::Ready(ended) = Pin::new(task).poll(context) else { return Poll::Pending };
        self.task = None;
        Poll::Ready(ended.unwrap_or_else(|error| Err(format!("the task of a source has died: {error}").into())))
    }
}

impl Drop for LineTap {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Source for LineTap {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<SourceEvent, TaskError>> {
        if let (Some(run), Some(sender)) = (self.run.take(), self.sender.take()) {
            self.task = Some(tokio::spawn(run(sender)));
        }
        if !self.waits {
            // The last batch has been taken.
            Self::answer(std::mem::take(&mut self.current));
        }
        let (mut batches, mut bad, mut rows) = (Vec::new(), Vec::new(), 0);
        let is_over = loop {
            match self.taken.poll_recv(context) {
                Poll::Ready(Some(((batch, wrong), answer))) => {
                    rows += batch.num_rows() + wrong.as_ref().map_or(0, RecordBatch::num_rows);
                    batches.push(batch);
                    bad.extend(wrong);
                    self.current.extend(answer);
                    if rows >= ROWS_MAX {
                        break false;
                    }
                }
                Poll::Ready(None) => break true,
                Poll::Pending => break false,
            }
        };
        if rows > 0 {
            self.told_end = false;
            let bad = bad.first().map(|first| concat_batches(first.schema_ref(), &bad)).transpose()?;
            return Poll::Ready(Ok(SourceEvent::Rows { split: 0, rows: concat_batches(&self.schema, &batches)?, bad }));
        }
        if is_over {
            return self.poll_end(context).map_ok(|()| SourceEvent::End);
        }
        if !std::mem::replace(&mut self.told_end, true) {
            return Poll::Ready(Ok(SourceEvent::Idle { split: 0, at: Instant::now() }));
        }
        Poll::Pending
    }

    fn barrier(&mut self, epoch: u64) {
        let answers = std::mem::take(&mut self.current);
        match self.waits {
            true => self.pending.entry(epoch).or_default().extend(answers),
            false => Self::answer(answers),
        }
    }

    fn snapshot(&mut self) -> Result<Vec<(String, Bytes)>, TaskError> {
        Ok(Vec::new())
    }

    fn durable(&mut self, epoch: u64) {
        while let Some(entry) = self.pending.first_entry().filter(|entry| *entry.key() <= epoch) {
            Self::answer(entry.remove());
        }
        if epoch == u64::MAX {
            Self::answer(std::mem::take(&mut self.current));
        }
    }

    fn is_replayable(&self) -> bool {
        false
    }

    fn finishes_after_commit(&self) -> bool {
        true
    }

    fn finish(&mut self) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(async {
            // This tells the task that no more rows are wanted; it ends once its replies have been sent.
            self.taken.close();
            while self.taken.recv().await.is_some() {}
            let ended = std::future::poll_fn(|context| self.poll_end(context));
            drop(tokio::time::timeout(LAST_WORD, ended).await);
            Ok(())
        })
    }
}
