//! RabbitMQ, through AMQP 0-9-1.
//!
//! | module     | contents                                                       |
//! |------------|----------------------------------------------------------------|
//! | `client`   | connections, and which errors are temporary                    |
//! | `queue`    | a task that receives and acknowledges messages of a queue      |
//! | `seen_ids` | messages that were delivered and may be redelivered            |
//! | `metadata` | what is known of a message besides its bytes                   |
//! | `source`   | messages as rows, acknowledged when a checkpoint is durable    |
//! | `sink`     | rows as messages, published when a checkpoint is durable       |
//! | `tls`      | encrypted connections                                          |

mod client;
mod metadata;
mod queue;
mod seen_ids;
mod sink;
mod source;
mod tls;

pub(crate) use sink::sink;
pub(crate) use source::source;
