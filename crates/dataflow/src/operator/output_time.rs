//! What an operator tells later tasks about time, if its results come later than the time that they belong to.

use tidemill_checkpoint::{EventTime, Mark};

/// How far an operator's results have advanced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputTime {
    /// No later result has an earlier time.
    pub time: EventTime,
    /// Whether all results that are due at the time of its inputs have been delivered.
    pub is_settled: bool,
}

/// Whether later tasks should continue without a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Idleness {
    #[default]
    Awake,
    /// To be announced as soon as the copy is settled.
    Owed,
    Told,
}

/// What has been announced.
#[derive(Debug)]
pub(crate) struct OutputMarks {
    told: EventTime,
    idle: Idleness,
}

impl Default for OutputMarks {
    fn default() -> Self {
        OutputMarks { told: EventTime::MIN, idle: Idleness::default() }
    }
}

impl OutputMarks {
    /// The marks to send after `mark` has arrived, for an operator that has reached `now`.
    pub(crate) fn of(&mut self, mark: &Mark, now: OutputTime) -> Vec<Mark> {
        let mut marks = Vec::new();
        match mark {
            Mark::Watermark(_) => {
                if std::mem::take(&mut self.idle) == Idleness::Told {
                    marks.push(Mark::Watermark(EventTime::MIN));
                }
                marks.extend(self.due(now));
            }
            Mark::Idle => {
                if self.idle == Idleness::Awake {
                    self.idle = Idleness::Owed;
                }
                marks.extend(self.due(now));
            }
            Mark::Barrier(barrier) => {
                marks.extend(self.due(now));
                marks.push(mark.clone());
                if barrier.restarts_time() {
                    self.told = EventTime::MIN;
                    if self.idle == Idleness::Told {
                        self.idle = Idleness::Owed;
                    }
                    marks.extend(self.due(now));
                }
            }
        }
        marks
    }

    /// The marks to send after anything else.
    pub(crate) fn due(&mut self, now: OutputTime) -> Vec<Mark> {
        let OutputTime { time, is_settled } = now;
        let mut marks = Vec::new();
        if time > self.told {
            self.told = time;
            marks.push(Mark::Watermark(time));
        }
        if is_settled && self.idle == Idleness::Owed {
            self.idle = Idleness::Told;
            marks.push(Mark::Idle);
        }
        marks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(time: i64, is_settled: bool) -> OutputTime {
        OutputTime { time: EventTime(time), is_settled }
    }

    /// Time is announced once, idleness once nothing is owed, and the end of idleness before anything else.
    #[test]
    fn time_and_idleness_are_held_back() {
        let watermark = |time| Mark::Watermark(EventTime(time));
        let mut marks = OutputMarks::default();
        assert_eq!(marks.of(&watermark(17), at(10, true)), [watermark(10)]);
        assert_eq!(marks.of(&watermark(19), at(10, true)), []);
        assert_eq!(marks.of(&watermark(25), at(10, false)), []);
        assert_eq!(marks.of(&Mark::Idle, at(10, false)), []);
        assert_eq!(marks.due(at(20, true)), [watermark(20), Mark::Idle]);
        assert_eq!(marks.due(at(20, true)), []);
        assert_eq!(marks.of(&watermark(31), at(20, false)), [Mark::Watermark(EventTime::MIN)]);
        assert_eq!(marks.due(at(30, true)), [watermark(30)]);
    }
}
