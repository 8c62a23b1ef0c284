//! Windows in timely dataflow: a keyed count in tumbling windows of event time, on two workers (threads).
//!
//!     windows_timely WAY MODE EVENTS PER_SECOND
//!
//! `WAY`: `exchange` sends every event to the worker of its key, as a keyed stream does; `local` counts first where an event is
//! made, and sends partial counts when a window has closed. `MODE`, the events and what is printed: see `harness/windows.py`.
//! Timely's timestamps are watermarks: what is sent at time `t` holds no event before `t`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use timely::ExchangeData;
use timely::dataflow::channels::pact::{Exchange, ParallelizationContract, Pipeline};
use timely::dataflow::operators::{Capability, Operator};
use timely::dataflow::{InputHandleVec, StreamVec};

const WORKERS: usize = 2;
const KEYS: u64 = 1000;
const WINDOW_MS: u64 = 1000;
const LATENESS_MS: u64 = 100;
const DRAWN: u64 = 1 << 20; // keys and jitters, which come again and again
const BATCH: u64 = 8192; // events that a source sends before it lets the worker work
const TICK: Duration = Duration::from_millis(1); // between batches of a paced source

type Event = (u64, u64); // key, time in ms
type Row = (u64, u64, u64); // start of a window, key, count

fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The events of one worker, every other one. At half of what timely can do there is no time to draw or divide for each.
struct Source {
    drawn: std::iter::Cycle<std::vec::IntoIter<(u32, u32)>>, // key and jitter in ms
    per_second: u64,
    place_ms: u64, // of the next event, and what is over, in thousandths of the time between two events
    over: u64,
}

impl Source {
    fn new(index: u64, per_second: u64) -> Self {
        let random = (index..DRAWN).step_by(WORKERS).map(|number| mix(number + 1));
        let drawn =
            random.map(|bits| (((bits & 0xFFFF_FFFF) % KEYS) as u32, ((bits >> 32) % (LATENESS_MS + 1)) as u32));
        let drawn = drawn.collect::<Vec<_>>().into_iter().cycle();
        Source { drawn, per_second, place_ms: index * 1000 / per_second, over: index * 1000 % per_second }
    }
}

impl Iterator for Source {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        let (key, jitter_ms) = self.drawn.next()?;
        let event = (key.into(), self.place_ms + LATENESS_MS - u64::from(jitter_ms));
        self.over += WORKERS as u64 * 1000;
        while self.over >= self.per_second {
            self.over -= self.per_second;
            self.place_ms += 1;
        }
        Some(event)
    }
}

/// Adds up what `part` makes of each element, by window and key; rows come out when the frontier has passed a window's end.
fn count<'scope, D: ExchangeData>(
    stream: StreamVec<'scope, u64, D>,
    pact: impl ParallelizationContract<u64, Vec<D>>,
    part: impl Fn(&D) -> Row + 'static,
) -> StreamVec<'scope, u64, Row> {
    stream.unary_frontier(pact, "count", move |_, _| {
        // Few are open at once, and most events belong to the same as the one before: a scan is the fastest way to find it.
        let mut open: Vec<(u64, Capability<u64>, FxHashMap<u64, u64>)> = Vec::new();
        move |(input, frontier), output| {
            input.for_each_stamp(|stamp, batches| {
                for element in batches.flat_map(|batch| batch.drain(..)) {
                    let (time, key, n) = part(&element);
                    let found = open.iter().position(|(start, ..)| time.wrapping_sub(*start) < WINDOW_MS);
                    let place = found.unwrap_or_else(|| {
                        let start = time / WINDOW_MS * WINDOW_MS;
                        let capability = stamp.retain_least(output.output_index()).expect("data has a time");
                        let last_ms = capability.delayed(&(start + WINDOW_MS - 1));
                        open.push((start, last_ms, FxHashMap::default()));
                        open.len() - 1
                    });
                    *open[place].2.entry(key).or_default() += n;
                }
            });
            open.retain_mut(|(start, last_ms, counts)| {
                let wait = frontier.less_equal(last_ms.time());
                if !wait {
                    output.session(last_ms).give_iterator(counts.drain().map(|(key, n)| (*start, key, n)));
                }
                wait
            });
        }
    })
}

/// What one worker saw: when its source's watermark closed each window, what rows came out, and when each window's last did.
#[derive(Default)]
struct Seen {
    begun: Option<Instant>,
    ended: Option<Instant>,
    closed: BTreeMap<u64, Instant>,
    arrived: BTreeMap<u64, Instant>,
    rows: Vec<Row>,
}

fn run(local: bool, paced: bool, events: u64, per_second: u64) -> Vec<Seen> {
    let guards = timely::execute(timely::Config::process(WORKERS), move |worker| {
        let index = worker.index() as u64;
        let own = events.saturating_sub(index).div_ceil(WORKERS as u64);
        let mut source = Source::new(index, per_second);
        // Paced events are too many to be kept; they are made when they are due.
        let made: Vec<Event> = source.by_ref().take(if paced { 0 } else { own as usize }).collect();

        let (arrivals, sink) = std::sync::mpsc::channel();
        let mut input = InputHandleVec::<u64, Event>::new();
        worker.dataflow(|scope| {
            let stream = input.to_stream(scope);
            let counted = if local {
                let partial = count(stream, Pipeline, |&(key, time)| (time, key, 1));
                count(partial, Exchange::new(|&(_, key, _): &Row| key), |&row| row)
            } else {
                count(stream, Exchange::new(|&(key, _): &Event| key), |&(key, time)| (time, key, 1))
            };
            counted.sink(Pipeline, "collect", move |(input, _)| {
                input.for_each_stamp(|_, batches| {
                    for batch in batches {
                        arrivals.send((Instant::now(), std::mem::take(batch))).expect("the worker collects to its end");
                    }
                });
            });
        });

        // All begin together: nobody makes events while another's clock runs.
        start_together();
        let mut seen = Seen::default();
        let begun = Instant::now();
        seen.begun = Some(begun);
        let (mut sent, mut latest, mut batch) = (0, 0, Vec::new());
        while sent < own {
            let mut due = own;
            if paced {
                let all = (begun.elapsed().as_secs_f64() * per_second as f64) as u64;
                due = own.min(all.saturating_sub(index).div_ceil(WORKERS as u64));
            }
            let end = due.min(sent + BATCH);
            if paced {
                batch.extend(source.by_ref().take((end - sent) as usize));
            } else {
                batch.extend_from_slice(&made[sent as usize..end as usize]);
            }
            sent = end;
            latest = batch.iter().fold(latest, |latest, &(_, time)| time.max(latest));
            input.send_batch(&mut batch);
            batch.clear();
            let watermark = latest.saturating_sub(LATENESS_MS);
            let now = Instant::now();
            seen.closed.entry(watermark / WINDOW_MS).or_insert(now);
            input.advance_to(watermark);
            worker.step();
            while paced && sent == due && now.elapsed() < TICK {
                worker.step_or_park(Some(TICK.saturating_sub(now.elapsed())));
            }
        }
        input.close();
        while worker.step_or_park(None) {}
        for (at, rows) in sink {
            for row in &rows {
                seen.arrived.insert(row.0, at);
            }
            seen.ended = Some(at);
            seen.rows.extend(rows);
        }
        seen
    });
    guards.expect("workers start").join().into_iter().map(|seen| seen.expect("a worker ends")).collect()
}

fn start_together() {
    static BARRIER: std::sync::Barrier = std::sync::Barrier::new(WORKERS);
    BARRIER.wait();
}

fn main() {
    let given: Vec<String> = std::env::args().collect();
    let (local, paced) = (given[1] == "local", given[2] == "latency");
    let (events, per_second) =
        (given[3].parse().expect("a number of events"), given[4].parse().expect("events per second"));
    let mut all = run(local, paced, events, per_second);
    if !paced {
        all = run(local, paced, events, per_second); // the first has warmed up
    }
    let begun = all.iter().filter_map(|seen| seen.begun).min().expect("it has begun");
    let ended = all.iter().filter_map(|seen| seen.ended).max().expect("rows came out");
    let rows = || all.iter().flat_map(|seen| &seen.rows);
    let digest = rows().fold(0u64, |sum, &(start, key, n)| sum.wrapping_add(mix(start * 1000 + key).wrapping_mul(n)));
    let counted: u64 = rows().map(|&(.., n)| n).sum();
    let mut latencies = Vec::new();
    // Watermark `w` of every source, `w` whole windows, closes what ends there; the last windows are closed by the end of the input.
    let last = all.iter().filter_map(|seen| seen.closed.keys().max()).min().copied().unwrap_or(0);
    for window in 0..last {
        let closed = all.iter().filter_map(|seen| seen.closed.range(window + 1..).next()).map(|(_, at)| *at).max();
        let arrived = all.iter().filter_map(|seen| seen.arrived.get(&(window * WINDOW_MS))).max().copied();
        if let (Some(closed), Some(arrived)) = (closed, arrived) {
            latencies.push(format!("{:.9}", arrived.duration_since(closed).as_secs_f64()));
        }
    }
    println!(
        "{{\"elapsed_s\": {:.9}, \"counted\": {counted}, \"digest\": \"{digest}\", \"latency_s\": [{}]}}",
        ended.duration_since(begun).as_secs_f64(),
        latencies.join(", ")
    );
}
