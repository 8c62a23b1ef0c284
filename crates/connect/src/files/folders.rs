//! Splits rows by folder, with a folder `column=value` for each partition column, as in Hive, Spark and DuckDB.

use std::collections::BTreeMap;
use std::fmt::Write;

use arrow::array::{Array, AsArray, RecordBatch, UInt32Array};
use arrow::compute::{cast, take_record_batch};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use arrow::error::ArrowError;

/// The value in a folder name for null.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// The columns that name folders, and the columns that stay in the files.
#[derive(Clone, Debug)]
pub(super) struct PartitionFolders {
    names: Vec<String>,
    keys: Vec<usize>,
    rest: Vec<usize>,
    /// The schema of the files.
    pub schema: SchemaRef,
}

impl PartitionFolders {
    /// # Errors
    /// A description: a column does not exist or cannot become text, or no column is left for the files.
    pub(super) fn new(names: &[String], schema: &SchemaRef) -> Result<Self, String> {
        let find = |name: &String| {
            let (at, field) = schema.column_with_name(name).ok_or_else(|| {
                let all: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
                format!("`partition_by` names \"{name}\", which is not a column; there are: {}", all.join(", "))
            })?;
            let kind = field.data_type();
            let is_plain = !kind.is_nested() && !matches!(kind, DataType::Binary | DataType::LargeBinary);
            match is_plain && arrow::compute::can_cast_types(kind, &DataType::Utf8) {
                true => Ok(at),
                false => Err(format!("`partition_by` names \"{name}\" ({kind}), which cannot be a folder's name")),
            }
        };
        let keys = names.iter().map(find).collect::<Result<Vec<_>, _>>()?;
        if let Some(twice) = (1..keys.len()).find(|&at| keys[..at].contains(&keys[at])) {
            return Err(format!("`partition_by` names \"{}\" twice", names[twice]));
        }
        let rest: Vec<usize> = (0..schema.fields().len()).filter(|at| !keys.contains(at)).collect();
        if rest.is_empty() {
            return Err("`partition_by` names all columns; at least one must stay in the files".into());
        }
        let of_files = if keys.is_empty() {
            SchemaRef::clone(schema)
        } else {
            SchemaRef::new(Schema::new(schema.project(&rest).map_err(|error| error.to_string())?.fields().clone()))
        };
        Ok(PartitionFolders { names: names.to_vec(), keys, rest, schema: of_files })
    }

    /// The nesting depth of folders.
    pub(super) fn depth(&self) -> usize {
        self.keys.len()
    }

    /// The rows of each folder, in order; without partition columns, all rows belong to the folder without a name.
    pub(super) fn split(&self, rows: RecordBatch) -> Result<Vec<(String, RecordBatch)>, ArrowError> {
        if self.keys.is_empty() {
            return Ok(vec![(String::new(), rows)]);
        }
        let texts =
            self.keys.iter().map(|&at| cast(rows.column(at), &DataType::Utf8)).collect::<Result<Vec<_>, _>>()?;
        let mut of: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for row in 0..rows.num_rows() {
            let mut folder = String::new();
            for (name, values) in self.names.iter().zip(&texts) {
                if !folder.is_empty() {
                    folder.push('/');
                }
                escape(name, &mut folder);
                folder.push('=');
                match values.is_null(row) {
                    true => folder.push_str(NULL),
                    false => escape(values.as_string::<i32>().value(row), &mut folder),
                }
            }
            of.entry(folder).or_default().push(row as u32);
        }
        let files = rows.project(&self.rest)?;
        let files = RecordBatch::try_new(SchemaRef::clone(&self.schema), files.columns().to_vec())?;
        of.into_iter().map(|(folder, at)| Ok((folder, take_record_batch(&files, &UInt32Array::from(at))?))).collect()
    }
}

/// A value as a folder name: characters with a meaning in paths or URLs are percent-encoded.
fn escape(value: &str, out: &mut String) {
    for c in value.chars() {
        if c.is_control() || "/\\%=:*?\"<>|#'{}[]^~`".contains(c) {
            let mut bytes = [0; 4];
            c.encode_utf8(&mut bytes).bytes().for_each(|byte| {
                let _ = write!(out, "%{byte:02X}");
            });
        } else {
            out.push(c);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Date32Array, Int64Array, StringArray};

    use super::*;

    #[test]
    fn rows_go_to_the_folders_of_their_values() {
        let day: ArrayRef = Arc::new(Date32Array::from(vec![0, 1, 0]));
        let place: ArrayRef = Arc::new(StringArray::from(vec![Some("a/b"), None, Some("a/b")]));
        let n: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
        let rows =
            RecordBatch::try_from_iter_with_nullable([("day", day, true), ("place", place, true), ("n", n, true)]);
        let rows = rows.unwrap();
        let folders = PartitionFolders::new(&["day".into(), "place".into()], &rows.schema()).unwrap();
        let split = folders.split(rows.clone()).unwrap();
        let shown: Vec<_> =
            split.iter().map(|(folder, rows)| (folder.as_str(), rows.num_columns(), rows.num_rows())).collect();
        let null = "day=1970-01-02/place=__HIVE_DEFAULT_PARTITION__";
        assert_eq!(shown, [("day=1970-01-01/place=a%2Fb", 1, 2), (null, 1, 1)]);
        for (names, what) in
            [(vec!["x"], "not a column"), (vec!["n", "n"], "twice"), (vec!["day", "place", "n"], "all columns")]
        {
            let names: Vec<String> = names.into_iter().map(Into::into).collect();
            assert!(PartitionFolders::new(&names, &rows.schema()).unwrap_err().contains(what));
        }
    }
}
