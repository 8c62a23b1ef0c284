//! Windows in a plan: the names of the functions whose value is a window, and what a key that calls one is.

use datafusion::logical_expr::Expr;

/// The function that Python's windows call.
pub const WINDOW: &str = "window";
/// That of windows which give early results, too: its value says whether it is the last.
pub const EARLY_WINDOW: &str = "early_window";
/// That of windows of so many rows: its value is the number of its first row, and of the first behind it.
pub const COUNT_WINDOW: &str = "count_window";
/// Those of SQL, named as in its tradition where it has one: `tumble(time, size)`, `hop(time, slide, size)`,
/// `session(time, gap)`, `calendar(time, length, zone)`, `counting(size, slide)`, `counting(time, size, slide, ttl)`;
/// and around any of time `late(window, length)`, `early(window, length)` and `early_time(window, length)`.
pub const IN_SQL: [&str; 8] = ["tumble", "hop", "session", "calendar", COUNTING, LATE, EARLY, EARLY_TIME];
/// Windows of so many rows, in SQL.
pub const COUNTING: &str = "counting";
/// Takes late rows for some time.
pub const LATE: &str = "late";
/// Gives early results by the clock, or with every so many rows.
pub const EARLY: &str = "early";
/// Gives early results by event time.
pub const EARLY_TIME: &str = "early_time";

/// Whether a key is a window.
fn is_window(key: &Expr) -> bool {
    match key {
        Expr::Alias(alias) => is_window(&alias.expr),
        Expr::ScalarFunction(call) => is_window_name(call.func.name()),
        _ => false,
    }
}

/// Whether a key is a window that rows can come too late for.
pub fn is_time_window(key: &Expr) -> bool {
    match key {
        Expr::Alias(alias) => is_time_window(&alias.expr),
        Expr::ScalarFunction(call) => {
            is_window_name(call.func.name()) && call.func.name() != COUNT_WINDOW && call.func.name() != COUNTING
        }
        _ => false,
    }
}

/// Whether a function makes windows.
pub fn is_window_name(name: &str) -> bool {
    matches!(name, WINDOW | EARLY_WINDOW | COUNT_WINDOW) || IN_SQL.contains(&name)
}

/// The parts of a window that is a key, by name.
pub fn window_parts(key: &Expr) -> &'static [&'static str] {
    match key {
        Expr::Alias(alias) => window_parts(&alias.expr),
        Expr::ScalarFunction(call) if matches!(call.func.name(), EARLY_WINDOW | EARLY | EARLY_TIME) => {
            &["start", "end", "final"]
        }
        Expr::ScalarFunction(call) if call.func.name() == LATE => call.args.first().map_or(&[], window_parts),
        key if is_window(key) => &["start", "end"],
        _ => &[],
    }
}
