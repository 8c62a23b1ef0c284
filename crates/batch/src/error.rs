//! What can go wrong with batches on one worker.

use arrow::error::ArrowError;

/// What a task's own code fails with.
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
        /// Who asked.
        wants: String,
        /// For how much.
        bytes: u64,
        /// The worker's budget.
        budget_bytes: u64,
        /// Who holds most.
        holder: String,
        /// How much that is.
        held_bytes: u64,
    },
    /// The spill directory cannot be written or read.
    #[error("spilling to {dir}: {reason}")]
    Spill {
        /// The directory.
        dir: String,
        /// What the system said, and what to do.
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
