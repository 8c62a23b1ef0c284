//! Who holds a place in an object store: decisions without a clock, a store or a thread. A thin driver (`super`) asks
//! the store what a [`LeaseClaimant`] wants to be asked, and so does a simulation (`super::simulation`).
//!
//! The store has one record. It is created where there is none, and replaced by whoever knows the version that lies
//! there; both are refused if it has changed meanwhile. The holder replaces it by another again and again. Clocks are
//! not compared: a claimant that has seen one version for as long as the record lasts, *by its own clock and from when
//! it had read it*, knows that the holder has not renewed it since before that, and the holder, which counts a shorter
//! time from when it *began* to write it, has stopped holding it by then. So clocks may show anything; they only have
//! to run about as fast (see [`LeaseTerms`]).

use std::time::Duration;

use object_store::UpdateVersion;
use serde::{Deserialize, Serialize};

use super::process::ProcessIdentity;

/// Time since the claimant began.
pub(crate) type Now = Duration;

/// A record that says that it lasts longer does not.
const LASTS_MAX: Duration = Duration::from_secs(600);
/// So often in a row a store may fail for who wants the place.
const FAILURES_MAX: u32 = 2;
/// So often in a row a store may refuse what it should take from who wants the place: others may be faster, but each
/// once.
const REFUSALS_MAX: u32 = 20;

/// How long things take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseTerms {
    /// A record that has not changed for so long is nobody's.
    pub lasts: Duration,
    /// For so long a holder takes what it has written for its own: less, by more than clocks differ in so short a time.
    pub held: Duration,
    /// From one renewal to the next.
    pub renew: Duration,
    /// From one look at another's record to the next; and after something that has failed, or was refused.
    pub again: Duration,
}

impl LeaseTerms {
    /// A claimant that finds a living holder knows it within three seconds or so, and one that waits for a dead one to
    /// be certain, after fifteen. Clocks may differ in their rate by a tenth.
    pub(crate) const USUAL: LeaseTerms = LeaseTerms {
        lasts: Duration::from_secs(15),
        held: Duration::from_secs(12),
        renew: Duration::from_secs(3),
        again: Duration::from_millis(500),
    };
}

/// What lies in the store, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// A run of a job, or a write: no two have the same.
    pub owner: String,
    /// The job's name, for people.
    pub job: String,
    /// The one that writes this: the job's worker 0.
    pub process: ProcessIdentity,
    /// Milliseconds.
    pub lasts_ms: u64,
    /// Counts up, so that no two records are the same, or have the same version.
    pub renewal: u64,
    /// When it was written by the holder's clock, in milliseconds since 1970 UTC; for people.
    pub at_ms: u64,
    /// It was given back: nobody's.
    pub free: bool,
}

impl LeaseRecord {
    /// What `process` writes for `owner`.
    pub(crate) fn of(owner: &str, job: &str, process: ProcessIdentity) -> Self {
        let (lasts_ms, renewal, at_ms, free) = Default::default();
        LeaseRecord { owner: owner.into(), job: job.into(), process, lasts_ms, renewal, at_ms, free }
    }

    /// From the bytes of an object; `None`, if they are of no version that this one reads.
    pub(crate) fn read(bytes: &[u8]) -> Option<Box<Self>> {
        let older = || {
            // Marks beside output were two lines once: who writes and how often it was put, and the process.
            let (first, process) = std::str::from_utf8(bytes).ok()?.split_once('\n')?;
            let owner = first.split_once(' ')?.0;
            let lasts_ms = LeaseTerms::USUAL.lasts.as_millis() as u64;
            Some(Box::new(LeaseRecord { lasts_ms, ..LeaseRecord::of(owner, "", process.trim_end().parse().ok()?) }))
        };
        serde_json::from_slice(bytes).ok().or_else(older)
    }

    /// See [`LeaseTerms::lasts`].
    pub(crate) fn lasts(&self) -> Duration {
        Duration::from_millis(self.lasts_ms).min(LASTS_MAX)
    }
}

/// What a claimant wants from the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreRequest {
    Read,
    /// If there is no record.
    Create(Box<LeaseRecord>),
    /// If that version lies there.
    Replace(Box<LeaseRecord>, UpdateVersion),
}

/// What the store says.
#[derive(Clone, Debug)]
pub enum StoreAnswer {
    /// There is no record.
    Nothing,
    /// This one; `None`, if it is none that this version of Tidemill can read.
    Found(Option<Box<LeaseRecord>>, UpdateVersion),
    /// What was to be written is there.
    Written(UpdateVersion),
    /// Something else lies there.
    Refused,
    /// What was to be written may be there, or come later.
    Failed(String),
    /// It does not know such conditions, and no lease can be had of it.
    Unconditional(String),
}

/// What is next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClaimStep {
    /// Ask the store, and tell the claimant what it says.
    Ask(StoreRequest),
    /// Nothing until then.
    Wait(Now),
    /// Another holds the place.
    Lost(Option<Box<LeaseRecord>>),
    /// The store does not answer, and the place was never held.
    Failed(String),
}

/// Another's record, and since when it has not changed.
struct RecordSighting {
    record: Option<Box<LeaseRecord>>,
    version: UpdateVersion,
    since: Now,
    look: Now,
}

enum ClaimState {
    /// Wants to know what is there.
    Looks,
    /// There was nothing.
    Creates,
    /// What lies there is nobody's, or its own.
    Takes(UpdateVersion),
    /// Another's lies there.
    Waits,
    /// Has written this.
    Holds {
        version: UpdateVersion,
        renew: Now,
    },
    Over(ClaimStep),
}

/// Who wants the place, or has it.
pub(crate) struct LeaseClaimant {
    me: LeaseRecord,
    terms: LeaseTerms,
    state: ClaimState,
    /// When what is being asked was asked.
    asked: Now,
    /// Nothing is asked before.
    pause: Now,
    refusals: u32,
    failures: u32,
    seen: Option<RecordSighting>,
    /// When it began to write what it knows to have been written last.
    held: Option<Now>,
    /// Why that was not renewed since.
    trouble: Option<String>,
}

impl LeaseClaimant {
    pub(crate) fn new(me: LeaseRecord, terms: LeaseTerms) -> Self {
        let me = LeaseRecord { lasts_ms: terms.lasts.as_millis() as u64, renewal: 0, free: false, ..me };
        let (asked, pause, refusals, failures, seen, held, trouble) = Default::default();
        LeaseClaimant { me, terms, state: ClaimState::Looks, asked, pause, refusals, failures, seen, held, trouble }
    }

    /// When it began to write what it knows to have been written last, if it is the holder; whether it still is one is
    /// a matter of time ([`LeaseTerms::held`]).
    pub(crate) fn held(&self) -> Option<Now> {
        self.held
    }

    /// Why it could not renew its record.
    pub(crate) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Whose record it waits for.
    pub(crate) fn waits_for(&self) -> Option<Option<&LeaseRecord>> {
        self.seen.as_ref().filter(|_| matches!(self.state, ClaimState::Waits)).map(|seen| seen.record.as_deref())
    }

    /// What is next. `at_ms` is the time of day, for people.
    pub(crate) fn step(&mut self, now: Now, at_ms: u64) -> ClaimStep {
        let ask = match &self.state {
            ClaimState::Over(step) => return step.clone(),
            _ if now < self.pause => return ClaimStep::Wait(self.pause),
            ClaimState::Looks => StoreRequest::Read,
            ClaimState::Creates => StoreRequest::Create(self.record(at_ms)),
            ClaimState::Takes(version) => StoreRequest::Replace(self.record(at_ms), version.clone()),
            ClaimState::Waits => match &self.seen {
                Some(seen) if now < seen.look => return ClaimStep::Wait(seen.look),
                _ => StoreRequest::Read,
            },
            ClaimState::Holds { renew, .. } if now < *renew => return ClaimStep::Wait(*renew),
            ClaimState::Holds { version, .. } => StoreRequest::Replace(self.record(at_ms), version.clone()),
        };
        self.asked = now;
        if !matches!(ask, StoreRequest::Read) {
            self.me.renewal += 1;
        }
        ClaimStep::Ask(ask)
    }

    /// The answer to what [`LeaseClaimant::step`] asked last. `is_gone` says whose record, if it can be read, is
    /// nobody's.
    pub(crate) fn on_answer(&mut self, now: Now, answer: StoreAnswer, is_gone: impl Fn(Option<&LeaseRecord>) -> bool) {
        self.failures = if matches!(answer, StoreAnswer::Failed(_) | StoreAnswer::Unconditional(_)) {
            self.failures + 1
        } else {
            0
        };
        match answer {
            StoreAnswer::Written(version) => {
                self.held = Some(self.asked);
                (self.seen, self.trouble, self.refusals) = (None, None, 0);
                self.state = ClaimState::Holds { version, renew: self.asked + self.terms.renew };
            }
            // Something else lies there: perhaps what it has written itself, and was told otherwise.
            StoreAnswer::Refused => {
                self.refusals += 1;
                self.pause = if self.refusals > 1 { now + self.terms.again } else { now };
                self.state = match self.held.is_none() && self.refusals > REFUSALS_MAX {
                    true => {
                        ClaimState::Over(ClaimStep::Failed("what nobody else has changed is refused as changed".into()))
                    }
                    false => ClaimState::Looks,
                };
            }
            StoreAnswer::Nothing => self.state = ClaimState::Creates,
            StoreAnswer::Found(record, version) => self.found(now, record, version, is_gone),
            StoreAnswer::Failed(reason) | StoreAnswer::Unconditional(reason)
                if self.held.is_none() && self.failures > FAILURES_MAX =>
            {
                self.state = ClaimState::Over(ClaimStep::Failed(reason));
            }
            StoreAnswer::Failed(reason) | StoreAnswer::Unconditional(reason) => {
                // If it has been written all the same, the next is refused.
                self.trouble = Some(reason);
                self.pause = now + self.terms.again;
            }
        }
    }

    fn found(
        &mut self,
        now: Now,
        record: Option<Box<LeaseRecord>>,
        version: UpdateVersion,
        is_gone: impl Fn(Option<&LeaseRecord>) -> bool,
    ) {
        let mine = record.as_ref().is_some_and(|record| record.owner == self.me.owner);
        let is_nobodys = || record.as_ref().is_some_and(|record| record.free) || is_gone(record.as_deref());
        if mine || (self.held.is_none() && is_nobodys()) {
            self.state = ClaimState::Takes(version);
            return;
        }
        // Whoever has held it has been taken for dead; and who renews what is waited for lives.
        if self.held.is_some() || self.seen.as_ref().is_some_and(|seen| seen.version != version) {
            self.state = ClaimState::Over(ClaimStep::Lost(record));
            return;
        }
        let lasts = record.as_ref().map_or(self.terms.lasts, |record| record.lasts());
        let seen = self.seen.get_or_insert(RecordSighting { record, version, since: now, look: now });
        let until = seen.since + lasts;
        if self.asked >= until {
            self.state = ClaimState::Takes(seen.version.clone());
        } else {
            seen.look = until.min(now + self.terms.again);
            self.state = ClaimState::Waits;
        }
    }

    /// What gives the place back, if it holds it.
    pub(crate) fn give_back(&mut self, at_ms: u64) -> Option<StoreRequest> {
        let ClaimState::Holds { version, .. } = &self.state else { return None };
        let version = version.clone();
        self.me.renewal += 1;
        self.held = None;
        Some(StoreRequest::Replace(Box::new(LeaseRecord { free: true, ..*self.record(at_ms) }), version))
    }

    /// Renews at the next step, whenever the last time was.
    pub(crate) fn renew_now(&mut self) {
        if let ClaimState::Holds { renew, .. } = &mut self.state {
            *renew = Now::ZERO;
        }
    }

    /// What it would write now.
    pub(crate) fn record(&self, at_ms: u64) -> Box<LeaseRecord> {
        Box::new(LeaseRecord { at_ms, ..self.me.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mark that an older version left could not be taken before it had lain there for long, though its writer is
    /// here and gone.
    #[test]
    fn marks_of_older_versions_are_read() {
        let process = ProcessIdentity::this();
        let record = LeaseRecord::read(format!("7f-1 3\n{process}\n").as_bytes()).unwrap();
        assert_eq!((record.owner.as_str(), &record.process), ("7f-1", &process));
        assert_eq!(record.lasts(), LeaseTerms::USUAL.lasts);
        assert_eq!(LeaseRecord::read(&serde_json::to_vec(&record).unwrap()), Some(record));
        for other in ["", "id", "id 0\n", "id 0\nprocess\n", "{}"] {
            assert_eq!(LeaseRecord::read(other.as_bytes()), None, "{other}");
        }
    }
}
