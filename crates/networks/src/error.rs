//! What can be wrong with links, lines and arguments.

use std::fmt;

/// Why a network cannot be made or computed on.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum NetworkError {
    /// A link names a node that is not there.
    NoSuchNode {
        /// The place of the link.
        link: usize,
        /// What it names.
        node: u32,
        /// How many nodes there are on its side.
        nodes: usize,
    },
    /// A weight that the algorithm cannot use.
    BadWeight {
        /// Where the link begins.
        source: usize,
        /// Where it ends.
        target: u32,
        /// Its weight.
        weight: f64,
        /// What weights must be.
        need: &'static str,
    },
    /// A line that holds no link.
    BadLine {
        /// Its number.
        line: u64,
        /// Its beginning.
        content: String,
        /// What is wrong.
        trouble: &'static str,
    },
    /// Arguments that do not fit together.
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
