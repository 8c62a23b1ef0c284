//! Processors, memory and system.

use std::collections::BTreeSet;
use std::fs;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::sys::utsname::uname;
use nix::unistd::Pid;
use serde_json::json;

use super::Item;

const SECTION: &str = "machine";

/// What is true of the machine, right or wrong.
pub fn items() -> Vec<Item> {
    let mut items = Vec::new();
    if let Ok(system) = uname() {
        let text = |value: &std::ffi::OsStr| value.to_string_lossy().into_owned();
        items.push(Item::new(SECTION, "host", text(system.nodename()), text(system.nodename())));
        let kernel = format!("{} {} {}", text(system.sysname()), text(system.release()), text(system.machine()));
        items.push(Item::new(SECTION, "kernel", kernel.clone(), kernel));
    }
    if let Some(model) = cpu_model() {
        items.push(Item::new(SECTION, "processor", model.clone(), model));
    }
    let allowed = allowed_cores();
    let online = fs::read_to_string("/sys/devices/system/cpu/online").map_or(allowed.len(), |list| count(list.trim()));
    let sockets = sockets(&allowed);
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    items.push(Item::new(
        SECTION,
        "cores",
        json!({ "online": online, "allowed": ranges(&allowed), "usable": usable, "sockets": sockets }),
        format!(
            "{usable} usable of {online} online (affinity {}), {sockets} socket{}",
            ranges(&allowed),
            if sockets == 1 { "" } else { "s" }
        ),
    ));
    items.push(Item::new(SECTION, "SIMD", simd(), simd()));
    if let Some((total, available)) = memory_kib() {
        items.push(Item::new(
            SECTION,
            "memory",
            json!({ "total_bytes": total * 1024, "available_bytes": available * 1024 }),
            format!("{}, {} available", bytes(total * 1024), bytes(available * 1024)),
        ));
    }
    items
}

/// Bytes as people read them.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (count.max(1).ilog2() / 10).min(4);
    let value = count as f64 / (1u64 << (10 * unit)) as f64;
    if unit == 0 || value >= 100.0 {
        format!("{value:.0} {}", UNITS[unit as usize])
    } else {
        format!("{value:.1} {}", UNITS[unit as usize])
    }
}

/// The best instruction set that the kernels can choose here.
fn simd() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") {
            return "AVX-512";
        }
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
            return "AVX2";
        }
        "SSE2"
    }
    #[cfg(target_arch = "aarch64")]
    {
        "NEON"
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        "none"
    }
}

fn cpu_model() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn allowed_cores() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return Vec::new() };
    (0..CpuSet::count()).filter(|&core| set.is_set(core) == Ok(true)).collect()
}

fn sockets(cores: &[usize]) -> usize {
    let package = |core: &usize| {
        fs::read_to_string(format!("/sys/devices/system/cpu/cpu{core}/topology/physical_package_id")).ok()
    };
    cores.iter().filter_map(package).collect::<BTreeSet<_>>().len().max(1)
}

fn memory_kib() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    Some((field("MemTotal:")?, field("MemAvailable:")?))
}

/// `[0, 1, 2, 5]` as `0-2,5`.
fn ranges(cores: &[usize]) -> String {
    let parts = cores.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => unreachable!("chunks are not empty"),
    });
    parts.collect::<Vec<_>>().join(",")
}

/// How many cores a list such as `0-2,5` names.
fn count(list: &str) -> usize {
    let part = |part: &str| match part.split_once('-') {
        Some((first, last)) => Some(last.parse::<usize>().ok()? + 1 - first.parse::<usize>().ok()?),
        None => part.parse::<usize>().ok().map(|_| 1),
    };
    list.split(',').filter_map(part).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(count("0-2,5,7-8"), 6);
        assert_eq!((ranges(&[]), count("")), (String::new(), 0));
    }

    #[test]
    fn sizes_for_people() {
        assert_eq!([0, 1023, 1024, 1 << 20, 3 << 29].map(bytes), ["0 B", "1023 B", "1.0 KiB", "1.0 MiB", "1.5 GiB"]);
    }
}
