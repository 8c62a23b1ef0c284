//! The files that paths and URLs refer to: single files and objects, folders (with everything below that is not
//! hidden), and globs.
//!
//! Object stores have no folders. Objects whose keys begin with a path and a slash count as the contents of that
//! folder.

use std::collections::HashSet;
use std::fmt;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::listing::ListingTableUrl;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use glob::{MatchOptions, Pattern};
use object_store::path::Path as Key;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStoreExt};
use percent_encoding::percent_decode_str;
use tidemill_storage::{OpenStore, StorageOptions, StoreLocation, is_bucket, is_denied, local_path, redact_passwords};
use tokio::runtime::Handle;

use crate::engine::Engine;
use crate::error::{DataSetError, Result};
use crate::files::encoding::FileEncoding;

/// The value in a folder name for null, as in Hive, Spark and DuckDB.
pub(crate) const NULL_FOLDER: &str = "__HIVE_DEFAULT_PARTITION__";

/// The object that marks output about to appear around it, which is incomplete.
pub(crate) const UNFINISHED: &str = "_unfinished";

/// Number of ranges of an object to request concurrently.
const RANGES_AT_ONCE: usize = 8;

/// A file to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum InputFile {
    /// Given by its absolute path.
    Local(PathBuf),
    Object(StoredObject),
}

/// An object of a store.
#[derive(Debug, Clone)]
pub(crate) struct StoredObject {
    store: Arc<OpenStore>,
    key: Key,
    size_bytes: u64,
}

impl PartialEq for StoredObject {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.store, &other.store) && self.key == other.key
    }
}

impl Eq for StoredObject {}

impl fmt::Display for InputFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InputFile::Local(path) => path.display().fmt(f),
            InputFile::Object(object) => f.write_str(&object.store.shown(&object.key)),
        }
    }
}

impl InputFile {
    pub(crate) fn size_bytes(&self) -> Result<u64> {
        match self {
            InputFile::Local(path) => Ok(std::fs::metadata(path).map_err(|error| self.failed(&error))?.len()),
            InputFile::Object(object) => Ok(object.size_bytes),
        }
    }

    /// Its bytes from `start` on. Call and read it on a thread that may block.
    pub(crate) fn open(&self, start: u64) -> Result<Box<dyn Read + Send>> {
        self.open_within(start..u64::MAX)
    }

    /// The same, but a store sends nothing past the end of `range`; a local file continues.
    pub(crate) fn open_within(&self, range: Range<u64>) -> Result<Box<dyn Read + Send>> {
        let Range { start, end } = range;
        match self {
            InputFile::Local(path) => {
                let mut file = std::fs::File::open(path).map_err(|error| self.failed(&error))?;
                file.seek(SeekFrom::Start(start)).map_err(|error| self.failed(&error))?;
                Ok(Box::new(file))
            }
            InputFile::Object(object) => Ok(Box::new(ObjectReader {
                object: object.clone(),
                position: start,
                end: end.min(object.size_bytes),
                stream: None,
                chunk: Bytes::new(),
                threads: Handle::current(),
            })),
        }
    }

    /// Fills `into` with the concatenated ranges of its bytes; the lengths must match. Call it on a thread that may
    /// block.
    pub(crate) fn read_ranges(&self, ranges: &[Range<u64>], into: &mut [u8]) -> io::Result<()> {
        let mut into = into;
        let mut next = |range: &Range<u64>| {
            into.split_off_mut(..(range.end - range.start) as usize).expect("it is as long as the ranges")
        };
        match self {
            InputFile::Local(path) => {
                let file = std::fs::File::open(path)?;
                ranges.iter().try_for_each(|range| file.read_exact_at(next(range), range.start))
            }
            InputFile::Object(StoredObject { store, key, .. }) => Handle::current().block_on(async {
                let get = |range: Range<u64>| store.objects.get_range(key, range);
                let mut found = futures::stream::iter(ranges.to_vec()).map(get).buffered(RANGES_AT_ONCE);
                for range in ranges {
                    let bytes = found.try_next().await.map_err(|error| io::Error::other(store.failed(key, &error)))?;
                    let part = next(range);
                    match bytes.filter(|bytes| bytes.len() == part.len()) {
                        Some(bytes) => part.copy_from_slice(&bytes),
                        None => return Err(ended_early(store, key)),
                    }
                }
                Ok(())
            }),
        }
    }

    pub(crate) fn failed(&self, error: &io::Error) -> DataSetError {
        let text = error.to_string();
        let named = matches!(self, InputFile::Object(_)) && text.contains(&self.to_string());
        DataSetError::Io(if named { text } else { format!("{self}: {text}") })
    }

    /// The same for reading bytes that existed when the file was checked.
    pub(crate) fn cut_short(&self, error: &io::Error) -> DataSetError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => DataSetError::Data(format!("{self} became shorter while it was read")),
            _ => self.failed(error),
        }
    }

    /// The same for reading, including errors of decompression, which do not come from the system.
    pub(crate) fn not_read(&self, packing: FileEncoding, error: &io::Error) -> DataSetError {
        match packing.remedy().filter(|_| error.raw_os_error().is_none()) {
            Some(remedy) => DataSetError::Io(format!("{self}: {error}; {remedy}")),
            None => self.failed(error),
        }
    }

    pub(crate) fn listing_url(&self) -> Result<ListingTableUrl> {
        match self {
            InputFile::Local(path) => local_url(path),
            InputFile::Object(object) => listing_url(&object.store, &object.key, false),
        }
    }

    /// The names of the folders between `base` and this file, and the file's own name.
    fn names_below(&self, base: &InputFolder) -> Option<Vec<String>> {
        match (self, base) {
            (InputFile::Local(path), InputFolder::Local(base)) => {
                path.strip_prefix(base).ok()?.iter().map(|name| Some(name.to_str()?.to_owned())).collect()
            }
            (InputFile::Object(object), InputFolder::Objects(base)) => {
                let below = object.key.prefix_match(&base.path)?;
                Some(below.map(|part| part.as_ref().to_owned()).collect())
            }
            _ => None,
        }
    }

    /// Rejects a compressed file, which cannot be read in shares.
    pub(crate) fn check_not_compressed(&self) -> Result<()> {
        if self.compression() == FileCompressionType::UNCOMPRESSED {
            return Ok(());
        }
        Err(DataSetError::Unsupported(format!(
            "{self}: its name says that it is compressed, so workers cannot read parts of it; decompress it, or \
             rename it if it is not compressed"
        )))
    }

    /// The compression that its name indicates.
    pub(crate) fn compression(&self) -> FileCompressionType {
        let name = match self {
            InputFile::Local(path) => path.to_string_lossy(),
            InputFile::Object(object) => object.key.as_ref().into(),
        };
        match name.rsplit_once('.').map(|(_, extension)| extension) {
            Some("gz") => FileCompressionType::GZIP,
            Some("bz2") => FileCompressionType::BZIP2,
            Some("xz") => FileCompressionType::XZ,
            Some("zst") => FileCompressionType::ZSTD,
            _ => FileCompressionType::UNCOMPRESSED,
        }
    }
}

/// The absolute path without `..`, which is resolved like in the kernel: after a link, it is the parent of the link's
/// target.
///
/// # Errors
/// If the part before a `..` does not exist.
pub(crate) fn resolved(path: &Path) -> std::io::Result<PathBuf> {
    let mut resolved = PathBuf::new();
    for part in std::path::absolute(path)?.components() {
        if part == Component::ParentDir {
            resolved = resolved.canonicalize()?;
            resolved.pop();
        } else {
            resolved.push(part);
        }
    }
    Ok(resolved)
}

/// Whether something exists at the path.
///
/// # Errors
/// `Io` if the system does not say: something this process may not access may exist.
pub(crate) fn is_there(path: &Path) -> Result<bool> {
    use io::ErrorKind::{InvalidFilename, InvalidInput, NotADirectory};
    match path.try_exists() {
        Ok(there) => Ok(there),
        // Nothing can have such a name.
        Err(error) if matches!(error.kind(), InvalidFilename | InvalidInput | NotADirectory) => Ok(false),
        Err(error) => Err(DataSetError::Io(format!("{}: {error}", path.display()))),
    }
}

fn local_url(path: &Path) -> Result<ListingTableUrl> {
    let made = if path.is_dir() { url::Url::from_directory_path(path) } else { url::Url::from_file_path(path) };
    let url = made.map_err(|()| DataSetError::Io(format!("{} is not an absolute path", path.display())))?;
    Ok(ListingTableUrl::parse(url.as_str())?)
}

/// The URL of an object, or of a folder of objects, for DataFusion.
fn listing_url(store: &OpenStore, key: &Key, is_folder: bool) -> Result<ListingTableUrl> {
    Ok(ListingTableUrl::parse(store.url_of(key, is_folder).as_str())?)
}

fn ended_early(store: &OpenStore, key: &Key) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, format!("{} ended early", store.shown(key)))
}

/// A range of an object. No request is sent before it is read.
struct ObjectReader {
    object: StoredObject,
    position: u64,
    end: u64,
    stream: Option<BoxStream<'static, object_store::Result<Bytes>>>,
    chunk: Bytes,
    threads: Handle,
}

impl Read for ObjectReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let StoredObject { store, key, .. } = &self.object;
        while self.chunk.is_empty() && self.position < self.end && !into.is_empty() {
            let next = self.threads.block_on(async {
                if self.stream.is_none() {
                    let range = GetRange::Bounded(self.position..self.end);
                    let options = GetOptions { range: Some(range), ..GetOptions::default() };
                    self.stream = Some(store.objects.get_opts(key, options).await?.into_stream());
                }
                self.stream.as_mut().expect("just made").next().await.transpose()
            });
            match next.map_err(|error| io::Error::other(store.failed(key, &error)))? {
                Some(chunk) => {
                    self.position += chunk.len() as u64;
                    self.chunk = chunk;
                }
                None => return Err(ended_early(store, key)),
            }
        }
        let count = into.len().min(self.chunk.len());
        into[..count].copy_from_slice(&self.chunk.split_to(count));
        Ok(count)
    }
}

/// A folder that contains files.
#[derive(Debug)]
pub(crate) enum InputFolder {
    Local(PathBuf),
    Objects(StoreLocation),
}

impl InputFolder {
    pub(crate) fn listing_url(&self) -> Result<ListingTableUrl> {
        match self {
            InputFolder::Local(path) => local_url(path),
            InputFolder::Objects(at) => listing_url(&at.store, &at.path, true),
        }
    }
}

/// The files to read.
#[derive(Debug)]
pub(crate) struct InputFiles {
    /// At least one; those of one path are ordered by name.
    pub(crate) files: Vec<InputFile>,
    /// The folder, if there is nothing else to read.
    pub(crate) folder: Option<InputFolder>,
}

impl InputFiles {
    /// The file, or one of the files and their number.
    pub(crate) fn describe(&self) -> String {
        match &self.files[..] {
            [one] => one.to_string(),
            [first, rest @ ..] => format!("{first} (and {} more files)", rest.len()),
            [] => "nothing".into(),
        }
    }

    /// The columns given by the folders between the only folder and the files, as in `year=2024/month=2/part.parquet`.
    /// None unless all files have the same columns, and no file itself has such a name, which DataFusion would take for
    /// a folder.
    pub(crate) fn folder_keys(&self) -> Vec<String> {
        let Some(folder) = &self.folder else { return Vec::new() };
        let keys_of = |file: &InputFile| -> Option<Vec<String>> {
            let mut names = file.names_below(folder)?;
            names.pop().filter(|name| !name.contains('='))?;
            names.iter().map(|name| Some(name.split_once('=')?.0.to_owned())).collect()
        };
        let mut all = self.files.iter().map(keys_of);
        match all.next().flatten() {
            Some(first) if all.all(|keys| keys.as_ref() == Some(&first)) => first,
            _ => Vec::new(),
        }
    }

    /// The columns given by the folders, followed by one for the files' own names; the folder itself is removed from
    /// `self`.
    pub(crate) fn take_place_columns(&mut self, file_column: Option<&str>) -> Option<PlaceColumns> {
        let mut names = self.folder_keys();
        let folder = self.folder.take().filter(|_| !names.is_empty());
        names.extend(file_column.map(str::to_owned));
        (!names.is_empty()).then(|| PlaceColumns { folder, names, has_file: file_column.is_some() })
    }

    /// The compression that the files' names indicate.
    pub(crate) fn compression(&self) -> Result<FileCompressionType> {
        let first = self.files[0].compression();
        match self.files.iter().find(|file| file.compression() != first) {
            None => Ok(first),
            Some(other) => Err(DataSetError::Unsupported(format!(
                "{} and {other} are compressed in different ways; read them separately and use union",
                self.files[0]
            ))),
        }
    }
}

/// The columns given by folders, see [`InputFiles::folder_keys`], followed by one for the files themselves.
#[derive(Debug)]
pub(crate) struct PlaceColumns {
    folder: Option<InputFolder>,
    pub(crate) names: Vec<String>,
    has_file: bool,
}

impl PlaceColumns {
    /// Their values in the rows of a file, in the order of the names.
    pub(crate) fn values(&self, file: &InputFile) -> Vec<String> {
        let names = self.folder.as_ref().and_then(|folder| file.names_below(folder)).unwrap_or_default();
        let values = names.iter().filter_map(|name| Some(name.split_once('=')?.1));
        // Characters that a name cannot contain may be percent-encoded; an invalid encoding is taken literally.
        let decoded = |value: &str| percent_decode_str(value).decode_utf8().map_or_else(|_| value.into(), Into::into);
        values.map(decoded).chain(self.has_file.then(|| file.to_string())).collect()
    }
}

/// All files that `paths` refer to.
pub(crate) async fn find(engine: &Engine, paths: &[String], options: &StorageOptions) -> Result<InputFiles> {
    let (mut files, mut folder) = (Vec::new(), None);
    for path in paths {
        let before = files.len();
        folder = match local_path(path)? {
            Some(local) => {
                let folder = find_local(&local, &mut files)?;
                if files.len() == before && folder.is_none() && !local.contains(GLOBS) {
                    return Err(DataSetError::Io(format!("there is no file or folder {local}")));
                }
                folder.map(InputFolder::Local)
            }
            None => {
                let at = engine.locate(path, options)?;
                find_objects(&at, &mut files).await?.then_some(InputFolder::Objects(at))
            }
        };
        if files.len() == before {
            return Err(DataSetError::Io(format!("there are no files in {}", redact_passwords(path))));
        }
    }
    if files.is_empty() {
        return Err(DataSetError::Query("no path was given".into()));
    }
    Ok(InputFiles { files, folder: folder.filter(|_| paths.len() == 1) })
}

/// The files that paths and URLs refer to, as paths and URLs.
///
/// # Errors
/// `Io` if there are none, or if they cannot be listed.
pub async fn find_files(engine: &Engine, paths: &[String], storage: &StorageOptions) -> Result<Vec<String>> {
    Ok(find(engine, paths, storage).await?.files.iter().map(ToString::to_string).collect())
}

/// A local file as seen by a host. It is the same file on another host if all of this is equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalFile {
    /// Its absolute path.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// Its modification time, in nanoseconds since 1970.
    pub changed_ns: i64,
}

impl LocalFile {
    /// `None` for an object of a store.
    pub(crate) fn of(file: &InputFile) -> Result<Option<Self>> {
        let InputFile::Local(path) = file else { return Ok(None) };
        let meta = std::fs::metadata(path).map_err(|error| file.failed(&error))?;
        let changed_ns = meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec());
        Ok(Some(LocalFile { path: path.to_string_lossy().into_owned(), bytes: meta.len(), changed_ns }))
    }
}

/// The local files that paths refer to on this host, which may have none of them.
///
/// # Errors
/// `Query` for a URL of a store, and for folders that give columns, because other hosts' files may give different ones.
/// `Io`.
pub fn find_local_files(paths: &[String]) -> Result<Vec<LocalFile>> {
    let (mut files, mut folder) = (Vec::new(), None);
    for path in paths {
        let Some(local) = local_path(path)? else {
            let path = redact_passwords(path);
            let text = format!("{path} is in a store, which is the same for all hosts: leave each_host out");
            return Err(DataSetError::Query(text));
        };
        folder = find_local(&local, &mut files)?.map(InputFolder::Local);
    }
    let found = InputFiles { files, folder: folder.filter(|_| paths.len() == 1) };
    if let Some(key) = found.folder_keys().first() {
        return Err(DataSetError::Unsupported(format!(
            "{}: with each_host=True, folders such as \"{key}\" do not become columns; use a glob of the files, such \
             as {}/*/*",
            paths[0], paths[0]
        )));
    }
    Ok(found.files.iter().map(LocalFile::of).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// All bytes of one file.
///
/// # Errors
/// `Io` if it is not a single file, or cannot be read.
pub async fn read_bytes(engine: &Engine, path: &str, storage: &StorageOptions) -> Result<Vec<u8>> {
    let InputFiles { files, folder } = find(engine, &[path.to_owned()], storage).await?;
    let [file] = &files[..] else {
        return Err(DataSetError::Io(format!(
            "{} matches {} files; it must be one",
            redact_passwords(path),
            files.len()
        )));
    };
    if folder.is_some() {
        return Err(DataSetError::Io(format!("{} is a folder, not a file", redact_passwords(path))));
    }
    match file {
        InputFile::Local(path) => std::fs::read(path).map_err(|error| file.failed(&error)),
        InputFile::Object(StoredObject { store, key, .. }) => {
            let read = async { store.objects.get(key).await?.bytes().await };
            Ok(read.await.map_err(|error| store.failed(key, &error))?.to_vec())
        }
    }
}

/// Characters that make a name a pattern.
pub(crate) const GLOBS: [char; 3] = ['*', '?', '['];

/// Adds the files of a local path, if there are any. Returns the folder if it is one.
///
/// # Errors
/// `Io` for something that cannot be accessed, `Query` for an invalid pattern.
fn find_local(path: &str, files: &mut Vec<InputFile>) -> Result<Option<PathBuf>> {
    let absolute = std::path::absolute(path).map_err(|error| DataSetError::Io(format!("{path}: {error}")))?;
    // A missing path, or a pattern, is used as given.
    let absolute = resolved(&absolute).unwrap_or(absolute);
    // A name may look like a glob; an existing file takes precedence.
    if is_there(&absolute)? {
        add(&absolute, files)?;
        return Ok(Some(absolute).filter(|path| path.is_dir()));
    }
    if !path.contains(GLOBS) {
        return Ok(None);
    }
    let pattern = absolute.to_string_lossy();
    let found = glob::glob(&pattern).map_err(|error| DataSetError::Query(format!("{path}: {error}")))?;
    let plain: PathBuf = absolute.iter().take_while(|name| !name.to_string_lossy().contains(GLOBS)).collect();
    let mut entries =
        found.collect::<std::result::Result<Vec<_>, _>>().map_err(|error| DataSetError::Io(error.to_string()))?;
    // A folder precedes its contents, which come with it.
    entries.sort_unstable();
    let mut last: Option<PathBuf> = None;
    for entry in entries {
        let mut below = entry.strip_prefix(&plain).unwrap_or(&entry).iter();
        let is_hidden = hides_hidden(path) && below.any(|name| is_hidden(&name.to_string_lossy()));
        if !is_hidden && !last.as_ref().is_some_and(|last| entry.starts_with(last)) {
            add(&entry, files)?;
            last = Some(entry);
        }
    }
    Ok(None)
}

/// The file, or the files below a folder, without names that begin with a dot or an underscore: those are unfinished
/// output.
fn add(path: &Path, files: &mut Vec<InputFile>) -> Result<()> {
    if !path.is_dir() {
        files.push(InputFile::Local(path.to_owned()));
        return Ok(());
    }
    let failed = |error: io::Error| DataSetError::Io(format!("{}: {error}", path.display()));
    let mut entries = std::fs::read_dir(path)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>())
        .map_err(failed)?;
    entries.sort();
    for entry in entries {
        if !entry.file_name().is_some_and(|name| is_hidden(&name.to_string_lossy())) {
            add(&entry, files)?;
        }
    }
    Ok(())
}

/// Whether a glob skips hidden names: it does unless it names some, as in `_log/*`.
fn hides_hidden(pattern: &str) -> bool {
    let mut globs = pattern.split('/').skip_while(|segment| !segment.contains(GLOBS));
    !globs.any(is_hidden)
}

fn is_hidden(name: &str) -> bool {
    name.starts_with(['.', '_'])
}

/// Adds the objects of a URL. Returns whether it is a folder.
async fn find_objects(at: &StoreLocation, files: &mut Vec<InputFile>) -> Result<bool> {
    let StoreLocation { store, path, is_folder } = at;
    let mut add = |meta: ObjectMeta| {
        files.push(InputFile::Object(StoredObject {
            store: Arc::clone(store),
            key: meta.location,
            size_bytes: meta.size,
        }));
    };
    // As with files, an object takes precedence over a glob. A key without an extension is probably not an object.
    let mut head = None;
    if !is_folder && path.filename().is_some_and(|name| name.contains('.')) {
        match head.insert(store.objects.head(path).await) {
            Ok(meta) => {
                add(meta.clone());
                return Ok(false);
            }
            Err(error) if is_denied(error) => return Err(store.failed(path, error).into()),
            Err(_) => {}
        }
    }
    let segments: Vec<String> = path.parts().map(|part| part.as_ref().to_owned()).collect();
    let plain = segments.iter().position(|segment| segment.contains(GLOBS));
    let pattern = match plain {
        None => None,
        Some(_) => Some(Pattern::new(path.as_ref()).map_err(|error| DataSetError::Query(format!("{at}: {error}")))?),
    };
    // Parsed instead of built from its parts, which would encode them.
    let base = Key::parse(segments[..plain.unwrap_or(segments.len())].join("/"))
        .map_err(|error| DataSetError::Query(format!("{at}: {error}")))?;
    let listed: Result<Vec<ObjectMeta>, _> = store.objects.list(Some(&base)).try_collect().await;
    let mut found = match &listed {
        Ok(listed) => chosen(listed, base.parts().count(), pattern.as_ref()),
        Err(_) => Vec::new(),
    };
    if found.is_empty() && !is_folder && !path.as_ref().is_empty() {
        let head = match head {
            Some(head) => head,
            None => store.objects.head(path).await,
        };
        match (head, &listed) {
            (Ok(meta), _) => {
                add(meta);
                return Ok(false);
            }
            // A store whose folders are those of a file system does not always report that they are not objects.
            (Err(error), Ok(_)) if !matches!(error, object_store::Error::NotFound { .. }) => {
                return Err(store.failed(path, &error).into());
            }
            _ => {}
        }
    }
    match listed {
        Err(error) if !matches!(error, object_store::Error::NotFound { .. }) || is_bucket(&error) => {
            return Err(store.failed(path, &error).into());
        }
        _ if found.is_empty() && pattern.is_none() && !is_folder => {
            return Err(DataSetError::Io(format!("there is no object or folder {at}")));
        }
        _ => {}
    }
    if let Some(marker) = found.iter().find(|meta| meta.location.filename() == Some(UNFINISHED)) {
        return Err(DataSetError::Io(format!(
            "{at} is incomplete: output is appearing there now, or was when its writer died; write it again with \
             overwrite=True, or remove {}",
            store.shown(&marker.location)
        )));
    }
    found.sort_by(|one, other| one.location.cmp(&other.location));
    found.into_iter().for_each(&mut add);
    Ok(pattern.is_none())
}

/// The listed objects to read; their first `depth` segments are those of the listed folder. Skips those hidden below
/// the folder, or below the part that the glob matches. Keeps a marker of unfinished output.
fn chosen(listed: &[ObjectMeta], depth: usize, pattern: Option<&Pattern>) -> Vec<ObjectMeta> {
    // As with local files, stars do not match a slash.
    let options = MatchOptions { require_literal_separator: true, ..MatchOptions::new() };
    let hides = pattern.is_none_or(|pattern| hides_hidden(pattern.as_str()));
    let wanted = |meta: &ObjectMeta| {
        let segments: Vec<&str> = meta.location.as_ref().split('/').collect();
        if segments.last() == Some(&UNFINISHED) {
            return true;
        }
        let matched = match pattern {
            None => Some(depth),
            Some(pattern) => {
                (depth.max(1)..=segments.len()).find(|&to| pattern.matches_with(&segments[..to].join("/"), options))
            }
        };
        let seen = |from: usize| &segments[if hides { depth } else { from }.min(segments.len())..];
        matched.is_some_and(|from| !seen(from).iter().any(|name| is_hidden(name)))
    };
    // Some tools mark a folder with an empty object of the same name.
    let folders: HashSet<&str> = listed
        .iter()
        .flat_map(|meta| meta.location.as_ref().match_indices('/').map(|(at, _)| &meta.location.as_ref()[..at]))
        .collect();
    let is_folder = |meta: &ObjectMeta| meta.size == 0 && folders.contains(meta.location.as_ref());
    listed.iter().filter(|meta| wanted(meta) && !is_folder(meta)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineConfig;

    fn engine() -> Engine {
        Engine::new(&EngineConfig { threads: 2, workers: 1, memory_bytes: None, spill_dir: None }).unwrap()
    }

    const NAMES: [&str; 7] =
        ["b.csv", "a.csv", ".hidden.csv", "_SUCCESS", "deep/c.csv", "deep/_log/d.csv", "odd[1].csv"];

    /// The files of each path, relative to the folder; the same for files and objects.
    fn expect(names: impl Fn(&str) -> Result<Vec<String>>) {
        assert_eq!(names("").unwrap(), ["a.csv", "b.csv", "deep/c.csv", "odd[1].csv"]);
        assert_eq!(names("/?.csv").unwrap(), ["a.csv", "b.csv"]);
        assert_eq!(names("/odd[1].csv").unwrap(), ["odd[1].csv"]);
        assert_eq!(names("/d*").unwrap(), ["deep/c.csv"]);
        assert_eq!(names("/*").unwrap(), ["a.csv", "b.csv", "deep/c.csv", "odd[1].csv"]);
        assert_eq!(names("/.h*").unwrap(), [".hidden.csv"]);
        assert_eq!(names("/*/*.csv").unwrap(), ["deep/c.csv"]);
        assert!(names("/*.json").unwrap_err().to_string().contains("*.json"));
        assert!(names("/none").unwrap_err().to_string().starts_with("there is no "));
    }

    /// Hidden files are another job's unfinished output; reading them would duplicate rows.
    #[test]
    fn local_files() {
        let dir = std::env::temp_dir().join(format!("tidemill-files-{}", std::process::id()));
        for name in NAMES {
            std::fs::create_dir_all(dir.join(name).parent().unwrap()).unwrap();
            std::fs::write(dir.join(name), "x\n1\n").unwrap();
        }
        let engine = Arc::new(engine());
        expect(|path| {
            let (path, engine) = (format!("{}{path}", dir.display()), Arc::clone(&engine));
            let asked = Arc::clone(&engine);
            let found = engine.run(async move { find(&asked, &[path], &StorageOptions::new()).await })?;
            let below = InputFolder::Local(dir.clone());
            Ok(found.files.iter().map(|file| file.names_below(&below).unwrap().join("/")).collect())
        });
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn objects() {
        let engine = Arc::new(engine());
        let at = engine.locate("memory:///in", &StorageOptions::new()).unwrap();
        let store = Arc::clone(&at.store.objects);
        engine
            .run(async move {
                for name in NAMES {
                    store.put(&Key::parse(format!("in/{name}")).unwrap(), "x\n1\n".into()).await.unwrap();
                }
                store.put(&Key::from("in/deep"), "".into()).await.unwrap();
                store.put(&Key::from("inside.csv"), "x\n1\n".into()).await.unwrap();
                Ok(())
            })
            .unwrap();
        expect(|path| {
            let (path, asked) = (format!("memory:///in{path}"), Arc::clone(&engine));
            let found = engine.run(async move { find(&asked, &[path], &StorageOptions::new()).await })?;
            let below = InputFolder::Objects(at.clone());
            Ok(found.files.iter().map(|file| file.names_below(&below).unwrap().join("/")).collect())
        });
    }

    /// A host without any of the files is not an error; folders that would give columns, perhaps not on other hosts,
    /// are.
    #[test]
    fn files_of_one_host() {
        let dir = std::env::temp_dir().join(format!("tidemill-own-files-{}", std::process::id()));
        for name in ["a.csv", "year=2024/b.csv"] {
            std::fs::create_dir_all(dir.join(name).parent().unwrap()).unwrap();
            std::fs::write(dir.join(name), "x\n1\n").unwrap();
        }
        let find = |names: &[&str]| {
            let paths: Vec<String> = names.iter().map(|name| format!("{}/{name}", dir.display())).collect();
            find_local_files(&paths)
        };
        let found = find(&["none", "a.csv", "*.json", "year=2024"]).unwrap();
        assert_eq!(
            found.iter().map(|file| &file.path[dir.as_os_str().len()..]).collect::<Vec<_>>(),
            ["/a.csv", "/year=2024/b.csv"]
        );
        let meta = std::fs::metadata(dir.join("a.csv")).unwrap();
        let changed = meta.modified().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap();
        assert_eq!((found[0].bytes, found[0].changed_ns), (4, changed.as_nanos() as i64));
        assert_eq!(find(&[""]).unwrap().len(), 2, "not all are below such a folder");
        std::fs::remove_file(dir.join("a.csv")).unwrap();
        assert!(find(&[""]).unwrap_err().to_string().contains("year"));
        assert_eq!(find(&["*/*"]).unwrap().len(), 1);
        assert!(find_local_files(&["s3://bucket/a".into()]).unwrap_err().to_string().contains("each_host"));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn compression_is_the_same_for_all() {
        let of = |names: &[&str]| {
            let files = names.iter().map(|name| InputFile::Local(PathBuf::from(name))).collect();
            InputFiles { files, folder: None }.compression()
        };
        assert_eq!(of(&["a.gz", "b.gz"]).unwrap(), FileCompressionType::GZIP);
        assert!(of(&["a.gz", "b.csv"]).is_err());
    }
}
