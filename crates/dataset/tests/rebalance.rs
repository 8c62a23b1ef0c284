//! Windows and sessions whose buckets move between copies give what they give where nothing moves.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, TimestampMicrosecondArray};
use arrow::util::pretty::pretty_format_batches;
use bytes::Bytes;
use futures::future::{BoxFuture, ready};
use tidemill_collective::run_ranks;
use tidemill_dataflow::checkpoint::CheckpointSettings;
use tidemill_dataflow::rebalance::Rebalancing;
use tidemill_dataflow::stream::sink::Sink;
use tidemill_dataflow::stream::source::EventTimes;
use tidemill_dataflow::{Progress, TaskError};
use tidemill_dataset::datafusion::functions_aggregate::expr_fn::{count, sum};
use tidemill_dataset::expr::column;
use tidemill_dataset::{DataSet, Engine, EngineConfig, StreamJob, StreamSink, Windows, Workers, table_stream};

const ROWS: i64 = 20_000;
const SECOND: i64 = 1_000_000;

/// A row every millisecond, of 150 keys in turn; every so often a key is silent for a while, so that sessions end.
fn table() -> RecordBatch {
    let rows: Vec<i64> = (0..ROWS).filter(|n| (n / 1500 + n % 150) % 3 != 0).collect();
    let column = |value: fn(i64) -> i64| rows.iter().map(|&n| value(n)).collect::<Vec<i64>>();
    let columns: [(&str, ArrayRef); 3] = [
        ("key", Arc::new(Int64Array::from(column(|n| n % 150)))),
        ("value", Arc::new(Int64Array::from(column(|n| n)))),
        ("time", Arc::new(TimestampMicrosecondArray::from(column(|n| n * 1000)))),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

struct Keep(Arc<Mutex<Vec<RecordBatch>>>);

impl Sink for Keep {
    fn write(&mut self, rows: RecordBatch) -> BoxFuture<'_, Result<(), TaskError>> {
        self.0.lock().unwrap().push(rows);
        Box::pin(ready(Ok(())))
    }

    fn prepare(&mut self, _: u64) -> BoxFuture<'_, Result<Bytes, TaskError>> {
        Box::pin(ready(Ok(Bytes::new())))
    }

    fn commit(&mut self, _: Bytes) -> BoxFuture<'_, Result<(), TaskError>> {
        Box::pin(ready(Ok(())))
    }
}

/// What comes out, a line for each row, and how many rebalances were done.
fn run(windows: Windows, moves: bool, folder: &str) -> (Vec<String>, usize) {
    let folder = format!("{}/{folder}", env!("CARGO_TARGET_TMPDIR"));
    let _ = std::fs::remove_dir_all(&folder);
    let rows: Arc<Mutex<Vec<RecordBatch>>> = Arc::default();
    let done = Mutex::new(0);
    run_ranks(2, |comm| {
        let config = EngineConfig { threads: 2, workers: 2, memory_bytes: None, spill_dir: None };
        let engine = Engine::new(&config).unwrap();
        let workers = Workers::new(&comm, &engine, &config).unwrap();
        let table = table();
        let source = table_stream("rows", table.schema(), &[table], Some(EventTimes::of("time")), 50, 8000.0);
        let set = DataSet::from_stream(&engine, source).unwrap();
        let keys = vec![windows.of(column("time")), column("key")];
        let set = set.aggregate(keys, vec![sum(column("value")), count(column("value"))]).unwrap();
        let kept = Arc::clone(&rows);
        let make = move |_: &_| -> tidemill_dataset::MakeSink {
            let kept = Arc::clone(&kept);
            Arc::new(move |_| Ok(Box::new(Keep(Arc::clone(&kept)))))
        };
        let mut checkpoints = CheckpointSettings::in_folder(&folder).unwrap();
        checkpoints.interval = Duration::from_millis(40);
        let sink = StreamSink { name: "kept".into(), copies_max: 0, make: Arc::new(make) };
        let job = StreamJob { name: "windows".into(), sink, checkpoints: Some(checkpoints) };
        let mut asked: Option<Rebalancing> = None;
        let mut look = |progress: &Progress| {
            if !moves || comm.rank() > 0 {
                return Ok(());
            }
            match asked.as_mut().map(Rebalancing::outcome) {
                Some(None) => return Ok(()),
                Some(Some(Ok(moved))) => *done.lock().unwrap() += usize::from(moved.bytes > 0),
                Some(Some(Err(reason))) => assert!(reason.contains("end"), "{reason}"),
                None => {}
            }
            let windowed = (0..9).map(|n| format!("window {n}")).find_map(|name| Some((progress.route(&name)?, name)));
            let (map, name) = windowed.expect("there is a window");
            let copies = map.copies().max().unwrap() + 1;
            let all = 4.max(copies);
            let next: Vec<(u32, u32)> = (0..map.buckets()).map(|b| (b, (map.copy(b) + b % 3) % all)).collect();
            asked = Some(progress.rebalance(&name, map.moved(&next)));
            Ok(())
        };
        workers.stream(&engine, &set, &job, &mut look).map(drop).map_err(|error| error.to_string()).unwrap();
    })
    .unwrap();
    let text = pretty_format_batches(&rows.lock().unwrap()).unwrap().to_string();
    let mut lines: Vec<String> = text.lines().filter(|line| line.contains("start")).map(str::to_owned).collect();
    lines.sort();
    (lines, done.into_inner().unwrap())
}

#[test]
fn windows_are_the_same_wherever_buckets_are() {
    let cases = [
        ("tumbling", Windows::tumbling(SECOND).unwrap()),
        ("sliding", Windows::sliding(3 * SECOND, SECOND).unwrap().late(SECOND).unwrap()),
        ("sessions", Windows::session(SECOND).unwrap()),
    ];
    for (name, windows) in cases {
        let (still, _) = run(windows, false, &format!("{name}-still"));
        let (moved, rebalances) = run(windows, true, &format!("{name}-moved"));
        assert!(rebalances > 3, "{name}: {rebalances} rebalances moved anything");
        assert!(still.len() > 500, "{name}: {} rows", still.len());
        let differ = still.iter().zip(&moved).find(|(a, b)| a != b);
        assert_eq!((still.len(), differ), (moved.len(), None), "{name}");
    }
}
