//! A task that takes messages from a queue, and acknowledges them when it is told to. It connects again when the server
//! has been away: what was not acknowledged comes again then, with other numbers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::stream::StreamExt;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, Consumer};
use tidemill_dataflow::TaskError;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::client::{PAUSE, RabbitMqServer, passes, told};

/// Messages that are given together at most.
const MESSAGES_MAX: usize = 1000;
/// Batches that wait to be taken.
const QUEUE: usize = 2;
/// How long a queue that has given all it has is left alone.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Which message of which connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DeliveryTag {
    pub(crate) connection: u64,
    pub(crate) number: u64,
}

pub(crate) struct QueueMessage {
    pub(crate) tag: DeliveryTag,
    /// What the server gave.
    pub(crate) delivery: Delivery,
}

pub(crate) enum QueueEvent {
    /// The connection was lost; its messages that are not acknowledged come again on another.
    Lost,
    Messages(Vec<QueueMessage>),
    /// There is nothing more now.
    CaughtUp,
}

/// What the task is asked to do.
enum QueueCommand {
    /// Acknowledge all up to this one; the number is told when the server has had it.
    Acknowledge(DeliveryTag, u64),
}

/// The task's other end. It ends when this is dropped, and what was not acknowledged comes again elsewhere.
pub(crate) struct QueueTask {
    events: mpsc::Receiver<Result<QueueEvent, TaskError>>,
    commands: mpsc::UnboundedSender<QueueCommand>,
    confirmed: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

/// What to read, and how.
#[derive(Clone)]
pub(crate) struct QueueOptions {
    pub(crate) server: RabbitMqServer,
    pub(crate) queue: String,
    pub(crate) prefetch: u16,
}

impl QueueTask {
    /// Within the runtime that the task is to run in.
    pub(crate) fn open(reading: QueueOptions) -> Self {
        let (sender, events) = mpsc::channel(QUEUE);
        let (commands, asked) = mpsc::unbounded_channel();
        let confirmed = Arc::new(AtomicU64::new(0));
        let taker = QueueConsumer {
            reading,
            events: sender,
            commands: asked,
            confirmed: Arc::clone(&confirmed),
            connections: 0,
        };
        QueueTask { events, commands, confirmed, task: tokio::spawn(taker.run()) }
    }

    pub(crate) fn poll(
        &mut self,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<QueueEvent, TaskError>> {
        self.events.poll_recv(context).map(|event| event.unwrap_or_else(|| Err("the task of a queue has died".into())))
    }

    /// Acknowledges all messages up to `tag`, unless its connection is lost; `number` is that of the acknowledgement.
    pub(crate) fn acknowledge(&self, tag: DeliveryTag, number: u64) {
        // A task that has ended has told why, or will.
        let _ = self.commands.send(QueueCommand::Acknowledge(tag, number));
    }

    /// The last acknowledgement that the server has had.
    pub(crate) fn confirmed(&self) -> u64 {
        self.confirmed.load(Ordering::Acquire)
    }
}

impl Drop for QueueTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct QueueConsumer {
    reading: QueueOptions,
    events: mpsc::Sender<Result<QueueEvent, TaskError>>,
    commands: mpsc::UnboundedReceiver<QueueCommand>,
    confirmed: Arc<AtomicU64>,
    connections: u64,
}

/// A connection that gives messages.
struct OpenChannel {
    /// Closes when it is dropped.
    _connection: Connection,
    channel: Channel,
    consumer: Consumer,
}

impl QueueConsumer {
    async fn run(mut self) {
        let error = loop {
            let mut open = match self.connect().await {
                Ok(open) => open,
                Err(error) => break error,
            };
            self.connections += 1;
            match self.take(&mut open).await {
                Ok(()) => return,
                // Told at once: how long messages are remembered goes by it.
                Err(error) if passes(&error) => {
                    if self.events.send(Ok(QueueEvent::Lost)).await.is_err() {
                        return;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => break self.failed(&error),
            }
        };
        // Nobody may be there to hear it.
        let _ = self.events.send(Err(error)).await;
    }

    async fn connect(&self) -> Result<OpenChannel, TaskError> {
        let begun = Instant::now();
        loop {
            match self.attempt().await {
                Ok(open) => return Ok(open),
                Err(error) if passes(&error) && begun.elapsed() < self.reading.server.patience => {
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(self.failed(&error)),
            }
        }
    }

    fn failed(&self, error: &lapin::Error) -> TaskError {
        let QueueOptions { server, queue, .. } = &self.reading;
        format!("rabbitmq {}, queue \"{queue}\": {}", server.name, told(error)).into()
    }

    async fn attempt(&self) -> lapin::Result<OpenChannel> {
        let QueueOptions { server, queue, prefetch, .. } = &self.reading;
        let connection = server.connect().await?;
        let channel = connection.create_channel().await?;
        look(&channel, queue).await?;
        channel.basic_qos(*prefetch, BasicQosOptions::default()).await?;
        let consume = BasicConsumeOptions::default();
        let consumer = channel.basic_consume(queue.as_str().into(), "".into(), consume, FieldTable::default()).await?;
        Ok(OpenChannel { _connection: connection, channel, consumer })
    }

    /// Until the connection is lost, or nobody wants more.
    async fn take(&mut self, open: &mut OpenChannel) -> lapin::Result<()> {
        let mut messages = Vec::new();
        let (mut last, mut acknowledged) = (0, 0);
        let mut told_end = false;
        loop {
            // What there is more at once goes along.
            while messages.len() < MESSAGES_MAX
                && let Some(Some(delivery)) = futures_util::FutureExt::now_or_never(open.consumer.next())
            {
                last = self.keep(delivery?, &mut messages);
            }
            tokio::select! {
                biased;
                command = self.commands.recv() => {
                    let Some(QueueCommand::Acknowledge(tag, number)) = command else { return Ok(()) };
                    if tag.connection == self.connections {
                        open.channel.basic_ack(tag.number, BasicAckOptions { multiple: true }).await?;
                        acknowledged = tag.number;
                        look(&open.channel, &self.reading.queue).await?;
                        self.confirmed.store(number, Ordering::Release);
                    }
                }
                permit = self.events.reserve(), if !messages.is_empty() => {
                    let Ok(permit) = permit else { return Ok(()) };
                    permit.send(Ok(QueueEvent::Messages(std::mem::take(&mut messages))));
                    told_end = false;
                }
                delivery = open.consumer.next(), if messages.is_empty() => match delivery {
                    Some(delivery) => last = self.keep(delivery?, &mut messages),
                    // The queue was deleted, or its host has gone.
                    None => return Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into()),
                },
                () = tokio::time::sleep(LOOK_INTERVAL), if messages.is_empty() && !told_end => {
                    // A queue that owes as many answers as it may has more.
                    let is_full = last - acknowledged >= u64::from(self.reading.prefetch);
                    if !is_full && look(&open.channel, &self.reading.queue).await? == 0 {
                        told_end = true;
                        if self.events.send(Ok(QueueEvent::CaughtUp)).await.is_err() {
                            return Ok(());
                        }
                    }
                }
            }
        }
    }

    /// Keeps a message; its number.
    fn keep(&self, delivery: Delivery, messages: &mut Vec<QueueMessage>) -> u64 {
        let number = delivery.delivery_tag;
        messages.push(QueueMessage { tag: DeliveryTag { connection: self.connections, number }, delivery });
        number
    }
}

/// How many messages a queue has that nobody was given.
async fn look(channel: &Channel, queue: &str) -> lapin::Result<u32> {
    let found = channel.queue_declare(queue.into(), QueueDeclareOptions::default().passive(), FieldTable::default());
    Ok(found.await?.message_count())
}
