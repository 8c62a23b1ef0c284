//! Decides who holds a lease in an object store, without a clock, a store or a thread. A thin driver (`super`) sends
//! the requests of a [`LeaseClaimant`] to the store, and so does a simulation (`super::simulation`).
//!
//! The store contains one record. A claimant creates it if there is none, or replaces it if it knows the current
//! version; the store rejects both if the record has changed meanwhile. The holder replaces the record again and again.
//!
//! Clocks are not compared. A claimant waits until it has seen the same version for as long as the record lasts, *by
//! its own clock and from when it had read it*. It then knows that the holder has not renewed the record since before
//! that. The holder counts a shorter time, from when it *began* to write the record, so by then it has stopped
//! considering itself the holder. Clocks may therefore show any time; they only have to run at about the same rate (see
//! [`LeaseTerms`]).

use std::time::Duration;

use object_store::UpdateVersion;
use serde::{Deserialize, Serialize};

use super::process::ProcessIdentity;

/// Time since the claimant began.
pub(crate) type Now = Duration;

/// Upper limit on the duration that a record may claim.
const LASTS_MAX: Duration = Duration::from_secs(600);
/// Consecutive failures of the store after which a claimant gives up.
const FAILURES_MAX: u32 = 2;
/// Consecutive rejections after which a claimant gives up: others may be faster, but each of them only once.
const REFUSALS_MAX: u32 = 20;

/// The durations of the protocol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseTerms {
    /// A record that has not changed for this long has no holder.
    pub lasts: Duration,
    /// How long a holder relies on its last write: shorter, by more than clocks drift apart in that time.
    pub held: Duration,
    /// Time between renewals.
    pub renew: Duration,
    /// Time between checks of another's record, and after a failure or rejection.
    pub again: Duration,
}

impl LeaseTerms {
    /// A claimant recognizes a live holder within about three seconds, and one that waits for a dead holder is certain
    /// after fifteen. Clock rates may differ by a tenth.
    pub(crate) const USUAL: LeaseTerms = LeaseTerms {
        lasts: Duration::from_secs(15),
        held: Duration::from_secs(12),
        renew: Duration::from_secs(3),
        again: Duration::from_millis(500),
    };
}

/// The record in the store, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// A unique id of a job's run, or of a write.
    pub owner: String,
    /// The job's name, for messages.
    pub job: String,
    /// The writer: the job's worker 0.
    pub process: ProcessIdentity,
    /// Milliseconds.
    pub lasts_ms: u64,
    /// A counter that makes all records, and their versions, different.
    pub renewal: u64,
    /// The time of writing by the holder's clock, in milliseconds since 1970 UTC; for messages.
    pub at_ms: u64,
    /// The lease was released: there is no holder.
    pub free: bool,
}

impl LeaseRecord {
    /// The record that `process` writes for `owner`.
    pub(crate) fn of(owner: &str, job: &str, process: ProcessIdentity) -> Self {
        let (lasts_ms, renewal, at_ms, free) = Default::default();
        LeaseRecord { owner: owner.into(), job: job.into(), process, lasts_ms, renewal, at_ms, free }
    }

    /// Parses the bytes of an object; `None` if they are not of a version that this one can read.
    pub(crate) fn read(bytes: &[u8]) -> Option<Box<Self>> {
        let older = || {
            // Markers beside output used to have two lines: the writer with a counter, and the process.
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

/// A claimant's request to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreRequest {
    Read,
    /// Create the record, if there is none.
    Create(Box<LeaseRecord>),
    /// Replace the record, if it has that version.
    Replace(Box<LeaseRecord>, UpdateVersion),
}

/// The store's answer.
#[derive(Clone, Debug)]
pub enum StoreAnswer {
    /// There is no record.
    Nothing,
    /// The record; `None` if this version of Tidemill cannot read it.
    Found(Option<Box<LeaseRecord>>, UpdateVersion),
    /// The record was written.
    Written(UpdateVersion),
    /// The record is different from what the condition requires.
    Refused,
    /// The record may have been written, or may be written later.
    Failed(String),
    /// The store does not support such conditions, so leases are impossible.
    Unconditional(String),
}

/// The next step of a claimant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClaimStep {
    /// Send the request to the store, and give the answer to the claimant.
    Ask(StoreRequest),
    /// Wait until this time.
    Wait(Now),
    /// Another owner holds the lease.
    Lost(Option<Box<LeaseRecord>>),
    /// The store does not answer, and the lease was never held.
    Failed(String),
}

/// Another owner's record, and the time since which it has not changed.
struct RecordSighting {
    record: Option<Box<LeaseRecord>>,
    version: UpdateVersion,
    since: Now,
    look: Now,
}

enum ClaimState {
    /// Reads the record.
    Looks,
    /// There was no record.
    Creates,
    /// The record has no live owner, or is its own.
    Takes(UpdateVersion),
    /// Another owner's record exists.
    Waits,
    /// Has written this record.
    Holds {
        version: UpdateVersion,
        renew: Now,
    },
    Over(ClaimStep),
}

/// A process that wants the lease, or holds it.
pub(crate) struct LeaseClaimant {
    me: LeaseRecord,
    terms: LeaseTerms,
    state: ClaimState,
    /// When the current request was sent.
    asked: Now,
    /// No request is sent before this time.
    pause: Now,
    refusals: u32,
    failures: u32,
    seen: Option<RecordSighting>,
    /// When it began to write the last record that is known to be written.
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

    /// When it began to write the last record that is known to be written, if it is the holder; whether it still is
    /// depends on the time ([`LeaseTerms::held`]).
    pub(crate) fn held(&self) -> Option<Now> {
        self.held
    }

    /// Why it could not renew its record.
    pub(crate) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// The record that it waits for.
    pub(crate) fn waits_for(&self) -> Option<Option<&LeaseRecord>> {
        self.seen.as_ref().filter(|_| matches!(self.state, ClaimState::Waits)).map(|seen| seen.record.as_deref())
    }

    /// The next step. `at_ms` is the time of day, for messages.
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

    /// Handles the answer to the last request of [`LeaseClaimant::step`]. `is_gone` decides whether the owner of a
    /// record, if readable, is gone.
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
            // The record differs: perhaps it is its own write, whose answer was lost.
            StoreAnswer::Refused => {
                self.refusals += 1;
                self.pause = if self.refusals > 1 { now + self.terms.again } else { now };
                self.state = match self.held.is_none() && self.refusals > REFUSALS_MAX {
                    true => {
                        ClaimState::Over(ClaimStep::Failed("it rejects writes although nothing has changed".into()))
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
                // If the write did succeed, the next one is rejected.
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
        // If it has held the lease before, it was taken for dead; and if the awaited record was renewed, its owner is
        // alive.
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

    /// The request that releases the lease, if it is held.
    pub(crate) fn give_back(&mut self, at_ms: u64) -> Option<StoreRequest> {
        let ClaimState::Holds { version, .. } = &self.state else { return None };
        let version = version.clone();
        self.me.renewal += 1;
        self.held = None;
        Some(StoreRequest::Replace(Box::new(LeaseRecord { free: true, ..*self.record(at_ms) }), version))
    }

    /// Renews at the next step, regardless of the last renewal.
    pub(crate) fn renew_now(&mut self) {
        if let ClaimState::Holds { renew, .. } = &mut self.state {
            *renew = Now::ZERO;
        }
    }

    /// The record that it would write now.
    pub(crate) fn record(&self, at_ms: u64) -> Box<LeaseRecord> {
        Box::new(LeaseRecord { at_ms, ..self.me.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A marker left by an older version used to be taken over only after a long wait, although its writer ran on this
    /// machine and was gone.
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
