//! Processing of rows between operators.
//!
//! Each module uses only those above it in this table, except that `keyed` and `late_rows` use each other.
//!
//! | module      | contents                                    |
//! |-------------|---------------------------------------------|
//! | `steps`     | stateless steps, batch by batch             |
//! | `keyed`     | rows on their way to the owner of their key |
//! | `late_rows` | late rows                                   |

pub(crate) mod keyed;
pub(crate) mod late_rows;
pub(crate) mod steps;
