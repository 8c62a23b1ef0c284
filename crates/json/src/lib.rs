//! Converts JSON records to Arrow rows.
//!
//! Arrow's decoder reads any JSON into columns of any type, but it stores every value of a record, needed or not,
//! before it builds the columns. [`RowReader`] reads most records in a single pass, several times as fast, and leaves
//! the others to Arrow's decoder. [`LossDetector`] finds values that Arrow's decoder would truncate. [`LosslessReader`]
//! converts CSV text to values without loss, too.
//!
//! Modules, lowest first; each uses only those above it:
//!
//! | module    | contents                                          |
//! |-----------|---------------------------------------------------|
//! | `times`   | Parses dates and times                            |
//! | `scan`    | A strict walk over one record                     |
//! | `columns` | The columns that rows are read into               |
//! | `cuts`    | Values of JSON that do not fit their column       |
//! | `exact`   | Values of text files that do not fit their column |
//! | `rows`    | Reads objects as rows in one pass                 |

mod columns;
mod cuts;
mod exact;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod rows;
mod scan;
mod times;

pub use cuts::LossDetector;
pub use exact::{
    LosslessReader, has_overflown, is_canonical, is_code, rounded, schema_with, type_with, with_guard_digits,
};
pub use rows::RowReader;
