//! The layout of CSV files.

use arrow::datatypes::SchemaRef;

/// The layout of a CSV file.
#[derive(Debug, Clone)]
pub struct CsvLayout {
    /// Whether the first line names the columns.
    pub has_header: bool,
    /// The separator of values.
    pub delimiter: u8,
    /// The quote around values that contain delimiters.
    pub quote: u8,
    /// Lines that begin with this are skipped.
    pub comment: Option<u8>,
    /// Whether quoted values may contain line ends; files are then not divided.
    pub newlines_in_values: bool,
    /// A regular expression for values that stand for null, in addition to empty ones.
    pub null: Option<String>,
    /// Whether numbers must be in canonical form; columns with others become strings.
    pub strict: bool,
    /// Types of some columns; the types of the others are inferred.
    pub overrides: Option<SchemaRef>,
}

impl Default for CsvLayout {
    fn default() -> Self {
        CsvLayout {
            has_header: true,
            delimiter: b',',
            quote: b'"',
            comment: None,
            newlines_in_values: false,
            null: None,
            strict: false,
            overrides: None,
        }
    }
}
