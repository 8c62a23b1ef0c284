//! Transactions: one for each copy and checkpoint, opened when the checkpoint is durable and finished at once.
//!
//! A transaction that is open from barrier to barrier would be lost when it exceeds its timeout (together with the
//! records of a durable checkpoint), and would hold up readers of the topic all the time. So records wait in the
//! checkpoint instead, and a *commit* consists of these steps, repeated as often as necessary:
//!
//! 1. A producer with the origin's transactional id is initialized. This fences any earlier user of the id; its open
//!    transaction is aborted, and a transaction that it was about to commit is committed.
//! 2. The *marker* is read. It is the last committed epoch, stored with the offset that the consumer group of this id
//!    has committed for partition 0 of the topic. If it contains this run with this epoch or a later one, everything is
//!    done.
//! 3. One transaction writes the records and the new marker.
//!
//! The check after the fence, and the single transaction for records and marker, make this exactly once: any later user
//! sees the marker, and any earlier user can no longer commit. After any error the next attempt starts at 1, so it does
//! not matter whether the previous one succeeded.
//!
//! The brokers keep the marker as long as they keep offsets of groups without members (`offsets.retention.minutes`, a
//! week by default). A job that resumes later than that may repeat the records of its last checkpoint.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header as RecordHeader, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tidemill_dataflow::TaskError;

use super::client::{KafkaConnection, KafkaContext, failed, is_final, plain};
use crate::prepared_commit::{CommitMarker, PreparedHeader, Record, open, records, with_headers};

/// Minimum time for one call before everything starts over.
const CALL: Duration = Duration::from_secs(30);
/// Time between attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// Another run that was cut off fences this one once or twice; one that does it more often is still running.
const FENCED_MAX: u32 = 5;

/// Commits what copies have prepared. Blocks, so it has its own thread.
pub(crate) struct TransactionCommitter {
    pub(crate) connection: KafkaConnection,
    pub(crate) name: String,
    pub(crate) transaction_timeout: Duration,
    pub(crate) record_bytes_max: usize,
    pub(crate) patience: Duration,
    /// Number of commits that another run has aborted.
    pub(crate) fenced: u32,
    /// Producers by transactional id.
    pub(crate) producers: HashMap<String, TransactionalProducer>,
}

/// An initialized producer that, as far as it knows, has not been fenced.
pub(crate) struct TransactionalProducer {
    producer: BaseProducer<KafkaContext>,
    /// Provides the name of its group.
    consumer: BaseConsumer<KafkaContext>,
    marker: CommitMarker,
}

/// The transactional id for what a copy has prepared.
pub(crate) fn transactional_id(id: &str, copy: u32) -> String {
    format!("{id}-{copy}")
}

/// Whether another client has started to use the same transactional id.
fn is_fenced(error: &KafkaError) -> bool {
    use RDKafkaErrorCode as E;
    matches!(error.rdkafka_error_code(), Some(E::Fenced | E::ProducerFenced | E::InvalidProducerEpoch))
}

/// How long one call of a transaction may take. A large transaction on a slow network takes as long as brokers allow,
/// and starting over would take as long again. Slightly less than the timeout, so that the error is ours.
fn call(transaction_timeout: Duration) -> Duration {
    CALL.max(transaction_timeout.mul_f64(0.9))
}

/// The configuration of a producer of records, with or without transactions.
pub(crate) fn producer_config(record_bytes_max: usize) -> [(&'static str, String); 4] {
    // A record consists of more than key and value.
    let message_bytes_max = (record_bytes_max + 1024).clamp(1000, 1_000_000_000).to_string();
    [
        ("enable.idempotence", "true".into()),
        ("message.max.bytes", message_bytes_max),
        ("linger.ms", "5".into()),
        // Records wait for the commit, not for the producer.
        ("queue.buffering.max.kbytes", "262144".into()),
    ]
}

/// Appends a record to the producer's queue once there is room.
///
/// # Errors
/// Those of the producer.
pub(crate) fn send(
    producer: &BaseProducer<KafkaContext>,
    topic: &str,
    (key, value): Record<'_>,
    headers: Option<OwnedHeaders>,
    patience: Duration,
) -> Result<(), KafkaError> {
    let begun = Instant::now();
    let mut record = BaseRecord::<[u8], [u8]>::to(topic);
    (record.key, record.payload, record.headers) = (key, value, headers);
    loop {
        match producer.send(record) {
            Ok(()) => return Ok(()),
            Err((error, back)) => match error.rdkafka_error_code() {
                Some(RDKafkaErrorCode::QueueFull) if begun.elapsed() < patience => {
                    producer.poll(Duration::from_millis(20));
                    record = back;
                }
                _ => return Err(error),
            },
        }
    }
}

/// A record's headers, from their prepared form.
///
/// # Errors
/// For malformed bytes.
pub(crate) fn headers(bytes: Option<&[u8]>) -> Result<Option<OwnedHeaders>, TaskError> {
    let mut headers = None;
    for header in records(bytes.unwrap_or_default()) {
        let (name, value) = header?;
        let key = std::str::from_utf8(name.unwrap_or_default())?;
        headers = Some(headers.unwrap_or_else(OwnedHeaders::new).insert(RecordHeader { key, value }));
    }
    Ok(headers)
}

impl TransactionCommitter {
    /// Initializes the producer that will commit what this copy prepares, so that missing permissions are detected
    /// before there are rows.
    ///
    /// # Errors
    /// As [`TransactionCommitter::commit`].
    pub(crate) fn begin(&mut self, id: &str, topic: &str) -> Result<(), TaskError> {
        let begun = Instant::now();
        loop {
            let error = match self.producer(id, topic) {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            if is_final(&error) || begun.elapsed() >= self.patience {
                let text = match error.rdkafka_error_code() {
                    Some(RDKafkaErrorCode::InvalidTransactionTimeout) => format!(
                        "the brokers do not allow transactions of {:.0?}: set `transaction_timeout` no longer than \
                         their transaction.max.timeout.ms",
                        self.transaction_timeout
                    ),
                    _ => format!("cannot begin transactions as \"{id}\": {}", plain(&error)),
                };
                return Err(format!("kafka topic \"{topic}\": {text}").into());
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Commits what is prepared, exactly once.
    ///
    /// # Errors
    /// A failure that another attempt cannot fix, or the last failure when patience runs out.
    pub(crate) fn commit(&mut self, prepared: &[u8]) -> Result<(), TaskError> {
        let (header, bytes) = open(prepared)?;
        let id = transactional_id(&header.id, header.origin);
        let begun = Instant::now();
        let (mut told, mut was_fenced) = (false, false);
        loop {
            let error = match self.attempt(&id, &header, bytes)? {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            // Whatever state the old one is in, a new producer sorts it out.
            self.producers.remove(&id);
            if is_fenced(&error) && !std::mem::replace(&mut was_fenced, true) {
                self.fenced += 1;
            }
            if self.fenced >= FENCED_MAX {
                return Err(format!(
                    "kafka topic \"{}\": another job also writes with the id \"{}\", and the two abort each other's \
                     transactions: give each job its own id (or, if there is no other job, raise \
                     `transaction_timeout`: brokers abort what takes longer)",
                    header.target, header.id
                )
                .into());
            }
            if is_final(&error) || begun.elapsed() >= self.patience {
                let text = format!("epoch {} could not be committed: {}", header.epoch, plain(&error));
                return Err(format!("kafka topic \"{}\": {text}", header.target).into());
            }
            if !std::mem::replace(&mut told, true) {
                eprintln!("tidemill: kafka, {}: retrying a commit: {}", self.name, plain(&error));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// One attempt. The outer errors are those of the prepared data, the inner ones those of Kafka.
    fn attempt(
        &mut self,
        id: &str,
        header: &PreparedHeader,
        bytes: &[u8],
    ) -> Result<Result<(), KafkaError>, TaskError> {
        let limit = call(self.transaction_timeout);
        let transactional = match self.producer(id, &header.target) {
            Ok(transactional) => transactional,
            Err(error) => return Ok(Err(error)),
        };
        if transactional.marker.has(header) {
            return Ok(Ok(()));
        }
        let producer = &transactional.producer;
        if let Err(error) = producer.begin_transaction() {
            return Ok(Err(error));
        }
        let mut sent = 0;
        for record in with_headers(bytes, header.headed) {
            let (record, of) = record?;
            if let Err(error) = send(producer, &header.target, record, headers(of)?, limit) {
                return Ok(Err(error));
            }
            sent += 1;
        }
        if sent != header.records {
            return Err(format!("the checkpoint has {sent} of {} records", header.records).into());
        }
        Ok(transactional.finish(header, limit))
    }

    /// The producer with this transactional id.
    fn producer(&mut self, id: &str, topic: &str) -> Result<&mut TransactionalProducer, KafkaError> {
        if !self.producers.contains_key(id) {
            let producer = self.initialize(id, topic)?;
            self.producers.insert(id.to_owned(), producer);
        }
        Ok(self.producers.get_mut(id).expect("it was made above"))
    }

    fn initialize(&self, id: &str, topic: &str) -> Result<TransactionalProducer, KafkaError> {
        let timeout_ms = self.transaction_timeout.as_millis().to_string();
        let config = producer_config(self.record_bytes_max);
        let mut config: Vec<(&str, &str)> = config.iter().map(|(name, value)| (*name, value.as_str())).collect();
        config.extend([("transactional.id", id), ("transaction.timeout.ms", timeout_ms.as_str())]);
        let producer: BaseProducer<KafkaContext> =
            self.connection.producer_config(&config).create_with_context(self.connection.context(&self.name))?;
        producer.init_transactions(CALL)?;
        let config = self.connection.config(&[
            ("group.id", id),
            ("enable.auto.commit", "false"),
            // Waits for transactions that are being committed.
            ("isolation.level", "read_committed"),
        ]);
        let context = self.connection.context(&self.name).beside_a_producer();
        let consumer: BaseConsumer<KafkaContext> = config.create_with_context(context)?;
        let mut wanted = TopicPartitionList::new();
        wanted.add_partition(topic, 0);
        let committed = consumer.committed_offsets(wanted, CALL)?;
        let mut marker = CommitMarker::default();
        if let Some(element) = committed.elements().first() {
            element.error()?;
            marker = CommitMarker::parse(element.metadata());
        }
        Ok(TransactionalProducer { producer, consumer, marker })
    }
}

impl TransactionalProducer {
    fn finish(&mut self, header: &PreparedHeader, limit: Duration) -> Result<(), KafkaError> {
        // Delivery failures must be known before the commit, which does not look at them.
        let flushed = self.producer.flush(limit);
        if let Some(code) = self.producer.context().take_undelivered() {
            return Err(KafkaError::MessageProduction(code));
        }
        flushed?;
        let mut offsets = TopicPartitionList::new();
        offsets.add_partition_offset(&header.target, 0, Offset::Offset(header.epoch as i64))?;
        let marker = self.marker.with(header);
        offsets.elements()[0].set_metadata(marker.to_string());
        let group = self.consumer.group_metadata().ok_or(KafkaError::Canceled)?;
        self.producer.send_offsets_to_transaction(&offsets, &group, limit)?;
        self.producer.commit_transaction(limit)?;
        self.marker = marker;
        Ok(())
    }
}

/// Waits until all sent records are acknowledged.
///
/// # Errors
/// If a record is not.
pub(crate) fn flush(producer: &BaseProducer<KafkaContext>, topic: &str, patience: Duration) -> Result<(), TaskError> {
    let flushed = producer.flush(patience);
    if let Some(code) = producer.context().take_undelivered() {
        return Err(failed(topic, &KafkaError::MessageProduction(code)));
    }
    flushed.map_err(|error| failed(topic, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Transactions that could take ten minutes were abandoned after half a minute, again and again.
    #[test]
    fn calls_take_as_long_as_their_transaction() {
        for (timeout_s, limit_s) in [(1, 30), (33, 30), (60, 54), (600, 540)] {
            assert_eq!(call(Duration::from_secs(timeout_s)), Duration::from_secs(limit_s));
        }
    }
}
