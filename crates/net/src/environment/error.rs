//! What can be wrong with the variables.

use super::Launcher;

/// Why the environment makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// A variable that others ask for is missing.
    #[error("{present} is set but {missing} is not; {remedy}")]
    Missing {
        /// What is there.
        present: String,
        /// What is not.
        missing: String,
        /// What to do.
        remedy: String,
    },
    /// A variable's value cannot be understood.
    #[error("{name}={value} is not {expected}")]
    Malformed {
        /// The variable.
        name: String,
        /// Its value; secrets are not shown.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
    /// The rank is not below the size.
    #[error("{launcher} set rank {rank} for {size} workers; ranks run from 0 to size - 1")]
    RankOutOfRange {
        /// Who says so.
        launcher: Launcher,
        /// The rank.
        rank: u32,
        /// The size.
        size: u32,
    },
    /// The launcher meant many workers, but this would be a job of one.
    #[error(
        "{evidence}, but this process would form a job of one worker. {remedy}; or, if you want a job of one worker, \
         set TIDEMILL_RANK=0 and TIDEMILL_SIZE=1"
    )]
    ManyJobsOfOne {
        /// What shows it.
        evidence: String,
        /// What to do.
        remedy: String,
    },
    /// The launcher offers nothing by which workers on several hosts could meet.
    #[error("workers on several hosts have no meeting point: {reason}; {remedy}")]
    NoMeeting {
        /// What is missing.
        reason: String,
        /// What to do.
        remedy: String,
    },
}
