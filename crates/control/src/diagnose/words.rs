//! Formats numbers with suitable units.

/// Two or three significant digits.
fn digits(value: f64) -> String {
    if value < 9.95 { format!("{value:.1}") } else { format!("{value:.0}") }
}

fn scaled(value: f64, units: [&str; 4]) -> String {
    let mut value = value.max(0.0);
    for unit in &units[..3] {
        if value < 999.5 {
            return match *unit == units[0] {
                true => format!("{value:.0} {unit}"),
                false => format!("{} {unit}", digits(value)),
            };
        }
        value /= 1000.0;
    }
    format!("{} {}", digits(value), units[3])
}

/// "2.1 Mbit/s", of bytes per second.
pub(super) fn bits_s(bytes_s: f64) -> String {
    scaled(bytes_s * 8.0, ["bit/s", "kbit/s", "Mbit/s", "Gbit/s"])
}

/// "40 MB".
pub(super) fn bytes(bytes: f64) -> String {
    scaled(bytes, ["bytes", "kB", "MB", "GB"])
}

/// "71 %".
pub(super) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// "1.9".
pub(super) fn cpus(cpus: f64) -> String {
    let text = format!("{cpus:.1}");
    text.strip_suffix(".0").unwrap_or(&text).to_owned()
}
