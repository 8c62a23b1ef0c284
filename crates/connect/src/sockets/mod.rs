//! Data that arrive over a connection and cannot be requested again: lines of a TCP server, messages of a WebSocket,
//! posts to our own web server.
//!
//! | module      | kind        | a row is                            | after a failure                                          |
//! |-------------|-------------|-------------------------------------|----------------------------------------------------------|
//! | `tcp`       | `socket`    | a line                              | at most once: data since the checkpoint are lost         |
//! | `websocket` | `websocket` | a message                           | the same                                                 |
//! | `webhook`   | `webhook`   | a JSON object, several in one post  | the same; or at least once, with `answer` `durable`      |
//!
//! Lower modules:
//!
//! | module      | contents                                                          |
//! |-------------|-------------------------------------------------------------------|
//! | `reconnect` | reads one connection after another                                |
//! | `line_tap`  | a task that receives data, and the source that emits them         |
//! | `payload`   | authenticates posts                                               |

mod line_tap;
mod payload;
mod reconnect;
mod tcp;
mod webhook;
mod websocket;

use std::io;
use std::time::Duration;

// The same as Tokio's, which does not offer to set how often.
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use tidemill_dataflow::TaskContext;
use tokio::net::TcpStream;

pub(crate) use tcp::source as tcp;
pub(crate) use webhook::source as webhook;
pub(crate) use websocket::source as websocket;

/// Keep-alive settings: the silence before the first probe, the time between probes, and their number.
const SILENT: Duration = Duration::from_secs(30);
const ASK_INTERVAL: Duration = Duration::from_secs(10);
const ASK_TIMES: u32 = 3;

/// When a job resumes or restarts, prints that the source does not resend what was sent meanwhile.
fn tell_lost(context: &TaskContext, source: &str) {
    let restarted = || std::env::var("TIDEMILL_RESTART").is_ok_and(|number| number != "0");
    if context.restored().is_some() {
        eprintln!("tidemill: {source}: data received after the checkpoint from which the job resumes are lost");
    } else if restarted() {
        eprintln!("tidemill: {source}: data received before the job was restarted are lost");
    }
}

/// Ends a connection whose other end has disappeared: a host that lost power, or a firewall that forgot the connection,
/// sends nothing, and a mere reader would wait forever.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    let how = TcpKeepalive::new().with_time(SILENT).with_interval(ASK_INTERVAL).with_retries(ASK_TIMES);
    SockRef::from(stream).set_tcp_keepalive(&how)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection whose other end had disappeared used to block a source forever.
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
