//! DataSets from files: paths, folders, globs and URLs of CSV, JSON lines, Parquet, Arrow IPC and text, compressed or
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
use datafusion::datasource::listing::{ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl};
use datafusion::functions::core::expr_fn::nullif;
use datafusion::logical_expr::lit;
use futures::{StreamExt, TryStreamExt};
use regex::Regex;
use tidemill_storage::{StorageOptions, is_url, redact_passwords};

use crate::dataset::DataSet;
use crate::engine::Engine;
use crate::error::{DataSetError, Result};
use crate::files::csv_layout::CsvLayout;
use crate::files::encoding::FileEncoding;
use crate::files::file_table::{CheckedTable, FirstBadRow, NamedFiles, PiecesTable};
use crate::files::line_table;
use crate::files::lines::{ByteRange, cut};
use crate::files::malformed_rows::{LineLayout, OnError, RowDecoder, infer};
use crate::files::paths::{InputFile, InputFiles, NULL_FOLDER, find};
use crate::files::schema_evolution::{
    EvolvedParquet, FILES_AT_ONCE, LosslessColumns, are_alike, has_floats, ipc_schemas, parquet_schemas, read_ipc,
};
use crate::files::schema_union::{fits, unite};
use crate::files::text_source::TextLines;
use crate::plan::expr::column;

/// The format of files to read.
#[derive(Debug, Clone)]
pub enum ReadFormat {
    /// Values separated by delimiters.
    Csv(CsvLayout),
    /// One JSON object per line.
    Json,
    /// Apache Parquet.
    Parquet,
    /// Arrow IPC files or streams.
    Ipc,
    /// Lines of UTF-8 text, as a single column `line`.
    Text,
}

impl ReadFormat {
    fn word(&self) -> &'static str {
        match self {
            ReadFormat::Csv(_) => "CSV",
            ReadFormat::Json => "JSON",
            ReadFormat::Parquet => "Parquet",
            ReadFormat::Ipc => "Arrow IPC",
            ReadFormat::Text => "text",
        }
    }

    /// The layout of rows in lines; `None` for other kinds of formats.
    fn line_layout(&self) -> Option<LineLayout> {
        match self {
            ReadFormat::Csv(layout) => Some(LineLayout::Csv(layout.clone())),
            ReadFormat::Json => Some(LineLayout::Json),
            ReadFormat::Text => Some(LineLayout::Text),
            ReadFormat::Parquet | ReadFormat::Ipc => None,
        }
    }
}

/// Further options for reading.
#[derive(Debug, Clone)]
pub struct ReadOptions {
    /// Names and types; inferred by default.
    pub schema: Option<SchemaRef>,
    /// For CSV and JSON: rows of a file from which types are inferred.
    pub infer_rows: usize,
    /// The text encoding; UTF-8 by default.
    pub encoding: Option<String>,
    /// An additional last column with the files' paths or URLs.
    pub file_column: Option<String>,
    /// What to do with unreadable rows of CSV, JSON and text.
    pub on_error: OnError,
}

impl Default for ReadOptions {
    fn default() -> Self {
        ReadOptions { schema: None, infer_rows: 1000, encoding: None, file_column: None, on_error: OnError::Raise }
    }
}

/// A table of the rows of all files that `paths` refer to: files, folders (with everything below), globs, and URLs of
/// any of them in an object store with the options `storage`.
///
/// Folders named `column=value` below a single folder add a string column to their files.
///
/// Without a schema, names and types come from the files: for CSV and JSON from the first `infer_rows` rows.
///
/// # Errors
/// `Io` for a path without files, or an error of a store, naming it; `Data` if the schemas of the files are
/// incompatible.
pub async fn read(
    engine: &Engine,
    paths: &[String],
    storage: &StorageOptions,
    format: ReadFormat,
    options: ReadOptions,
) -> Result<DataSet> {
    let ReadOptions { schema, infer_rows, encoding, file_column, on_error } = options;
    let (encoding, file_column) = (encoding.as_deref(), file_column.as_deref());
    let found = find(engine, paths, storage).await?;
    let packing = match format {
        // These have internal compression.
        ReadFormat::Parquet | ReadFormat::Ipc => FileEncoding::NONE,
        _ => FileEncoding::new(found.compression()?, encoding)?,
    };
    if let ReadFormat::Csv(layout) = &format {
        csv_fits(layout, &found.files, packing, schema.as_ref()).await?;
    }
    let layout = format.line_layout();
    // DataFusion cannot add a column to lines.
    let is_ours = on_error != OnError::Raise || (file_column.is_some() && matches!(format, ReadFormat::Text));
    if let Some(layout) = layout.as_ref().filter(|_| is_ours) {
        let schema = match schema {
            Some(schema) => schema,
            None => infer_types(layout.clone(), &found, packing, infer_rows).await?,
        };
        return read_good(engine, found, RowDecoder::new(layout.clone(), schema)?, packing, file_column, &on_error);
    }
    if let ReadFormat::Text = format {
        return line_table::read(engine, found.files, packing);
    }
    let nulls = null_folders(&found);
    let file_format = file_format(&format, &found, packing, infer_rows)?;
    let state = engine.context().state();
    let (urls, options) = listing(&found, file_format)?;
    let config = ListingTableConfig::new_with_multi_paths(urls).with_listing_options(options.clone());
    let inferred = async |config: ListingTableConfig| {
        let error = match config.infer_schema(&state).await {
            Ok(inferred) => return Ok(inferred),
            Err(error) => in_files(error.into(), &found, &format),
        };
        // Names the file that cannot be decompressed.
        let again = match &layout {
            Some(layout) if !packing.is_plain() => infer_types(layout.clone(), &found, packing, infer_rows).await.err(),
            _ => None,
        };
        Err(again.unwrap_or(error))
    };
    let config = match (&format, schema) {
        (ReadFormat::Parquet | ReadFormat::Ipc, schema) => {
            let schemas = match format {
                ReadFormat::Ipc => ipc_schemas(engine, &found.files).await?,
                _ => parquet_schemas(engine, &found.files, options.format.as_ref()).await?,
            };
            let wanted = wanted_schema(schema, &found.files, &schemas)?;
            match format {
                ReadFormat::Ipc if !are_alike(&schemas, &wanted, true) => {
                    let set = read_ipc(engine, found, file_column, schemas, &wanted, &options)?;
                    return without_markers(set, &nulls);
                }
                ReadFormat::Parquet if !are_alike(&schemas, &wanted, false) => {
                    let mut options = options;
                    options.format = Arc::new(EvolvedParquet::new(options.format, &schemas, &wanted));
                    config.with_listing_options(options).with_expr_adapter_factory(Arc::new(LosslessColumns))
                }
                ReadFormat::Parquet if has_floats(&wanted) => {
                    let mut options = options;
                    options.format = Arc::new(EvolvedParquet::new(options.format, &schemas, &wanted));
                    config.with_listing_options(options)
                }
                _ => config,
            }
            .with_schema(wanted)
        }
        (_, Some(schema)) => config.with_schema(schema),
        // DataFusion takes the types of the first file for all, and infers them from blocks that may split a value.
        (ReadFormat::Csv(csv), None) => {
            match infer_types(LineLayout::Csv(csv.clone()), &found, packing, infer_rows).await {
                // DataFusion reports what is wrong with files without columns.
                Ok(none) if none.fields().is_empty() => inferred(config).await?,
                Ok(some) => config.with_schema(some),
                Err(error) if !packing.is_plain() => return Err(error),
                Err(error) => return Err(in_files(error, &found, &format)),
            }
        }
        // DataFusion looks only at the first file, and would silently drop columns that exist only in others.
        (ReadFormat::Json, None) => match infer_types(LineLayout::Json, &found, packing, infer_rows).await? {
            // DataFusion's own error for them.
            none if none.fields().is_empty() => inferred(config).await?,
            some => config.with_schema(some),
        },
        (_, None) => inferred(config).await?,
    };
    let file_schema = config.file_schema.clone();
    let table = ListingTable::try_new(config)?;
    let set = listed(engine, found, table, (layout, file_schema), packing, file_column)?;
    without_markers(set, &nulls)
}

/// The URLs and options with which DataFusion reads the files.
fn listing(found: &InputFiles, format: Arc<dyn FileFormat>) -> Result<(Vec<ListingTableUrl>, ListingOptions)> {
    // The files to read have been chosen, whatever their extensions.
    let options = ListingOptions::new(format).with_file_extension("");
    let keys = found.folder_keys();
    Ok(match &found.folder {
        Some(folder) if !keys.is_empty() => {
            let columns = keys.into_iter().map(|key| (key, DataType::Utf8)).collect();
            // DataFusion lists the folder again; the glob excludes hidden files.
            (vec![folder.listing_url()?.with_glob("[!._]*")?], options.with_table_partition_cols(columns))
        }
        _ => (found.files.iter().map(InputFile::listing_url).collect::<Result<Vec<_>>>()?, options),
    })
}

/// The schema of a table of files with `schemas`: the requested one, if any, which must be compatible with them.
fn wanted_schema(schema: Option<SchemaRef>, files: &[InputFile], schemas: &[SchemaRef]) -> Result<SchemaRef> {
    match schema {
        Some(schema) => {
            fits(&schema, files, schemas)?;
            Ok(schema)
        }
        None => unite(files, schemas),
    }
}

/// The rows of DataFusion's table of the files. Text formats are read in pieces if possible, and an error names the
/// first unreadable row.
fn listed(
    engine: &Engine,
    found: InputFiles,
    table: ListingTable,
    (layout, file_schema): (Option<LineLayout>, Option<SchemaRef>),
    packing: FileEncoding,
    file_column: Option<&str>,
) -> Result<DataSet> {
    if table_schema(&table).fields().is_empty() {
        return Err(DataSetError::Data(format!("{} has no columns", found.describe())));
    }
    let pieces = match &layout {
        Some(LineLayout::Csv(layout))
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
    DataSet::new(engine.context().read_table(table)?)
}

/// The columns and types of the first rows of each file.
async fn infer_types(
    layout: LineLayout,
    found: &InputFiles,
    packing: FileEncoding,
    infer_rows: usize,
) -> Result<SchemaRef> {
    let of = |file: &InputFile| {
        let (layout, file) = (layout.clone(), file.clone());
        let infer = move || infer(&layout, &file, packing, infer_rows);
        async { tokio::task::spawn_blocking(infer).await.map_err(|error| DataSetError::Internal(error.to_string()))? }
    };
    let schemas = futures::stream::iter(found.files.iter().map(of)).buffered(FILES_AT_ONCE).try_collect::<Vec<_>>();
    let mut schemas = schemas.await?;
    let is_csv = matches!(layout, LineLayout::Csv(_));
    if let LineLayout::Csv(CsvLayout { overrides: Some(overrides), .. }) = &layout {
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

/// The schemas with the types in `overrides` for the columns in it.
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

/// Columns without values in the sampled rows become strings, which can hold whatever comes later. As `Null` they would
/// lose it.
fn untyped_as_text(schema: &SchemaRef) -> SchemaRef {
    let typed = |field: &Arc<Field>| match field.data_type() {
        DataType::Null => Arc::new(field.as_ref().clone().with_data_type(DataType::Utf8)),
        _ => Arc::clone(field),
    };
    Arc::new(Schema::new(schema.fields().iter().map(typed).collect::<Vec<_>>()))
}

/// Rejects an invalid null pattern, and mismatching headers.
async fn csv_fits(
    layout: &CsvLayout,
    files: &[InputFile],
    packing: FileEncoding,
    schema: Option<&SchemaRef>,
) -> Result<()> {
    if let Some(pattern) = &layout.null
        && let Err(error) = Regex::new(pattern)
    {
        return Err(DataSetError::Query(format!("null={pattern:?} is not a valid regular expression: {error}")));
    }
    if layout.has_header { headers_fit(layout, files, packing, schema).await } else { Ok(()) }
}

/// Rejects CSV files with duplicate column names or different column orders, and a schema with a column order other
/// than that of a file: values would end up in other columns. In stores, where each check costs a request, only the
/// first file is checked, for names that no schema provides.
async fn headers_fit(
    layout: &CsvLayout,
    files: &[InputFile],
    packing: FileEncoding,
    schema: Option<&SchemaRef>,
) -> Result<()> {
    let is_looked_at =
        |at: usize, file: &InputFile| !matches!(file, InputFile::Object(_)) || (at == 0 && schema.is_none());
    let looked_at = files.iter().enumerate().filter(|&(at, file)| is_looked_at(at, file)).map(|(_, file)| file.clone());
    let looked_at: Vec<InputFile> = looked_at.collect();
    let given = schema.map(|schema| (None, names_of(schema)));
    let layout = LineLayout::Csv(layout.clone());
    let look = move || -> Result<()> {
        let mut first = given;
        for file in looked_at {
            // The reader reports files that cannot be read.
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
                // Different names for the columns.
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

/// A name that occurs more than once.
fn twice(names: &[String]) -> Option<&String> {
    names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)).map(|(_, name)| name)
}

fn names_of(schema: &Schema) -> Vec<String> {
    schema.fields().iter().map(|field| field.name().clone()).collect()
}

/// Rejects a name for the file column that another column has.
fn free(file_column: Option<&str>, fields: &Fields) -> Result<()> {
    match file_column.filter(|name| fields.find(name).is_some()) {
        Some(name) => {
            Err(DataSetError::Query(format!("file_column={name:?}: the files have such a column; choose another name")))
        }
        None => Ok(()),
    }
}

/// The folder columns, if one of the folders stands for null.
fn null_folders(found: &InputFiles) -> Vec<String> {
    let keys = found.folder_keys();
    let marker = format!("={NULL_FOLDER}");
    let has_some = !keys.is_empty() && found.files.iter().any(|file| file.to_string().contains(&marker));
    if has_some { keys } else { Vec::new() }
}

/// The rows, with nulls where a folder stands for null.
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

fn check(
    engine: &Engine,
    found: InputFiles,
    layout: LineLayout,
    schema: &SchemaRef,
    packing: FileEncoding,
) -> Result<Arc<FirstBadRow>> {
    let decoder = RowDecoder::new(layout, SchemaRef::clone(schema))?;
    Ok(Arc::new(FirstBadRow::new(engine, found.files, decoder, packing)))
}

fn checked(table: ListingTable, check: Option<Arc<FirstBadRow>>, pieces: Vec<ByteRange>) -> Arc<dyn TableProvider> {
    match check {
        Some(check) => Arc::new(CheckedTable { table, check, pieces }),
        None => Arc::new(table),
    }
}

/// A table of the readable rows.
fn read_good(
    engine: &Engine,
    mut found: InputFiles,
    decoder: RowDecoder,
    packing: FileEncoding,
    file_column: Option<&str>,
    on_error: &OnError,
) -> Result<DataSet> {
    if let OnError::Quarantine(folder) = on_error
        && is_url(&folder.to_string_lossy())
    {
        let folder = redact_passwords(&folder.to_string_lossy());
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

/// A table from a URL, in the format that the name of its first file indicates.
pub(crate) async fn read_url(engine: &Engine, url: &str) -> Result<DataSet> {
    let storage = StorageOptions::new();
    let found = find(engine, &[url.to_owned()], &storage).await?;
    let name = found.files[0].to_string();
    let plain = [".gz", ".bz2", ".xz", ".zst"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(&name);
    let format = match plain.rsplit_once('.').map(|(_, extension)| extension) {
        Some("csv") => ReadFormat::Csv(CsvLayout::default()),
        Some("json" | "jsonl" | "ndjson") => ReadFormat::Json,
        Some("parquet") => ReadFormat::Parquet,
        Some("arrow" | "ipc" | "feather") => ReadFormat::Ipc,
        _ => {
            return Err(DataSetError::Query(format!(
                "{name}: SQL recognizes files by their names, which end with .csv, .json, .parquet or .arrow; the \
                 read functions support more"
            )));
        }
    };
    read(engine, &[url.to_owned()], &storage, format, ReadOptions::default()).await
}

fn file_format(
    format: &ReadFormat,
    found: &InputFiles,
    packing: FileEncoding,
    infer_rows: usize,
) -> Result<Arc<dyn FileFormat>> {
    let defaults = TableOptions::default();
    Ok(match format {
        ReadFormat::Csv(layout) => {
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
            Arc::new(TextLines::new(Arc::new(plain), LineLayout::Csv(layout.clone()), packing, &found.files)?)
        }
        ReadFormat::Json => {
            let plain = JsonFormat::default()
                .with_schema_infer_max_rec(infer_rows)
                .with_file_compression_type(packing.compression);
            Arc::new(TextLines::new(Arc::new(plain), LineLayout::Json, packing, &found.files)?)
        }
        ReadFormat::Parquet => Arc::new(ParquetFormat::default()),
        ReadFormat::Ipc | ReadFormat::Text => Arc::new(ArrowFormat),
    })
}

fn table_schema(table: &ListingTable) -> Arc<Schema> {
    TableProvider::schema(table)
}

fn in_files(error: DataSetError, found: &InputFiles, format: &ReadFormat) -> DataSetError {
    DataSetError::Data(format!("{} cannot be read as {}: {error}", found.describe(), format.word()))
}
