//! What people write to describe a connector: an object of its kind and its options, read strictly.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
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
    let failure = |spec: &Value| serde_json::from_value::<T>(spec.clone()).err().map(|error| error.to_string());
    let error = match serde_json::from_value(spec.clone()) {
        Ok(options) => return Ok(options),
        Err(error) => error.to_string(),
    };
    // Which option it is about is not said: it is the one without which there is no such error.
    let is_about = |name: &&String| {
        let mut others = spec.clone();
        others.as_object_mut().and_then(|options| options.remove(*name));
        failure(&others).is_none_or(|other| other != error)
    };
    let about = spec.as_object().and_then(|options| options.keys().find(is_about));
    Err(ConnectError::option(connector, plain(&error, about.map(String::as_str))))
}

/// What is wrong with an option, in words for who has given it.
fn plain(error: &str, option: Option<&str>) -> String {
    let text = error.replace("unknown field", "no option").replace("missing field", "missing option");
    let Some(option) = option.filter(|_| !text.contains(" option `")) else { return text };
    let words = ["invalid type: ", "invalid value: ", "unknown variant "];
    let said = words.iter().find_map(|words| text.strip_prefix(words));
    let Some((given, wanted)) = said.and_then(|said| said.split_once(", expected ")) else {
        return format!("`{option}`: {text}");
    };
    let given = match given {
        "sequence" => "a list",
        "map" => "a mapping",
        other => other,
    };
    let wanted = match wanted {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a non-negative integer",
        "f32" | "f64" => "a number",
        other => other,
    };
    format!("`{option}` is {given}, but must be {wanted}")
}

/// The column that an option names.
///
/// # Errors
/// In words, with those that there are.
pub(crate) fn column(schema: &SchemaRef, option: &str, name: &str) -> Result<usize, String> {
    schema.index_of(name).map_err(|_| {
        let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        format!("`{option}`: no column \"{name}\"; the columns are {}", names.join(", "))
    })
}

/// The schema that somebody has to give.
pub(crate) fn needed(connector: &str, schema: Option<SchemaRef>) -> Result<SchemaRef, ConnectError> {
    match schema {
        Some(schema) if !schema.fields().is_empty() => Ok(schema),
        _ => Err(ConnectError::option(connector, "needs a schema (column names and types)")),
    }
}

/// The schema of values with columns of metadata behind them, by their names.
///
/// # Errors
/// In words, when there is a column of that name.
pub(crate) fn with_metadata<'a>(
    values: &SchemaRef,
    metadata: impl IntoIterator<Item = (&'a str, DataType)>,
) -> Result<SchemaRef, String> {
    let mut fields: Vec<Arc<Field>> = values.fields().iter().cloned().collect();
    for (name, kind) in metadata {
        if fields.iter().any(|field| field.name() == name) {
            return Err(format!("`metadata` adds a column \"{name}\", which already exists: choose another name"));
        }
        fields.push(Arc::new(Field::new(name, kind, true)));
    }
    Ok(Arc::new(Schema::new(fields)))
}

/// A password, or an address that may have one in it: no message shows it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SecretText(String);

impl SecretText {
    /// The one given, else that of the environment.
    pub(crate) fn or_environment(given: Option<SecretText>, variable: &str) -> Option<SecretText> {
        given.or_else(|| std::env::var(variable).ok().map(SecretText))
    }

    pub(crate) fn new(secret: &str) -> Self {
        SecretText(secret.to_owned())
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

impl<'de> Deserialize<'de> for SecretText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Its own error would show the value.
        match Value::deserialize(deserializer)? {
            Value::String(secret) => Ok(SecretText(secret)),
            _ => Err(D::Error::custom("an address or password must be a string")),
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
        password: Option<SecretText>,
        #[allow(dead_code)]
        rows: u32,
        #[allow(dead_code)]
        how: Option<How>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum How {
        Fast,
        Slow,
    }

    /// A wrong option that is passed over does something else than asked; one that is only refused makes people guess.
    #[test]
    fn wrong_options_are_named() {
        let error = |spec| read::<Some>("some source", &spec).unwrap_err().to_string();
        let unknown = error(json!({"kind": "some", "row": 1}));
        assert_eq!(unknown, "some source: no option `row`, expected one of `password`, `rows`, `how`");
        assert_eq!(error(json!({})), "some source: missing option `rows`");
        let wrong = error(json!({"rows": -1, "kind": "some"}));
        assert_eq!(wrong, "some source: `rows` is integer `-1`, but must be a non-negative integer");
        assert_eq!(error(json!({"rows": [1]})), "some source: `rows` is a list, but must be a non-negative integer");
        let word = error(json!({"rows": 1, "how": "fsat"}));
        assert_eq!(word, "some source: `how` is `fsat`, but must be `fast` or `slow`");
        let kind = kind(&json!({"kind": "soem"}), "source", &["some", "other"]).unwrap_err().to_string();
        assert_eq!(kind, "unknown kind of source: `soem`; use one of some, other");
    }

    /// A password in a message ends up in logs.
    #[test]
    fn passwords_are_not_shown() {
        let some: Some = read("x", &json!({"password": "swordfish", "rows": 1})).unwrap();
        assert!(!format!("{some:?}").contains("swordfish"));
        let error = read::<Some>("x", &json!({"password": 987_654, "rows": 1})).unwrap_err().to_string();
        assert_eq!(error, "x: `password`: an address or password must be a string");
    }
}
