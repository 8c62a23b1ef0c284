//! The first failure in a form that can be sent, so that every worker returns the same error.

use tidemill_net::{NetError, Rank};

use crate::error::DataflowError;

/// The copy numbers that stand for a worker that left the job, and for one that has finished with the communicator.
const LEFT: u32 = u32::MAX;
const ENDED: u32 = u32::MAX - 1;

/// A failure that began in a task copy, or beneath it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunFault {
    /// The worker's rank in the job.
    pub rank: u32,
    pub task: String,
    pub copy: u32,
    pub message: String,
}

impl RunFault {
    /// The fault of a worker that the run still needs.
    pub(crate) fn absent(error: &NetError) -> Option<Self> {
        let (rank, copy) = match error {
            NetError::PeerLeft { rank } => (rank.0, LEFT),
            NetError::PeerEnded { rank, .. } => (rank.0, ENDED),
            _ => return None,
        };
        Some(RunFault { rank, task: String::new(), copy, message: String::new() })
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [self.rank, self.copy, self.task.len() as u32] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(self.task.as_bytes());
        bytes.extend_from_slice(self.message.as_bytes());
        bytes
    }

    /// Decodes the output of [`RunFault::encode`]; `None` for anything else.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let end = 12usize.checked_add(word(8)? as usize)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (task, message) = (text(bytes.get(12..end)?), text(bytes.get(end..)?));
        Some(RunFault { rank: word(0)?, copy: word(4)?, task, message })
    }

    pub(crate) fn into_error(self) -> DataflowError {
        let rank = Rank(self.rank);
        match self.copy {
            LEFT => NetError::PeerLeft { rank }.into(),
            ENDED => NetError::PeerEnded { rank, call: super::CALL.into() }.into(),
            copy => DataflowError::Task { task: self.task, copy, worker: rank, message: self.message },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message cut wrongly would name the wrong task, or read beyond the end.
    #[test]
    fn faults_survive_encoding() {
        let fault = RunFault { rank: 3, task: "größe".into(), copy: 7, message: "a\nb".into() };
        let bytes = fault.encode();
        assert_eq!(RunFault::decode(&bytes), Some(fault));
        (0..12 + 7).for_each(|len| assert_eq!(RunFault::decode(&bytes[..len]), None, "{len}"));
        assert_eq!(RunFault::decode(&[0xff; 40]), None);
    }
}
