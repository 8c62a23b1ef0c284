//! Errors of work on batches within one worker.

use arrow::error::ArrowError;

/// An error from a task's own code.
pub type TaskError = Box<dyn std::error::Error + Send + Sync>;

/// Why work on batches failed. Cheap to clone.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BatchError {
    /// The memory budget is used up, and spilling did not help.
    #[error(
        "memory: \"{wants}\" asked for {bytes} bytes over the budget of {budget_bytes}; \"{holder}\" holds the most \
         ({held_bytes} bytes); raise --memory, or use fewer copies"
    )]
    Memory {
        /// The operator that asked.
        wants: String,
        /// The amount it asked for.
        bytes: u64,
        /// The worker's budget.
        budget_bytes: u64,
        /// The operator that holds the most.
        holder: String,
        /// The amount it holds.
        held_bytes: u64,
    },
    /// The spill directory cannot be written or read.
    #[error("spilling to {dir}: {reason}")]
    Spill {
        /// The directory.
        dir: String,
        /// The system's message, and the remedy.
        reason: String,
    },
    /// An Arrow kernel failed.
    #[error("{0}")]
    Arrow(String),
}

impl From<ArrowError> for BatchError {
    fn from(error: ArrowError) -> Self {
        BatchError::Arrow(error.to_string())
    }
}
