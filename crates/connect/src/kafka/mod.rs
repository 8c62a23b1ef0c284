//! Kafka, by librdkafka.
//!
//! | module     | what is in it                                                        |
//! |------------|----------------------------------------------------------------------|
//! | `client`   | what all clients are told, and what they have to say                 |
//! | `buffer`   | records of a partition that were read and not given on yet           |
//! | `source`   | partitions of a topic, dealt to copies, their offsets in checkpoints |
//! | `position` | where a partition is read from, and what was there when it was read  |
//! | `sink`     | rows into a topic, in a transaction for each checkpoint or plainly   |
//! | `commit`   | the transactions                                                     |
//! | `metadata` | what is known of a record besides its value                          |
//! | `registry` | schemas of values, in a registry                                     |
//! | `schema`   | rows as values that have one                                         |

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
