//! Kafka, through librdkafka.
//!
//! | module     | contents                                                             |
//! |------------|----------------------------------------------------------------------|
//! | `client`   | configuration and messages of all clients                            |
//! | `buffer`   | records of a partition that have been read, but not emitted yet      |
//! | `source`   | reads partitions, with their offsets in checkpoints                  |
//! | `position` | the position in a partition, and the record before it                |
//! | `sink`     | writes rows, in one transaction per checkpoint or without            |
//! | `commit`   | the transactions                                                     |
//! | `metadata` | what is known of a record besides its value                          |
//! | `registry` | a schema registry                                                    |
//! | `schema`   | encodes rows as values with a registered schema                      |

mod buffer;
mod client;
mod commit;
mod metadata;
mod position;
mod registry;
mod schema;
mod sink;
mod source;

pub(crate) use sink::sink;
pub(crate) use source::source;
