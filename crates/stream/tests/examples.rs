//! The example programs give the expected results.

#[path = "../examples/timers.rs"]
#[expect(dead_code, reason = "its main is for who runs it")]
mod timers;

/// A timer that fires too early, or not at all, counts other messages, also if machines are spread over several
/// workers.
#[test]
fn machines_are_silent_when_they_are() {
    for workers in 1..4 {
        let found = timers::silent(workers).unwrap();
        let found: Vec<_> =
            found.iter().map(|(machine, messages, last)| (machine.as_str(), *messages, *last)).collect();
        assert_eq!(found, [("a", 2, 2), ("b", 2, 4), ("b", 1, 22), ("c", 4, 30)], "{workers} workers");
    }
}
