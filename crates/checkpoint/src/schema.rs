//! The schema of a task's state, with named fields and a version. It is in every checkpoint, so that a changed program
//! resumes if possible, and otherwise is told why not: nullable fields can be added, but nothing else may change.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// A field of a key's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateField {
    /// Its name, which is unique within the state.
    pub name: String,
    /// Its type in stable words: an Arrow type, or an aggregate over some type.
    #[serde(rename = "type")]
    pub of: String,
    /// Whether it may be null. States that were saved without the field get null.
    pub nullable: bool,
    /// Whether it is part of the key, which determines the copy that owns a state.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub key: bool,
}

impl StateField {
    fn described(&self) -> String {
        let key = if self.key { "key " } else { "" };
        let null = if self.nullable || self.key { "" } else { " not null" };
        format!("{key}{}: {}{null}", self.name, self.of)
    }
}

/// The schema of a task's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateSchema {
    /// What the fields describe, such as windows of some length: states of another kind cannot be used.
    pub kind: String,
    /// One plus the number of times that fields were added since the job started fresh.
    pub version: u32,
    /// Its fields, in the order in which they are saved.
    pub fields: Vec<StateField>,
}

impl StateSchema {
    /// The first version.
    pub fn new(kind: impl Into<String>, fields: Vec<StateField>) -> Self {
        StateSchema { kind: kind.into(), version: 1, fields }
    }

    /// Whether states of the other schema are the same as these, in the same order.
    pub fn is_same(&self, then: &StateSchema) -> bool {
        let pairs = self.fields.iter().zip(&then.fields);
        self.kind == then.kind
            && self.fields.len() == then.fields.len()
            && pairs.into_iter().all(|(now, then)| now.name == then.name && now.of == then.of)
    }

    /// Its version after `then`, whose states it can read: one higher if fields were added.
    ///
    /// # Errors
    /// A message with the incompatible change, and the remedy.
    pub fn version_after(&self, then: &StateSchema) -> Result<u32, String> {
        if self.kind != then.kind {
            return Err(format!("it held {}, but now holds {}; {REMEDY}", then.kind, self.kind));
        }
        let keys = |schema: &StateSchema| -> Vec<StateField> {
            schema
                .fields
                .iter()
                .filter(|field| field.key)
                .map(|key| StateField { nullable: true, ..key.clone() })
                .collect()
        };
        if keys(self) != keys(then) {
            let named = |schema: &StateSchema| {
                let keys = schema.fields.iter().filter(|field| field.key);
                keys.map(|key| format!("{}: {}", key.name, key.of)).collect::<Vec<_>>().join(", ")
            };
            return Err(format!("its key was ({}), but is now ({}); {REMEDY}", named(then), named(self)));
        }
        for old in then.fields.iter().filter(|field| !field.key) {
            let Some(new) = self.fields.iter().find(|field| field.name == old.name) else {
                return Err(format!("its field \"{}\" ({}) was removed or renamed; {REMEDY}", old.name, old.of));
            };
            if new.of != old.of {
                return Err(format!("its field \"{}\" was {}, but is now {}; {REMEDY}", old.name, old.of, new.of));
            }
            if old.nullable && !new.nullable {
                let StateField { name, of, .. } = old;
                return Err(format!("its field \"{name}\" ({of}) was nullable, but no longer is; {REMEDY}"));
            }
        }
        let known: BTreeSet<&str> = then.fields.iter().map(|field| field.name.as_str()).collect();
        let mut added = self.fields.iter().filter(|field| !known.contains(field.name.as_str())).peekable();
        if let Some(field) = added.clone().find(|field| !field.nullable) {
            return Err(format!(
                "its field \"{}\" ({}) is new and not nullable, but what was saved before has no value for it; \
                 {REMEDY}",
                field.name, field.of
            ));
        }
        Ok(then.version + u32::from(added.peek().is_some()))
    }

    /// Describes its kind and fields for messages.
    pub fn described(&self) -> String {
        let fields: Vec<String> = self.fields.iter().map(StateField::described).collect();
        format!("{} ({})", self.kind, fields.join(", "))
    }
}

const REMEDY: &str =
    "only nullable fields can be added to a state: change the program back, or start fresh in another place";

#[cfg(test)]
mod tests {
    use super::*;

    fn field(name: &str, of: &str, nullable: bool, key: bool) -> StateField {
        StateField { name: name.into(), of: of.into(), nullable, key }
    }

    fn schema(fields: &[StateField]) -> StateSchema {
        StateSchema::new("windows of 10 s", fields.to_vec())
    }

    /// Accepting an incompatible change would misread states; refusing a compatible one would cost users their state.
    #[test]
    fn only_nullable_fields_are_added() {
        let (key, sum, n) =
            (field("user", "Utf8", true, true), field("x", "Int64", true, false), field("n", "Int64", false, false));
        let old = schema(&[key.clone(), sum.clone(), n.clone()]);
        let version_after = |fields: &[StateField]| schema(fields).version_after(&old);
        assert_eq!(version_after(&old.fields), Ok(1));
        // In another order, and with a field that is newly nullable.
        let free = field("n", "Int64", true, false);
        assert_eq!(version_after(&[key.clone(), free, sum.clone()]), Ok(1));
        assert!(!schema(&[key.clone(), n.clone(), sum.clone()]).is_same(&old));
        let more = field("y", "Utf8", true, false);
        let evolved = schema(&[key.clone(), more.clone(), sum.clone(), n.clone()]);
        assert_eq!(evolved.version_after(&old), Ok(2));
        let again = StateSchema { version: 2, ..evolved.clone() };
        assert_eq!(evolved.version_after(&again), Ok(2));
        let refused = [
            (vec![key.clone(), sum.clone()], "its field \"n\" (Int64) was removed or renamed"),
            (vec![key.clone(), field("z", "Int64", true, false), n.clone()], "its field \"x\" (Int64) was removed"),
            (
                vec![key.clone(), field("x", "Utf8", true, false), n.clone()],
                "its field \"x\" was Int64, but is now Utf8",
            ),
            (vec![key.clone(), field("x", "Int64", false, false), n.clone()], "\"x\" (Int64) was nullable"),
            (
                vec![key.clone(), sum.clone(), n.clone(), field("y", "Utf8", false, false)],
                "\"y\" (Utf8) is new and not nullable",
            ),
            (
                vec![key.clone(), more.clone(), field("k", "Utf8", true, true), sum.clone(), n.clone()],
                "its key was (user: Utf8), but is now",
            ),
            (vec![field("user", "Int64", true, true), sum.clone(), n.clone()], "but is now (user: Int64)"),
        ];
        for (fields, why) in refused {
            let error = version_after(&fields).unwrap_err();
            assert!(error.contains(why) && error.contains("start fresh"), "{error}");
        }
        let other = StateSchema::new("sessions", old.fields.clone());
        assert!(other.version_after(&old).unwrap_err().contains("it held windows of 10 s, but now holds sessions"));
    }
}
