//! An in-memory Redis for tests; its data are gone when it ends.
#![allow(dead_code, reason = "not every test uses all of it")]

use redis::{Client, Connection};

use super::server::{Process, free_port, runs};

pub struct Redis {
    port: u16,
    _process: Process,
    _folder: tempfile::TempDir,
}

impl Redis {
    /// Starts one and waits until it answers; `None`, with a message, if it is not installed.
    pub fn start() -> Option<Self> {
        if !(runs("redis-server", "--version") && runs("python3", "--version")) {
            println!("no Redis to test with; make setup-servers installs it: the test is skipped");
            return None;
        }
        for _ in 0..5 {
            let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
            let socket = folder.path().join("socket");
            let command = format!(
                "redis-server --bind 127.0.0.1 --port {port} --unixsocket {} --save  --appendonly no --requirepass swordfish",
                socket.display()
            );
            let command: Vec<String> = command.split(' ').map(str::to_owned).collect();
            // Through the socket, which no other server can have.
            let url = format!("redis+unix://{}?pass=swordfish", socket.display());
            let answers = || Client::open(url.as_str()).unwrap().get_connection().is_ok();
            if let Some(process) = Process::start(&command, folder.path(), answers) {
                return Some(Redis { port, _process: process, _folder: folder });
            }
        }
        panic!("no Redis found a free port");
    }

    /// Without its password.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    pub fn connect(&self) -> Connection {
        let url = format!("redis://:swordfish@127.0.0.1:{}/0", self.port);
        Client::open(url).unwrap().get_connection().unwrap()
    }
}
