//! A worker's counters as worker 0 receives them: a table, where each message holds the changes since the previous
//! one. Messages arrive completely and in order, so both ends have the same table.
//!
//! A row has a key (a link, a task, a bucket) and a column for each counter. A key is sent once, and has a number
//! from then on. All numbers are LEB128 varints; changes of counters use the zigzag form, since some decrease:
//!
//! ```text
//! message   its number, from 0
//!           keys of new rows: how many, then each: kind, and what it is of
//!           changed rows, by number: distance from the one before, bits of the columns that differ, by how much each
//!           0
//!           frequent keys: 0 if as before; else how many and one, then each: task, bucket, rows, rows of all, text
//! text      its length in bytes, and UTF-8
//! ```
//!
//! Times are sent in microseconds.

use std::collections::BTreeMap;

use tidemill_control::{BucketCounters, HeavyKey, LinkCounters, TaskCounters, TcpCounters, WorkerSample};

/// The most rows of a worker's table; what does not fit is not reported.
const ROWS_MAX: usize = 1 << 16;
/// The most frequent keys that a worker reports.
const HEAVY_KEYS_MAX: usize = 1024;
/// The most bytes in the text of a key.
pub(crate) const COUNTED_TEXT_MAX: usize = 128;

/// What a row describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CounterKey {
    Worker,
    /// The link to a worker.
    Link(u32),
    Task(u32),
    /// A bucket of a task, by its number.
    Bucket(u32, u32),
    /// When the buckets were read: not with every message.
    BucketsRead,
}

impl CounterKey {
    /// The kind of the key, and its numbers.
    fn parts(self) -> (u64, Vec<u64>) {
        match self {
            CounterKey::Worker => (0, vec![]),
            CounterKey::Link(peer) => (1, vec![peer.into()]),
            CounterKey::Task(task) => (2, vec![task.into()]),
            CounterKey::Bucket(task, bucket) => (3, vec![task.into(), bucket.into()]),
            CounterKey::BucketsRead => (4, vec![]),
        }
    }

    fn read(bytes: &mut Reader<'_>) -> Option<Self> {
        Some(match bytes.number()? {
            0 => CounterKey::Worker,
            1 => CounterKey::Link(bytes.short()?),
            2 => CounterKey::Task(bytes.short()?),
            3 => CounterKey::Bucket(bytes.short()?, bytes.short()?),
            4 => CounterKey::BucketsRead,
            _ => return None,
        })
    }

    fn columns(self) -> usize {
        match self {
            CounterKey::Worker => 3,
            CounterKey::Link(_) => 14,
            CounterKey::Task(_) => 7,
            CounterKey::Bucket(..) => 3,
            CounterKey::BucketsRead => 1,
        }
    }
}

/// The table that the module describes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CounterTable {
    /// By number.
    rows: Vec<(CounterKey, Vec<u64>)>,
    numbers: BTreeMap<CounterKey, usize>,
    heavy_keys: Vec<HeavyKey>,
    /// How many messages have changed it.
    messages: u64,
}

impl CounterTable {
    /// Records what a worker has counted, and returns the changes. Includes buckets and frequent keys, of which there
    /// are many, only `with_buckets`.
    pub(crate) fn update(&mut self, sample: &WorkerSample, with_buckets: bool) -> Vec<u8> {
        let (mut keys, mut changes, mut new) = (Vec::new(), Vec::new(), 0);
        let mut counted = BTreeMap::new();
        for (key, counters) in rows(sample, with_buckets) {
            debug_assert_eq!(counters.len(), key.columns(), "a column for each counter of {key:?}");
            if !self.numbers.contains_key(&key) {
                if self.rows.len() == ROWS_MAX {
                    continue;
                }
                let (kind, of) = key.parts();
                put(&mut keys, kind);
                of.into_iter().for_each(|part| put(&mut keys, part));
                self.declare(key);
                new += 1;
            }
            counted.insert(self.numbers[&key], counters);
        }
        let mut next = 0;
        for (number, counters) in counted {
            let row = &mut self.rows[number].1;
            let differ = (0..row.len()).filter(|&at| row[at] != counters[at]).fold(0, |bits, at| bits | 1 << at);
            if differ == 0 {
                continue;
            }
            put(&mut changes, (number + 1 - next) as u64);
            put(&mut changes, differ);
            next = number + 1;
            for (have, counter) in row.iter_mut().zip(counters) {
                if *have != counter {
                    put(&mut changes, zigzag(counter.wrapping_sub(*have)));
                    *have = counter;
                }
            }
        }
        put(&mut changes, 0);
        let mut message = Vec::new();
        put(&mut message, self.messages);
        self.messages += 1;
        put(&mut message, new);
        message.append(&mut keys);
        message.append(&mut changes);
        self.update_heavy(if with_buckets { &sample.heavy_keys } else { &[] }, with_buckets, &mut message);
        message
    }

    fn update_heavy(&mut self, keys: &[HeavyKey], told: bool, message: &mut Vec<u8>) {
        let keys = &keys[..keys.len().min(HEAVY_KEYS_MAX)];
        if !told || keys == self.heavy_keys {
            return put(message, 0);
        }
        put(message, keys.len() as u64 + 1);
        for key in keys {
            let (task, bucket) = (key.task.into(), key.bucket.into());
            for number in [task, bucket, key.rows, key.all_rows, key.key.len() as u64] {
                put(message, number);
            }
            message.extend_from_slice(key.key.as_bytes());
        }
        self.heavy_keys = keys.to_vec();
    }

    fn declare(&mut self, key: CounterKey) {
        self.numbers.insert(key, self.rows.len());
        self.rows.push((key, vec![0; key.columns()]));
    }

    /// Applies a message from another table's [`CounterTable::update`], in a run with these numbers of workers and
    /// tasks.
    ///
    /// # Errors
    /// A description, if the message is invalid.
    pub(crate) fn apply(&mut self, message: &[u8], workers: u32, tasks: u32) -> Result<(), String> {
        self.read(&mut Reader(message), workers, tasks).ok_or_else(|| "counters that cannot be read".into())
    }

    fn read(&mut self, bytes: &mut Reader<'_>, workers: u32, tasks: u32) -> Option<()> {
        if bytes.number()? != self.messages {
            return None;
        }
        self.messages += 1;
        for _ in 0..bytes.number()? {
            let key = CounterKey::read(bytes)?;
            let exists = match key {
                CounterKey::Worker | CounterKey::BucketsRead => true,
                CounterKey::Link(peer) => peer < workers,
                CounterKey::Task(task) | CounterKey::Bucket(task, _) => task < tasks,
            };
            // No row occurs twice, so a table cannot have more rows than there are things to describe.
            if !exists || self.rows.len() == ROWS_MAX || self.numbers.contains_key(&key) {
                return None;
            }
            self.declare(key);
        }
        let mut next = 0;
        loop {
            let distance = usize::try_from(bytes.number()?).ok()?;
            if distance == 0 {
                break;
            }
            next = distance.checked_add(next)?;
            let (_, row) = self.rows.get_mut(next - 1)?;
            let differ = bytes.number()?;
            if differ >> row.len() != 0 {
                return None;
            }
            for (at, have) in row.iter_mut().enumerate() {
                if differ >> at & 1 == 1 {
                    *have = have.wrapping_add(unzigzag(bytes.number()?));
                }
            }
        }
        if let Some(count) = bytes.number()?.checked_sub(1) {
            if count > HEAVY_KEYS_MAX as u64 {
                return None;
            }
            self.heavy_keys = (0..count).map(|_| bytes.heavy_key(tasks)).collect::<Option<_>>()?;
        }
        bytes.0.is_empty().then_some(())
    }

    /// The counters as a sample of worker `worker`.
    pub(crate) fn sample(&self, worker: u32) -> WorkerSample {
        let mut sample = WorkerSample { worker, heavy_keys: self.heavy_keys.clone(), ..WorkerSample::default() };
        for (key, row) in &self.rows {
            let ns = |at: usize| row[at].saturating_mul(1000);
            match *key {
                CounterKey::Worker => {
                    (sample.at_ns, sample.cpu_ns, sample.cpu_wait_ns) = (ns(0), ns(1), ns(2));
                }
                CounterKey::BucketsRead => sample.buckets_at_ns = ns(0),
                CounterKey::Link(peer) => sample.links.push(LinkCounters {
                    peer,
                    sent_bytes: row[0],
                    queued_bytes: row[1],
                    busy_ns: ns(2),
                    link_wait_ns: ns(3),
                    credit_wait_ns: ns(4),
                    tcp: (row[5] & 1 == 1).then(|| TcpCounters {
                        app_limited: row[5] & 2 == 2,
                        delivery_bytes_s: row[6],
                        rtt_us: row[7],
                        min_rtt_us: row[8],
                        acked_bytes: row[9],
                        busy_us: row[10],
                        receiver_limited_us: row[11],
                        buffer_limited_us: row[12],
                        retransmits: row[13],
                    }),
                }),
                CounterKey::Task(task) => sample.tasks.push(TaskCounters {
                    task,
                    copies: row[0].try_into().unwrap_or(u32::MAX),
                    busy_ns: ns(1),
                    blocked_ns: ns(2),
                    idle_ns: ns(3),
                    interpreter_ns: ns(4),
                    rows_in: row[5],
                    rows_out: row[6],
                }),
                CounterKey::Bucket(task, bucket) => {
                    sample.buckets.push(BucketCounters { task, bucket, rows: row[0], bytes: row[1], work_ns: ns(2) })
                }
            }
        }
        sample
    }
}

/// The rows of a sample.
fn rows(sample: &WorkerSample, with_buckets: bool) -> impl Iterator<Item = (CounterKey, Vec<u64>)> {
    let us = |ns: u64| ns / 1000;
    let worker = vec![us(sample.at_ns), us(sample.cpu_ns), us(sample.cpu_wait_ns)];
    let link = move |link: &LinkCounters| {
        let tcp = link.tcp.unwrap_or_default();
        let flags = u64::from(link.tcp.is_some()) | u64::from(tcp.app_limited) << 1;
        let mut row = vec![link.sent_bytes, link.queued_bytes, us(link.busy_ns), us(link.link_wait_ns)];
        row.extend([us(link.credit_wait_ns), flags, tcp.delivery_bytes_s, tcp.rtt_us, tcp.min_rtt_us]);
        row.extend([tcp.acked_bytes, tcp.busy_us, tcp.receiver_limited_us, tcp.buffer_limited_us, tcp.retransmits]);
        (CounterKey::Link(link.peer), row)
    };
    let task = move |task: &TaskCounters| {
        let mut row = vec![task.copies.into(), us(task.busy_ns), us(task.blocked_ns), us(task.idle_ns)];
        row.extend([us(task.interpreter_ns), task.rows_in, task.rows_out]);
        (CounterKey::Task(task.task), row)
    };
    let bucket = move |bucket: &BucketCounters| {
        let row = vec![bucket.rows, bucket.bytes, us(bucket.work_ns)];
        (CounterKey::Bucket(bucket.task, bucket.bucket), row)
    };
    let buckets = if with_buckets { &sample.buckets[..] } else { &[] };
    let read = with_buckets.then(|| (CounterKey::BucketsRead, vec![us(sample.buckets_at_ns)]));
    std::iter::once((CounterKey::Worker, worker))
        .chain(sample.links.iter().map(link))
        .chain(sample.tasks.iter().map(task))
        .chain(read)
        .chain(buckets.iter().map(bucket))
}

/// Encodes numbers near zero, of either sign, as small numbers.
fn zigzag(difference: u64) -> u64 {
    (difference << 1) ^ ((difference as i64 >> 63) as u64)
}

fn unzigzag(number: u64) -> u64 {
    (number >> 1) ^ (number & 1).wrapping_neg()
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Reads what [`put`] has written, from untrusted bytes.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return None;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn short(&mut self) -> Option<u32> {
        self.number()?.try_into().ok()
    }

    fn heavy_key(&mut self, tasks: u32) -> Option<HeavyKey> {
        let (task, bucket) = (self.short()?, self.short()?);
        let (rows, all_rows, len) = (self.number()?, self.number()?, self.number()? as usize);
        if task >= tasks || len > COUNTED_TEXT_MAX {
            return None;
        }
        let (text, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(HeavyKey { task, bucket, key: str::from_utf8(text).ok()?.to_owned(), rows, all_rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(round: u64) -> WorkerSample {
        let bucket = |bucket| BucketCounters {
            task: 1,
            bucket,
            rows: round * u64::from(bucket),
            bytes: 80 * round * u64::from(bucket),
            work_ns: 5_000 * round,
        };
        let link = |peer| LinkCounters {
            peer,
            sent_bytes: u64::MAX / 2 + round,
            // Decreases.
            queued_bytes: 100 - round,
            tcp: (peer == 2).then(|| TcpCounters {
                app_limited: round.is_multiple_of(2),
                rtt_us: 300,
                ..Default::default()
            }),
            ..LinkCounters::default()
        };
        WorkerSample {
            worker: 3,
            at_ns: 500_000_000 * round,
            buckets_at_ns: 500_000_000 * round,
            links: (0..=round.min(2) as u32).map(link).collect(),
            tasks: vec![TaskCounters { task: 1, copies: 2, busy_ns: 7_000 * round, ..Default::default() }],
            buckets: (0..100).map(bucket).collect(),
            heavy_keys: vec![HeavyKey { task: 1, key: format!("é {round}"), rows: 5, ..Default::default() }],
            ..WorkerSample::default()
        }
    }

    /// A change that is lost or applied twice would leave a counter wrong until the end of the run.
    #[test]
    fn both_ends_have_the_same_table() {
        let (mut here, mut there) = (CounterTable::default(), CounterTable::default());
        let mut lens = Vec::new();
        for round in 1..20 {
            let message = here.update(&sample(round), true);
            there.apply(&message, 4, 2).unwrap();
            assert_eq!(there, here);
            let told = there.sample(3);
            assert_eq!(told, WorkerSample { links: told.links.clone(), ..sample(round) });
            lens.push(message.len());
            let mut links = told.links.clone();
            links.sort_by_key(|link| link.peer);
            assert_eq!(links, sample(round).links);
        }
        assert!(lens[0] > lens[15] + 300 && lens[15] < 9 * 100, "{lens:?}");
        let without = here.update(&sample(21), false);
        there.apply(&without, 4, 2).unwrap();
        assert_eq!(there, here);
        assert!(without.len() < 60 && there.sample(3).buckets == sample(19).buckets, "{}", without.len());
        assert_eq!(here.update(&sample(21), false), [20, 0, 0, 0], "nothing has changed");
    }

    /// A message from a stranger must not refer to a task that does not exist, or grow without bound.
    #[test]
    fn invalid_messages_are_refused() {
        let message = CounterTable::default().update(&sample(2), true);
        let refused = |message: &[u8], workers, tasks| CounterTable::default().apply(message, workers, tasks).is_err();
        assert!(!refused(&message, 3, 2));
        assert!(refused(&message, 2, 2), "a link to a worker that is not there");
        assert!(refused(&message, 3, 1), "a task that is not there");
        assert!((0..message.len()).all(|end| refused(&message[..end], 3, 2)));
        let mut longer = message.clone();
        longer.push(0);
        assert!(refused(&longer, 3, 2));
        for odd in [&[1, 9][..], &[2, 0, 0, 0, 0], &[0, 1, 1], &[1, 0, 1, 8, 2, 0, 0], &[0, 0, 0x80], &[0xff; 11]] {
            assert!(refused(&[&[0], odd].concat(), 3, 2), "{odd:?}");
        }
        let mut there = CounterTable::default();
        assert!(
            there.apply(&[0, 0, 0, 0], 3, 2).is_ok() && there.apply(&[2, 0, 0, 0], 3, 2).is_err(),
            "one is missing"
        );
    }
}
