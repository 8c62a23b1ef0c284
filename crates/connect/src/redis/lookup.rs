//! Looks up hashes by key, many with one request. Blocks the caller, so it is for threads that may block.

use std::sync::Mutex;
use std::time::Instant;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use redis::{Connection, RedisResult};
use serde::Deserialize;
use serde_json::Value;

use super::client::{PAUSE, RedisServer, passes, told};
use super::key::{KeyTemplate, texts};
use crate::connection::{Credentials, ServerOptions};
use crate::error::ConnectError;
use crate::options;

const NAME: &str = "redis lookup";

#[derive(Deserialize)]
struct RedisLookupOptions {
    /// The prefix of the hashes' keys.
    #[serde(default)]
    prefix: String,
    /// The requested fields.
    fields: Vec<String>,
}

/// Hashes of a server.
pub struct RedisHashes {
    server: RedisServer,
    prefix: String,
    fields: Vec<String>,
    /// Connections that are not in use.
    idle: Mutex<Vec<Connection>>,
}

impl RedisHashes {
    /// Makes what `spec` describes: an object with `kind` "redis" and the options.
    ///
    /// # Errors
    /// `Option` says what is wrong.
    pub fn new(spec: &Value) -> Result<Self, ConnectError> {
        type Groups = (RedisLookupOptions, ServerOptions, Credentials);
        let (RedisLookupOptions { prefix, fields }, server, credentials) = options::read_groups::<Groups>(NAME, spec)?;
        let wrong = |reason: String| ConnectError::option(NAME, reason);
        if fields.is_empty() {
            return Err(wrong("`fields` must name at least one".into()));
        }
        let server = RedisServer::new(&server, credentials).map_err(wrong)?;
        Ok(RedisHashes { server, prefix, fields, idle: Mutex::default() })
    }

    /// The fields of each row's hash, whose key comes from the columns `on`, as the sink writes it. The values are in
    /// the order of the fields; `None` for a key without a hash or with none of the fields. Waits for a server that is
    /// unreachable.
    ///
    /// # Errors
    /// A description, for columns that do not exist or have no text form; otherwise an error that names the server.
    pub fn get(&self, rows: &RecordBatch, on: &[String]) -> Result<Vec<Option<Vec<Option<String>>>>, String> {
        let keys = self.keys(rows, on).map_err(|error| format!("keys of Redis hashes: {error}"))?;
        let deadline = Instant::now() + self.server.patience;
        loop {
            match self.ask(&keys) {
                Ok(found) => return Ok(found),
                Err(error) if passes(&error) && Instant::now() < deadline => std::thread::sleep(PAUSE),
                Err(error) => return Err(format!("Redis at {}: {}", self.server.name, told(&error))),
            }
        }
    }

    fn keys(&self, rows: &RecordBatch, on: &[String]) -> Result<Vec<String>, ArrowError> {
        let schema = rows.schema();
        let columns = on.iter().map(|name| schema.index_of(name)).collect::<Result<Vec<_>, _>>()?;
        // Other columns may have no text form.
        let rows = rows.project(&columns)?;
        let all: Vec<usize> = (0..columns.len()).collect();
        let (key, texts) = (KeyTemplate::new(&rows.schema(), &all), texts(&rows)?);
        Ok((0..rows.num_rows()).map(|row| key.of(&self.prefix, &texts, row)).collect())
    }

    fn ask(&self, keys: &[String]) -> RedisResult<Vec<Option<Vec<Option<String>>>>> {
        let idle = self.idle.lock().expect("nothing panics with it locked").pop();
        let mut connection = idle.map_or_else(|| self.server.connect_blocking(), Ok)?;
        let mut pipeline = redis::pipe();
        for key in keys {
            pipeline.cmd("HMGET").arg(key).arg(&self.fields);
        }
        let found: Vec<Vec<Option<String>>> = pipeline.query(&mut connection)?;
        // A connection that has failed is not reused.
        self.idle.lock().expect("nothing panics with it locked").push(connection);
        Ok(found.into_iter().map(|fields| fields.iter().any(Option::is_some).then_some(fields)).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, RecordBatch, StringArray};
    use serde_json::json;

    use super::RedisHashes;

    #[test]
    fn wrong_options_are_named() {
        let error = |spec| RedisHashes::new(&spec).err().map(|error| error.to_string()).unwrap_or_default();
        let url = "redis://127.0.0.1:1/0";
        assert_eq!(error(json!({"kind": "redis", "url": url, "fields": ["a"]})), "");
        assert!(error(json!({"kind": "redis", "url": url, "fields": []})).contains("`fields` must name"));
        let secret = error(json!({"kind": "redis", "url": "http://u:secret@h", "fields": ["a"]}));
        assert!(secret.contains("`url` must be") && !secret.contains("secret"), "{secret}");
    }

    /// A missing server causes an error that names it, not a hang.
    #[test]
    fn nobody_answers() {
        let spec = json!({"kind": "redis", "url": "redis://127.0.0.1:1/0", "fields": ["a"], "patience_s": 0.0});
        let keys: ArrayRef = Arc::new(StringArray::from(vec!["k"]));
        let rows = RecordBatch::try_from_iter([("a", keys)]).unwrap();
        let hashes = RedisHashes::new(&spec).unwrap();
        let error = hashes.get(&rows, &["a".into()]).unwrap_err();
        assert!(error.starts_with("Redis at 127.0.0.1:1: "), "{error}");
        assert!(hashes.get(&rows, &["b".into()]).unwrap_err().starts_with("keys of Redis hashes: "));
    }
}
