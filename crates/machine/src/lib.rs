//! The resources of this machine that the process may use: CPUs and their topology, the CPU quota of its container, and
//! its affinity mask.
//!
//! No other crate reads `/sys/devices/system/{cpu,node}`, the CPU quotas of cgroups, or the affinity mask of a process.
//! The root folder is a parameter ([`Machine::read`]), so that tests run on recorded trees.
//!
//! A *CPU* is what Linux numbers: a hardware thread. A *core* has one or more of them. Only CPUs in the affinity mask
//! are considered. A cgroup's cpuset need not be read separately, because the kernel applies it to the mask.
//!
//! Modules, lowest first; each uses only those above it:
//!
//! | module     | contents                                                                  |
//! |------------|---------------------------------------------------------------------------|
//! | `cpus`     | Sets of CPUs, and the affinity mask of a thread                           |
//! | `process`  | CPU time of this process and its threads, and how long they waited for it |
//! | `quota`    | How much CPU time the cgroups of this process allow                       |
//! | `topology` | The CPUs that this process may use, and where they are                    |
//! | `share`    | Divides the CPUs of a host among workers, and a worker's among its threads |

mod cpus;
mod process;
mod quota;
mod share;
#[cfg(test)]
mod tests;
mod topology;

pub use cpus::CpuSet;
pub use process::{ProcessTimes, ThreadClock};
pub use topology::{Cpu, Machine};
