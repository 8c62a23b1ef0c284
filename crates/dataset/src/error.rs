//! Errors of a DataSet, worded for the person who wrote the query.

use arrow::error::ArrowError;
use datafusion::common::SchemaError;
use datafusion::error::DataFusionError;
use tidemill_storage::StorageError;

/// The result type of this crate.
pub type Result<T, E = DataSetError> = std::result::Result<T, E>;

/// Why a query could not be built or run. Every message is self-contained and names the cause.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DataSetError {
    /// A column that the data do not have.
    #[error("no column {name:?}{}; there are: {}", suggestion(nearest.as_deref()), listed(columns))]
    UnknownColumn {
        /// The requested name.
        name: String,
        /// The most similar existing name.
        nearest: Option<String>,
        /// All existing names.
        columns: Vec<String>,
    },
    /// A function that is not registered.
    #[error("no function {name:?}{}", suggestion(nearest.as_deref()))]
    UnknownFunction {
        /// The requested name.
        name: String,
        /// The most similar existing name.
        nearest: Option<String>,
    },
    /// The query is invalid: types that do not fit, duplicate names, SQL that does not parse.
    #[error("{0}")]
    Query(String),
    /// The data are not what the query expects: a malformed file, a value that cannot be cast.
    #[error("{0}")]
    Data(String),
    /// Reading or writing failed.
    #[error("{0}")]
    Io(String),
    /// The memory budget or the space for spilling is used up.
    #[error("out of memory budget: {0}")]
    Memory(String),
    /// A feature that Tidemill or DataFusion does not support (yet).
    #[error("not supported: {0}")]
    Unsupported(String),
    /// The caller gave up on the action.
    #[error("the action was cancelled")]
    Cancelled,
    /// A bug in Tidemill or below.
    #[error("internal error: {0}")]
    Internal(String),
}

fn suggestion(nearest: Option<&str>) -> String {
    nearest.map(|name| format!(" (did you mean {name:?}?)")).unwrap_or_default()
}

/// Names for a message: all of them, unless there are too many.
fn listed(names: &[String]) -> String {
    const SHOWN_MAX: usize = 30;
    let mut text = names.iter().take(SHOWN_MAX).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN_MAX {
        text.push_str(&format!(", and {} more", names.len() - SHOWN_MAX));
    }
    if text.is_empty() { "none".into() } else { text }
}

impl DataSetError {
    /// The error for a column that `columns` does not contain.
    pub fn unknown_column(name: &str, mut columns: Vec<String>) -> Self {
        // DataFusion may search twice, and then lists every column twice.
        let mut seen = std::collections::HashSet::new();
        columns.retain(|column| seen.insert(column.clone()));
        let nearest = nearest(name, columns.iter().map(String::as_str));
        DataSetError::UnknownColumn { name: name.into(), nearest, columns }
    }

    /// The same error, stating which of several inputs it is about.
    pub fn of(self, what: &str) -> Self {
        let of = |text: String| format!("{what}: {text}");
        match self {
            DataSetError::Query(text) => DataSetError::Query(of(text)),
            DataSetError::Data(text) => DataSetError::Data(of(text)),
            DataSetError::Io(text) => DataSetError::Io(of(text)),
            DataSetError::Unsupported(text) => DataSetError::Unsupported(of(text)),
            DataSetError::Internal(text) => DataSetError::Internal(of(text)),
            other => other,
        }
    }

    /// The error for a function that is not among `known`.
    pub fn unknown_function<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Self {
        DataSetError::UnknownFunction { name: name.into(), nearest: nearest(name, known) }
    }
}

/// The candidate most similar to `name`, if any: ignoring case, with at most half of the letters different.
fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<String> {
    let wanted = name.to_lowercase();
    candidates
        .map(|candidate| (strsim::damerau_levenshtein(&wanted, &candidate.to_lowercase()), candidate))
        .filter(|(distance, candidate)| distance * 2 <= candidate.chars().count().max(wanted.chars().count()))
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate.to_owned())
}

impl From<StorageError> for DataSetError {
    fn from(error: StorageError) -> Self {
        match error {
            StorageError::Unsupported(text) => DataSetError::Unsupported(text),
            StorageError::Internal(text) => DataSetError::Internal(text),
            other => DataSetError::Io(other.to_string()),
        }
    }
}

impl From<DataFusionError> for DataSetError {
    fn from(error: DataFusionError) -> Self {
        match error {
            DataFusionError::SchemaError(inner, _) => match *inner {
                SchemaError::FieldNotFound { field, valid_fields } => DataSetError::unknown_column(
                    &field.name,
                    valid_fields.into_iter().map(|column| column.name).collect(),
                ),
                other => DataSetError::Query(schema_text(&other)),
            },
            // Context describes DataFusion's own steps, and a diagnostic repeats the text of its error.
            DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => (*inner).into(),
            DataFusionError::Shared(inner) => match std::sync::Arc::try_unwrap(inner) {
                Ok(inner) => inner.into(),
                Err(shared) => shared_text(&shared),
            },
            DataFusionError::Collection(errors) => match errors.into_iter().next() {
                Some(first) => first.into(),
                None => DataSetError::Internal("an empty collection of errors".into()),
            },
            DataFusionError::External(inner) => match inner.downcast::<DataSetError>() {
                Ok(ours) => *ours,
                Err(other) => DataSetError::Data(other.to_string()),
            },
            DataFusionError::ArrowError(inner, _) => (*inner).into(),
            other => shared_text(&other),
        }
    }
}

/// Converts an error that is shared with other tasks of the query and so cannot be taken apart.
fn shared_text(error: &DataFusionError) -> DataSetError {
    match error {
        DataFusionError::Plan(text) | DataFusionError::Configuration(text) => {
            DataSetError::Query(wrong_type(text).unwrap_or_else(|| text.clone()))
        }
        DataFusionError::SQL(error, _) => DataSetError::Query(format!("SQL: {error}")),
        DataFusionError::Execution(text) if text.ends_with("Overflow in AvgAccumulator") => {
            DataSetError::Data("an average is beyond the range of its type; cast the values to float64 first".into())
        }
        DataFusionError::Execution(text) => match refused(text) {
            Some(told) => DataSetError::Query(told),
            None => DataSetError::Data(text.clone()),
        },
        DataFusionError::ParquetError(error) => DataSetError::Data(error.to_string()),
        DataFusionError::ObjectStore(error) => DataSetError::Io(error.to_string()),
        DataFusionError::IoError(error) => DataSetError::Io(error.to_string()),
        // This also covers the spill folder.
        DataFusionError::ResourcesExhausted(text) if text.contains("disk") => DataSetError::Memory(text.clone()),
        DataFusionError::ResourcesExhausted(text) => DataSetError::Memory(format!(
            "{text}\nMore memory (--memory) or fewer threads (--threads) would help: they share it."
        )),
        DataFusionError::NotImplemented(text) => DataSetError::Unsupported(text.clone()),
        DataFusionError::ExecutionJoin(error) if error.is_cancelled() => DataSetError::Cancelled,
        DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => shared_text(inner),
        DataFusionError::Shared(inner) => shared_text(inner),
        DataFusionError::External(inner) => match inner.downcast_ref::<DataSetError>() {
            Some(ours) => ours.clone(),
            None => DataSetError::Data(inner.to_string()),
        },
        DataFusionError::ArrowError(error, _) => arrow_text(error),
        DataFusionError::SchemaError(inner, _) => DataSetError::Query(schema_text(inner)),
        DataFusionError::Internal(text) => match wrong_type(text) {
            Some(told) => DataSetError::Query(told),
            None => DataSetError::Internal(text.clone()),
        },
        other => DataSetError::Internal(other.to_string()),
    }
}

fn schema_text(error: &SchemaError) -> String {
    match error {
        SchemaError::AmbiguousReference { field } if field.relation.is_none() => {
            let name = &field.name;
            format!("more than one table has a column {name:?}; put the table's name in front, as in t.{name}")
        }
        other => other.to_string(),
    }
}

/// The wrong argument of a function, extracted from DataFusion's list of all signatures, or its request for a bug
/// report.
fn wrong_type(text: &str) -> Option<String> {
    if let Some(told) = refused(text) {
        return Some(told);
    }
    let between = |before: &str, after: &str| {
        let rest = &text[text.find(before)? + before.len()..];
        Some(rest[..rest.find(after)?].to_owned())
    };
    let remedy = "cast it to a type that has one";
    if let Some(name) = between("Function '", "' failed to match any signature") {
        let given = between("(DataType: ", ").").or_else(|| between("(DataType: ", ")"))?;
        return Some(format!("there is no {name} of {given}; {remedy}"));
    }
    if let Some(name) = between("Failed to coerce arguments to satisfy a call to '", "' function") {
        let given = between("coercion from ", " to the signature").or_else(|| between(&format!("'{name}("), ")'"))?;
        return Some(format!("there is no {name} of {given}; {remedy}"));
    }
    let (_, given) = text.split_once("trying to unnest on invalid data type ")?;
    let given = given.split('.').next()?;
    Some(format!("explode turns lists into rows, and cannot take {given}"))
}

/// The message of one of our functions about its arguments, without DataFusion's text around it.
fn refused(text: &str) -> Option<String> {
    let (_, told) = text.split_once(" user-defined coercion failed with: Error during planning: ")?;
    let told = told.split(" No function matches the given name").next()?;
    Some(told.trim_end_matches('.').to_owned())
}

fn arrow_text(error: &ArrowError) -> DataSetError {
    match error {
        ArrowError::IoError(text, _) => DataSetError::Io(text.clone()),
        ArrowError::NotYetImplemented(text) => DataSetError::Unsupported(text.clone()),
        ArrowError::ExternalError(inner) => match inner.downcast_ref::<DataFusionError>() {
            Some(error) => shared_text(error),
            None => DataSetError::Data(inner.to_string()),
        },
        other => DataSetError::Data(other.to_string()),
    }
}

impl From<ArrowError> for DataSetError {
    fn from(error: ArrowError) -> Self {
        arrow_text(&error)
    }
}

impl From<DataSetError> for DataFusionError {
    fn from(error: DataSetError) -> Self {
        DataFusionError::External(Box::new(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A typo must lead to the right name, a wild guess to none.
    #[test]
    fn nearest_name() {
        let names = ["price", "volume", "symbol"];
        assert_eq!(nearest("pirce", names.into_iter()).as_deref(), Some("price"));
        assert_eq!(nearest("Symbol", names.into_iter()).as_deref(), Some("symbol"));
        assert_eq!(nearest("zzz", names.into_iter()), None);
    }

    #[test]
    fn message_of_an_unknown_column() {
        let error = DataSetError::unknown_column("pirce", vec!["price".into(), "volume".into(), "price".into()]);
        assert_eq!(error.to_string(), r#"no column "pirce" (did you mean "price"?); there are: price, volume"#);
        let none = DataSetError::unknown_column("x", Vec::new());
        assert_eq!(none.to_string(), r#"no column "x"; there are: none"#);
    }

    /// The messages of DataFusion 55.
    #[test]
    fn functions_of_wrong_types() {
        for (text, told) in [
            (
                "Function 'sum' failed to match any signature, errors: Error during planning: Function 'sum' requires Decimal, but \
                 received String (DataType: Utf8).,Error during planning: Function 'sum' requires UInt64",
                "there is no sum of Utf8; cast it to a type that has one",
            ),
            (
                "Failed to coerce arguments to satisfy a call to 'stddev' function: coercion from Utf8 to the signature \
                 Exact(Float64) failed. No function matches the given name and argument types 'stddev(Utf8)'.",
                "there is no stddev of Utf8; cast it to a type that has one",
            ),
            (
                "Execution error: Function 'avg' user-defined coercion failed with: Error during planning: there is no avg of Utf8; \
                 cast it to a type that has one. No function matches the given name and argument types 'avg(Utf8)'.",
                "there is no avg of Utf8; cast it to a type that has one",
            ),
            ("trying to unnest on invalid data type Utf8", "explode turns lists into rows, and cannot take Utf8"),
        ] {
            let error = DataSetError::from(DataFusionError::Internal(text.into()));
            assert_eq!(error, DataSetError::Query(told.into()));
        }
        let other = DataFusionError::Internal("no such state".into());
        assert_eq!(DataSetError::from(other), DataSetError::Internal("no such state".into()));
    }

    /// Errors that pass through DataFusion, shared between its tasks, come out unchanged.
    #[test]
    fn ours_pass_through_datafusion() {
        let ours = DataSetError::Data("a.csv: line 3".into());
        let shared = std::sync::Arc::new(DataFusionError::from(ours.clone()));
        let kept = std::sync::Arc::clone(&shared);
        let outer = DataFusionError::Context("x".into(), Box::new(DataFusionError::Shared(shared)));
        assert_eq!(DataSetError::from(outer), ours);
        drop(kept);
    }
}
