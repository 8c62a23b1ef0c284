//! Which files there are.

use std::io;
use std::path::{Path, PathBuf};

/// What people name files by.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// A file, or a folder with everything below it.
    Path(PathBuf),
    /// All that match.
    Glob(String),
}

impl Place {
    /// A path with `*`, `?` or `[` is a glob, unless it is there as it stands.
    ///
    /// # Errors
    /// In words, for URLs of stores and globs that are none.
    pub(crate) fn of(text: &str) -> Result<Self, String> {
        let path = match text.split_once("://") {
            Some(("file", path)) if path.starts_with('/') => path,
            Some(_) => return Err(format!("`path` is {text:?}: it has to be a local path")),
            None => text,
        };
        if path.is_empty() {
            return Err("`path` is empty".into());
        }
        if path.contains(['*', '?', '[']) && !Path::new(path).exists() {
            glob::Pattern::new(path).map_err(|error| format!("`path` is {text:?}: {error}"))?;
            return Ok(Place::Glob(path.to_owned()));
        }
        Ok(Place::Path(path.into()))
    }

    /// All files, in the order of their names. What begins with a dot or an underscore, or lies in such a folder below, is not
    /// there, as for other readers; and no link to a folder is followed.
    ///
    /// # Errors
    /// Of a folder that cannot be read, naming it. A folder or file that is not there yet is none.
    pub(crate) fn files(&self) -> Result<Vec<String>, String> {
        let mut found = Vec::new();
        match self {
            Place::Path(path) if path.is_dir() => folder(path, &mut found)?,
            Place::Path(path) => {
                if path.exists() {
                    found.push(name(path)?);
                }
            }
            Place::Glob(pattern) => {
                let paths = glob::glob(pattern).map_err(|error| format!("{pattern}: {error}"))?;
                for path in paths {
                    let path = path.map_err(|error| error.to_string())?;
                    if path.is_file() && !is_hidden(&path) {
                        found.push(name(&path)?);
                    }
                }
            }
        }
        found.sort_unstable();
        Ok(found)
    }
}

fn folder(path: &Path, found: &mut Vec<String>) -> Result<(), String> {
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    let entries = match std::fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed)?,
    };
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        if is_hidden(&path) {
            continue;
        }
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_dir() {
            folder(&path, found)?;
        } else if kind.is_file() || path.is_file() {
            found.push(name(&path)?);
        }
    }
    Ok(())
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| matches!(name.as_encoded_bytes().first(), Some(b'.' | b'_')))
}

fn name(path: &Path) -> Result<String, String> {
    let name = path.to_str().ok_or_else(|| format!("{}: its name is not UTF-8; rename it", path.display()))?;
    Ok(name.to_owned())
}
