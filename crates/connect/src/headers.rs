//! Headers of records as a column: of each record a list of names and values, in their order.

use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryBuilder, ListBuilder, StringBuilder, StructBuilder};
use arrow::datatypes::{DataType, Field, Fields};

/// Names and values; a value may be missing.
pub(crate) type Headers = Vec<(String, Option<Vec<u8>>)>;

fn fields() -> Fields {
    Fields::from(vec![Field::new("name", DataType::Utf8, false), Field::new("value", DataType::Binary, true)])
}

/// Of the column.
pub(crate) fn data_type() -> DataType {
    DataType::new_list(DataType::Struct(fields()), true)
}

/// Of records, one a row; null where it is not known whether there are any.
pub(crate) fn column<'a>(records: impl IntoIterator<Item = Option<&'a Headers>>) -> ArrayRef {
    let mut lists = ListBuilder::new(StructBuilder::from_fields(fields(), 0));
    for record in records {
        let headers = lists.values();
        for (name, value) in record.into_iter().flatten() {
            headers.field_builder::<StringBuilder>(0).expect("names").append_value(name);
            headers.field_builder::<BinaryBuilder>(1).expect("values").append_option(value.as_deref());
            headers.append(true);
        }
        lists.append(record.is_some());
    }
    Arc::new(lists.finish())
}
