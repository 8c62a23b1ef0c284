//! The layout of CSV files.

use arrow::datatypes::SchemaRef;

/// How a CSV file is written down.
#[derive(Debug, Clone)]
pub struct CsvLayout {
    /// Whether the first line names the columns.
    pub has_header: bool,
    /// Between values.
    pub delimiter: u8,
    /// Around values that contain delimiters.
    pub quote: u8,
    /// Lines that begin so are left out.
    pub comment: Option<u8>,
    /// Whether quoted values may contain line ends; files are then not cut into pieces.
    pub newlines_in_values: bool,
    /// A regular expression of what stands for null, beside nothing.
    pub null: Option<String>,
    /// Whether numbers have to stand there as they would be printed; columns of which some do not are texts.
    pub strict: bool,
    /// Types of some columns, where those of the others are found out.
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
