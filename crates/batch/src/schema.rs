//! Columns by name, and whether batches of one schema are acceptable where another is declared.

use arrow::datatypes::{Schema, SchemaRef};

/// The positions of named columns.
///
/// # Errors
/// A description, if there is no column with one of the names.
pub fn columns(schema: &SchemaRef, names: &[String]) -> Result<Vec<usize>, String> {
    let position = |name: &String| {
        schema.index_of(name).map_err(|_| {
            let has: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
            format!("no column \"{name}\"; the columns are {}", has.join(", "))
        })
    };
    names.iter().map(position).collect()
}

/// Checks whether batches of `found` are acceptable where `wanted` is declared: same names and types; nulls only where
/// allowed.
///
/// # Errors
/// A description, if they are not.
pub fn fits(found: &Schema, wanted: &Schema) -> Result<(), String> {
    if found.fields().len() != wanted.fields().len() {
        return Err(format!("{} columns arrived, but {} are declared", found.fields().len(), wanted.fields().len()));
    }
    for (found, wanted) in found.fields().iter().zip(wanted.fields()) {
        if found.name() != wanted.name() || found.data_type() != wanted.data_type() {
            return Err(format!(
                "column \"{}\" ({}) arrived, but \"{}\" ({}) is declared",
                found.name(),
                found.data_type(),
                wanted.name(),
                wanted.data_type()
            ));
        }
        if found.is_nullable() && !wanted.is_nullable() {
            return Err(format!("column \"{}\" can be null, but is declared non-null", found.name()));
        }
    }
    Ok(())
}
