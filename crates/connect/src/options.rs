//! What people write to describe a connector: an object of its kind and its options, read strictly.

use std::fmt;

use arrow::datatypes::SchemaRef;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::error::ConnectError;

/// How many seconds a server may be away, unless told.
pub(crate) fn a_minute() -> f64 {
    60.0
}

/// The most bytes of a message, unless told.
pub(crate) fn a_megabyte() -> usize {
    1 << 20
}

/// Between the fields of CSV, unless told.
pub(crate) fn comma() -> char {
    ','
}

/// The kind that `spec` names, which is one of `known`.
pub(crate) fn kind(spec: &Value, role: &'static str, known: &[&'static str]) -> Result<&'static str, ConnectError> {
    let named = spec.get("kind").and_then(Value::as_str);
    if let Some(kind) = known.iter().find(|kind| Some(**kind) == named) {
        return Ok(kind);
    }
    let kind = named.map_or_else(|| "nothing (`kind` is missing)".to_owned(), |kind| format!("`{kind}`"));
    Err(ConnectError::Kind { role, kind, known: known.join(", ") })
}

/// The options of `spec`. `connector` is for errors.
pub(crate) fn read<T: DeserializeOwned>(connector: &str, spec: &Value) -> Result<T, ConnectError> {
    let mut spec = spec.clone();
    if let Some(object) = spec.as_object_mut() {
        object.remove("kind");
    }
    serde_json::from_value(spec).map_err(|error| {
        let text = error.to_string().replace("unknown field", "no option").replace("missing field", "missing option");
        ConnectError::option(connector, text)
    })
}

/// The schema that somebody has to give.
pub(crate) fn needed(connector: &str, schema: Option<SchemaRef>) -> Result<SchemaRef, ConnectError> {
    match schema {
        Some(schema) if !schema.fields().is_empty() => Ok(schema),
        _ => Err(ConnectError::option(connector, "a schema is needed: what its columns are called and of which types")),
    }
}

/// A password, or an address that may have one in it: no message shows it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    /// The one given, else that of the environment.
    pub(crate) fn or_environment(given: Option<Secret>, variable: &str) -> Option<Secret> {
        given.or_else(|| std::env::var(variable).ok().map(Secret))
    }

    pub(crate) fn new(secret: &str) -> Self {
        Secret(secret.to_owned())
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Its own error would show the value.
        match Value::deserialize(deserializer)? {
            Value::String(secret) => Ok(Secret(secret)),
            _ => Err(D::Error::custom("an address or password has to be a string")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Some {
        #[allow(dead_code)]
        password: Option<Secret>,
        #[allow(dead_code)]
        rows: u32,
    }

    /// A wrong option that is passed over does something else than asked; one that is only refused makes people guess.
    #[test]
    fn wrong_options_are_named() {
        let error = |spec| read::<Some>("some source", &spec).unwrap_err().to_string();
        let unknown = error(json!({"kind": "some", "row": 1}));
        assert_eq!(unknown, "some source: no option `row`, expected `password` or `rows`");
        assert_eq!(error(json!({})), "some source: missing option `rows`");
        let kind = kind(&json!({"kind": "soem"}), "source", &["some", "other"]).unwrap_err().to_string();
        assert_eq!(kind, "no kind of source is called `soem`; there are some, other");
    }

    /// A password in a message ends up in logs.
    #[test]
    fn passwords_are_not_shown() {
        let some: Some = read("x", &json!({"password": "swordfish", "rows": 1})).unwrap();
        assert!(!format!("{some:?}").contains("swordfish"));
        let error = read::<Some>("x", &json!({"password": 987_654, "rows": 1})).unwrap_err().to_string();
        assert!(!error.contains("987654"), "{error}");
    }
}
