//! Redis, and what speaks its protocol.
//!
//! | module   | what is in it                                      |
//! |----------|----------------------------------------------------|
//! | `client` | connections, and which errors go away on their own |
//! | `source` | entries of streams, their ids in checkpoints       |
//! | `sink`   | rows into hashes or a stream                       |
//! | `lookup` | fields of hashes, by key                           |
//! | `key`    | what the key of a hash is                          |

mod client;
mod key;
mod lookup;
mod sink;
mod source;

pub use lookup::RedisHashes;
pub(crate) use sink::sink;
pub(crate) use source::source;
