//! Networks: nodes and links as compressed rows, and algorithms on them that run on the pinned threads of one worker.
//!
//! Modules, lowest first; each uses only those above it:
//!
//! | module          | contents                                                       |
//! |-----------------|----------------------------------------------------------------|
//! | `error`         | Errors in links, lines and arguments                           |
//! | `shared`        | Slices that threads write together, and work divided in chunks |
//! | [`rows`]        | Compressed rows                                                |
//! | `build`         | Rows from links in any order, by sorting in parallel           |
//! | `testing`       | Random networks for the tests                                  |
//! | `part`          | The rows of some nodes, with ghosts                            |
//! | [`parse`]       | Links from lines of text                                       |
//! | [`ids`]         | Arbitrary integers as nodes 0, 1, ...                          |
//! | [`pagerank`]    | PageRank by pulling                                            |
//! | [`push`]        | PageRank by pushing residuals, for networks that change        |
//! | [`bfs`]         | Breadth-first search, top down and bottom up                   |
//! | [`paths`]       | Shortest paths by delta-stepping                               |
//! | [`components`]  | Connected components: sampled links first, then the rest       |
//! | [`strong`]      | Strongly connected components                                  |
//! | [`triangles`]   | Triangles of each node                                         |
//! | [`betweenness`] | Betweenness by accumulation of dependencies                    |
//! | [`cores`]       | Core numbers by peeling                                        |
//! | [`labels`]      | Label propagation                                              |
//! | [`forest`]      | Spanning forests of minimum or maximum weight                  |
//! | [`flow`]        | Maximum flow and minimum cut                                   |
//! | [`louvain`]     | Communities of high modularity                                 |
//! | [`partition`]   | Parts of equal size with few links between them                |
//! | [`sweeps`]      | Steps on the rows of a part, with given values of ghosts       |
//!
//! Nothing here sends or receives: callers combine the results of all workers with a collective.

#[cfg(test)]
mod testing;

pub mod betweenness;
pub mod bfs;
mod build;
pub mod components;
pub mod cores;
mod error;
pub mod flow;
pub mod forest;
pub mod ids;
pub mod labels;
pub mod louvain;
pub mod pagerank;
pub mod parse;
mod part;
pub mod partition;
pub mod paths;
pub mod push;
pub mod rows;
mod shared;
pub mod strong;
pub mod sweeps;
pub mod triangles;

pub use build::{Duplicates, LinkOptions, Links};
pub use error::NetworkError;
pub use rows::{CompressedRows, NO_NODE};
