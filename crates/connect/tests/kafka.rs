//! From topic to topic of a real Kafka, with failures of the job and of the broker: every record comes out once.

mod common;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, SchemaRef};
use common::kafka::Kafka;
use common::{Job, Random, schema, stop_when};
use serde_json::{Value, json};

const INTERVAL: Duration = Duration::from_millis(100);

fn events() -> SchemaRef {
    schema(&[("n", DataType::Int64), ("text", DataType::Utf8)])
}

fn row(n: i64) -> Vec<u8> {
    format!("{{\"n\":{n},\"text\":\"{}\"}}", "x".repeat(n as usize % 20)).into_bytes()
}

/// The numbers in a topic, sorted.
fn numbers(kafka: &Kafka, topic: &str) -> Vec<i64> {
    let number = |value: Option<Vec<u8>>| {
        let value: Value = serde_json::from_slice(&value.unwrap()).unwrap();
        value["n"].as_i64().unwrap()
    };
    let mut numbers: Vec<i64> = kafka.read(topic).into_iter().map(|found| number(found.value)).collect();
    numbers.sort_unstable();
    numbers
}

/// Sets a flag even if its thread panics: a job that waits for the flag then ends, and the panic is visible.
struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Jobs of any size that fail at any moment, with new partitions in between, and a broker that is killed under one of
/// them: readers of committed records see each record once.
#[test]
fn every_record_counts_once_across_failures() {
    let Some(kafka) = Kafka::start() else { return };
    kafka.create_topic("in", 3);
    kafka.create_topic("out", 2);
    let folder = tempfile::tempdir().unwrap();
    let mut source = json!({"kind": "kafka", "servers": kafka.servers(), "topic": "in", "discover_interval_s": 0.2});
    let sink = json!({
        "kind": "kafka", "servers": kafka.servers(), "topic": "out", "id": "copying", "key": "n", "patience_s": 120,
    });
    let mut random = Random(11);
    let mut written = 0i64;
    let mut partitions = 3;
    let mut produce = |kafka: &Kafka, rows: i64, partitions: i32| {
        let records = (written..written + rows).map(|n| ((n % i64::from(partitions)) as i32, Some(row(n))));
        kafka.produce("in", records);
        written += rows;
        written
    };
    let checkpoints = folder.path().join("checkpoints");
    for round in 0..4 {
        produce(&kafka, 5000, partitions);
        if round == 1 {
            partitions = 5;
            kafka.add_partitions("in", 5);
        }
        let job =
            Job { source: &source, schema: Some(events()), sink: &sink, checkpoints: &checkpoints, interval: INTERVAL };
        job.fail(1 + random.below(3) as u32, 1 + random.below(5000));
    }

    // One that keeps running while the broker is killed and comes back.
    let before = produce(&kafka, 5000, partitions) as usize;
    let job =
        Job { source: &source, schema: Some(events()), sink: &sink, checkpoints: &checkpoints, interval: INTERVAL };
    let over = AtomicBool::new(false);
    let after = thread::scope(|scope| {
        let look = scope.spawn(|| {
            let _over = SetWhenDropped(&over);
            let wait = |count: usize| {
                while numbers(&kafka, "out").len() < count {
                    thread::sleep(Duration::from_millis(50));
                }
            };
            wait(1);
            kafka.restart();
            wait(before);
            let after = produce(&kafka, 3000, partitions);
            kafka.restart();
            wait(after as usize);
            after
        });
        job.run(2, None, stop_when(|| over.load(Ordering::SeqCst))).unwrap();
        look.join().unwrap()
    });
    let expected: Vec<i64> = (0..after).collect();
    assert!(numbers(&kafka, "out") == expected, "after the restarts of the broker");

    // To the end, twice: the second time there is nothing to do.
    produce(&kafka, 1000, partitions);
    source["stop_at_end"] = json!(true);
    let job =
        Job { source: &source, schema: Some(events()), sink: &sink, checkpoints: &checkpoints, interval: INTERVAL };
    for workers in [3, 2] {
        job.run(workers, None, |_| Ok(())).unwrap();
        let found = numbers(&kafka, "out");
        assert!(found == (0..written).collect::<Vec<i64>>(), "{} records of {written}", found.len());
    }
    let found = kafka.read("out");
    assert!(found.iter().all(|record| record.key.is_some()) && found.iter().any(|record| record.partition == 1));
}

fn rows(numbers: std::ops::Range<i64>) -> RecordBatch {
    let texts = numbers.clone().map(|_| "t");
    let columns: [ArrayRef; 2] =
        [Arc::new(Int64Array::from_iter_values(numbers.clone())), Arc::new(StringArray::from_iter_values(texts))];
    RecordBatch::try_new(events(), columns.to_vec()).unwrap()
}

/// A repeated commit: by the same sink, by another one after a restart, and by one that does not know yet that another
/// has taken its place.
#[test]
fn commits_may_be_repeated() {
    let Some(kafka) = Kafka::start() else { return };
    kafka.create_topic("out", 2);
    let sink =
        json!({"kind": "kafka", "servers": kafka.servers(), "topic": "out", "id": "repeating", "patience_s": 120});
    common::with_sinks(&sink, &events(), async |make| {
        let mut old = make();
        old.write(rows(0..10)).await.unwrap();
        let first = old.prepare(1).await.unwrap();
        assert!(old.prepare(2).await.unwrap().is_empty());
        old.write(rows(10..20)).await.unwrap();
        let third = old.prepare(3).await.unwrap();
        old.write(rows(20..30)).await.unwrap();
        let lost = old.prepare(4).await.unwrap();
        assert_eq!(numbers(&kafka, "out").len(), 0, "nothing appears before the checkpoint is durable");
        old.commit(first.clone()).await.unwrap();
        old.commit(first.clone()).await.unwrap();
        assert_eq!(numbers(&kafka, "out"), (0..10).collect::<Vec<_>>());

        // It resumed from the checkpoint of epoch 3, which contains both.
        let mut new = make();
        new.commit(first.clone()).await.unwrap();
        new.commit(third.clone()).await.unwrap();
        old.commit(third.clone()).await.unwrap();
        old.commit(first).await.unwrap();
        assert_eq!(numbers(&kafka, "out"), (0..20).collect::<Vec<_>>());

        // Epoch 4 is a different one now.
        new.write(rows(20..40)).await.unwrap();
        let fourth = new.prepare(4).await.unwrap();
        new.commit(fourth.clone()).await.unwrap();
        assert_eq!(numbers(&kafka, "out"), (0..40).collect::<Vec<_>>());
        kafka.restart();
        make().commit(fourth).await.unwrap();
        // A run that was cut off, after the next run has already continued.
        old.commit(third).await.unwrap();
        assert_eq!(numbers(&kafka, "out"), (0..40).collect::<Vec<_>>());
        let error = make().commit(lost.slice(..lost.len() - 1)).await.unwrap_err().to_string();
        assert!(error.contains("truncated"), "{error}");
    });

    // A record that no broker accepts is an error before it is in a checkpoint.
    let mut small = sink.clone();
    small["record_bytes_max"] = json!(10);
    common::with_sinks(&small, &events(), async |make| {
        let error = make().write(rows(0..1)).await.unwrap_err().to_string();
        assert!(error.contains("`record_bytes_max` is 10"), "{error}");
    });
    small["record_bytes_max"] = json!(1000);
    small["epoch_bytes_max"] = json!(100);
    common::with_sinks(&small, &events(), async |make| {
        let mut sink = make();
        assert!(sink.fullness() < 0.5);
        sink.write(rows(0..9)).await.unwrap();
        assert!(sink.fullness() > 1.0);
        sink.prepare(1).await.unwrap();
        assert!(sink.fullness() < 0.5);
    });
}

/// An error that would otherwise occur in the first commit, after a durable checkpoint, occurs at the start.
#[test]
fn what_cannot_be_is_heard_at_once() {
    let Some(kafka) = Kafka::start() else { return };
    kafka.create_topic("out", 1);
    let sink = json!({"kind": "kafka", "servers": kafka.servers(), "topic": "out", "id": "early", "patience_s": 20});
    for (option, value, reason) in [
        ("topic", json!("nowhere"), "topic \"nowhere\" does not exist"),
        // Brokers allow 15 minutes by default.
        ("transaction_timeout_s", json!(3600), "no longer than their transaction.max.timeout.ms"),
    ] {
        let mut wrong = sink.clone();
        wrong[option] = value;
        common::with_sinks(&wrong, &events(), async |make| {
            let error = make().begin().await.unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        });
    }
    common::with_sinks(&sink, &events(), async |make| {
        let mut sink = make();
        sink.begin().await.unwrap();
        sink.write(rows(0..3)).await.unwrap();
        let prepared = sink.prepare(1).await.unwrap();
        sink.commit(prepared).await.unwrap();
    });
    assert_eq!(numbers(&kafka, "out"), [0, 1, 2]);
}

/// Malformed records of all kinds; and if they are errors, the error says where.
#[test]
fn poison_records() {
    let Some(kafka) = Kafka::start() else { return };
    kafka.create_topic("in", 2);
    kafka.create_topic("out", 1);
    let good = |n| Some(row(n));
    let values = [good(0), Some(b"{".to_vec()), good(1), None, Some(b"\xff".to_vec()), good(2), Some(Vec::new())];
    kafka.produce("in", values.into_iter().map(|value| (1, value)));
    let folder = tempfile::tempdir().unwrap();
    let aside = folder.path().join("aside");
    let mut source = json!({"kind": "kafka", "servers": kafka.servers(), "topic": "in", "stop_at_end": true});
    let sink = json!({
        "kind": "kafka", "servers": kafka.servers(), "topic": "out", "guarantee": "at_least_once",
    });
    for (round, on_error) in [json!("raise"), json!("skip"), json!({"quarantine": aside})].into_iter().enumerate() {
        source["on_error"] = on_error;
        let checkpoints = folder.path().join(round.to_string());
        let job =
            Job { source: &source, schema: Some(events()), sink: &sink, checkpoints: &checkpoints, interval: INTERVAL };
        let outcome = job.run(2, None, |_| Ok(()));
        if round == 0 {
            let error = outcome.unwrap_err().to_string();
            assert!(error.contains("topic \"in\", partition 1, offset 1: "), "{error}");
        } else {
            outcome.unwrap();
            let expected: Vec<i64> = (0..3).flat_map(|n| vec![n; round]).collect();
            assert_eq!(numbers(&kafka, "out"), expected);
        }
    }
    let file = fs::read_dir(&aside).unwrap().next().unwrap().unwrap().path();
    let lines: Vec<Value> =
        fs::read_to_string(file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut offsets: Vec<i64> = lines.iter().map(|line| line["offset"].as_i64().unwrap()).collect();
    offsets.sort_unstable();
    assert_eq!(offsets, [1, 3, 4, 6]);
    assert!(lines.iter().any(|line| line["hex"] == "ff") && lines.iter().all(|line| line["partition"] == 1));
    let text = |offset: i64| &lines.iter().find(|line| line["offset"] == offset).unwrap()["text"];
    assert_eq!((text(3), text(6)), (&Value::Null, &json!("")), "no value is another than an empty one");

    // The job does not wait for something impossible.
    let missing = json!({"kind": "kafka", "servers": kafka.servers(), "topic": "nowhere", "patience_s": 2});
    let checkpoints = folder.path().join("missing");
    let job =
        Job { source: &missing, schema: Some(events()), sink: &sink, checkpoints: &checkpoints, interval: INTERVAL };
    let error = job.run(1, None, |_| Ok(())).unwrap_err().to_string();
    assert!(error.contains("topic \"nowhere\" does not exist"), "{error}");
}
