//! Transactions: one for each copy and checkpoint, opened when the checkpoint is durable and closed at once.
//!
//! A transaction that were open from barrier to barrier would be lost when it takes longer than its timeout (the
//! records of a durable checkpoint with it), and would hold up readers of the topic all the time. So records wait in
//! the checkpoint instead, and to *commit* is to do these steps, as often as need be:
//!
//! 1. A producer with the origin's transactional id is initialized: whoever used it before is fenced, what he had open
//!    is aborted, what he was about to commit is committed.
//! 2. The *marker* is read: it is kept with the offset that the consumer group of this id has committed for partition 0
//!    of the topic, which is the last epoch that was committed. If it knows this run with no earlier epoch, all is
//!    done.
//! 3. One transaction has the records and the new marker.
//!
//! The check behind the fence, and records and marker in one transaction, make it exactly once: whoever comes after
//! sees the marker, and whoever came before can commit no more. After any error the next try begins at 1, so that it
//! does not matter whether the one before went through.
//!
//! The marker is kept as long as the brokers keep offsets of groups without members (`offsets.retention.minutes`, a
//! week unless they are told otherwise). A job that goes on after longer may repeat the records of its last checkpoint.

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

/// How long one call may take at least before all is begun anew.
const CALL: Duration = Duration::from_secs(30);
/// Between tries.
const PAUSE: Duration = Duration::from_millis(200);

/// Another run that was cut off fences us once or twice; who does it so often goes on for ever.
const FENCED_MAX: u32 = 5;

/// Commits what copies have prepared. Blocks: it has a thread of its own.
pub(crate) struct TransactionCommitter {
    pub(crate) connection: KafkaConnection,
    pub(crate) name: String,
    pub(crate) transaction_timeout: Duration,
    pub(crate) record_bytes_max: usize,
    pub(crate) patience: Duration,
    /// Commits that somebody else has broken off.
    pub(crate) fenced: u32,
    /// By transactional id.
    pub(crate) producers: HashMap<String, TransactionalProducer>,
}

/// A producer that was initialized, and has not been fenced as far as it knows.
pub(crate) struct TransactionalProducer {
    producer: BaseProducer<KafkaContext>,
    /// For the name of its group.
    consumer: BaseConsumer<KafkaContext>,
    marker: CommitMarker,
}

/// Of what a copy has prepared.
pub(crate) fn transactional_id(id: &str, copy: u32) -> String {
    format!("{id}-{copy}")
}

/// Whether somebody else has begun to write with the same transactional id.
fn is_fenced(error: &KafkaError) -> bool {
    use RDKafkaErrorCode as E;
    matches!(error.rdkafka_error_code(), Some(E::Fenced | E::ProducerFenced | E::InvalidProducerEpoch))
}

/// How long one call of a transaction may take: a large one at a slow network takes as long as brokers let it, and what
/// is begun anew takes as long again. Somewhat less than that, so that the reason is ours.
fn call(transaction_timeout: Duration) -> Duration {
    CALL.max(transaction_timeout.mul_f64(0.9))
}

/// What a producer of records is told, whether it has transactions or not.
pub(crate) fn producer_config(record_bytes_max: usize) -> [(&'static str, String); 4] {
    // A record has more than a key and a value.
    let message_bytes_max = (record_bytes_max + 1024).clamp(1000, 1_000_000_000).to_string();
    [
        ("enable.idempotence", "true".into()),
        ("message.max.bytes", message_bytes_max),
        ("linger.ms", "5".into()),
        // Records wait for the commit, not for us.
        ("queue.buffering.max.kbytes", "262144".into()),
    ]
}

/// Puts a record into the producer's queue, when there is room.
///
/// # Errors
/// The producer's.
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

/// A record's headers, of what is prepared of them.
///
/// # Errors
/// For bytes that are none.
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
    /// Initializes the producer that will commit what this copy prepares: what brokers do not allow is heard before
    /// there are rows.
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

    /// Makes what is prepared appear, once.
    ///
    /// # Errors
    /// What trying again does not help against, or the last thing that happened when patience is at its end.
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
            // Whatever state it is in, a new one brings order.
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

    /// One go at it. Outside are errors of what is prepared, inside those of Kafka.
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

    /// The one with this transactional id.
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
            // Not before what is being committed is there.
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
        // Deliveries have to be heard of before the commit, which does not listen.
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

/// Waits until all records that were sent are acknowledged.
///
/// # Errors
/// When one is not.
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

    /// A transaction that may take ten minutes was given up after half of one, again and again.
    #[test]
    fn calls_take_as_long_as_their_transaction() {
        for (timeout_s, limit_s) in [(1, 30), (33, 30), (60, 54), (600, 540)] {
            assert_eq!(call(Duration::from_secs(timeout_s)), Duration::from_secs(limit_s));
        }
    }
}
