//! DataSets of files: paths, folders and globs of CSV, JSON lines, Parquet, Arrow IPC and text, compressed or not.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::ScalarValue;
use datafusion::common::config::TableOptions;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::arrow::ArrowFormat;
use datafusion::datasource::file_format::csv::CsvFormat;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::json::JsonFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl};
use datafusion::functions::regex::expr_fn::regexp_like;
use datafusion::logical_expr::{cast, lit};

use crate::dataset::DataSet;
use crate::engine::Engine;
use crate::error::{DataSetError, Result};
use crate::expr::{case, column};
use crate::lines;

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

/// How a CSV file is written down.
#[derive(Debug, Clone)]
pub struct CsvLayout {
    /// Whether the first line names the columns.
    pub has_header: bool,
    /// Between values.
    pub delimiter: u8,
    /// Around values that contain delimiters.
    pub quote: u8,
    /// Lines that begin so are left out.
    pub comment: Option<u8>,
    /// Whether quoted values may contain line ends; files are then not cut into pieces.
    pub newlines_in_values: bool,
    /// A regular expression of what stands for null, beside nothing.
    pub null: Option<String>,
}

impl Default for CsvLayout {
    fn default() -> Self {
        CsvLayout {
            has_header: true,
            delimiter: b',',
            quote: b'"',
            comment: None,
            newlines_in_values: false,
            null: None,
        }
    }
}

/// A table of the rows of all files that `paths` stand for: files, folders (with everything below), and globs.
///
/// Folders named `column=value` below a single folder give their files that column, of texts.
///
/// Without `schema`, names and types come from the files: for CSV and JSON from the first `infer_rows` rows.
///
/// # Errors
/// `Io` for a path without files, naming it; `Data` if the files' schemas do not fit each other.
pub async fn read(
    engine: &Engine,
    paths: &[String],
    format: Format,
    schema: Option<SchemaRef>,
    infer_rows: usize,
) -> Result<DataSet> {
    let files = find_files(paths)?;
    let compression = common_compression(&files, &format)?;
    if let Format::Text = format {
        return lines::read(engine, files, compression);
    }
    let defaults = TableOptions::default();
    let file_format: Arc<dyn FileFormat> = match &format {
        Format::Csv(layout) => Arc::new(
            CsvFormat::default()
                .with_options(defaults.csv)
                .with_has_header(layout.has_header)
                .with_delimiter(layout.delimiter)
                .with_quote(layout.quote)
                .with_comment(layout.comment)
                .with_newlines_in_values(layout.newlines_in_values)
                .with_null_regex(layout.null.clone())
                .with_schema_infer_max_rec(infer_rows)
                .with_file_compression_type(compression),
        ),
        Format::Json => Arc::new(
            JsonFormat::default().with_schema_infer_max_rec(infer_rows).with_file_compression_type(compression),
        ),
        Format::Parquet => Arc::new(ParquetFormat::default()),
        Format::Ipc | Format::Text => Arc::new(ArrowFormat),
    };
    let state = engine.context().state();
    // Which files to read has been decided above, whatever their names end with.
    let options = ListingOptions::new(file_format).with_file_extension("");
    let folder = single_folder(paths);
    let keys = folder.as_deref().map(|folder| folder_keys(folder, &files)).unwrap_or_default();
    let (urls, options) = match folder {
        Some(folder) if !keys.is_empty() => {
            let columns = keys.into_iter().map(|key| (key, DataType::Utf8)).collect();
            // DataFusion lists the folder again; this keeps it from what is hidden there.
            (vec![url_of(&folder)?.with_glob("[!._]*")?], options.with_table_partition_cols(columns))
        }
        _ => (files.iter().map(|file| url_of(file)).collect::<Result<Vec<_>>>()?, options),
    };
    let config = ListingTableConfig::new_with_multi_paths(urls).with_listing_options(options);
    let config = match schema {
        Some(schema) => config.with_schema(schema),
        None => config.infer_schema(&state).await.map_err(|error| in_files(error.into(), &files, &format))?,
    };
    if let (Format::Csv(CsvLayout { null: Some(pattern), .. }), Some(schema)) = (&format, config.file_schema.clone()) {
        return with_nulls(engine, config, &schema, pattern);
    }
    let table = ListingTable::try_new(config)?;
    if table_schema(&table).fields().is_empty() {
        return Err(DataSetError::Data(format!("{} has no columns", describe(&files))));
    }
    DataSet::new(engine.context().read_table(Arc::new(table))?)
}

/// A CSV table in which what matches `pattern` is null. DataFusion heeds the pattern when it finds out types, but not when it
/// reads; so values are read as text here and become what they are afterwards.
fn with_nulls(engine: &Engine, config: ListingTableConfig, schema: &Schema, pattern: &str) -> Result<DataSet> {
    let text: Vec<Field> =
        schema.fields().iter().map(|field| Field::new(field.name(), DataType::Utf8View, true)).collect();
    let table = ListingTable::try_new(config.with_schema(Schema::new(text).into()))?;
    let all = DataSet::new(engine.context().read_table(Arc::new(table))?)?;
    // The whole value is to match, not a part of it.
    let whole = lit(format!("^(?:{pattern})$"));
    let values = schema.fields().iter().map(|field| {
        let value = column(field.name());
        let is_null = regexp_like(value.clone(), whole.clone(), None);
        // Nothing at all is null too, but where texts are wanted.
        let is_null = match field.data_type() {
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => is_null,
            _ => is_null.or(value.clone().eq(lit(""))),
        };
        let typed = cast(value, field.data_type().clone());
        case(vec![(is_null, lit(ScalarValue::Null))], Some(typed)).alias(field.name().clone())
    });
    all.select(values.collect())
}

fn table_schema(table: &ListingTable) -> Arc<Schema> {
    datafusion::catalog::TableProvider::schema(table)
}

fn in_files(error: DataSetError, files: &[PathBuf], format: &Format) -> DataSetError {
    DataSetError::Data(format!("{} cannot be read as {}: {error}", describe(files), format.word()))
}

/// The file, or one of them and how many there are.
fn describe(files: &[PathBuf]) -> String {
    match files {
        [one] => one.display().to_string(),
        [first, rest @ ..] => format!("{} (and {} more files)", first.display(), rest.len()),
        [] => "nothing".into(),
    }
}

/// The folder, if that is what there is to read.
fn single_folder(paths: &[String]) -> Option<PathBuf> {
    let [path] = paths else { return None };
    std::path::absolute(path).ok().filter(|path| path.is_dir())
}

/// The columns that the folders between `base` and the files stand for, as in `year=2024/month=2/part.parquet`; none unless
/// all files have the same, and no file itself is named so, which DataFusion would take for a folder.
fn folder_keys(base: &Path, files: &[PathBuf]) -> Vec<String> {
    let keys_of = |file: &PathBuf| -> Option<Vec<String>> {
        let is_plain = !file.file_name()?.to_string_lossy().contains('=');
        let folders = file.parent()?.strip_prefix(base).ok().filter(|_| is_plain)?;
        folders.iter().map(|folder| Some(folder.to_str()?.split_once('=')?.0.to_owned())).collect()
    };
    let mut all = files.iter().map(keys_of);
    match all.next().flatten() {
        Some(first) if all.all(|keys| keys.as_ref() == Some(&first)) => first,
        _ => Vec::new(),
    }
}

fn url_of(path: &Path) -> Result<ListingTableUrl> {
    let made = if path.is_dir() { url::Url::from_directory_path(path) } else { url::Url::from_file_path(path) };
    let url = made.map_err(|()| DataSetError::Io(format!("{} is not an absolute path", path.display())))?;
    Ok(ListingTableUrl::parse(url.as_str())?)
}

/// Every file that `paths` stand for, absolute; those of one path are in order of their names.
fn find_files(paths: &[String]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        let before = files.len();
        let absolute = std::path::absolute(path).map_err(|error| DataSetError::Io(format!("{path}: {error}")))?;
        // A name may contain what looks like a glob; the file itself goes first.
        if absolute.exists() {
            add(&absolute, &mut files)?;
        } else if path.contains(['*', '?', '[']) {
            let pattern = absolute.to_string_lossy();
            let found = glob::glob(&pattern).map_err(|error| DataSetError::Query(format!("{path}: {error}")))?;
            for entry in found {
                add(&entry.map_err(|error| DataSetError::Io(error.to_string()))?, &mut files)?;
            }
        } else {
            return Err(DataSetError::Io(format!("there is no file or folder {path}")));
        }
        if files.len() == before {
            return Err(DataSetError::Io(format!("there are no files in {path}")));
        }
    }
    if files.is_empty() {
        return Err(DataSetError::Query("no path was given".into()));
    }
    Ok(files)
}

/// The file, or those below a folder, but what begins with a dot or underscore: such names are of unfinished output.
fn add(path: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    if !path.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    let failed = |error: std::io::Error| DataSetError::Io(format!("{}: {error}", path.display()));
    let mut entries = std::fs::read_dir(path)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect::<std::io::Result<Vec<_>>>())
        .map_err(failed)?;
    entries.sort();
    for entry in entries {
        let hidden = entry.file_name().is_some_and(|name| name.to_string_lossy().starts_with(['.', '_']));
        if !hidden {
            add(&entry, files)?;
        }
    }
    Ok(())
}

/// The compression that the files' names tell of.
fn common_compression(files: &[PathBuf], format: &Format) -> Result<FileCompressionType> {
    let of = |file: &PathBuf| match file.extension().and_then(|extension| extension.to_str()) {
        Some("gz") => FileCompressionType::GZIP,
        Some("bz2") => FileCompressionType::BZIP2,
        Some("xz") => FileCompressionType::XZ,
        Some("zst") => FileCompressionType::ZSTD,
        _ => FileCompressionType::UNCOMPRESSED,
    };
    let first = files.first().map_or(FileCompressionType::UNCOMPRESSED, of);
    if matches!(format, Format::Parquet | Format::Ipc) {
        // These compress inside.
        return Ok(FileCompressionType::UNCOMPRESSED);
    }
    match files.iter().find(|file| of(file) != first) {
        None => Ok(first),
        Some(other) => Err(DataSetError::Unsupported(format!(
            "{} and {} are compressed in different ways; read them apart and use union",
            files[0].display(),
            other.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hidden files are unfinished output of someone else; reading them would double rows.
    #[test]
    fn folders_are_read_without_hidden_files() {
        let dir = std::env::temp_dir().join(format!("tidemill-read-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("deep")).unwrap();
        for name in ["b.csv", "a.csv", ".hidden.csv", "_SUCCESS", "deep/c.csv", "odd[1].csv"] {
            std::fs::write(dir.join(name), "x\n1\n").unwrap();
        }
        let names = |path: String| -> Result<Vec<String>> {
            let files = find_files(&[path])?;
            Ok(files.iter().map(|f| f.strip_prefix(&dir).unwrap().display().to_string()).collect())
        };
        let whole = names(dir.display().to_string()).unwrap();
        let glob = names(format!("{}/?.csv", dir.display())).unwrap();
        let odd = names(format!("{}/odd[1].csv", dir.display())).unwrap();
        let none = names(format!("{}/*.json", dir.display())).unwrap_err();
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(whole, ["a.csv", "b.csv", "deep/c.csv", "odd[1].csv"]);
        assert_eq!(glob, ["a.csv", "b.csv"]);
        assert_eq!(odd, ["odd[1].csv"]);
        assert!(none.to_string().contains("*.json"), "{none}");
    }

    #[test]
    fn compression_is_the_same_for_all() {
        let files = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        let csv = Format::Csv(CsvLayout::default());
        assert_eq!(common_compression(&files(&["a.gz", "b.gz"]), &csv).unwrap(), FileCompressionType::GZIP);
        assert!(common_compression(&files(&["a.gz", "b.csv"]), &csv).is_err());
    }
}
