//! Files and the generator in jobs that fail and resume: every row comes out once.

mod common;

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrow::datatypes::{DataType, SchemaRef};
use common::{Job, Random, SplitMover, schema, stop_when};
use serde_json::{Value, json};
use tidemill_dataflow::RunProgress;
use tidemill_dataflow::stream::BarrierControl;

const INTERVAL: Duration = Duration::from_millis(20);

fn events() -> SchemaRef {
    schema(&[("n", DataType::Int64), ("text", DataType::Utf8)])
}

/// All complete lines in a folder, and the number of files; there is nothing else after a job has ended well.
fn lines(folder: &Path) -> (Vec<String>, usize) {
    let mut lines = Vec::new();
    let mut files = 0;
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if !path.file_name().unwrap().to_str().unwrap().starts_with('.') {
            files += 1;
            lines.extend(fs::read_to_string(path).unwrap().lines().map(str::to_owned));
        }
    }
    lines.sort();
    (lines, files)
}

fn hidden(folder: &Path) -> usize {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_str().unwrap().starts_with('.')).count()
}

fn row(n: u64) -> String {
    format!("{{\"n\":{n},\"text\":\"{}\"}}", "ä".repeat(n as usize % 7))
}

fn append(path: &Path, bytes: &[u8]) {
    OpenOptions::new().create(true).append(true).open(path).unwrap().write_all(bytes).unwrap();
}

/// Files that appear and grow, also by half lines, while jobs of any size fail, stop and resume.
#[test]
fn every_line_counts_once_across_failures() {
    for seed in 0..5 {
        let mut random = Random(seed);
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::create_dir_all(from.join("below/_hidden")).unwrap();
        fs::write(from.join("below/_hidden/x"), "nonsense").unwrap();
        let mut expected = Vec::new();
        let mut unwritten: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let mut source = json!({"kind": "files", "path": from, "poll_interval_ms": 5, "list_interval_ms": 10});
        let sink = json!({"kind": "files", "path": to});
        for round in 0..5 {
            for _ in 0..3000 {
                let row = row(expected.len() as u64);
                let file = unwritten.entry(random.below(4 + round)).or_default();
                file.extend_from_slice(row.as_bytes());
                file.push(b'\n');
                expected.push(row);
            }
            let is_last = round == 4;
            for (file, bytes) in &mut unwritten {
                let cut = if is_last { bytes.len() } else { random.below(bytes.len() as u64 + 1) as usize };
                let below = if file % 2 == 0 { "below/" } else { "" };
                append(&from.join(format!("{below}{file}.jsonl")), &bytes[..cut]);
                bytes.drain(..cut);
            }
            source["stop_at_end"] = Value::Bool(is_last);
            let job = Job {
                source: &source,
                schema: Some(events()),
                sink: &sink,
                checkpoints: &folder.path().join("checkpoints"),
                interval: INTERVAL,
            };
            let workers = 1 + random.below(3) as u32;
            match is_last {
                true => job.run(workers, None, |_| Ok(())).unwrap(),
                false if random.below(2) == 0 => job.fail(workers, 1 + random.below(500)),
                // It continues until something has come out.
                false => {
                    let before = lines(&to).1;
                    job.run(workers, None, stop_when(|| round > 0 || lines(&to).1 > before)).unwrap();
                }
            }
        }
        expected.sort();
        let (found, files) = lines(&to);
        assert!(found == expected, "seed {seed}: {} rows of {}", found.len(), expected.len());
        assert!(files > 1 && hidden(&to) == 0);
    }
}

/// Shelves that move from copy to copy while their files appear and grow, and while a job that has read everything
/// ends.
#[test]
fn every_line_counts_once_while_shelves_move() {
    let mut random = Random(17);
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    fs::create_dir_all(&from).unwrap();
    let sink = json!({"kind": "files", "path": to});
    let mut source = json!({"kind": "files", "path": from, "poll_interval_ms": 5, "list_interval_ms": 10});
    let (mover, written) = (SplitMover::default(), AtomicU64::new(0));
    for round in 0..3 {
        source["stop_at_end"] = Value::Bool(round == 2);
        let job = Job {
            source: &source,
            schema: Some(events()),
            sink: &sink,
            checkpoints: &folder.path().join("checkpoints"),
            interval: INTERVAL,
        };
        let begun = mover.moved();
        let file = std::sync::Mutex::new(random.below(100));
        let outcome = job.run(3, (round == 1).then_some(200), |progress| {
            mover.look(progress);
            if round < 2 {
                let mut file = file.lock().unwrap();
                *file = (*file * 7 + 3) % 23;
                let n = written.fetch_add(1, Ordering::SeqCst);
                append(&from.join(format!("{file}.jsonl")), format!("{}\n", row(n)).as_bytes());
                if round == 0 && mover.moved() > begun + 300 {
                    progress.request(BarrierControl::Stop);
                }
            }
            Ok(())
        });
        assert_eq!(outcome.is_err(), round == 1, "{outcome:?}");
    }
    let mut expected: Vec<String> = (0..written.load(Ordering::SeqCst)).map(row).collect();
    expected.sort();
    let found = lines(&to).0;
    println!("{} lines, {} shelves moved", expected.len(), mover.moved());
    assert!(found == expected, "{} rows of {}", found.len(), expected.len());
}

/// Logs that are renamed or removed, and recreated under the same name, while a job reads them and while it is down:
/// the new file used to be skipped, or read from its middle.
#[test]
fn rotated_files_are_read_from_their_beginning() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    fs::create_dir(&from).unwrap();
    let log = from.join("log.jsonl");
    let write = |numbers: std::ops::Range<u64>| {
        let text: String = numbers.map(|n| row(n) + "\n").collect();
        append(&log, text.as_bytes());
    };
    let mut source = json!({"kind": "files", "path": log, "poll_interval_ms": 5, "list_interval_ms": 10});
    let sink = json!({"kind": "files", "path": to});
    let checkpoints = folder.path().join("checkpoints");
    let run = |source: &Value, look: &(dyn Fn(&RunProgress) -> Result<(), String> + Sync)| {
        Job { source, schema: Some(events()), sink: &sink, checkpoints: &checkpoints, interval: INTERVAL }
            .run(2, None, look)
            .unwrap();
    };
    write(0..10);
    let step = AtomicU64::new(0);
    run(&source, &|progress| {
        match (step.load(Ordering::SeqCst), lines(&to).0.len()) {
            (0, 10) => {
                fs::rename(&log, from.join("log.jsonl.1")).unwrap();
                write(10..40);
            }
            (1, 40) => {
                fs::remove_file(&log).unwrap();
                write(40..100);
            }
            (2, 100) => progress.request(BarrierControl::Stop),
            _ => return Ok(()),
        }
        step.fetch_add(1, Ordering::SeqCst);
        Ok(())
    });
    fs::remove_file(&log).unwrap();
    write(100..300);
    source["stop_at_end"] = Value::Bool(true);
    run(&source, &|_| Ok(()));
    let mut expected: Vec<String> = (0..300).map(row).collect();
    expected.sort();
    assert_eq!(lines(&to).0, expected);
}

/// Catches a generator that repeats or omits numbers; with fewer splits than copies, and with more.
#[test]
fn every_number_counts_once_across_failures() {
    for (splits, workers) in [(1, [2, 1, 3]), (5, [1, 3, 2])] {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("to");
        let source = json!({"kind": "rate", "rows": 30_000, "splits": splits, "batch_rows": 100});
        let sink = json!({"kind": "files", "path": to, "format": "csv"});
        let checkpoints = folder.path().join("checkpoints");
        let job = Job { source: &source, schema: None, sink: &sink, checkpoints: &checkpoints, interval: INTERVAL };
        job.fail(workers[0], 5000);
        job.fail(workers[1], 8000);
        job.run(workers[2], None, |_| Ok(())).unwrap();
        let (found, files) = lines(&to);
        let mut numbers: Vec<u64> = found.iter().filter_map(|line| line.split(',').next()?.parse().ok()).collect();
        numbers.sort_unstable();
        assert!(numbers == (0..30_000).collect::<Vec<u64>>(), "{} numbers", numbers.len());
        assert_eq!(found.len(), 30_000 + files, "a header for each file");
    }
}

/// CSV files with different columns in different orders, with bad rows quarantined; then the same with an error that
/// says where.
#[test]
fn bad_rows_are_put_aside_with_their_place() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to, aside) = (folder.path().join("from"), folder.path().join("to"), folder.path().join("aside"));
    fs::create_dir(&from).unwrap();
    fs::write(from.join("a.csv"), "n,text\n1,one\nx,two\n3,three\n").unwrap();
    fs::write(from.join("b.csv"), "more,text,n\r\n,four,4\r\n\r\n5,five\r\n,\"s,ix\",6").unwrap();
    let mut source = json!({
        "kind": "files", "path": from.join("*.csv"), "format": "csv", "stop_at_end": true, "on_error": {"quarantine": aside},
    });
    let sink = json!({"kind": "files", "path": to});
    let checkpoints = folder.path().join("checkpoints");
    let job =
        Job { source: &source, schema: Some(events()), sink: &sink, checkpoints: &checkpoints, interval: INTERVAL };
    job.run(2, None, |_| Ok(())).unwrap();
    let expected = [(1, "one"), (3, "three"), (4, "four"), (6, "s,ix")];
    let expected = expected.map(|(n, text)| format!("{{\"n\":{n},\"text\":\"{text}\"}}"));
    assert_eq!(lines(&to).0, expected);
    let mut found: Vec<Value> = lines(&aside).0.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    found.sort_by_key(|line| line["file"].to_string());
    let place = |line: &Value| (line["byte"].as_u64().unwrap(), line["text"].as_str().unwrap().to_owned());
    assert_eq!(found.iter().map(place).collect::<Vec<_>>(), [(13, "x,two".into()), (24, "5,five".into())]);

    source["on_error"] = json!("raise");
    let checkpoints = folder.path().join("others");
    let job =
        Job { source: &source, schema: Some(events()), sink: &sink, checkpoints: &checkpoints, interval: INTERVAL };
    let error = job.run(1, None, |_| Ok(())).unwrap_err().to_string();
    assert!(error.contains("a.csv\", byte 13: ") || error.contains("b.csv\", byte 24: "), "{error}");
}
