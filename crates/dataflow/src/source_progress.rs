//! How far the time of this worker's sources has advanced, which split holds it back, and when that deserves a
//! warning: when one split has not advanced for a while, by the machine's clock and by the other splits' time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tidemill_checkpoint::EventTime;

/// The time of one copy of a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceReport {
    /// The source's task.
    pub task: String,
    /// The copy.
    pub copy: u32,
    /// Every row with an earlier event time has been read from it; `None` if nothing is known yet.
    pub time: Option<EventTime>,
    /// The time of its split that is furthest ahead.
    pub ahead: Option<EventTime>,
    /// The split that is furthest behind, as users know it; `None` if no split holds anything back.
    pub held_by: Option<String>,
    /// Whether it announces no time before its end, although other tasks wait for time.
    #[serde(default)]
    pub untimed: bool,
}

/// The sources of this worker.
#[derive(Default)]
pub(crate) struct SourceTrackers(Mutex<BTreeMap<(String, u32), SourceReport>>);

/// One copy's entry among them, which is removed when the copy ends.
pub(crate) struct SourceTracker {
    all: Arc<SourceTrackers>,
    task: String,
    copy: u32,
    told: Option<(Option<u32>, EventTime, EventTime)>,
}

impl SourceTrackers {
    pub(crate) fn place(self: &Arc<Self>, task: &str, copy: u32) -> SourceTracker {
        SourceTracker { all: Arc::clone(self), task: task.to_owned(), copy, told: None }
    }

    /// The reports of the sources that have not ended.
    pub(crate) fn reports(&self) -> Vec<SourceReport> {
        self.0.lock().values().cloned().collect()
    }
}

impl SourceTracker {
    fn report(&self) -> SourceReport {
        let (task, copy) = (self.task.clone(), self.copy);
        SourceReport { task, copy, time: None, ahead: None, held_by: None, untimed: false }
    }

    /// Records that the copy announces no time.
    pub(crate) fn report_no_time(&self) {
        let report = SourceReport { untimed: true, ..self.report() };
        self.all.0.lock().insert((self.task.clone(), self.copy), report);
    }

    /// Records the slowest split, the copy's time, and the time of the split that is furthest ahead. `name` is called
    /// for the split's name when another split becomes the slowest.
    pub(crate) fn update(
        &mut self,
        slowest: Option<u32>,
        (time, ahead): (EventTime, EventTime),
        name: impl Fn(u32) -> String,
    ) {
        if self.told == Some((slowest, time, ahead)) {
            return;
        }
        let same = self.told.is_some_and(|(split, ..)| split == slowest);
        self.told = Some((slowest, time, ahead));
        let known = |time: EventTime| Some(time).filter(|&time| time > EventTime::MIN);
        let mut all = self.all.0.lock();
        let report = all.entry((self.task.clone(), self.copy)).or_insert_with(|| self.report());
        (report.time, report.ahead) = (known(time), known(ahead));
        if !same {
            report.held_by = slowest.map(name);
        }
    }
}

impl Drop for SourceTracker {
    fn drop(&mut self) {
        self.all.0.lock().remove(&(std::mem::take(&mut self.task), self.copy));
    }
}

/// Detects sources whose time has stopped.
pub(crate) struct StallMonitor {
    /// How long a stall lasts before it deserves a warning; zero means never to warn.
    patience: Duration,
    /// By task and copy: its time, since when, and whether that was reported.
    seen: BTreeMap<(String, u32), (Option<EventTime>, Instant, bool)>,
}

impl StallMonitor {
    pub(crate) fn new(patience: Duration) -> Self {
        StallMonitor { patience, seen: BTreeMap::new() }
    }

    /// The warnings to report now. `elsewhere` tells how far other copies of a task have advanced.
    pub(crate) fn check(
        &mut self,
        now: Instant,
        sources: &[SourceReport],
        elsewhere: impl Fn(&str) -> Option<EventTime>,
    ) -> Vec<String> {
        let mut said = Vec::new();
        self.seen.retain(|(task, copy), _| sources.iter().any(|of| &of.task == task && of.copy == *copy));
        for source in sources.iter().filter(|_| !self.patience.is_zero()) {
            let seen = self.seen.entry((source.task.clone(), source.copy)).or_insert((source.time, now, false));
            if seen.0 != source.time {
                *seen = (source.time, now, false);
            }
            // Copy 0 reports it for all copies.
            if source.untimed && source.copy == 0 && !seen.2 && now.saturating_duration_since(seen.1) >= self.patience {
                seen.2 = true;
                said.push(format!(
                    "{} has no time=, so what waits for the stream's time, such as windows and ttl=, waits for its end; name the column \
                     with its rows' times, or use tm.stream.processing_time()",
                    source.task
                ));
            }
            let Some(split) = &source.held_by else { continue };
            let ahead = source.ahead.max(elsewhere(&source.task));
            let Some(ahead) = ahead.filter(|&ahead| Some(ahead) > source.time) else { continue };
            let behind = source.time.map(|time| Duration::from_micros(ahead.0.saturating_sub(time.0).unsigned_abs()));
            let stood = now.saturating_duration_since(seen.1);
            if seen.2 || stood < self.patience || behind.is_some_and(|behind| behind < self.patience) {
                continue;
            }
            seen.2 = true;
            let stands = match (source.time, behind) {
                (Some(time), Some(behind)) => {
                    format!(
                        "has stood at {time} for {:.0} s, {:.0} s behind",
                        stood.as_secs_f64(),
                        behind.as_secs_f64()
                    )
                }
                _ => format!("has not begun for {:.0} s, while others are at {ahead}:", stood.as_secs_f64()),
            };
            said.push(format!(
                "{}, copy {}: the stream's time {stands}: {split} holds it back, and with it all windows; either its rows are \
                 not read, or they tell no later time (a split without more rows stops holding time back after idle_after)",
                source.task, source.copy
            ));
        }
        said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A warning would be useless if it named another split, came while time advances, or came again each time.
    #[test]
    fn a_split_that_holds_time_back_is_named_once() {
        let (sources, begun) = (Arc::new(SourceTrackers::default()), Instant::now());
        let mut place = sources.place("source kafka 1", 0);
        let mut stalls = StallMonitor::new(Duration::from_secs(10));
        let us = |seconds: i64| EventTime(seconds * 1_000_000);
        let mut check = |at_s: u64, elsewhere: Option<EventTime>| {
            stalls.check(begun + Duration::from_secs(at_s), &sources.reports(), |_| elsewhere)
        };
        let name = |split: u32| format!("clicks[{split}]");
        place.update(Some(1), (us(5), us(7)), name);
        assert!(check(0, None).is_empty());
        // Nothing advances for anybody: there may be no rows.
        assert!(check(50, None).is_empty());
        place.update(Some(1), (us(5), us(30)), name);
        let said = check(60, None);
        assert_eq!(said.len(), 1);
        assert!(
            said[0]
                .starts_with("source kafka 1, copy 0: the stream's time has stood at 5.000000 s for 60 s, 25 s behind"),
            "{said:?}"
        );
        assert!(said[0].contains("clicks[1] holds it back"), "{said:?}");
        assert!(check(70, None).is_empty());
        place.update(Some(0), (us(6), us(31)), name);
        assert!(check(71, None).is_empty() && check(80, None).is_empty());
        assert!(check(81, None)[0].contains("clicks[0] holds it back"));
        // By itself it is not behind, but another copy is ahead.
        place.update(Some(0), (us(40), us(40)), name);
        assert!(check(90, Some(us(90))).is_empty());
        assert!(check(101, Some(us(90)))[0].contains("50 s behind"));
        place.update(None, (us(41), us(41)), name);
        assert!(check(102, Some(us(200))).is_empty() && check(200, Some(us(400))).is_empty());
        let untimed = sources.place("source files 2", 0);
        untimed.report_no_time();
        assert!(check(300, None).is_empty());
        assert!(check(310, None)[0].starts_with("source files 2 has no time="));
        assert!(check(320, None).is_empty());
        drop(untimed);
        let mut never = StallMonitor::new(Duration::ZERO);
        assert!(never.check(begun + Duration::from_secs(500), &sources.reports(), |_| Some(us(900))).is_empty());
        drop(place);
        assert!(sources.reports().is_empty());
    }
}
