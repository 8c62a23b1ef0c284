//! Records of JSON to rows of Arrow.
//!
//! Arrow's decoder reads all JSON into columns of all types; it keeps every value of a record, wanted or not, and reads the
//! columns from that. Here is what reads most records in one pass, several times as fast ([`Rows`]), and leaves the others to Arrow's;
//! and what finds numbers that Arrow's would cut ([`Wholes`]).

mod columns;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod rows;
mod scan;
mod wholes;

pub use rows::Rows;
pub use wholes::Wholes;
