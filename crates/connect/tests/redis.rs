//! Into and out of a real Redis.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, SchemaRef};
use common::redis::Redis;
use common::{Job, Random, schema};
use serde_json::{Value, json};

fn counts() -> SchemaRef {
    schema(&[("campaign", DataType::Utf8), ("window", DataType::Int64), ("count", DataType::Int64)])
}

fn rows(count: &[Option<i64>]) -> RecordBatch {
    let campaigns = StringArray::from_iter_values((0..count.len()).map(|n| format!("c{}", n % 2)));
    let windows = Int64Array::from_iter_values((0..count.len()).map(|n| n as i64 / 2));
    let columns: [ArrayRef; 3] = [Arc::new(campaigns), Arc::new(windows), Arc::new(Int64Array::from(count.to_vec()))];
    RecordBatch::try_new(counts(), columns.to_vec()).unwrap()
}

fn hash(redis: &Redis, key: &str) -> BTreeMap<String, String> {
    redis::cmd("HGETALL").arg(key).query(&mut redis.connect()).unwrap()
}

/// Hashes that are set and added to, with repeated commits, also by a run that does not know that another has followed.
#[test]
fn hashes_are_written_once() {
    let Some(redis) = Redis::start() else { return };
    let sink = json!({
        "kind": "redis", "url": redis.url(), "password": "swordfish", "key": ["campaign", "window"], "prefix": "ad:",
        "increment": ["count"], "expire_s": 1000, "id": "counting",
    });
    common::with_sinks(&sink, &counts(), async |make| {
        let mut old = make();
        old.write(rows(&[Some(1), Some(2), Some(3)])).await.unwrap();
        let first = old.prepare(1).await.unwrap();
        assert!(hash(&redis, "ad:c0:0").is_empty(), "nothing appears before the checkpoint is durable");
        old.write(rows(&[Some(10), None])).await.unwrap();
        let second = old.prepare(2).await.unwrap();
        old.commit(first.clone()).await.unwrap();
        old.commit(first.clone()).await.unwrap();
        let mut new = make();
        new.commit(first.clone()).await.unwrap();
        new.commit(second.clone()).await.unwrap();
        // A run that was cut off, after the next run has already continued.
        new.write(rows(&[Some(100)])).await.unwrap();
        let third = new.prepare(3).await.unwrap();
        new.commit(third).await.unwrap();
        old.commit(second).await.unwrap();
        old.commit(first).await.unwrap();
    });
    let field = |key: &str| hash(&redis, key).get("count").cloned().unwrap_or_default();
    assert_eq!(["ad:c0:0", "ad:c1:0", "ad:c0:1"].map(field), ["111", "2", "3"]);
    let left: i64 = redis::cmd("TTL").arg("ad:c0:0").query(&mut redis.connect()).unwrap();
    assert!(left > 0);

    let mut set = sink.clone();
    set["increment"] = json!([]);
    set["guarantee"] = json!("at_least_once");
    common::with_sinks(&set, &counts(), async |make| {
        let mut sink = make();
        sink.write(rows(&[Some(7), None])).await.unwrap();
        assert_eq!(field("ad:c0:0"), "7");
        assert_eq!(hash(&redis, "ad:c1:0"), BTreeMap::new(), "a field that is null is gone");
        assert!(sink.prepare(1).await.unwrap().is_empty());
    });

    // A key of another type causes an error that names the server, but not the password.
    let _: () = redis::cmd("SET").arg("ad:c0:0").arg("x").query(&mut redis.connect()).unwrap();
    common::with_sinks(&set, &counts(), async |make| {
        let error = make().write(rows(&[Some(7)])).await.unwrap_err().to_string();
        assert!(error.contains("WRONGTYPE") && error.contains("127.0.0.1") && !error.contains("swordfish"), "{error}");
    });
    set["password"] = json!("sharkfish");
    common::with_sinks(&set, &counts(), async |make| {
        let error = make().write(rows(&[Some(7)])).await.unwrap_err().to_string();
        assert!(!error.contains("sharkfish"), "{error}");
    });
    set["url"] = json!("rediss:/:sharkfish@x");
    let error =
        tidemill_connect::sink(&set, &counts(), &tidemill_storage::ObjectStores::default()).unwrap_err().to_string();
    assert!(error.contains("`url` must be") && !error.contains("sharkfish"), "{error}");
}

/// A stream that is added later is read from its beginning, by one copy, and the earlier streams are not read again.
#[test]
fn streams_that_are_named_later() {
    let Some(redis) = Redis::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = folder.path().join("checkpoints");
    let sink = json!({"kind": "redis", "url": redis.url(), "password": "swordfish", "stream": "out", "id": "later"});
    let fields = schema(&[("n", DataType::Int64), ("even", DataType::Boolean)]);
    let copied = || -> Vec<(String, BTreeMap<String, String>)> {
        redis::cmd("XRANGE").arg("out").arg(&["-", "+"]).query(&mut redis.connect()).unwrap()
    };
    let rounds: [(&[&str], &[&str]); 3] =
        [(&["a"], &["a"]), (&["a", "b", "b"], &["c", "b", "a"]), (&["c"], &["b", "c"])];
    let mut written: i64 = 0;
    for (added, streams) in rounds {
        for stream in added {
            let even = if written % 2 == 0 { "true" } else { "false" };
            let mut add = redis::cmd("XADD");
            add.arg(stream).arg(&["*", "even", even, "other", "x", "n"]).arg(written);
            let _: String = add.query(&mut redis.connect()).unwrap();
            written += 1;
        }
        let source = json!({"kind": "redis", "url": redis.url(), "password": "swordfish", "streams": streams});
        let (schema, interval) = (Some(Arc::clone(&fields)), Duration::from_millis(30));
        let job = Job { source: &source, schema, sink: &sink, checkpoints: &checkpoints, interval };
        job.run(2, None, common::stop_when(|| copied().len() as i64 >= written)).unwrap();
        let mut found: Vec<(i64, bool)> =
            copied().iter().map(|(_, fields)| (fields["n"].parse().unwrap(), fields["even"] == "true")).collect();
        found.sort_unstable();
        assert_eq!(found, (0..written).map(|n| (n, n % 2 == 0)).collect::<Vec<_>>());
    }
}

/// Entries trimmed while a job is down must not be skipped silently; those that it had already read may go.
#[test]
fn entries_that_are_gone() {
    let Some(redis) = Redis::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = json!({"kind": "redis", "url": redis.url(), "password": "swordfish", "streams": ["in"]});
    let sink = json!({"kind": "redis", "url": redis.url(), "password": "swordfish", "stream": "out", "id": "gone"});
    let numbers = schema(&[("n", DataType::Int64)]);
    let add = |count: i64| {
        let mut pipeline = redis::pipe();
        for n in 0..count {
            pipeline.cmd("XADD").arg("in").arg(&["*", "n"]).arg(n).ignore();
        }
        let _: () = pipeline.query(&mut redis.connect()).unwrap();
    };
    let keep = |count: i64| {
        let _: i64 = redis::cmd("XTRIM").arg("in").arg("MAXLEN").arg(count).query(&mut redis.connect()).unwrap();
    };
    let copied = || -> i64 { redis::cmd("XLEN").arg("out").query(&mut redis.connect()).unwrap() };
    let checkpoints = folder.path().join("checkpoints");
    let interval = Duration::from_millis(30);
    let run = |until: i64| {
        let job = Job {
            source: &source,
            schema: Some(Arc::clone(&numbers)),
            sink: &sink,
            checkpoints: &checkpoints,
            interval,
        };
        job.run(1, None, common::stop_when(|| copied() >= until))
    };
    add(20);
    keep(15);
    run(15).expect("what was trimmed before the job began is no loss of its own");
    add(10);
    keep(10);
    run(25).expect("it had read what was trimmed");
    keep(0);
    add(5);
    run(30).expect("and the last entry, too");
    add(10);
    keep(7);
    let error = run(40).unwrap_err().to_string();
    assert!(error.contains("redis stream \"in\": 3 entries after ") && error.contains("MAXLEN"), "{error}");
    let _: i64 = redis::cmd("DEL").arg("in").query(&mut redis.connect()).unwrap();
    add(2);
    let error = run(40).unwrap_err().to_string();
    assert!(error.contains("it was recreated"), "{error}");
    assert_eq!(copied(), 30);
}

/// From streams to a stream, with malformed entries, and jobs of any size that fail and resume.
#[test]
fn every_entry_counts_once_across_failures() {
    let Some(redis) = Redis::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (checkpoints, aside) = (folder.path().join("checkpoints"), folder.path().join("aside"));
    let mut source = json!({
        "kind": "redis", "url": redis.url(), "password": "swordfish", "streams": ["a", "b", "c"],
        "on_error": {"quarantine": aside},
    });
    let sink = json!({"kind": "redis", "url": redis.url(), "password": "swordfish", "stream": "out", "id": "copying"});
    let numbers = schema(&[("n", DataType::Int64)]);
    let mut random = Random(5);
    let mut written = 0;
    for round in 0..5 {
        let mut pipeline = redis::pipe();
        for _ in 0..4000 {
            let stream = ["a", "b"][random.below(2) as usize];
            pipeline.cmd("XADD").arg(stream).arg(&["*", "n"]).arg(written).ignore();
            written += 1;
        }
        pipeline.cmd("XADD").arg("b").arg(&["*", "n", "nonsense"]).ignore();
        let _: () = pipeline.query(&mut redis.connect()).unwrap();
        let is_last = round == 4;
        source["stop_at_end"] = json!(is_last);
        let job = Job {
            source: &source,
            schema: Some(Arc::clone(&numbers)),
            sink: &sink,
            checkpoints: &checkpoints,
            interval: Duration::from_millis(30),
        };
        let workers = 1 + random.below(3) as u32;
        match is_last {
            true => job.run(workers, None, |_| Ok(())).unwrap(),
            false => job.fail(workers, 1 + random.below(4000)),
        }
    }
    let entries: Vec<(String, BTreeMap<String, i64>)> =
        redis::cmd("XRANGE").arg("out").arg(&["-", "+"]).query(&mut redis.connect()).unwrap();
    let mut found: Vec<i64> = entries.iter().map(|(_, fields)| fields["n"]).collect();
    found.sort_unstable();
    assert!(found == (0..written).collect::<Vec<i64>>(), "{} entries of {written}", found.len());
    let bad: Vec<Value> = fs::read_dir(&aside)
        .unwrap()
        .flat_map(|file| {
            fs::read_to_string(file.unwrap().path()).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
        })
        .map(|line| serde_json::from_str(&line).unwrap())
        .collect();
    assert!(bad.len() >= 5 && bad.iter().all(|line| line["stream"] == "b" && line["id"].is_string()));
}
