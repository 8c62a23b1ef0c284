//! Redis, and other servers with its protocol.
//!
//! | module     | contents                                                 |
//! |------------|----------------------------------------------------------|
//! | `client`   | connections, and which errors are temporary              |
//! | `position` | positions in a stream, and checks that they still exist  |
//! | `reader`   | reads entries                                            |
//! | `source`   | emits entries of streams, with their ids in checkpoints  |
//! | `key`      | the keys of hashes                                       |
//! | `change`   | encodes rows as changes of keys                          |
//! | `risks`    | the data that a server may lose                          |
//! | `sink`     | writes rows to hashes or a stream                        |
//! | `lookup`   | looks up fields of hashes by key                         |

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
