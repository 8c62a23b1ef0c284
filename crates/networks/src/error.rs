//! Errors in links, lines and arguments.

use std::fmt;

/// Why a network cannot be built, or an algorithm cannot run on it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum NetworkError {
    /// A link names a node that does not exist.
    NoSuchNode {
        /// The index of the link.
        link: usize,
        /// The node that it names.
        node: u32,
        /// The number of nodes on that side.
        nodes: usize,
    },
    /// A weight that the algorithm cannot use.
    BadWeight {
        /// The source of the link.
        source: usize,
        /// The target of the link.
        target: u32,
        /// Its weight.
        weight: f64,
        /// The requirement on weights.
        need: &'static str,
    },
    /// A line without a valid link.
    BadLine {
        /// Its number.
        line: u64,
        /// Its beginning.
        content: String,
        /// The problem.
        trouble: &'static str,
    },
    /// Inconsistent or invalid arguments.
    BadArgument(String),
}

impl NetworkError {
    pub(crate) fn argument(message: impl Into<String>) -> Self {
        NetworkError::BadArgument(message.into())
    }
}

/// An error with `message` unless `fine`.
pub(crate) fn ensure(fine: bool, message: &str) -> Result<(), NetworkError> {
    if fine { Ok(()) } else { Err(NetworkError::argument(message)) }
}

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NetworkError::NoSuchNode { link, node, nodes } => {
                write!(f, "link {link} names node {node}, but there are {nodes} nodes, from 0")
            }
            NetworkError::BadWeight { source, target, weight, need } => {
                write!(f, "the link from node {source} to node {target} weighs {weight}; {need}")
            }
            NetworkError::BadLine { line, content, trouble } => write!(f, "line {line}: {trouble}: {content:?}"),
            NetworkError::BadArgument(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for NetworkError {}
