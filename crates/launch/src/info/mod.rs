//! `tidemill info`: the resources that this machine offers a job, its problems, and their remedies.
//!
//! Every line is an [`InfoItem`], collected without starting a job; the text and the JSON are two renderings of the
//! same list.

mod limits;
pub mod machine;

use std::fmt::Write;
use std::io::Write as _;

use serde_json::{Map, Value, json};

/// One fact.
pub struct InfoItem {
    section: &'static str,
    name: &'static str,
    /// The value for programs.
    value: Value,
    /// The value for people.
    text: String,
    problem: Option<InfoProblem>,
}

/// A problem with a fact.
pub struct InfoProblem {
    what: String,
    remedy: &'static str,
}

impl InfoItem {
    /// A fact, for programs and for people.
    pub fn new(section: &'static str, name: &'static str, value: impl Into<Value>, text: impl Into<String>) -> Self {
        Self { section, name, value: value.into(), text: text.into(), problem: None }
    }

    /// The same fact, with a problem if it is `wrong`.
    #[must_use]
    pub fn problem_if(mut self, wrong: bool, what: impl Into<String>, remedy: &'static str) -> Self {
        if wrong {
            self.problem = Some(InfoProblem { what: what.into(), remedy });
        }
        self
    }
}

/// Prints everything about this machine, and returns the exit code.
pub fn print(as_json: bool) -> i32 {
    let mut items = machine::items();
    items.extend(limits::items());
    let text = if as_json { format!("{:#}\n", to_json(&items)) } else { to_text(&items) };
    // Not `println`, which panics when nobody reads.
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => 0,
        Err(_) => 1,
    }
}

fn to_json(items: &[InfoItem]) -> Value {
    let mut sections = Map::new();
    let mut problems = Vec::new();
    for item in items {
        let section = sections.entry(item.section).or_insert_with(|| json!({}));
        section[item.name] = item.value.clone();
        if let Some(problem) = &item.problem {
            problems.push(json!({ "name": item.name, "problem": problem.what, "remedy": problem.remedy }));
        }
    }
    sections.insert("version".into(), crate::VERSION.into());
    sections.insert("problems".into(), problems.into());
    Value::Object(sections)
}

fn to_text(items: &[InfoItem]) -> String {
    let mut text = format!("Tidemill {}\n", crate::VERSION);
    let mut section = "";
    for item in items {
        if item.section != section {
            section = item.section;
            let _ = write!(text, "\n{section}\n");
        }
        let mark = if item.problem.is_some() { '!' } else { ' ' };
        let _ = writeln!(text, "{mark} {:<18} {}", item.name, item.text);
        if let Some(problem) = &item.problem {
            let _ = writeln!(text, "    {}\n    remedy: {}", problem.what, problem.remedy);
        }
    }
    let problems = items.iter().filter(|item| item.problem.is_some()).count();
    let _ = match problems {
        0 => writeln!(text, "\nNo problems found. `tidemill info --job` measures the transports."),
        _ => writeln!(text, "\n{problems} to look at, marked with !. `tidemill info --job` measures the transports."),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_renderings_name_problem_and_remedy() {
        let items = [
            InfoItem::new("limits", "open files", 16, "16").problem_if(true, "too few", "ulimit -n 4096"),
            InfoItem::new("limits", "futex", true, "works").problem_if(false, "never shown", "never shown"),
        ];
        let text = to_text(&items);
        assert!(text.contains("! open files") && text.contains("remedy: ulimit -n 4096") && !text.contains("never"));
        let value = to_json(&items);
        assert_eq!(value["limits"]["open files"], 16);
        assert_eq!(value["problems"][0]["remedy"], "ulimit -n 4096");
        assert_eq!(value["problems"].as_array().map(Vec::len), Some(1));
    }

    /// Every probe must succeed on any machine that runs the tests.
    #[test]
    fn this_machine_can_be_described() {
        for item in machine::items().iter().chain(&limits::items()) {
            assert!(!item.text.is_empty(), "{}", item.name);
        }
    }
}
