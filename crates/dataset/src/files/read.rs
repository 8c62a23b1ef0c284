//! DataSets of files: paths, folders, globs and URLs of CSV, JSON lines, Parquet, Arrow IPC and text, compressed or
//! not.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use datafusion::catalog::TableProvider;
use datafusion::common::config::TableOptions;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::arrow::ArrowFormat;
use datafusion::datasource::file_format::csv::CsvFormat;
use datafusion::datasource::file_format::json::JsonFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{ListingOptions, ListingTable, ListingTableConfig};
use datafusion::functions::core::expr_fn::nullif;
use datafusion::logical_expr::lit;
use futures::{StreamExt, TryStreamExt};
use regex::Regex;
use tidemill_dataflow::without_passwords;

use crate::dataset::DataSet;
use crate::engine::Engine;
use crate::error::{DataSetError, Result};
use crate::files::csv_layout::CsvLayout;
use crate::files::evolved::{
    EvolvedParquet, ExactColumns, FILES_AT_ONCE, are_alike, has_floats, ipc_schemas, parquet_schemas, read_ipc,
};
use crate::files::file_table::{Check, CheckedTable, NamedFiles, PiecesTable};
use crate::files::lenient::{Decoder, Layout, OnError, infer};
use crate::files::line_table;
use crate::files::lines::{Piece, cut};
use crate::files::packing::Packing;
use crate::files::paths::{File, Found, NULL_FOLDER, find};
use crate::files::text_source::TextLines;
use crate::files::unite::{fits, unite};
use crate::plan::expr::column;
use crate::stores::{StorageOptions, is_url};

/// How the bytes of files become columns.
#[derive(Debug, Clone)]
pub enum Format {
    /// Values between delimiters.
    Csv(CsvLayout),
    /// One JSON object in each line.
    Json,
    /// Apache Parquet.
    Parquet,
    /// Arrow IPC, files or streams.
    Ipc,
    /// Lines of UTF-8 text, as one column `line`.
    Text,
}

impl Format {
    fn word(&self) -> &'static str {
        match self {
            Format::Csv(_) => "CSV",
            Format::Json => "JSON",
            Format::Parquet => "Parquet",
            Format::Ipc => "Arrow IPC",
            Format::Text => "text",
        }
    }
}

/// What else there is to say of reading.
#[derive(Debug, Clone)]
pub struct ReadOptions {
    /// Names and types; found out without.
    pub schema: Option<SchemaRef>,
    /// Of CSV and JSON: rows of a file that types are found out from.
    pub infer_rows: usize,
    /// Of texts; UTF-8 without.
    pub encoding: Option<String>,
    /// A column of the files' paths or URLs, behind all others.
    pub file_column: Option<String>,
    /// What becomes of rows of CSV, JSON and text that cannot be read.
    pub on_error: OnError,
}

impl Default for ReadOptions {
    fn default() -> Self {
        ReadOptions { schema: None, infer_rows: 1000, encoding: None, file_column: None, on_error: OnError::Raise }
    }
}

/// A table of the rows of all files that `paths` stand for: files, folders (with everything below), globs, and URLs of
/// any of them in an object store, which is told `storage`.
///
/// Folders named `column=value` below a single folder give their files that column, of texts.
///
/// Without a schema, names and types come from the files: for CSV and JSON from the first `infer_rows` rows.
///
/// # Errors
/// `Io` for a path without files, or a store that does not give them, naming it; `Data` if the files' schemas do not
/// fit each other.
pub async fn read(
    engine: &Engine,
    paths: &[String],
    storage: &StorageOptions,
    format: Format,
    options: ReadOptions,
) -> Result<DataSet> {
    let ReadOptions { schema, infer_rows, encoding, file_column, on_error } = options;
    let (encoding, file_column) = (encoding.as_deref(), file_column.as_deref());
    let found = find(engine, paths, storage).await?;
    let packing = match format {
        // These compress inside.
        Format::Parquet | Format::Ipc => Packing::NONE,
        _ => Packing::new(found.compression()?, encoding)?,
    };
    if let Format::Csv(CsvLayout { null: Some(pattern), .. }) = &format
        && let Err(error) = Regex::new(pattern)
    {
        return Err(DataSetError::Query(format!("null={pattern:?} is not a valid regular expression: {error}")));
    }
    if let Format::Csv(layout) = &format
        && layout.has_header
    {
        headers_fit(layout, &found.files, packing, schema.as_ref()).await?;
    }
    let layout = match &format {
        Format::Csv(layout) => Some(Layout::Csv(layout.clone())),
        Format::Json => Some(Layout::Json),
        Format::Text => Some(Layout::Text),
        Format::Parquet | Format::Ipc => None,
    };
    // Lines have no place for a column of DataFusion's.
    let is_ours = on_error != OnError::Raise || (file_column.is_some() && matches!(format, Format::Text));
    if let Some(layout) = layout.as_ref().filter(|_| is_ours) {
        let schema = match schema {
            Some(schema) => schema,
            None => infer_types(layout.clone(), &found, packing, infer_rows).await?,
        };
        return read_good(engine, found, Decoder::new(layout.clone(), schema)?, packing, file_column, &on_error);
    }
    if let Format::Text = format {
        return line_table::read(engine, found.files, packing);
    }
    let nulls = null_folders(&found);
    let file_format = file_format(&format, &found, packing, infer_rows)?;
    let state = engine.context().state();
    // Which files to read has been decided above, whatever their names end with.
    let options = ListingOptions::new(file_format).with_file_extension("");
    let keys = found.folder_keys();
    let (urls, options) = match &found.folder {
        Some(folder) if !keys.is_empty() => {
            let columns = keys.into_iter().map(|key| (key, DataType::Utf8)).collect();
            // DataFusion lists the folder again; this keeps it from what is hidden there.
            (vec![folder.listing_url()?.with_glob("[!._]*")?], options.with_table_partition_cols(columns))
        }
        _ => (found.files.iter().map(File::listing_url).collect::<Result<Vec<_>>>()?, options),
    };
    let config = ListingTableConfig::new_with_multi_paths(urls).with_listing_options(options.clone());
    let inferred = async |config: ListingTableConfig| {
        let error = match config.infer_schema(&state).await {
            Ok(inferred) => return Ok(inferred),
            Err(error) => in_files(error.into(), &found, &format),
        };
        // Of many files the one that cannot be expanded.
        let again = match &layout {
            Some(layout) if !packing.is_plain() => infer_types(layout.clone(), &found, packing, infer_rows).await.err(),
            _ => None,
        };
        Err(again.unwrap_or(error))
    };
    let config = match (&format, schema) {
        (Format::Parquet | Format::Ipc, schema) => {
            let schemas = match format {
                Format::Ipc => ipc_schemas(engine, &found.files).await?,
                _ => parquet_schemas(engine, &found.files, options.format.as_ref()).await?,
            };
            let wanted = match schema {
                Some(schema) => {
                    fits(&schema, &found.files, &schemas)?;
                    schema
                }
                None => unite(&found.files, &schemas)?,
            };
            match format {
                Format::Ipc if !are_alike(&schemas, &wanted, true) => {
                    let set = read_ipc(engine, found, file_column, schemas, &wanted, &options)?;
                    return without_markers(set, &nulls);
                }
                Format::Parquet if !are_alike(&schemas, &wanted, false) => {
                    let mut options = options;
                    options.format = Arc::new(EvolvedParquet::new(options.format, &schemas, &wanted));
                    config.with_listing_options(options).with_expr_adapter_factory(Arc::new(ExactColumns))
                }
                Format::Parquet if has_floats(&wanted) => {
                    let mut options = options;
                    options.format = Arc::new(EvolvedParquet::new(options.format, &schemas, &wanted));
                    config.with_listing_options(options)
                }
                _ => config,
            }
            .with_schema(wanted)
        }
        (_, Some(schema)) => config.with_schema(schema),
        // DataFusion takes the types of the first file for those of all, and looks for them in blocks that may cut a
        // value in two.
        (Format::Csv(csv), None) => {
            match infer_types(Layout::Csv(csv.clone()), &found, packing, infer_rows).await {
                // DataFusion says what is wrong with files without columns.
                Ok(none) if none.fields().is_empty() => inferred(config).await?,
                Ok(some) => config.with_schema(some),
                Err(error) if !packing.is_plain() => return Err(error),
                Err(error) => return Err(in_files(error, &found, &format)),
            }
        }
        // DataFusion looks at the first file, and columns that only others have would be left out in silence.
        (Format::Json, None) => match infer_types(Layout::Json, &found, packing, infer_rows).await? {
            // What it says of them.
            none if none.fields().is_empty() => inferred(config).await?,
            some => config.with_schema(some),
        },
        (_, None) => inferred(config).await?,
    };
    let file_schema = config.file_schema.clone();
    let table = ListingTable::try_new(config)?;
    if table_schema(&table).fields().is_empty() {
        return Err(DataSetError::Data(format!("{} has no columns", found.describe())));
    }
    let pieces = match &layout {
        Some(Layout::Csv(layout))
            if !layout.newlines_in_values && found.folder_keys().is_empty() && file_column.is_none() =>
        {
            cut(&found.files, packing, engine.partitions())?
        }
        _ => Vec::new(),
    };
    let files = found.files.clone();
    let check = match (layout, file_schema) {
        (Some(layout), Some(schema)) => Some(check(engine, found, layout, &schema, packing)?),
        _ => None,
    };
    let format = Arc::clone(&table.options().format);
    let mut table = checked(table, check, pieces);
    if let Some(column) = file_column {
        free(file_column, table.schema().fields())?;
        table = Arc::new(NamedFiles::new(table, format, column, &files)?);
    }
    without_markers(DataSet::new(engine.context().read_table(table)?)?, &nulls)
}

/// Columns and types of the first rows of each file.
async fn infer_types(layout: Layout, found: &Found, packing: Packing, infer_rows: usize) -> Result<SchemaRef> {
    let of = |file: &File| {
        let (layout, file) = (layout.clone(), file.clone());
        let infer = move || infer(&layout, &file, packing, infer_rows);
        async { tokio::task::spawn_blocking(infer).await.map_err(|error| DataSetError::Internal(error.to_string()))? }
    };
    let schemas = futures::stream::iter(found.files.iter().map(of)).buffered(FILES_AT_ONCE).try_collect::<Vec<_>>();
    let mut schemas = schemas.await?;
    let is_csv = matches!(layout, Layout::Csv(_));
    if let Layout::Csv(CsvLayout { overrides: Some(overrides), .. }) = &layout {
        schemas = overridden(&schemas, overrides)?;
    }
    let all = unite(&found.files, &schemas).map_err(|error| match error {
        DataSetError::Data(text) if is_csv => DataSetError::Data(format!(
            "{text}. For CSV, schema_overrides={{\"column\": \"str\"}} sets the type of one column, infer_rows= looks \
             at more rows, and null= names the strings that stand for null"
        )),
        other => other,
    })?;
    Ok(if is_csv { untyped_as_text(&all) } else { all })
}

/// The schemas with the types of `overrides` for the columns that it names.
fn overridden(schemas: &[SchemaRef], overrides: &SchemaRef) -> Result<Vec<SchemaRef>> {
    let is_there = |name: &str| schemas.iter().any(|schema| schema.field_with_name(name).is_ok());
    if let Some(unknown) = overrides.fields().iter().find(|field| !is_there(field.name())) {
        let mut names: Vec<String> = schemas.iter().flat_map(|schema| names_of(schema)).collect();
        names.sort_unstable();
        names.dedup();
        let (name, there) = (unknown.name(), names.join(", "));
        return Err(DataSetError::Query(format!("schema_overrides= names column {name:?}; there are: {there}")));
    }
    let typed = |field: &Arc<Field>| match overrides.field_with_name(field.name()) {
        Ok(wanted) => Arc::new(field.as_ref().clone().with_data_type(wanted.data_type().clone())),
        Err(_) => Arc::clone(field),
    };
    let with_types = |schema: &SchemaRef| Arc::new(Schema::new(schema.fields().iter().map(typed).collect::<Vec<_>>()));
    Ok(schemas.iter().map(with_types).collect())
}

/// Columns without a value in the rows looked at become text, which keeps whatever comes later. As `Null` they would
/// lose it.
fn untyped_as_text(schema: &SchemaRef) -> SchemaRef {
    let typed = |field: &Arc<Field>| match field.data_type() {
        DataType::Null => Arc::new(field.as_ref().clone().with_data_type(DataType::Utf8)),
        _ => Arc::clone(field),
    };
    Arc::new(Schema::new(schema.fields().iter().map(typed).collect::<Vec<_>>()))
}

/// Refuses CSV files that have two columns of one name, or have not their columns in one order, and a schema that has a
/// file's in another one: values would come to other columns. Of files in stores, where a look costs a request, none is
/// looked at but the first, for names that no schema gives.
async fn headers_fit(layout: &CsvLayout, files: &[File], packing: Packing, schema: Option<&SchemaRef>) -> Result<()> {
    let is_looked_at = |at: usize, file: &File| !matches!(file, File::Object(_)) || (at == 0 && schema.is_none());
    let looked_at = files.iter().enumerate().filter(|&(at, file)| is_looked_at(at, file)).map(|(_, file)| file.clone());
    let looked_at: Vec<File> = looked_at.collect();
    let given = schema.map(|schema| (None, names_of(schema)));
    let layout = Layout::Csv(layout.clone());
    let look = move || -> Result<()> {
        let mut first = given;
        for file in looked_at {
            // What cannot be read is told by who reads it.
            let header = infer(&layout, &file, packing, 1);
            let names = header.map(|header| names_of(&header)).unwrap_or_default();
            if names.is_empty() {
                continue;
            }
            let Some((of, wanted)) = &first else {
                if let Some(name) = twice(&names) {
                    return Err(DataSetError::Data(format!(
                        "{file}: two of its columns are named {name:?}; give each its own name, in the file or with \
                         schema="
                    )));
                }
                first = Some((Some(file), names));
                continue;
            };
            if names == *wanted {
                continue;
            }
            let sorted = |names: &[String]| {
                let mut names = names.to_vec();
                names.sort_unstable();
                names
            };
            let (listed, theirs) = (names.join(", "), wanted.join(", "));
            match of {
                None if sorted(&names) == sorted(wanted) => {
                    return Err(DataSetError::Data(format!(
                        "{file}: its columns are {listed}; the schema has them in another order, {theirs}: use the \
                         file's order"
                    )));
                }
                None if names.len() > wanted.len() => {
                    let missing: Vec<_> = names.iter().filter(|name| !wanted.contains(name)).cloned().collect();
                    return Err(DataSetError::Data(format!(
                        "{file}: schema= has {} columns, but the file has {}; schema= lacks {}. List all columns of \
                         the file, or use schema_overrides= for some of them",
                        wanted.len(),
                        names.len(),
                        missing.join(", ")
                    )));
                }
                // Other names for the columns.
                None => first = Some((Some(file), names)),
                Some(of) => {
                    return Err(DataSetError::Data(format!(
                        "{file}: its columns are {listed}, but those of {of} are {theirs}: read them separately, and \
                         combine them with union, by name"
                    )));
                }
            }
        }
        Ok(())
    };
    let looked = tokio::task::spawn_blocking(look).await;
    looked.map_err(|error| DataSetError::Internal(error.to_string()))?
}

/// A name that is there more than once.
fn twice(names: &[String]) -> Option<&String> {
    names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)).map(|(_, name)| name)
}

fn names_of(schema: &Schema) -> Vec<String> {
    schema.fields().iter().map(|field| field.name().clone()).collect()
}

/// Refuses a name for the files' column that another has.
fn free(file_column: Option<&str>, fields: &Fields) -> Result<()> {
    match file_column.filter(|name| fields.find(name).is_some()) {
        Some(name) => {
            Err(DataSetError::Query(format!("file_column={name:?}: the files have such a column; choose another name")))
        }
        None => Ok(()),
    }
}

/// The columns that folders name, if one of these is for rows without a value.
fn null_folders(found: &Found) -> Vec<String> {
    let keys = found.folder_keys();
    let marker = format!("={NULL_FOLDER}");
    let has_some = !keys.is_empty() && found.files.iter().any(|file| file.to_string().contains(&marker));
    if has_some { keys } else { Vec::new() }
}

/// The rows, null where a folder says so.
fn without_markers(set: DataSet, keys: &[String]) -> Result<DataSet> {
    if keys.is_empty() {
        return Ok(set);
    }
    let columns = set.names().into_iter().map(|name| match keys.contains(&name) {
        true => nullif(column(&name), lit(NULL_FOLDER)).alias(name),
        false => column(&name),
    });
    set.select(columns.collect())
}

fn check(engine: &Engine, found: Found, layout: Layout, schema: &SchemaRef, packing: Packing) -> Result<Arc<Check>> {
    let decoder = Decoder::new(layout, SchemaRef::clone(schema))?;
    Ok(Arc::new(Check::new(engine, found.files, decoder, packing)))
}

fn checked(table: ListingTable, check: Option<Arc<Check>>, pieces: Vec<Piece>) -> Arc<dyn TableProvider> {
    match check {
        Some(check) => Arc::new(CheckedTable { table, check, pieces }),
        None => Arc::new(table),
    }
}

/// A table of the rows that can be read.
fn read_good(
    engine: &Engine,
    mut found: Found,
    decoder: Decoder,
    packing: Packing,
    file_column: Option<&str>,
    on_error: &OnError,
) -> Result<DataSet> {
    if let OnError::Quarantine(folder) = on_error
        && is_url(&folder.to_string_lossy())
    {
        let folder = without_passwords(&folder.to_string_lossy());
        return Err(DataSetError::Unsupported(format!("quarantine={folder:?} must be a local folder")));
    }
    if decoder.schema().fields().is_empty() {
        return Err(DataSetError::Data(format!("{} has no columns", found.describe())));
    }
    let nulls = null_folders(&found);
    free(file_column, &decoder.schema().fields)?;
    let places = found.take_place_columns(file_column);
    let table = PiecesTable::lenient(engine, found.files, places, decoder, packing, on_error)?;
    without_markers(DataSet::new(engine.context().read_table(Arc::new(table))?)?, &nulls)
}

/// A table of what a URL stands for, in the format that the name of its first file tells of.
pub(crate) async fn read_url(engine: &Engine, url: &str) -> Result<DataSet> {
    let storage = StorageOptions::new();
    let found = find(engine, &[url.to_owned()], &storage).await?;
    let name = found.files[0].to_string();
    let plain = [".gz", ".bz2", ".xz", ".zst"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(&name);
    let format = match plain.rsplit_once('.').map(|(_, extension)| extension) {
        Some("csv") => Format::Csv(CsvLayout::default()),
        Some("json" | "jsonl" | "ndjson") => Format::Json,
        Some("parquet") => Format::Parquet,
        Some("arrow" | "ipc" | "feather") => Format::Ipc,
        _ => {
            return Err(DataSetError::Query(format!(
                "{name}: SQL recognizes files by their names, which end with .csv, .json, .parquet or .arrow; the \
                 read functions support more"
            )));
        }
    };
    read(engine, &[url.to_owned()], &storage, format, ReadOptions::default()).await
}

fn file_format(format: &Format, found: &Found, packing: Packing, infer_rows: usize) -> Result<Arc<dyn FileFormat>> {
    let defaults = TableOptions::default();
    Ok(match format {
        Format::Csv(layout) => {
            let plain = CsvFormat::default()
                .with_options(defaults.csv)
                .with_has_header(layout.has_header)
                .with_delimiter(layout.delimiter)
                .with_quote(layout.quote)
                .with_comment(layout.comment)
                .with_newlines_in_values(layout.newlines_in_values)
                .with_null_regex(layout.null.clone())
                .with_schema_infer_max_rec(infer_rows)
                .with_file_compression_type(packing.compression);
            Arc::new(TextLines::new(Arc::new(plain), Layout::Csv(layout.clone()), packing, &found.files)?)
        }
        Format::Json => {
            let plain = JsonFormat::default()
                .with_schema_infer_max_rec(infer_rows)
                .with_file_compression_type(packing.compression);
            Arc::new(TextLines::new(Arc::new(plain), Layout::Json, packing, &found.files)?)
        }
        Format::Parquet => Arc::new(ParquetFormat::default()),
        Format::Ipc | Format::Text => Arc::new(ArrowFormat),
    })
}

fn table_schema(table: &ListingTable) -> Arc<Schema> {
    TableProvider::schema(table)
}

fn in_files(error: DataSetError, found: &Found, format: &Format) -> DataSetError {
    DataSetError::Data(format!("{} cannot be read as {}: {error}", found.describe(), format.word()))
}
