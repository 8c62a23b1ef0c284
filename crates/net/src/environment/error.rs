//! Errors in the variables.

use super::Launcher;

/// Why the environment is inconsistent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// A variable is missing that another one requires.
    #[error("{present} is set but {missing} is not; {remedy}")]
    Missing {
        /// The variable that is set.
        present: String,
        /// The variable that is not.
        missing: String,
        /// What to do.
        remedy: String,
    },
    /// A variable has a value that cannot be parsed.
    #[error("{name}={value} is not {expected}")]
    Malformed {
        /// The variable.
        name: String,
        /// Its value; hidden if it is a secret.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
    /// The rank is not below the size.
    #[error("{launcher} set rank {rank} for {size} workers; ranks run from 0 to size - 1")]
    RankOutOfRange {
        /// The launcher that set them.
        launcher: Launcher,
        /// The rank.
        rank: u32,
        /// The size.
        size: u32,
    },
    /// The launcher meant many workers, but this process would form a job of one.
    #[error(
        "{evidence}, but this process would form a job of one worker. {remedy}; or, if you want a job of one worker, \
         set TIDEMILL_RANK=0 and TIDEMILL_SIZE=1"
    )]
    ManyJobsOfOne {
        /// The evidence for more workers.
        evidence: String,
        /// What to do.
        remedy: String,
    },
    /// The launcher offers no way for workers on several hosts to meet.
    #[error("workers on several hosts have no meeting point: {reason}; {remedy}")]
    NoMeeting {
        /// What is missing.
        reason: String,
        /// What to do.
        remedy: String,
    },
}
