//! What an operator tells the tasks behind it of time, if its results come later than the time that they are of.

use tidemill_checkpoint::{EventTime, Mark};

/// How far an operator's results have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputTime {
    /// No result to come has an earlier time.
    pub time: EventTime,
    /// All results have been given that the time of its inputs calls for.
    pub is_settled: bool,
}

/// Whether those behind are to go on without a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Idleness {
    #[default]
    Awake,
    /// As soon as the copy is settled.
    Owed,
    Told,
}

/// What has been told.
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
    /// What is told when a mark has come, of an operator that has come to `now`.
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
            Mark::Barrier(_) => {
                marks.extend(self.due(now));
                marks.push(mark.clone());
            }
        }
        marks
    }

    /// What is to be told after anything else.
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

    /// Time is told once, idleness when nothing is owed any more, and that it is over before anything else.
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
