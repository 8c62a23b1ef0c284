//! A task that receives messages from a queue, and acknowledges them on command. It reconnects after the server has
//! been unreachable: unacknowledged messages are then redelivered with other numbers.

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

/// Maximum number of messages in a batch.
const MESSAGES_MAX: usize = 1000;
/// Number of batches that wait to be taken.
const QUEUE: usize = 2;
/// Time between checks of a queue that had nothing more.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Identifies a message and its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DeliveryTag {
    pub(crate) connection: u64,
    pub(crate) number: u64,
}

pub(crate) struct QueueMessage {
    pub(crate) tag: DeliveryTag,
    /// The message from the server.
    pub(crate) delivery: Delivery,
}

pub(crate) enum QueueEvent {
    /// The connection was lost; unacknowledged messages are redelivered on another one.
    Lost,
    Messages(Vec<QueueMessage>),
    /// There are no more messages for now.
    CaughtUp,
}

/// A command for the task.
enum QueueCommand {
    /// Acknowledge all messages up to this one; the number is reported once the server has received it.
    Acknowledge(DeliveryTag, u64),
}

/// The handle of the task. Dropping it ends the task, and unacknowledged messages are redelivered elsewhere.
pub(crate) struct QueueTask {
    events: mpsc::Receiver<Result<QueueEvent, TaskError>>,
    commands: mpsc::UnboundedSender<QueueCommand>,
    confirmed: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

/// The queue to read, and how to read it.
#[derive(Clone)]
pub(crate) struct QueueOptions {
    pub(crate) server: RabbitMqServer,
    pub(crate) queue: String,
    pub(crate) prefetch: u16,
}

impl QueueTask {
    /// Starts the task in the current runtime.
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

    /// Acknowledges all messages up to `tag`, unless its connection is lost; `number` is the acknowledgment's number.
    pub(crate) fn acknowledge(&self, tag: DeliveryTag, number: u64) {
        // A task that has ended has reported its error, or will.
        let _ = self.commands.send(QueueCommand::Acknowledge(tag, number));
    }

    /// The last acknowledgment that the server has received.
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

/// A connection that delivers messages.
struct OpenChannel {
    /// Closes on drop.
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
                // Reported at once, because it determines how long messages are remembered.
                Err(error) if passes(&error) => {
                    if self.events.send(Ok(QueueEvent::Lost)).await.is_err() {
                        return;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => break self.failed(&error),
            }
        };
        // The receiver may be gone.
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

    /// Runs until the connection is lost, or until no more messages are wanted.
    async fn take(&mut self, open: &mut OpenChannel) -> lapin::Result<()> {
        let mut messages = Vec::new();
        let (mut last, mut acknowledged) = (0, 0);
        let mut told_end = false;
        loop {
            // Takes along further messages that are available immediately.
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
                    // The queue was deleted, or its host is gone.
                    None => return Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into()),
                },
                () = tokio::time::sleep(LOOK_INTERVAL), if messages.is_empty() && !told_end => {
                    // A queue with the maximum number of unacknowledged messages has more.
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

    /// Adds a message and returns its number.
    fn keep(&self, delivery: Delivery, messages: &mut Vec<QueueMessage>) -> u64 {
        let number = delivery.delivery_tag;
        messages.push(QueueMessage { tag: DeliveryTag { connection: self.connections, number }, delivery });
        number
    }
}

/// The number of undelivered messages in a queue.
async fn look(channel: &Channel, queue: &str) -> lapin::Result<u32> {
    let found = channel.queue_declare(queue.into(), QueueDeclareOptions::default().passive(), FieldTable::default());
    Ok(found.await?.message_count())
}
