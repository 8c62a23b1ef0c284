//! Redis, and what speaks its protocol.
//!
//! | module     | what is in it                                            |
//! |------------|----------------------------------------------------------|
//! | `client`   | connections, and which errors go away on their own       |
//! | `position` | where a stream is read from, and whether that is there   |
//! | `reader`   | asks for entries                                         |
//! | `source`   | entries of streams, their ids in checkpoints             |
//! | `key`      | what the key of a hash is                                |
//! | `change`   | rows as changes of keys                                  |
//! | `risks`    | what a server may lose                                   |
//! | `sink`     | rows into hashes or a stream                             |
//! | `lookup`   | fields of hashes, by key                                 |

mod change;
mod client;
mod key;
mod lookup;
mod position;
mod reader;
mod risks;
mod sink;
mod source;

pub use lookup::RedisHashes;
pub(crate) use sink::sink;
pub(crate) use source::source;
