//! Common code of test servers: loopback ports, and a process that ends with the test whatever happens (see
//! `tests/python/support/local_servers/guard.py`).
#![allow(dead_code, reason = "not every test uses all of it")]

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than a server takes to start on the slowest machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Cargo runs a test in its package. Another clone may have compiled it, so it must not know a path from then.
pub fn repository() -> PathBuf {
    std::env::current_dir().expect("a current folder").join("../..")
}

/// Whether a program is installed.
pub fn runs(command: &str, argument: &str) -> bool {
    let status = Command::new(command).arg(argument).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Below the system's range for outgoing connections, one of which could take the port of a restarting server.
pub fn free_port() -> u16 {
    use std::hash::{BuildHasher, Hasher};
    loop {
        let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
        let port = 10_000 + (random % 20_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// A running server.
pub struct Process(Child);

impl Process {
    /// Runs `command` with its output in `folder`, and waits until `answers`. `None`: a port is taken.
    pub fn start(command: &[String], folder: &Path, answers: impl Fn() -> bool) -> Option<Self> {
        let log_path = folder.join("log");
        let log = File::options().create(true).append(true).open(&log_path).unwrap();
        let child = Command::new("python3")
            .args(["-I", "-S"])
            .arg(repository().join("tests/python/support/local_servers/guard.py"))
            .args(command)
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut process = Process(child);
        let begun = Instant::now();
        while !answers() {
            if process.0.try_wait().unwrap().is_none() && begun.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
            drop(process);
            let text = std::fs::read_to_string(&log_path).unwrap_or_default();
            assert!(text.contains("in use"), "{} did not start; its log: {text}", command[0]);
            return None;
        }
        Some(process)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The guard kills everything when its input closes.
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}
