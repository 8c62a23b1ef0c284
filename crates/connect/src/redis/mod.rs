//! Redis, and what speaks its protocol.
//!
//! | module   | what is in it                                      |
//! |----------|----------------------------------------------------|
//! | `client` | connections, and which errors go away on their own |
//! | `source` | entries of streams, their ids in checkpoints       |
//! | `sink`   | rows into hashes or a stream                       |

mod client;
mod sink;
mod source;

pub(crate) use sink::sink;
pub(crate) use source::source;
