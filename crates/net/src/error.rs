//! Errors between workers, as every layer above sees them.

use crate::Rank;

/// An error of the job or of one message. Cheap to clone, since every blocked call receives the same fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NetError {
    /// A worker's process or host is gone.
    #[error("worker {rank} was lost: {reason}")]
    WorkerLost {
        /// The worker.
        rank: Rank,
        /// How the loss was noticed.
        reason: String,
    },
    /// A worker's program raised an error; the job cannot continue.
    #[error("worker {rank} failed:\n{traceback}")]
    PeerFailed {
        /// The worker where the error began.
        rank: Rank,
        /// Its traceback or message.
        traceback: String,
    },
    /// A worker's program ended well, but this call still needs it.
    #[error("worker {rank} has left the job (its program ended) but this call needs it")]
    PeerLeft {
        /// The worker.
        rank: Rank,
    },
    /// A worker has finished with a communicator, but a call there still needs it.
    #[error("worker {rank}'s function returned while this one waits in {call}")]
    PeerEnded {
        /// The worker.
        rank: Rank,
        /// The call in words.
        call: String,
    },
    /// A message is longer than the buffer it was received into.
    #[error("message of {sent_bytes} bytes from worker {from} does not fit the receive buffer of {room_bytes} bytes")]
    Truncated {
        /// Sender.
        from: Rank,
        /// Bytes sent.
        sent_bytes: u64,
        /// Bytes of room.
        room_bytes: u64,
    },
    /// Two workers made different collective calls at the same point.
    #[error("collective calls do not match: {0}")]
    Mismatch(String),
    /// A reduction failed.
    #[error("{0}")]
    Operation(String),
    /// A signal arrived; the caller checks it and either gives up or waits again.
    #[error("interrupted by a signal")]
    Interrupted,
    /// The endpoint was closed by `leave`.
    #[error("this worker has left the job (finalized) and can no longer communicate")]
    Closed,
    /// The process was forked; only the original process may communicate.
    #[error("this process is a fork of a worker; only the worker itself may communicate (start processes with spawn)")]
    Forked,
}
