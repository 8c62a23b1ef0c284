//! Identifies the process that holds a lease or writes output, and determines when it is certainly gone.

use std::fmt;
use std::str::FromStr;

use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};

/// A globally unique identity of a process. If the system does not report enough, nothing is certain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// The machine's name.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
    /// Its start time in kernel ticks, because process ids are reused.
    started: String,
    /// The boot id of the machine.
    boot: String,
    /// The PID namespace, outside of which process ids mean nothing, for example in another container.
    namespace: String,
}

impl ProcessIdentity {
    /// The current process.
    pub fn this() -> Self {
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        ProcessIdentity {
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            pid: std::process::id(),
            started: started("self").unwrap_or_default(),
            boot: text("/proc/sys/kernel/random/boot_id"),
            namespace: std::fs::read_link("/proc/self/ns/pid")
                .map_or_else(|_| String::new(), |to| to.display().to_string()),
        }
    }

    /// Whether it has certainly ended: it ran on this machine, since the last boot, and in this namespace.
    pub fn is_gone(&self, this: &ProcessIdentity) -> bool {
        let whole = [&self.started, &self.boot, &self.namespace].iter().all(|part| !part.is_empty());
        let here = (&self.host, &self.boot, &self.namespace) == (&this.host, &this.boot, &this.namespace);
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let (true, Some(pid)) = (whole && here, pid) else { return false };
        let pid_text = self.pid.to_string();
        match test_kill_process(pid) {
            Err(error) if error == rustix::io::Errno::SRCH => true,
            // Another process may have its id. One that cannot be inspected may be it.
            _ => started(&pid_text).is_some_and(|started| started != self.started) || is_over(&pid_text),
        }
    }
}

impl fmt::Display for ProcessIdentity {
    /// Writes one line that [`FromStr`] parses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

impl FromStr for ProcessIdentity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }
}

/// Whether a process has ended but was not waited for: a zombie, with no thread left except the first.
fn is_over(process: &str) -> bool {
    let threads = || std::fs::read_dir(format!("/proc/{process}/task")).map_or(0, Iterator::count);
    field(process, 3).is_some_and(|state| state == "Z") && threads() == 1
}

/// The start time of a process.
fn started(process: &str) -> Option<String> {
    field(process, 22)
}

/// The `number`th field of `stat`, from the third on: the fields after the name in parentheses, which may contain
/// anything.
fn field(process: &str, number: usize) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(number - 3).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A live job that is taken for dead loses its lease; a dead one that is taken for live makes the next one wait.
    #[test]
    fn only_who_was_here_and_is_gone_is_gone() {
        let this = ProcessIdentity::this();
        assert!(!this.is_gone(&this), "{this:?}");
        assert_eq!(this.to_string().parse(), Ok(this.clone()), "it can be parsed again");
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id();
        let other = ProcessIdentity { pid, started: started(&pid.to_string()).unwrap(), ..this.clone() };
        assert!(!other.is_gone(&this), "{other:?}");
        let before = ProcessIdentity { started: "1".into(), ..other.clone() };
        assert!(before.is_gone(&this), "its process id was reused");
        child.kill().unwrap();
        while !is_over(&pid.to_string()) {
            std::thread::yield_now();
        }
        assert!(other.is_gone(&this), "{other:?}: it is a zombie");
        child.wait().unwrap();
        assert!(other.is_gone(&this), "{other:?}");
        for elsewhere in [
            ProcessIdentity { host: "another".into(), ..other.clone() },
            ProcessIdentity { boot: "another".into(), ..other.clone() },
            ProcessIdentity { namespace: "another".into(), ..other.clone() },
            ProcessIdentity { namespace: String::new(), ..other.clone() },
            ProcessIdentity { pid: 0, ..other.clone() },
        ] {
            let here = ProcessIdentity { namespace: elsewhere.namespace.clone(), ..this.clone() };
            let here = if elsewhere.namespace.is_empty() { here } else { this.clone() };
            assert!(!elsewhere.is_gone(&here), "{elsewhere:?}");
        }
    }
}
