//! Windows in a plan: the names of functions that return a window, and how to recognize a key that calls one.

use datafusion::logical_expr::Expr;

/// The function called by Python's windows.
pub const WINDOW: &str = "window";
/// The same for windows with early results: its value says whether the result is final.
pub const EARLY_WINDOW: &str = "early_window";
/// The function of row-count windows: its value contains the number of its first row, and of the first row after it.
pub const COUNT_WINDOW: &str = "count_window";
/// The SQL functions, with traditional names where they exist: `tumble(time, size)`, `hop(time, slide, size)`,
/// `session(time, gap)`, `calendar(time, length, zone)`, `counting(size, slide)`, `counting(time, size, slide, ttl)`;
/// and, around any time window, `late(window, length)`, `early(window, length)` and `early_time(window, length)`.
pub const IN_SQL: [&str; 8] = ["tumble", "hop", "session", "calendar", COUNTING, LATE, EARLY, EARLY_TIME];
/// Row-count windows in SQL.
pub const COUNTING: &str = "counting";
/// Accepts late rows for some time.
pub const LATE: &str = "late";
/// Outputs early results by the clock, or after a number of rows.
pub const EARLY: &str = "early";
/// Outputs early results by event time.
pub const EARLY_TIME: &str = "early_time";

/// Whether a key is a window.
fn is_window(key: &Expr) -> bool {
    match key {
        Expr::Alias(alias) => is_window(&alias.expr),
        Expr::ScalarFunction(call) => is_window_name(call.func.name()),
        _ => false,
    }
}

/// Whether a key is a window for which rows can be late.
pub fn is_time_window(key: &Expr) -> bool {
    match key {
        Expr::Alias(alias) => is_time_window(&alias.expr),
        Expr::ScalarFunction(call) => {
            is_window_name(call.func.name()) && call.func.name() != COUNT_WINDOW && call.func.name() != COUNTING
        }
        _ => false,
    }
}

/// Whether a function returns windows.
pub fn is_window_name(name: &str) -> bool {
    matches!(name, WINDOW | EARLY_WINDOW | COUNT_WINDOW) || IN_SQL.contains(&name)
}

/// The names of the parts of a key that is a window.
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
