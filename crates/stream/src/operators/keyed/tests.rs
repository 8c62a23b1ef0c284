use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::Int64Type;
use bytes::Bytes;
use tidemill_dataflow::checkpoint::SnapshotPart;
use tidemill_dataflow::memory::{Governor, MemorySettings};
use tidemill_dataflow::route_map::BUCKETS;
use tidemill_sim::{SplitMix64, share_of_seeds};

use super::snapshots::CHANGES_MAX;
use super::{KeyContext, KeyLogic, KeyedBatch, KeyedEngine, KeyedFunction, KeyedOptions, Timer};
use crate::state::snapshot_codec::buckets_of;

/// Keys and timers that have fired.
type Log = Arc<Mutex<Vec<(i64, Timer)>>>;

/// Sets and deletes the timers that rows name, and logs those that fire. Its state is the number of a key's rows.
struct RecordingLogic(Log);

fn timer(clock: bool, at: i64) -> Timer {
    if clock { Timer::Clock(at) } else { Timer::Event(at) }
}

fn number(rows: &RecordBatch, column: usize, row: usize) -> i64 {
    rows.column(column).as_primitive::<Int64Type>().value(row)
}

impl KeyLogic for RecordingLogic {
    type State = Vec<u8>;

    fn on_rows(
        &mut self,
        batch: &KeyedBatch,
        _: usize,
        rows: Range<usize>,
        key: &mut KeyContext<'_, Vec<u8>>,
    ) -> Result<(), String> {
        for row in rows {
            assert_eq!(number(&batch.rows, 0, row), number(&key.columns()?, 0, 0));
            let timer = timer(number(&batch.rows, 1, row) % 2 == 1, number(&batch.rows, 2, row));
            if number(&batch.rows, 1, row) < 2 {
                key.set(timer)
            } else {
                key.delete(timer)
            }
            let count = key.state.as_ref().map_or(0, |state| state[0]) + 1;
            // Every fifth row deletes the state.
            key.state = (count < 5).then(|| vec![count]);
        }
        Ok(())
    }

    fn on_timer(&mut self, timer: Timer, key: &mut KeyContext<'_, Vec<u8>>) -> Result<(), String> {
        self.0.lock().unwrap().push((number(&key.columns()?, 0, 0), timer));
        if timer == Timer::Event(13) {
            key.set(Timer::Event(14));
        }
        Ok(())
    }

    fn take_rows(&mut self) -> Result<Vec<RecordBatch>, String> {
        Ok(Vec::new())
    }

    fn encode(&mut self, state: &Vec<u8>, _: bool) -> Result<Vec<u8>, String> {
        Ok(state.clone())
    }

    fn saved(&mut self, _: &mut Vec<u8>) -> Result<(), String> {
        Ok(())
    }

    fn decode(&mut self, parts: &[Vec<u8>]) -> Result<Vec<u8>, String> {
        Ok(parts.last().cloned().unwrap_or_default())
    }

    fn bytes(&mut self, state: &Vec<u8>) -> Result<usize, String> {
        Ok(state.capacity())
    }
}

fn batch(rows: &[(i64, i64, i64)]) -> RecordBatch {
    let column =
        |of: fn(&(i64, i64, i64)) -> i64| Arc::new(Int64Array::from_iter_values(rows.iter().map(of))) as ArrayRef;
    let columns = [("key", column(|row| row.0)), ("what", column(|row| row.1)), ("at", column(|row| row.2))];
    RecordBatch::try_from_iter(columns).unwrap()
}

fn buckets(rows: &RecordBatch) -> Vec<u32> {
    buckets_of(rows, &[0]).unwrap()
}

/// Groups rows by their keys.
fn keyed(mut rows: Vec<(i64, i64, i64)>) -> KeyedBatch {
    rows.sort_by_key(|row| row.0);
    let (mut firsts, mut ends) = (Vec::new(), Vec::new());
    for (at, row) in rows.iter().enumerate() {
        if at == 0 || rows[at - 1].0 != row.0 {
            firsts.push(*row);
            ends.push(at);
        }
    }
    ends.push(rows.len());
    ends.remove(0);
    let keys = batch(&firsts);
    KeyedBatch { buckets: buckets(&keys), keys: keys.project(&[0]).unwrap(), ends, rows: batch(&rows) }
}

fn engine(log: &Log, clock: &Arc<AtomicI64>) -> KeyedEngine<RecordingLogic> {
    let clock = Arc::clone(clock);
    let options = KeyedOptions {
        keys: Arc::new(batch(&[]).schema().project(&[0]).unwrap()),
        ttl: None,
        clock: Some(Box::new(move || clock.load(Ordering::Relaxed))),
    };
    KeyedEngine::alone(RecordingLogic(Arc::clone(log)), options, true, &Governor::new(MemorySettings::default()))
        .unwrap()
}

fn to_time(copy: &mut KeyedEngine<RecordingLogic>, now: i64) {
    while copy.time(now).unwrap().1 {}
}

fn to_clock(copy: &mut KeyedEngine<RecordingLogic>, clock: i64) {
    while copy.next_alarm().is_some_and(|at| at <= clock) {
        copy.ring().unwrap();
    }
}

/// Timers are set and deleted by both clocks, the machine's clock is set forward and back, keys go to disk, buckets
/// move between two copies, and the job resumes from snapshots. The same timers must fire as from a plain set, once
/// each, and at the end nothing may be left.
#[test]
fn timers_are_those_of_a_plain_set() {
    for seed in 0..share_of_seeds(20) {
        println!("seed {seed}");
        timers_by_seed(seed);
    }
}

fn timers_by_seed(seed: u64) {
    let mut random = SplitMix64::scattered(seed);
    let mut below = move |end: usize| random.below(end) as i64;
    let (log, wall) = (Log::default(), Arc::new(AtomicI64::new(0)));
    let mut copies = [engine(&log, &wall), engine(&log, &wall)];
    let mut owners: Vec<usize> = (0..BUCKETS as usize).map(|bucket| bucket % 2).collect();
    let mut saved: BTreeMap<u32, Vec<Bytes>> = BTreeMap::new();
    let (mut set, mut now, mut clock) = (BTreeSet::<(i64, Timer)>::new(), 0, 0);
    copies.iter_mut().for_each(|copy| to_time(copy, now));
    let (mut rung, mut moved, mut changes, mut stored) = (0, 0, 0, 0);
    let is_due = |timer: Timer, now: i64, clock: i64| match timer {
        Timer::Event(at) => at <= now,
        Timer::Clock(at) => at <= clock,
    };
    for step in 0..1500 {
        match below(12) {
            0..5 => {
                let rows: Vec<_> =
                    (0..below(12)).map(|_| (below(40), below(4), now.min(clock) + below(80) - 10)).collect();
                for &(key, what, at) in &rows {
                    let one = (key, timer(what % 2 == 1, at));
                    _ = if what < 2 { set.insert(one) } else { set.remove(&one) };
                }
                let of = buckets(&batch(&rows));
                for (number, copy) in copies.iter_mut().enumerate() {
                    let mine = rows.iter().zip(&of).filter(|(_, bucket)| owners[**bucket as usize] == number);
                    let mine: Vec<_> = mine.map(|(row, _)| *row).collect();
                    if !mine.is_empty() {
                        copy.rows(keyed(mine)).unwrap();
                    }
                }
            }
            5 => {
                now += below(9);
                copies.iter_mut().for_each(|copy| to_time(copy, now));
            }
            6 => {
                // Now and then the clock is set forward or back.
                clock += match below(8) {
                    0 => 60,
                    1 => -40,
                    _ => below(9),
                };
                wall.store(clock, Ordering::Relaxed);
            }
            7 | 8 => {
                for copy in &mut copies {
                    copy.spill_keys(below(30) as usize).unwrap();
                    stored += copy.stored();
                }
            }
            what => {
                for copy in &mut copies {
                    for (bucket, part) in copy.snapshot(what == 11).unwrap() {
                        match part {
                            SnapshotPart::Whole(bytes) if bytes.is_empty() => _ = saved.remove(&bucket),
                            SnapshotPart::Whole(bytes) => _ = saved.insert(bucket, vec![bytes]),
                            SnapshotPart::Change(bytes) => {
                                changes += 1;
                                saved.entry(bucket).or_default().push(bytes);
                            }
                        }
                    }
                }
                assert!(saved.values().all(|parts| parts.len() <= 1 + CHANGES_MAX));
                if what == 10 {
                    let lost: Vec<u32> =
                        (0..BUCKETS).filter(|&bucket| owners[bucket as usize] == 0 && below(3) == 0).collect();
                    let parts = copies[0].release(&lost).unwrap();
                    moved += parts.len();
                    let parts = parts.into_iter().map(|(bucket, part)| (bucket, vec![part])).collect();
                    copies[1].restore(now, parts).unwrap();
                    lost.iter().for_each(|&bucket| owners[bucket as usize] = 1);
                    // As in the task engine, the next snapshot is full.
                    saved.clear();
                    for copy in &mut copies {
                        for (bucket, part) in copy.snapshot(true).unwrap() {
                            let SnapshotPart::Whole(bytes) = part else { panic!("not a whole") };
                            if !bytes.is_empty() {
                                saved.insert(bucket, vec![bytes]);
                            }
                        }
                    }
                }
                if step % 5 == 0 {
                    owners = (0..BUCKETS).map(|_| below(2) as usize).collect();
                    for (number, copy) in copies.iter_mut().enumerate() {
                        *copy = engine(&log, &wall);
                        to_time(copy, now);
                        let mine = saved.iter().filter(|(bucket, _)| owners[**bucket as usize] == number);
                        let mine = mine.map(|(bucket, parts)| (*bucket, parts.clone())).collect();
                        copy.restore(now, mine).unwrap();
                    }
                }
            }
        }
        copies.iter_mut().for_each(|copy| to_clock(copy, clock));
        let mut expected: Vec<_> = set.iter().copied().filter(|&(_, timer)| is_due(timer, now, clock)).collect();
        for at in 0..expected.len() {
            let again = (expected[at].0, Timer::Event(14));
            if expected[at].1 == Timer::Event(13) && !expected.contains(&again) {
                match now >= 14 {
                    true => expected.push(again),
                    false => _ = set.insert(again),
                }
            }
        }
        expected.iter().for_each(|one| _ = set.remove(one));
        let mut found = std::mem::take(&mut *log.lock().unwrap());
        rung += found.len();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected, "seed {seed}, step {step}");
    }
    assert!(rung > 500 && moved > 50 && changes > 50 && stored > 100, "{rung} {moved} {changes} {stored}");
    for copy in &mut copies {
        to_time(copy, i64::MAX);
        let all: Vec<u32> = (0..BUCKETS).collect();
        copy.release(&all).unwrap();
        assert_eq!((copy.due(), copy.stored(), copy.entries().count()), ((0, 0), 0, 0));
    }
    let mut found = std::mem::take(&mut *log.lock().unwrap());
    found.sort_unstable();
    assert_eq!(found, set.into_iter().collect::<Vec<_>>());
}
