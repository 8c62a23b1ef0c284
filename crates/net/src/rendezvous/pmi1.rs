//! Meeting through PMI-1, the line protocol that hydra (MPICH, Intel MPI) and Slurm's pmi2 plugin speak on a
//! descriptor that each process inherits.
//!
//! `finalize` is sent only when the process exits normally: once a process has sent it, a launcher considers the
//! process finished, closes the descriptor (an MPI library in the same program would find it gone), and no longer
//! stops the job when the process dies.
//!
//! Source: MPICH, `src/pmi/src/pmi_v1.c`; the protocol has no other specification.

use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{BorrowedFd, FromRawFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};

use crate::threads::poll_until;

/// The longest line of the protocol.
const LINE_BYTES_MAX: usize = 4096;

const KEY: &str = "tidemill-root";

/// Rank 0 publishes `card`, and the others receive it. Returns when all workers have called.
pub(super) fn exchange(fd: RawFd, card: Option<&str>, deadline: Instant) -> Result<String, String> {
    let mut client = PmiClient::open(fd, deadline)?;
    let answer = client.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")?;
    check(&answer)?;
    finalize_at_exit(fd);
    let limits = client.ask("cmd=get_maxes", "maxes")?;
    let answer = client.ask("cmd=get_my_kvsname", "my_kvsname")?;
    let space = field(&answer, "kvsname").ok_or("the launcher's PMI has no key-value space")?.to_owned();
    if let Some(card) = card {
        let value = to_hex(card.trim_end());
        let room: usize = field(&limits, "vallen_max").and_then(|text| text.parse().ok()).unwrap_or(256);
        if value.len() >= room {
            return Err(format!("the launcher's PMI accepts values of {room} bytes; {} are needed", value.len() + 1));
        }
        check(&client.ask(&format!("cmd=put kvsname={space} key={KEY} value={value}"), "put_result")?)?;
    }
    check(&client.ask("cmd=barrier_in", "barrier_out")?)?;
    if let Some(card) = card {
        return Ok(card.to_owned());
    }
    let answer = client.ask(&format!("cmd=get kvsname={space} key={KEY}"), "get_result")?;
    check(&answer)?;
    let value = field(&answer, "value").and_then(from_hex);
    value.ok_or_else(|| "the launcher's PMI returned a different value from the one stored".into())
}

struct PmiClient {
    /// Must not be closed here: an MPI library in the same program may use it too.
    stream: ManuallyDrop<File>,
    fd: BorrowedFd<'static>,
    deadline: Instant,
    buffer: Vec<u8>,
}

impl PmiClient {
    fn open(fd: RawFd, deadline: Instant) -> Result<Self, String> {
        if fd < 0 {
            return Err("PMI_FD is not a descriptor".into());
        }
        // SAFETY: asks the kernel about a number; an unused one gives an error, which is checked.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            return Err("PMI_FD is not open; was the program started through a wrapper that closes descriptors?".into());
        }
        // SAFETY: the descriptor is open, belongs to this process by the launcher's contract, and is never closed
        // here, because of `ManuallyDrop`.
        let (stream, fd) = unsafe { (ManuallyDrop::new(File::from_raw_fd(fd)), BorrowedFd::borrow_raw(fd)) };
        Ok(PmiClient { stream, fd, deadline, buffer: Vec::new() })
    }

    /// Sends a line and waits for the answer, which must be of the expected kind.
    fn ask(&mut self, line: &str, expected: &str) -> Result<String, String> {
        (&*self.stream).write_all(format!("{line}\n").as_bytes()).map_err(|e| format!("PMI: {e}"))?;
        let answer = self.line().map_err(|e| format!("PMI, after {}: {e}", line.split(' ').next().unwrap_or(line)))?;
        match field(&answer, "cmd") {
            Some(kind) if kind == expected => Ok(answer),
            _ => Err(format!("PMI: expected {expected}, got {answer:?}")),
        }
    }

    fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.buffer.iter().position(|&byte| byte == b'\n') {
                let line = self.buffer.drain(..=end).collect::<Vec<u8>>();
                return Ok(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            if self.buffer.len() > LINE_BYTES_MAX {
                return Err(io::Error::other("an unterminated line"));
            }
            if !poll_until(&mut [PollFd::from_borrowed_fd(self.fd, PollFlags::IN)], self.deadline)? {
                return Err(io::Error::other("not all workers reached the launcher's barrier in time"));
            }
            let mut bytes = [0; 512];
            match (&*self.stream).read(&mut bytes)? {
                0 => return Err(io::Error::other("the launcher closed the connection")),
                n => self.buffer.extend_from_slice(&bytes[..n]),
            }
        }
    }
}

/// The value of `name` in a line of `name=value` pairs.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split(' ').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

fn check(answer: &str) -> Result<(), String> {
    match field(answer, "rc") {
        None | Some("0") => Ok(()),
        Some(_) => Err(format!("the launcher's PMI refused: {answer}")),
    }
}

/// Values must not contain blanks or line ends.
fn to_hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<String> {
    let bytes: Option<Vec<u8>> = (0..text.len())
        .step_by(2)
        .map(|at| text.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok()))
        .collect();
    String::from_utf8(bytes?).ok()
}

static OPEN_FD: AtomicI32 = AtomicI32::new(-1);
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Sends `finalize` when this process exits through `exit`. If it dies otherwise, the launcher sees a failure.
fn finalize_at_exit(fd: RawFd) {
    extern "C" fn finalize() {
        let fd = OPEN_FD.swap(-1, Ordering::Relaxed);
        // A forked child inherits this handler and the descriptor, but must not speak for its parent.
        if fd < 0 || OWNER.load(Ordering::Relaxed) != std::process::id() as i32 {
            return;
        }
        let line = b"cmd=finalize\n";
        let mut answer = [0u8; 64];
        // SAFETY: plain system calls on a descriptor; if it is no longer open, they report it. Waits at most a second
        // for the answer, which is not needed.
        unsafe {
            if libc::send(fd, line.as_ptr().cast(), line.len(), libc::MSG_NOSIGNAL) == line.len() as isize {
                let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                if libc::poll(&mut poll, 1, 1000) == 1 {
                    libc::recv(fd, answer.as_mut_ptr().cast(), answer.len(), libc::MSG_DONTWAIT);
                }
            }
        }
    }
    OWNER.store(std::process::id() as i32, Ordering::Relaxed);
    if OPEN_FD.swap(fd, Ordering::Relaxed) < 0 {
        // SAFETY: the handler uses atomics and system calls only.
        unsafe { libc::atexit(finalize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    /// A scripted launcher: checks the questions and gives the answers of the script.
    fn exchange_with(script: Vec<(&'static str, &'static str)>, card: Option<&str>) -> Result<String, String> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = std::thread::spawn(move || {
            let mut lines = BufReader::new(theirs.try_clone().unwrap()).lines();
            for (question, answer) in script {
                let line = lines.next().unwrap().unwrap();
                assert!(line.starts_with(question), "{line:?} instead of {question:?}");
                (&theirs).write_all(answer.as_bytes()).unwrap();
            }
        });
        let result = exchange(ours.as_raw_fd(), card, Instant::now() + Duration::from_secs(20));
        OPEN_FD.store(-1, Ordering::Relaxed);
        server.join().unwrap();
        result
    }

    const START: [(&str, &str); 3] = [
        ("cmd=init pmi_version=1", "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"),
        ("cmd=get_maxes", "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n"),
        ("cmd=get_my_kvsname", "cmd=my_kvsname kvsname=kvs_1_0\n"),
    ];

    #[test]
    fn both_sides_of_an_exchange() {
        let mut script = START.to_vec();
        script
            .push(("cmd=put kvsname=kvs_1_0 key=tidemill-root value=6120623a31", "cmd=put_result rc=0 msg=success\n"));
        script.push(("cmd=barrier_in", "cmd=barrier_out rc=0\n"));
        assert_eq!(exchange_with(script, Some("a b:1")).unwrap(), "a b:1");

        let mut script = START.to_vec();
        script.push(("cmd=barrier_in", "cmd=barrier_out\n"));
        script
            .push(("cmd=get kvsname=kvs_1_0 key=tidemill-root", "cmd=get_result rc=0 msg=success value=6120623a31\n"));
        assert_eq!(exchange_with(script, None).unwrap(), "a b:1");
    }

    #[test]
    fn refusals_and_nonsense_are_errors() {
        let refused = vec![("cmd=init", "cmd=response_to_init rc=-1\n")];
        assert!(exchange_with(refused, None).unwrap_err().contains("refused"));
        let nonsense = vec![("cmd=init", "220 mail.example.org ESMTP\n")];
        assert!(exchange_with(nonsense, None).unwrap_err().contains("expected response_to_init"));
        let closed = vec![("cmd=init", "")];
        assert!(exchange_with(closed, None).unwrap_err().contains("closed"));
        assert!(exchange(-1, None, Instant::now()).unwrap_err().contains("PMI_FD"));
    }
}
