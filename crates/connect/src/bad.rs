//! Records that are no rows: what becomes of them.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tidemill_dataflow::TaskError;

/// What becomes of a record that is no row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnError {
    /// The job fails, and says where the record is.
    #[default]
    Raise,
    /// It is left out, and counted.
    Skip,
    /// It is left out, counted, and written into a local folder. A job that goes on after a failure may write it again; where
    /// it came from is written with it.
    Quarantine(PathBuf),
}

/// How many records were left out, and the first of them.
#[derive(Debug, Default)]
pub struct BadRecords(Mutex<(u64, Option<String>)>);

impl BadRecords {
    fn note(&self, text: String) {
        let mut seen = self.0.lock().expect("nothing panics with it locked");
        seen.0 += 1;
        seen.1.get_or_insert(text);
    }

    /// How many since the last call, and what was wrong with the first.
    pub fn take(&self) -> (u64, Option<String>) {
        std::mem::take(&mut *self.0.lock().expect("nothing panics with it locked"))
    }
}

/// Does with the bad records of one copy what was asked for.
pub(crate) struct Handler {
    on_error: OnError,
    counted: Arc<BadRecords>,
    /// What its file is called.
    name: String,
    file: Option<File>,
    /// Lines that are not written yet: a write has whole ones, since others may append to the same file.
    lines: Vec<u8>,
}

impl Handler {
    pub(crate) fn new(on_error: OnError, counted: &Arc<BadRecords>, copy: String) -> Self {
        // A task's name may have a path in it.
        let plain = |c: char| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' };
        let name: String = copy.chars().rev().take(100).collect::<Vec<_>>().into_iter().rev().map(plain).collect();
        Handler { on_error, counted: Arc::clone(counted), name, file: None, lines: Vec::new() }
    }

    /// A bad record was met at `place`.
    ///
    /// # Errors
    /// That it is bad, if it must not be; or that it cannot be written down.
    pub(crate) fn bad(&mut self, place: &[(&str, Value)], reason: &str, bytes: &[u8]) -> Result<(), TaskError> {
        let words: Vec<String> = place.iter().map(|(name, value)| format!("{name} {}", plain(value))).collect();
        let text = format!("{}: {reason}", words.join(", "));
        if self.on_error == OnError::Raise {
            return Err(format!("{text}; on_error \"skip\" or \"quarantine\" goes on without it").into());
        }
        if let OnError::Quarantine(_) = &self.on_error {
            let mut line: Map<String, Value> =
                place.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
            line.insert("reason".into(), reason.into());
            match std::str::from_utf8(bytes) {
                Ok(text) => line.insert("text".into(), text.into()),
                Err(_) => {
                    line.insert("hex".into(), json!(bytes.iter().map(|b| format!("{b:02x}")).collect::<String>()))
                }
            };
            writeln!(self.lines, "{}", Value::Object(line))?;
        }
        self.counted.note(text);
        Ok(())
    }

    /// Writes down what was met so far, on disk: before anything behind it is given away, so that no checkpoint has passed a record
    /// that a loss of power takes.
    ///
    /// # Errors
    /// The file's.
    pub(crate) fn flush(&mut self) -> Result<(), TaskError> {
        let OnError::Quarantine(folder) = &self.on_error else { return Ok(()) };
        if self.lines.is_empty() {
            return Ok(());
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(open(folder, &self.name)?),
        };
        file.write_all(&self.lines).and_then(|()| file.sync_data()).map_err(|error| failed(folder, &error))?;
        self.lines.clear();
        Ok(())
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), |text| format!("\"{text}\""))
}

fn open(folder: &Path, name: &str) -> Result<File, TaskError> {
    let path = folder.join(format!("{name}.jsonl"));
    std::fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
    let file = OpenOptions::new().create(true).append(true).open(path);
    // The folder, too, where the file's name is.
    file.and_then(|file| File::open(folder)?.sync_all().map(|()| file)).map_err(|error| failed(folder, &error))
}

fn failed(folder: &Path, error: &std::io::Error) -> TaskError {
    format!("quarantine {}: {error}", folder.display()).into()
}
