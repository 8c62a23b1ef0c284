//! What comes over a connection and cannot be asked for again: lines of a TCP server, messages of a WebSocket, posts to a web
//! server of our own.
//!
//! | module      | kind        | a row is                            | after a failure                                          |
//! |-------------|-------------|-------------------------------------|----------------------------------------------------------|
//! | `tcp`       | `socket`    | a line                              | at most once: what came since the checkpoint is lost     |
//! | `websocket` | `websocket` | a message                           | the same                                                 |
//! | `webhook`   | `webhook`   | a JSON object, several in one post  | the same; or at least once, with `answer` `durable`      |
//!
//! Beneath them: `tap` (a task that takes what comes, and the source that gives it on).

mod tap;
mod tcp;
mod webhook;
mod websocket;

pub(crate) use tcp::source as tcp;
pub(crate) use webhook::source as webhook;
pub(crate) use websocket::source as websocket;
