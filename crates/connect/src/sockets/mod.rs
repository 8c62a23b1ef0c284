//! What comes over a connection and cannot be asked for again: lines of a TCP server, messages of a WebSocket, posts to
//! a web server of our own.
//!
//! | module      | kind        | a row is                            | after a failure                                          |
//! |-------------|-------------|-------------------------------------|----------------------------------------------------------|
//! | `tcp`       | `socket`    | a line                              | at most once: what came since the checkpoint is lost     |
//! | `websocket` | `websocket` | a message                           | the same                                                 |
//! | `webhook`   | `webhook`   | a JSON object, several in one post  | the same; or at least once, with `answer` `durable`      |
//!
//! Beneath them:
//!
//! | module      | what is in it                                                     |
//! |-------------|-------------------------------------------------------------------|
//! | `reconnect` | reads one connection after another                                |
//! | `line_tap`  | a task that takes what comes, and the source that gives it on     |
//! | `payload`   | what posts have to carry                                          |

mod line_tap;
mod payload;
mod reconnect;
mod tcp;
mod webhook;
mod websocket;

use std::io;
use std::time::Duration;

// The same as Tokio's: of its own it lets nobody say how often.
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use tidemill_dataflow::TaskContext;
use tokio::net::TcpStream;

pub(crate) use tcp::source as tcp;
pub(crate) use webhook::source as webhook;
pub(crate) use websocket::source as websocket;

/// How long a connection may be silent before its other end is asked whether it is there, how often, and how many
/// times.
const SILENT: Duration = Duration::from_secs(30);
const ASK_INTERVAL: Duration = Duration::from_secs(10);
const ASK_TIMES: u32 = 3;

/// Says, where a job goes on or begins again, that what a source has sent meanwhile is not sent again.
fn tell_lost(context: &TaskContext, source: &str) {
    let restarted = || std::env::var("TIDEMILL_RESTART").is_ok_and(|number| number != "0");
    if context.restored().is_some() {
        eprintln!("tidemill: {source}: what came after the checkpoint that the job resumes from is lost");
    } else if restarted() {
        eprintln!("tidemill: {source}: what came before the job was restarted is lost");
    }
}

/// Lets a connection end whose other end has vanished: a host that lost its power, or a firewall that forgot it, says
/// nothing, and who only reads would wait for ever.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    let how = TcpKeepalive::new().with_time(SILENT).with_interval(ASK_INTERVAL).with_retries(ASK_TIMES);
    SockRef::from(stream).set_tcp_keepalive(&how)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection whose other end has vanished held a source for ever.
    #[test]
    fn silent_connections_are_asked() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            keep_alive(&stream).unwrap();
            let socket = SockRef::from(&stream);
            assert!(socket.keepalive().unwrap());
            let times = (socket.tcp_keepalive_time().unwrap(), socket.tcp_keepalive_interval().unwrap());
            assert_eq!((times, socket.tcp_keepalive_retries().unwrap()), ((SILENT, ASK_INTERVAL), ASK_TIMES));
        });
    }
}
