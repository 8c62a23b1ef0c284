//! Records of JSON to rows of Arrow.
//!
//! Arrow's decoder reads all JSON into columns of all types; it keeps every value of a record, wanted or not, and reads
//! the columns from that. Here is what reads most records in one pass, several times as fast ([`RowReader`]), and
//! leaves the others to Arrow's; and what finds values that Arrow's would cut ([`LossDetector`]). Texts of CSV become
//! values by [`LosslessReader`], which cuts nothing either.
//!
//! Modules, lowest first; each uses only those above it:
//!
//! | module    | what                                              |
//! |-----------|---------------------------------------------------|
//! | `times`   | Text to dates and times                           |
//! | `scan`    | A strict walk over one record                     |
//! | `columns` | The columns that rows are read into               |
//! | `cuts`    | Values of JSON that do not fit their column       |
//! | `exact`   | Values of text files that do not fit their column |
//! | `rows`    | Objects to rows in one pass                       |

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
