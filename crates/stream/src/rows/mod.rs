//! Processing of rows between operators.
//!
//! Each module uses only those above it in this table, but `keyed` and `late_rows` use each other.
//!
//! | module      | what is in it                               |
//! |-------------|---------------------------------------------|
//! | `steps`     | what is done with one batch at a time       |
//! | `keyed`     | rows on their way to the owner of their key |
//! | `late_rows` | rows that come too late                     |

pub(crate) mod keyed;
pub(crate) mod late_rows;
pub(crate) mod steps;
