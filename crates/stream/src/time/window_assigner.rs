//! The time spans of windows: of constant length, or following a calendar in a time zone, where a day may have 23 hours
//! and a month 28 days.

use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;

use arrow::array::timezone::Tz;
use chrono::{DateTime, Datelike, Days, MappedLocalTime, NaiveDate, NaiveDateTime, NaiveTime, TimeDelta, TimeZone};
use tidemill_dataset::DataSetError;

use crate::time::window::Micros;

/// Calendar windows: days, weeks, months or years of a time zone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ZonedCalendar {
    unit: SpanUnit,
    count: u32,
    zone: Arc<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum SpanUnit {
    Day,
    Week,
    Month,
    Year,
}

/// The names of units.
const UNITS: [(&str, SpanUnit); 4] =
    [("d", SpanUnit::Day), ("w", SpanUnit::Week), ("mo", SpanUnit::Month), ("y", SpanUnit::Year)];
const DAY: Micros = 86_400_000_000;

impl ZonedCalendar {
    /// Windows of `count` units (`"d"`, `"w"`, `"mo"`, `"y"`) in a zone, given by its name (`"Europe/Berlin"`) or
    /// offset (`"+01:00"`).
    ///
    /// # Errors
    /// `Query` if the zone or the unit is unknown, or if the count is zero or too large.
    pub fn new(count: u32, unit: &str, zone: &str) -> Result<Self, DataSetError> {
        Tz::from_str(zone).map_err(|_| {
            let reason = format!(
                "unknown time zone {zone:?}; use a name such as \"Europe/Berlin\" or an offset such as \"+01:00\""
            );
            DataSetError::Query(reason)
        })?;
        let known = UNITS.iter().find(|(name, _)| *name == unit);
        let (_, unit) =
            *known.ok_or_else(|| DataSetError::Query(format!("unknown calendar unit {unit:?}; use d, w, mo or y")))?;
        if !(1..=1000).contains(&count) {
            return Err(DataSetError::Query("a calendar window must be 1 to 1000 days, weeks, months or years".into()));
        }
        Ok(ZonedCalendar { unit, count, zone: zone.into() })
    }

    /// The form in plans.
    pub(crate) fn text(&self) -> String {
        let name = UNITS.iter().find(|(_, unit)| *unit == self.unit).map_or("", |(name, _)| name);
        format!("{} {name} {}", self.count, self.zone)
    }

    /// The maximum number of days in a span, plus one for changes of the clock.
    fn days_max(&self) -> i64 {
        let unit = match self.unit {
            SpanUnit::Day => 1,
            SpanUnit::Week => 7,
            SpanUnit::Month => 31,
            SpanUnit::Year => 366,
        };
        i64::from(self.count) * unit + 2
    }

    /// The first day of the span that contains a day, and the first day of the next.
    fn days(&self, day: NaiveDate) -> (NaiveDate, NaiveDate) {
        let count = i64::from(self.count);
        let in_days = |unit: i64, first: NaiveDate| {
            let length = count * unit;
            let since = (day - first).num_days();
            let start = day - TimeDelta::days(since.rem_euclid(length));
            (start, start + Days::new(length as u64))
        };
        let epoch = NaiveDate::default();
        match self.unit {
            SpanUnit::Day => in_days(1, epoch),
            // The first Monday, because weeks begin on Monday.
            SpanUnit::Week => in_days(7, epoch + Days::new(4)),
            SpanUnit::Month | SpanUnit::Year => {
                let length = if self.unit == SpanUnit::Year { 12 * count } else { count };
                let month = i64::from(day.year()) * 12 + i64::from(day.month0());
                let start = month - month.rem_euclid(length);
                let first = |month: i64| {
                    let (year, month) = (month.div_euclid(12) as i32, month.rem_euclid(12) as u32 + 1);
                    NaiveDate::from_ymd_opt(year, month, 1).unwrap_or(day)
                };
                (first(start), first(start + length))
            }
        }
    }
}

/// Assigns times to windows, and divides time into panes.
#[derive(Clone)]
pub(crate) struct WindowAssigner {
    kind: SpanKind,
    /// Panes also end after each `step` of a window.
    step: Option<Micros>,
}

#[derive(Clone)]
enum SpanKind {
    /// `[k * slide, k * slide + size)` for every k.
    Sliding { size: Micros, slide: Micros },
    /// Successive calendar spans.
    Calendar { of: ZonedCalendar, zone: Tz },
}

/// The range of years in which calendars are computed.
const YEARS: i64 = 200_000;

fn gcd(mut a: Micros, mut b: Micros) -> Micros {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl WindowAssigner {
    pub(crate) fn sliding(size: Micros, slide: Micros) -> Self {
        WindowAssigner { kind: SpanKind::Sliding { size, slide }, step: None }
    }

    pub(crate) fn calendar(of: ZonedCalendar) -> Result<Self, DataSetError> {
        let zone = Tz::from_str(&of.zone).map_err(|error| DataSetError::Query(error.to_string()))?;
        Ok(WindowAssigner { kind: SpanKind::Calendar { of, zone }, step: None })
    }

    /// The same windows, with panes that also end at each step of a window, so that the result up to the step is known.
    pub(crate) fn with_step(self, step: Option<Micros>) -> Self {
        WindowAssigner { step, ..self }
    }

    pub(crate) fn step(&self) -> Option<Micros> {
        self.step
    }

    pub(crate) fn described(&self) -> String {
        let windows = match &self.kind {
            SpanKind::Sliding { size, slide } => format!("windows of {size} us every {slide} us"),
            SpanKind::Calendar { of, .. } => format!("windows of {}", of.text()),
        };
        // The states of panes with other ends cannot be used.
        self.step.map_or(windows.clone(), |step| format!("{windows}, in steps of {step} us"))
    }

    /// Whether each window is exactly one pane, and each pane is in one window.
    pub(crate) fn tumble(&self) -> bool {
        let alone = match &self.kind {
            SpanKind::Sliding { size, slide } => size == slide,
            SpanKind::Calendar { .. } => true,
        };
        alone && self.step.is_none()
    }

    /// The length of a pane, if it is constant.
    pub(crate) fn pane_length(&self) -> Option<Micros> {
        match (&self.kind, self.step) {
            (SpanKind::Sliding { size, slide }, Some(step)) if size == slide && size % step != 0 => None,
            (SpanKind::Sliding { size, slide }, step) => Some(gcd(gcd(*size, *slide), step.unwrap_or(0))),
            (SpanKind::Calendar { .. }, _) => None,
        }
    }

    /// The maximum length of a window.
    pub(crate) fn longest(&self) -> Micros {
        match &self.kind {
            SpanKind::Sliding { size, .. } => *size,
            SpanKind::Calendar { of, .. } => of.days_max().saturating_mul(DAY),
        }
    }

    /// The pane that contains a time: the largest span around it without a window's border or a step's end inside.
    pub(crate) fn pane(&self, time: Micros) -> (Micros, Micros) {
        if let Some(length) = self.pane_length() {
            let start = time - time.rem_euclid(length);
            return (start, start.saturating_add(length));
        }
        let (start, end) = match &self.kind {
            SpanKind::Sliding { size, .. } => {
                let start = time - time.rem_euclid(*size);
                (start, start.saturating_add(*size))
            }
            SpanKind::Calendar { of, zone } => stretch(of, zone, time),
        };
        let Some(step) = self.step else { return (start, end) };
        let at = time.clamp(start, end - 1);
        let start = at - (at - start) % step;
        (start, end.min(start.saturating_add(step)))
    }

    /// The start of the one calendar window that contains a pane.
    fn only_window(&self, of: &ZonedCalendar, zone: &Tz, pane: Micros) -> Micros {
        if self.step.is_none() { pane } else { stretch(of, zone, pane).0 }
    }

    /// The starts of the windows that contain a pane, the last first.
    pub(crate) fn windows(&self, pane: Micros) -> impl Iterator<Item = Micros> + use<> {
        let (pane, size, slide, most) = match &self.kind {
            SpanKind::Sliding { size, slide } => (pane, *size, *slide, i64::MAX),
            SpanKind::Calendar { of, zone } => (self.only_window(of, zone, pane), 1, 1, 1),
        };
        let last = pane - pane.rem_euclid(slide);
        (0..most).map(move |back| last - back * slide).take_while(move |start| start + size > pane)
    }

    /// Those that also end within a range, the last first.
    pub(crate) fn windows_ending(
        &self,
        pane: Micros,
        ends: RangeInclusive<Micros>,
    ) -> impl Iterator<Item = Micros> + use<> {
        // From `last` down in steps of `slide`, while above `below`.
        let (last, below, slide) = match &self.kind {
            SpanKind::Sliding { size, slide } => {
                let last = pane.min(ends.end().saturating_sub(*size));
                (last, (pane - size).max(ends.start().saturating_sub(*size).saturating_sub(1)), *slide)
            }
            SpanKind::Calendar { of, zone } => {
                let window = self.only_window(of, zone, pane);
                (window, window - i64::from(ends.contains(&self.end(window))), 1)
            }
        };
        let most = if last > below { i64::MAX } else { 0 };
        (0..most).map(move |back| last - last.rem_euclid(slide) - back * slide).take_while(move |start| *start > below)
    }

    /// The maximum number of windows that contain a time.
    pub(crate) fn windows_max(&self) -> usize {
        match &self.kind {
            SpanKind::Sliding { size, slide } => usize::try_from((size - 1) / slide + 1).unwrap_or(usize::MAX),
            SpanKind::Calendar { .. } => 1,
        }
    }

    /// The end of the window that starts at `start`.
    pub(crate) fn end(&self, start: Micros) -> Micros {
        match &self.kind {
            SpanKind::Sliding { size, .. } => start.saturating_add(*size),
            SpanKind::Calendar { of, zone } => stretch(of, zone, start).1,
        }
    }

    /// The start of the window that ends at `end`.
    pub(crate) fn start(&self, end: Micros) -> Micros {
        match &self.kind {
            SpanKind::Sliding { size, .. } => end.saturating_sub(*size),
            SpanKind::Calendar { of, zone } => stretch(of, zone, end - 1).0,
        }
    }

    /// The end of the last window that has ended by a time.
    pub(crate) fn ended_by(&self, time: Micros) -> Micros {
        match &self.kind {
            SpanKind::Sliding { size, slide } => time.saturating_sub(time.wrapping_sub(*size).rem_euclid(*slide)),
            SpanKind::Calendar { of, zone } => stretch(of, zone, time).0,
        }
    }

    /// The end of the first window that ends after a time.
    pub(crate) fn first_end_after(&self, time: Micros) -> Micros {
        match &self.kind {
            SpanKind::Sliding { slide, .. } => self.ended_by(time).saturating_add(*slide),
            SpanKind::Calendar { of, zone } => stretch(of, zone, time).1,
        }
    }

    /// The end of the last window that contains a pane.
    pub(crate) fn last_end(&self, pane: Micros) -> Micros {
        match &self.kind {
            SpanKind::Sliding { size, slide } => (pane - pane.rem_euclid(*slide)).saturating_add(*size),
            SpanKind::Calendar { of, zone } => stretch(of, zone, pane).1,
        }
    }

    /// The ends of the steps that contain a pane, in windows that continue beyond them, each with the start of its
    /// window.
    pub(crate) fn steps(&self, pane: Micros) -> impl Iterator<Item = (Micros, Micros)> {
        let windows = self.step.map(|step| self.windows(pane).map(move |start| (start, step)));
        let ends = windows.into_iter().flatten().map(move |(start, step)| {
            let passed = pane - start;
            (start.saturating_add(passed - passed % step).saturating_add(step), start)
        });
        ends.filter(move |&(end, start)| end < self.end(start))
    }
}

/// The span of a calendar that contains a time.
fn stretch(of: &ZonedCalendar, zone: &Tz, time: Micros) -> (Micros, Micros) {
    let time = time.clamp(-YEARS * 365 * DAY, YEARS * 365 * DAY);
    let utc: NaiveDateTime = DateTime::from_timestamp_micros(time).unwrap_or_default().naive_utc();
    let (first, next) = of.days(zone.from_utc_datetime(&utc).date_naive());
    (midnight(zone, first), midnight(zone, next))
}

/// The start of a day. If clocks are set forward at midnight, or skip a whole day, it is the first moment after the
/// gap.
fn midnight(zone: &Tz, day: NaiveDate) -> Micros {
    let midnight = day.and_time(NaiveTime::MIN);
    // Ever since time zones were introduced (then by seconds), clocks have been changed only by whole quarters of an
    // hour.
    let later = (0..4 * 24 * 3).map(|quarters| midnight + TimeDelta::minutes(15 * quarters));
    let found = later.map(|local| zone.from_local_datetime(&local)).find_map(|found| match found {
        MappedLocalTime::Single(at) | MappedLocalTime::Ambiguous(at, _) => Some(at.timestamp_micros()),
        MappedLocalTime::None => None,
    });
    found.unwrap_or_else(|| midnight.and_utc().timestamp_micros())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(text: &str) -> Micros {
        DateTime::parse_from_rfc3339(text).unwrap().timestamp_micros()
    }

    fn spans(count: u32, unit: &str, zone: &str) -> WindowAssigner {
        WindowAssigner::calendar(ZonedCalendar::new(count, unit, zone).unwrap()).unwrap()
    }

    /// A day has 23 hours when clocks are set forward, weeks begin on Monday, years have leap days, and days that a
    /// zone skipped have no length.
    #[test]
    fn spans_follow_the_calendar() {
        for (count, unit, zone, time, start, end) in [
            (1, "d", "Europe/Berlin", "2026-03-29T12:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"),
            (1, "mo", "Europe/Berlin", "2026-03-31T22:00:00Z", "2026-03-31T22:00:00Z", "2026-04-30T22:00:00Z"),
            (1, "mo", "UTC", "2024-02-29T23:59:59Z", "2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z"),
            (3, "mo", "+05:30", "2026-06-30T18:29:59Z", "2026-03-31T18:30:00Z", "2026-06-30T18:30:00Z"),
            (1, "w", "UTC", "2026-11-22T16:00:00Z", "2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z"),
            (1, "y", "America/New_York", "2027-01-01T04:59:59Z", "2026-01-01T05:00:00Z", "2027-01-01T05:00:00Z"),
            // Clocks went from midnight to 1 a.m.
            (1, "d", "America/Sao_Paulo", "2018-11-04T12:00:00Z", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"),
            // There was no December 30.
            (1, "d", "Pacific/Apia", "2011-12-31T00:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"),
            (1, "d", "UTC", "1969-12-31T23:59:59Z", "1969-12-31T00:00:00Z", "1970-01-01T00:00:00Z"),
        ] {
            let found = spans(count, unit, zone).pane(micros(time));
            assert_eq!(found, (micros(start), micros(end)), "{count} {unit} {zone} {time}");
        }
    }

    /// Each moment is in exactly one span, which begins where the previous one ends.
    #[test]
    fn spans_have_no_gaps() {
        for (count, unit) in [(1, "d"), (5, "d"), (2, "w"), (1, "mo"), (7, "mo"), (1, "y")] {
            for zone in ["Europe/Dublin", "America/Havana", "Pacific/Apia", "Asia/Kathmandu", "-03:00"] {
                let spans = spans(count, unit, zone);
                let (mut start, until) = (spans.pane(micros("2009-06-01T00:00:00Z")).0, micros("2013-01-01T00:00:00Z"));
                while start < until {
                    let end = spans.end(start);
                    assert!(end > start && end - start <= spans.longest());
                    for time in [start, start + (end - start) / 3, end - 1] {
                        assert_eq!(spans.pane(time), (start, end), "{count} {unit} {zone} {time}");
                    }
                    assert_eq!((spans.last_end(start), spans.windows(start).collect::<Vec<_>>()), (end, vec![start]));
                    start = end;
                }
            }
        }
    }

    /// The windows that fire are all those that end at that time.
    #[test]
    fn windows_ending_in_a_range() {
        let sliding = WindowAssigner::sliding;
        let days = || spans(1, "d", "Europe/Berlin");
        let stepped = [sliding(12, 4).with_step(Some(3)), sliding(7, 7).with_step(Some(2)), days().with_step(Some(7))];
        for spans in [sliding(12, 4), sliding(10, 4), sliding(7, 7), days()].into_iter().chain(stepped) {
            let panes: Vec<Micros> = (-30..30).map(|time| spans.pane(time).0).collect();
            let times = (-50..50).chain([Micros::MIN, Micros::MIN + 1, 90_000_000_000, Micros::MAX]);
            for (pane, (from, to)) in panes
                .into_iter()
                .zip(times.clone())
                .flat_map(|(pane, from)| times.clone().map(move |to| (pane, (from, to))))
            {
                let all = spans.windows(pane).filter(|start| (from..=to).contains(&spans.end(*start)));
                assert!(spans.windows_ending(pane, from..=to).eq(all), "{} {pane} {from} {to}", spans.described());
            }
        }
    }

    /// Each moment of a window is in one of its steps, whose end is the end of a pane; the last step ends with the
    /// window.
    #[test]
    fn steps_divide_windows() {
        let hour = 3_600_000_000;
        let summer = micros("2026-03-29T00:00:00Z");
        for (spans, from, unit) in [
            (WindowAssigner::sliding(12, 4), 0, 1),
            (WindowAssigner::sliding(12, 12), -30, 1),
            (spans(1, "d", "Europe/Berlin"), summer, hour / 4),
        ] {
            for step in [1, 2, 5, 7, 12, 100] {
                let spans = spans_with(&spans, step * unit);
                for time in (from..from + 40 * unit).step_by(unit as usize) {
                    let (pane, pane_end) = spans.pane(time);
                    assert!((pane..pane_end).contains(&time));
                    let mut expected: Vec<(Micros, Micros)> = Vec::new();
                    for start in spans.windows(pane) {
                        let mut end = start;
                        while end <= time {
                            end += step * unit;
                        }
                        assert!(pane_end <= end && pane_end <= spans.end(start));
                        if end < spans.end(start) {
                            expected.push((end, start));
                        }
                    }
                    assert_eq!(spans.steps(pane).collect::<Vec<_>>(), expected, "{} {time}", spans.described());
                }
            }
        }
    }

    fn spans_with(of: &WindowAssigner, step: Micros) -> WindowAssigner {
        let kind = match &of.kind {
            SpanKind::Sliding { size, slide } => SpanKind::Sliding { size: *size, slide: *slide },
            SpanKind::Calendar { of, zone } => SpanKind::Calendar { of: of.clone(), zone: *zone },
        };
        WindowAssigner { kind, step: Some(step) }
    }

    /// No window ends between the end found and the time.
    #[test]
    fn ended_by_is_the_last_end() {
        let sliding = WindowAssigner::sliding;
        for spans in [sliding(12, 4), sliding(10, 4), sliding(7, 7), spans(1, "d", "Europe/Berlin")] {
            for time in (-40..40).chain([90_000_000_000, 1_800_000_000_000_000]) {
                let ended = spans.ended_by(time);
                let ends = |pane: Micros| spans.windows(spans.pane(pane).0).map(|start| spans.end(start));
                assert!(ended <= time && ends(ended - 1).any(|end| end == ended), "{} {time}", spans.described());
                assert_eq!(spans.end(spans.start(ended)), ended);
                let next = spans.first_end_after(time);
                assert!(time < next && spans.ended_by(next - 1) == ended && spans.ended_by(next) == next);
                let between = (ended..time).flat_map(|at| ends(at).collect::<Vec<_>>());
                assert!(between.take(10_000).all(|end| end <= ended || end > time), "{} {time}", spans.described());
            }
        }
    }

    /// Times far beyond all calendars do not fail.
    #[test]
    fn extreme_times_do_not_fail() {
        for time in [Micros::MIN, Micros::MAX] {
            let (start, end) = spans(1, "mo", "Europe/Berlin").pane(time);
            assert!(start < end);
        }
    }

    #[test]
    fn invalid_calendars_are_refused() {
        assert!(ZonedCalendar::new(1, "d", "Europe/Atlantis").unwrap_err().to_string().contains("unknown time zone"));
        assert!(ZonedCalendar::new(1, "h", "UTC").is_err() && ZonedCalendar::new(0, "d", "UTC").is_err());
    }
}
