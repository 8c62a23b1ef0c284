//! Connector options as users write them: an object with the kind and its options, read strictly.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use serde::de::{DeserializeOwned, Error as _, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::error::ConnectError;

/// Default maximum size of a message.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// The longest time that an option accepts: 30 years.
const SECONDS_MAX: f64 = 1e9;

/// The kind of `spec`, which must be one of `known`.
pub(crate) fn kind(spec: &Value, role: &'static str, known: &[&'static str]) -> Result<&'static str, ConnectError> {
    let named = spec.get("kind").and_then(Value::as_str);
    if let Some(kind) = known.iter().find(|kind| Some(**kind) == named) {
        return Ok(kind);
    }
    let kind = named.map_or_else(|| "nothing (`kind` is missing)".to_owned(), |kind| format!("`{kind}`"));
    Err(ConnectError::Kind { role, kind, known: known.join(", ") })
}

/// The options of `spec`. `connector` appears in errors.
///
/// # Errors
/// `Option` names the unknown, missing or wrong option, and what would be right.
pub(crate) fn read<T: DeserializeOwned>(connector: &str, spec: &Value) -> Result<T, ConnectError> {
    read_groups::<(T,)>(connector, spec).map(|(options,)| options)
}

/// Like [`read`], for options in several structs: those of this connector, and those it shares with others, such as
/// `ServerOptions`. The user writes all of them side by side. (serde's `flatten` does the same, but its error for an
/// unknown option cannot list the known ones.)
///
/// # Errors
/// As [`read`].
pub(crate) fn read_groups<T: OptionGroups>(connector: &str, spec: &Value) -> Result<T, ConnectError> {
    let mut given = spec.as_object().cloned().unwrap_or_default();
    given.remove("kind");
    let names = T::names();
    if let Some(unknown) = given.keys().find(|name| !names.contains(&name.as_str())) {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        let reason = format!("no option `{unknown}`, expected one of {}", names.join(", "));
        return Err(ConnectError::option(connector, reason));
    }
    T::read(&given).map_err(|reason| ConnectError::option(connector, reason))
}

/// Structs whose fields are options. No two of them may have an option of the same name.
pub(crate) trait OptionGroups: Sized {
    /// The names of all options.
    fn names() -> Vec<&'static str>;

    /// The options from their values.
    ///
    /// # Errors
    /// A description, for an option that is missing or wrong.
    fn read(given: &Map<String, Value>) -> Result<Self, String>;
}

macro_rules! option_groups {
    ($($group:ident)+) => {
        impl<$($group: DeserializeOwned),+> OptionGroups for ($($group,)+) {
            fn names() -> Vec<&'static str> {
                [$(names_of::<$group>()),+].concat()
            }

            fn read(given: &Map<String, Value>) -> Result<Self, String> {
                Ok(($(read_group::<$group>(given)?,)+))
            }
        }
    };
}

option_groups!(A);
option_groups!(A B);
option_groups!(A B C);
option_groups!(A B C D);

/// The names of a struct's options: the fields that its `Deserialize` asks for.
fn names_of<T: DeserializeOwned>() -> &'static [&'static str] {
    struct NameFinder<'a>(&'a mut &'static [&'static str]);

    impl<'de> Deserializer<'de> for NameFinder<'_> {
        type Error = serde::de::value::Error;

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            _: V,
        ) -> Result<V::Value, Self::Error> {
            *self.0 = fields;
            Err(Self::Error::custom("the names are all that was wanted"))
        }

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
            Err(Self::Error::custom("options are fields of a struct"))
        }

        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct
            newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    let mut names: &'static [&'static str] = &[];
    // This always fails: only the names matter.
    drop(T::deserialize(NameFinder(&mut names)));
    names
}

/// The options of one struct among those given.
fn read_group<T: DeserializeOwned>(given: &Map<String, Value>) -> Result<T, String> {
    let names = names_of::<T>();
    let own = given.iter().filter(|(name, _)| names.contains(&name.as_str()));
    let own: Map<String, Value> = own.map(|(name, value)| (name.clone(), value.clone())).collect();
    let of =
        |options: Map<String, Value>| serde_json::from_value::<T>(options.into()).map_err(|error| error.to_string());
    of(own.clone()).map_err(|error| {
        // The error does not name the option: it is the one whose removal makes the error disappear.
        let is_about = |name: &&String| {
            let mut others = own.clone();
            others.remove(*name);
            of(others).err().is_none_or(|other| other != error)
        };
        plain(&error, own.keys().find(is_about).map(String::as_str))
    })
}

/// The duration that an option gives in seconds: at least `min_s`.
///
/// # Errors
/// A description, if it is shorter than that or longer than 30 years.
pub(crate) fn seconds(option: &str, given_s: f64, min_s: f64) -> Result<Duration, String> {
    if !(min_s..=SECONDS_MAX).contains(&given_s) {
        return Err(format!("`{option}` is {given_s}, but must be from {min_s} to {SECONDS_MAX} seconds"));
    }
    Ok(Duration::from_secs_f64(given_s))
}

/// What is wrong with an option, worded for the user.
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
/// A description that lists the existing columns.
pub(crate) fn column(schema: &SchemaRef, option: &str, name: &str) -> Result<usize, String> {
    schema.index_of(name).map_err(|_| {
        let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        format!("`{option}`: no column \"{name}\"; the columns are {}", names.join(", "))
    })
}

/// The schema, which is required.
pub(crate) fn needed(connector: &str, schema: Option<SchemaRef>) -> Result<SchemaRef, ConnectError> {
    match schema {
        Some(schema) if !schema.fields().is_empty() => Ok(schema),
        _ => Err(ConnectError::option(connector, "needs a schema (column names and types)")),
    }
}

/// The schema of values with metadata columns after them, given their names.
///
/// # Errors
/// A description, if there already is a column with one of the names.
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

/// A password, or an address that may contain one: it never appears in messages.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SecretText(String);

impl SecretText {
    /// The given secret, else the one in the environment.
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
        // serde's own error would show the value.
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

    /// Ignoring a wrong option would do something unintended; rejecting it without its name would make users guess.
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

    #[derive(Debug, Deserialize)]
    struct Others {
        name: String,
        #[serde(default)]
        keys: Vec<String>,
    }

    /// Options shared by several connectors must be as strict as a connector's own.
    #[test]
    fn groups_are_read_side_by_side() {
        let read = |spec| read_groups::<(Some, Others)>("x", &spec).map_err(|error| error.to_string());
        let (some, others) = read(json!({"kind": "x", "rows": 2, "name": "n", "how": "slow"})).unwrap();
        assert_eq!((some.rows, others.name.as_str(), others.keys.len()), (2, "n", 0));
        let error = |spec| read(spec).unwrap_err();
        let unknown = error(json!({"rows": 1, "naem": "n"}));
        assert_eq!(unknown, "x: no option `naem`, expected one of `password`, `rows`, `how`, `name`, `keys`");
        assert_eq!(error(json!({"rows": 1})), "x: missing option `name`");
        assert_eq!(error(json!({"name": "n"})), "x: missing option `rows`");
        assert_eq!(error(json!({"rows": 1, "name": ["n"]})), "x: `name` is a list, but must be a string");
    }

    #[test]
    fn times_have_bounds() {
        assert_eq!(seconds("wait_s", 0.5, 0.1), Ok(Duration::from_millis(500)));
        for wrong in [-1.0, 0.05, 1e10, f64::NAN] {
            let error = seconds("wait_s", wrong, 0.1).unwrap_err();
            assert_eq!(error, format!("`wait_s` is {wrong}, but must be from 0.1 to 1000000000 seconds"));
        }
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
