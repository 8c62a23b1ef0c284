//! RabbitMQ, by AMQP 0-9-1.
//!
//! | module     | what is in it                                                  |
//! |------------|----------------------------------------------------------------|
//! | `client`   | connections, and which errors go away on their own             |
//! | `queue`    | a task that takes messages from a queue, and acknowledges them |
//! | `seen_ids` | messages that were given and may come again                    |
//! | `metadata` | what is known of a message besides its bytes                   |
//! | `source`   | messages as rows, acknowledged when a checkpoint is durable    |
//! | `sink`     | rows as messages, published when a checkpoint is durable       |
//! | `tls`      | connections that are encrypted                                 |

mod client;
mod metadata;
mod queue;
mod seen_ids;
mod sink;
mod source;
mod tls;

pub(crate) use sink::sink;
pub(crate) use source::source;
