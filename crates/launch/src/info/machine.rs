//! Processors, memory and system.

use std::fs;

use nix::sys::utsname::uname;
use serde_json::json;
use tidemill_machine::Machine;

use super::InfoItem;

const SECTION: &str = "machine";

/// The facts about the machine, including its problems.
pub fn items() -> Vec<InfoItem> {
    let mut items = Vec::new();
    if let Ok(system) = uname() {
        let text = |value: &std::ffi::OsStr| value.to_string_lossy().into_owned();
        items.push(InfoItem::new(SECTION, "host", text(system.nodename()), text(system.nodename())));
        let kernel = format!("{} {} {}", text(system.sysname()), text(system.release()), text(system.machine()));
        items.push(InfoItem::new(SECTION, "kernel", kernel.clone(), kernel));
    }
    if let Some(model) = cpu_model() {
        items.push(InfoItem::new(SECTION, "processor", model.clone(), model));
    }
    let machine = Machine::here();
    let (usable, online, allowed, sockets) =
        (machine.usable(), machine.online(), machine.allowed().to_string(), machine.sockets());
    items.push(InfoItem::new(
        SECTION,
        "cores",
        json!({ "online": online, "allowed": allowed, "usable": usable, "sockets": sockets }),
        format!(
            "{usable} usable of {online} online (affinity {allowed}), {sockets} socket{}",
            if sockets == 1 { "" } else { "s" }
        ),
    ));
    items.push(InfoItem::new(SECTION, "SIMD", simd(), simd()));
    if let Some((total, available)) = memory_kib() {
        items.push(InfoItem::new(
            SECTION,
            "memory",
            json!({ "total_bytes": total * 1024, "available_bytes": available * 1024 }),
            format!("{}, {} available", bytes(total * 1024), bytes(available * 1024)),
        ));
    }
    items
}

/// Formats a number of bytes for people.
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

fn memory_kib() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    Some((field("MemTotal:")?, field("MemAvailable:")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_for_people() {
        assert_eq!([0, 1023, 1024, 1 << 20, 3 << 29].map(bytes), ["0 B", "1023 B", "1.0 KiB", "1.0 MiB", "1.5 GiB"]);
    }
}
