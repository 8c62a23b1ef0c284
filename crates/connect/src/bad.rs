//! Records that are no rows: what becomes of them.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
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
    Quarantine(#[serde(deserialize_with = "local")] PathBuf),
}

/// A folder; a URL would name one as well, whose first part is called `s3:`.
fn local<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    let folder = String::deserialize(deserializer)?;
    if folder.is_empty() || folder.contains("://") {
        return Err(D::Error::custom(format!("quarantine={folder:?}: it has to be a local folder")));
    }
    Ok(folder.into())
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

impl OnError {
    /// Whether what is known of a record besides its bytes is wanted when it is bad.
    pub(crate) fn keeps(&self) -> bool {
        matches!(self, OnError::Quarantine(_))
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
        self.bad_with(place, reason, bytes, Vec::new)
    }

    /// The same of one that has more than its bytes; `more` is written down with them, so that it can be sent again as it was.
    ///
    /// # Errors
    /// As `bad`.
    pub(crate) fn bad_with(
        &mut self,
        place: &[(&str, Value)],
        reason: &str,
        bytes: &[u8],
        more: impl FnOnce() -> Vec<(&'static str, Value)>,
    ) -> Result<(), TaskError> {
        let words: Vec<String> = place.iter().map(|(name, value)| format!("{name} {}", plain(value))).collect();
        let text = format!("{}: {reason}", words.join(", "));
        if self.on_error == OnError::Raise {
            return Err(format!("{text}; on_error \"skip\" or \"quarantine\" goes on without it").into());
        }
        if let OnError::Quarantine(_) = &self.on_error {
            let mut line: Map<String, Value> =
                place.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
            line.insert("reason".into(), reason.into());
            let (name, value) = match std::str::from_utf8(bytes) {
                Ok(text) => ("text", text.into()),
                Err(_) => ("hex", hex(bytes)),
            };
            line.insert(name.into(), value);
            line.extend(more().into_iter().map(|(name, value)| (name.to_owned(), value)));
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

/// Bytes as they are written down where others than `text` and `hex` are needed: a text or, of what is no UTF-8, an object with `hex`.
pub(crate) fn told(bytes: &[u8]) -> Value {
    std::str::from_utf8(bytes).map_or_else(|_| json!({"hex": hex(bytes)}), Value::from)
}

fn hex(bytes: &[u8]) -> Value {
    json!(bytes.iter().map(|b| format!("{b:02x}")).collect::<String>())
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
