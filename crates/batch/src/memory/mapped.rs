//! Data that does not fit in memory and is read again: it lies in mapped files in the spill directory. A reader need
//! not know where the bytes are; the kernel keeps the pages in use in memory, and drops them when the memory is needed.
//!
//! Like a [spilled](super::SpillFile) file, a mapped file has no name and disappears once nothing refers to its bytes,
//! however the worker ends. It is written completely before it is mapped, so a full disk is an error in the writer.
//! Rows are stored uncompressed, as in memory: an array of a mapped batch is a range of the file.
//!
//! Reading mapped memory cannot return an error. So before you read data that may be mapped, [verify](verify) it: this
//! compares its pages with checksums made when they were written. The numbers of [`SpillVec`] change in place, and have
//! no checksums.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::{Array, ArrayData, RecordBatch};
use arrow::buffer::Buffer;
use arrow::datatypes::{ArrowNativeType, DataType};
use bytes::Bytes;
use parking_lot::RwLock;
use twox_hash::XxHash3_64;

use super::Governor;
use super::spill::{IO_BYTES, damaged, spill_error};
use crate::error::BatchError;
use crate::wire::{BatchDecoder, BatchEncoder};

/// The mapped bytes of a file. The file cannot shrink while this exists: without a name, no other process can truncate
/// it.
struct FileMapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it owns its pages; shared parts are only read.
unsafe impl Send for FileMapping {}
// SAFETY: as above.
unsafe impl Sync for FileMapping {}

impl FileMapping {
    /// Maps the first `len` bytes of a file; `len` is above 0, and the file has these bytes.
    fn new(file: &File, len: usize, protection: libc::c_int) -> std::io::Result<Self> {
        // SAFETY: a new mapping of an open file at an address that the kernel chooses; the result is checked.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        match NonNull::new(start.cast()).filter(|_| start != libc::MAP_FAILED) {
            Some(start) => Ok(FileMapping { start, len }),
            None => Err(std::io::Error::last_os_error()),
        }
    }
}

impl AsRef<[u8]> for FileMapping {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: this many bytes are mapped until it is dropped, and code that could write to them has exclusive
        // access (`SpillVec`).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: there are no references into it any more.
        unsafe {
            libc::munmap(self.start.as_ptr().cast(), self.len);
        }
    }
}

/// Bytes covered by one checksum. Small, because a join reads single rows.
const PAGE_BYTES: usize = 4 << 10;

/// Checksums of the pages written so far.
struct BlockSums {
    pages: Vec<u32>,
    /// The start of the next page.
    rest: Vec<u8>,
}

impl BlockSums {
    fn of_page(bytes: &[u8]) -> u32 {
        // Only the lower half: one checksum per page is kept in memory.
        XxHash3_64::oneshot(bytes) as u32
    }

    fn add(&mut self, mut bytes: &[u8]) {
        if !self.rest.is_empty() {
            let (more, others) = bytes.split_at(bytes.len().min(PAGE_BYTES - self.rest.len()));
            self.rest.extend_from_slice(more);
            bytes = others;
            if self.rest.len() < PAGE_BYTES {
                return;
            }
            self.pages.push(BlockSums::of_page(&self.rest));
            self.rest.clear();
        }
        let pages = bytes.chunks_exact(PAGE_BYTES);
        self.rest.extend_from_slice(pages.remainder());
        self.pages.extend(pages.map(BlockSums::of_page));
    }

    fn finish(mut self) -> Vec<u32> {
        if !self.rest.is_empty() {
            self.pages.push(BlockSums::of_page(&self.rest));
        }
        self.pages
    }
}

/// A file that will not change any more.
struct Sealed {
    mapping: FileMapping,
}

/// Checks that the bytes of a mapping are those that were written. Lookup is by address, because arrays carry no other
/// information about where they are.
struct PageChecksums {
    governor: Governor,
    len: usize,
    pages: Vec<u32>,
}

/// The checksums of all sealed files of this process, by address.
static SEALS: RwLock<BTreeMap<usize, Arc<PageChecksums>>> = RwLock::new(BTreeMap::new());

impl Sealed {
    fn new(mapping: FileMapping, governor: Governor, pages: Vec<u32>) -> Self {
        let seal = PageChecksums { governor, len: mapping.len, pages };
        SEALS.write().insert(mapping.start.as_ptr() as usize, Arc::new(seal));
        Sealed { mapping }
    }
}

impl AsRef<[u8]> for Sealed {
    fn as_ref(&self) -> &[u8] {
        self.mapping.as_ref()
    }
}

impl Drop for Sealed {
    fn drop(&mut self) {
        // Before the file is unmapped: after that, another mapping may get the same address.
        SEALS.write().remove(&(self.mapping.start.as_ptr() as usize));
    }
}

/// Compares bytes with what was written, if they lie in a mapped file. Reads them and the rest of their pages. Bytes
/// elsewhere always pass.
///
/// # Errors
/// If the disk has returned data other than what was written.
pub fn verify(bytes: &[u8]) -> Result<(), BatchError> {
    let address = bytes.as_ptr() as usize;
    let (start, seal) = match SEALS.read().range(..=address).next_back() {
        Some((&start, seal)) if address - start < seal.len => (start, Arc::clone(seal)),
        _ => return Ok(()),
    };
    let first = (address - start) / PAGE_BYTES;
    let behind = (address - start + bytes.len()).div_ceil(PAGE_BYTES);
    for (page, &sum) in (first..behind).zip(&seal.pages[first..]) {
        let (from, to) = (page * PAGE_BYTES, ((page + 1) * PAGE_BYTES).min(seal.len));
        // SAFETY: the page belongs to the mapping that `bytes` lies in, which the lender of `bytes` keeps mapped;
        // nothing writes to it.
        let page_bytes = unsafe { std::slice::from_raw_parts((start + from) as *const u8, to - from) };
        if BlockSums::of_page(page_bytes) != sum {
            return Err(damaged(
                &seal.governor,
                &format!("the checksum of bytes {from} to {to} of {} is wrong", seal.len),
            ));
        }
    }
    Ok(())
}

/// [`verify`] for all data of some rows.
///
/// # Errors
/// As [`verify`].
pub fn verify_rows(rows: &RecordBatch) -> Result<(), BatchError> {
    rows.columns().iter().try_for_each(|column| verify_column(column.as_ref()))
}

/// [`verify`] for a column.
///
/// # Errors
/// As [`verify`].
pub fn verify_column(column: &dyn Array) -> Result<(), BatchError> {
    if SEALS.read().is_empty() { Ok(()) } else { verify_data(&column.to_data()) }
}

fn verify_data(data: &ArrayData) -> Result<(), BatchError> {
    if let Some(nulls) = data.nulls() {
        verify(&nulls.validity()[bits(nulls.offset(), nulls.len())])?;
    }
    let (offset, len) = (data.offset(), data.len());
    let buffer = |at: usize| data.buffers()[at].as_slice();
    match data.data_type() {
        DataType::Boolean => verify(&buffer(0)[bits(offset, len)]),
        DataType::Utf8 | DataType::Binary => ranged::<i32>(data).and_then(|(from, to)| verify(&buffer(1)[from..to])),
        DataType::LargeUtf8 | DataType::LargeBinary => {
            ranged::<i64>(data).and_then(|(from, to)| verify(&buffer(1)[from..to]))
        }
        DataType::Utf8View | DataType::BinaryView => verify_views(data),
        DataType::List(_) | DataType::Map(..) => {
            ranged::<i32>(data).and_then(|(from, to)| verify_data(&data.child_data()[0].slice(from, to - from)))
        }
        DataType::LargeList(_) => {
            ranged::<i64>(data).and_then(|(from, to)| verify_data(&data.child_data()[0].slice(from, to - from)))
        }
        DataType::FixedSizeList(_, items) => {
            let items = *items as usize;
            verify_data(&data.child_data()[0].slice(offset * items, len * items))
        }
        DataType::Struct(_) => data.child_data().iter().try_for_each(|child| verify_data(&child.slice(offset, len))),
        other => {
            let width = match other {
                DataType::Dictionary(keys, _) => keys.primitive_width(),
                DataType::FixedSizeBinary(bytes) => Some(*bytes as usize),
                other => other.primitive_width(),
            };
            match width {
                Some(width) => verify(&buffer(0)[offset * width..(offset + len) * width])?,
                None => data.buffers().iter().try_for_each(|buffer| verify(buffer))?,
            }
            data.child_data().iter().try_for_each(verify_data)
        }
    }
}

/// The bytes that contain a range of bits.
fn bits(offset: usize, len: usize) -> std::ops::Range<usize> {
    offset / 8..(offset + len).div_ceil(8)
}

/// The start and end of the values of a column with offsets, after verifying the offsets.
fn ranged<T: ArrowNativeType>(data: &ArrayData) -> Result<(usize, usize), BatchError> {
    let Some(offsets) = (!data.is_empty()).then(|| &data.buffer::<T>(0)[..=data.len()]) else { return Ok((0, 0)) };
    // SAFETY: any memory may be read as bytes.
    verify(unsafe { std::slice::from_raw_parts(offsets.as_ptr().cast(), size_of_val(offsets)) })?;
    Ok((offsets[0].as_usize(), offsets[data.len()].as_usize()))
}

/// Strings outside their views lie anywhere in their buffers.
fn verify_views(data: &ArrayData) -> Result<(), BatchError> {
    const INLINE_BYTES_MAX: u32 = 12;
    let views = &data.buffer::<u128>(0)[..data.len()];
    // SAFETY: as above.
    verify(unsafe { std::slice::from_raw_parts(views.as_ptr().cast(), size_of_val(views)) })?;
    let mut used = vec![(usize::MAX, 0); data.buffers().len() - 1];
    for view in views {
        let word = |at: u32| (view >> (32 * at)) as u32;
        if word(0) > INLINE_BYTES_MAX {
            let ((first, end), start) = (&mut used[word(2) as usize], word(3) as usize);
            (*first, *end) = ((*first).min(start), (*end).max(start + word(0) as usize));
        }
    }
    let mut texts = used.into_iter().zip(&data.buffers()[1..]).filter(|((first, end), _)| first < end);
    texts.try_for_each(|((first, end), buffer)| verify(&buffer[first..end]))
}

/// A file that is written, and then mapped.
pub struct MapWriter {
    governor: Governor,
    file: BufWriter<File>,
    sums: BlockSums,
    len: usize,
}

impl MapWriter {
    /// A new file in the governor's spill directory.
    ///
    /// # Errors
    /// If it cannot be created there.
    pub fn new(governor: &Governor) -> Result<Self, BatchError> {
        let file = tempfile::tempfile_in(&governor.settings().spill_dir).map_err(|e| spill_error(governor, &e))?;
        let (file, sums) =
            (BufWriter::with_capacity(IO_BYTES, file), BlockSums { pages: Vec::new(), rest: Vec::new() });
        Ok(MapWriter { governor: governor.clone(), file, sums, len: 0 })
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// If the disk is full or fails.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), BatchError> {
        self.file.write_all(bytes).map_err(|error| spill_error(&self.governor, &error))?;
        self.len += bytes.len();
        self.sums.add(bytes);
        self.governor.0.spilled_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Bytes written so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing has been written.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns everything that was written. [Verify](verify) it before reading it.
    ///
    /// # Errors
    /// As [`MapWriter::write`].
    pub fn finish(self) -> Result<Bytes, BatchError> {
        let MapWriter { governor, file, sums, len } = self;
        let failed = |error: &std::io::Error| spill_error(&governor, error);
        let file = file.into_inner().map_err(|error| failed(error.error()))?;
        if len == 0 {
            return Ok(Bytes::new());
        }
        let mapping = FileMapping::new(&file, len, libc::PROT_READ).map_err(|error| failed(&error))?;
        Ok(Bytes::from_owner(Sealed::new(mapping, governor, sums.finish())))
    }
}

impl Governor {
    /// The same rows, on disk. [Verify](verify_rows) them before reading them.
    ///
    /// # Errors
    /// If the disk is full or fails, or if a column cannot be encoded.
    pub fn map(&self, rows: &RecordBatch) -> Result<RecordBatch, BatchError> {
        if rows.num_columns() == 0 || rows.num_rows() == 0 {
            return Ok(rows.clone());
        }
        let mut writer = MapWriter::new(self)?;
        for piece in BatchEncoder::new(rows.schema_ref())?.encode(rows)? {
            writer.write(&piece)?;
        }
        Ok(BatchDecoder::new(rows.schema_ref())?.decode(Buffer::from(writer.finish()?), rows.num_rows())?)
    }
}

/// A number that is stored as is: every bit pattern is valid.
pub trait SpillElement: Copy + Default + sealed::Sealed {}

mod sealed {
    pub trait Sealed {}
}

macro_rules! cells {
    ($($number:ty),*) => {
        $(impl sealed::Sealed for $number {}
        impl SpillElement for $number {})*
    };
}
cells!(u8, u32, u64, i64);

/// A vector of numbers: in memory, or on disk if memory is short.
pub struct SpillVec<T> {
    memory: Vec<T>,
    /// If set, `memory` is empty.
    disk: Option<MappedElements>,
}

struct MappedElements {
    governor: Governor,
    file: File,
    mapping: FileMapping,
    /// Number of elements in use, out of those that there is room for.
    len: usize,
}

impl<T> Default for SpillVec<T> {
    fn default() -> Self {
        SpillVec { memory: Vec::new(), disk: None }
    }
}

impl<T: SpillElement> SpillVec<T> {
    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.memory.capacity() * size_of::<T>()
    }

    /// The governor that moved it to disk; `None` while it is in memory.
    pub fn governor(&self) -> Option<&Governor> {
        self.disk.as_ref().map(|disk| &disk.governor)
    }

    /// Moves the numbers to disk, where they stay.
    ///
    /// # Errors
    /// If the disk is full or fails.
    pub fn spill(&mut self, governor: &Governor) -> Result<(), BatchError> {
        if self.disk.is_some() {
            return Ok(());
        }
        let memory = std::mem::take(&mut self.memory);
        let file = tempfile::tempfile_in(&governor.settings().spill_dir).map_err(|e| spill_error(governor, &e))?;
        self.disk = Some(MappedElements::map(governor, file, memory.len() * size_of::<T>())?);
        self.extend_from_slice(&memory)
    }

    /// Appends numbers.
    ///
    /// # Errors
    /// If the disk is full or fails.
    pub fn extend_from_slice(&mut self, numbers: &[T]) -> Result<(), BatchError> {
        let start = self.len();
        self.resize(start + numbers.len())?;
        self[start..].copy_from_slice(numbers);
        Ok(())
    }

    /// Changes the length: drops elements at the end, or appends zeros.
    ///
    /// # Errors
    /// If the disk is full or fails.
    pub fn resize(&mut self, len: usize) -> Result<(), BatchError> {
        let Some(disk) = &mut self.disk else {
            self.memory.resize(len, T::default());
            return Ok(());
        };
        let wanted = len * size_of::<T>();
        if wanted > disk.mapping.len {
            let grown = MappedElements::map(
                &disk.governor,
                disk.file.try_clone().map_err(|e| spill_error(&disk.governor, &e))?,
                wanted,
            )?;
            *disk = MappedElements { len: disk.len, ..grown };
        }
        let before = std::mem::replace(&mut self.disk.as_mut().expect("looked at above").len, len);
        if before < len {
            // Elements dropped earlier may still be there.
            self[before..].fill(T::default());
        }
        Ok(())
    }
}

impl MappedElements {
    /// Maps room for `bytes` bytes, and as many again.
    fn map(governor: &Governor, file: File, bytes: usize) -> Result<Self, BatchError> {
        let bytes = (2 * bytes).next_multiple_of(rustix::param::page_size()).max(rustix::param::page_size());
        let failed = |error: &std::io::Error| spill_error(governor, error);
        // SAFETY: the file is open. Benefit: a full disk is reported here; writing to a page of a file without space
        // behind it would raise a signal.
        let result = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes as libc::off_t) };
        if result != 0 {
            return Err(failed(&std::io::Error::from_raw_os_error(result)));
        }
        let mapping =
            FileMapping::new(&file, bytes, libc::PROT_READ | libc::PROT_WRITE).map_err(|error| failed(&error))?;
        governor.0.spilled_bytes.fetch_add(bytes as u64 / 2, Ordering::Relaxed);
        Ok(MappedElements { governor: governor.clone(), file, mapping, len: 0 })
    }
}

impl<T: SpillElement> Deref for SpillVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.disk {
            // SAFETY: the mapping starts at a page and has room for this many elements; every bit pattern is a number,
            // and nothing writes meanwhile, because that needs a mutable borrow.
            Some(disk) => unsafe { std::slice::from_raw_parts(disk.mapping.start.as_ptr().cast(), disk.len) },
            None => &self.memory,
        }
    }
}

impl<T: SpillElement> DerefMut for SpillVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.disk {
            // SAFETY: as above; the mapping is writable and exclusively owned.
            Some(disk) => unsafe { std::slice::from_raw_parts_mut(disk.mapping.start.as_ptr().cast(), disk.len) },
            None => &mut self.memory,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Array, ArrayRef, AsArray, DictionaryArray, Int64Array, StringArray, StringViewArray};
    use arrow::datatypes::{Int32Type, Int64Type};
    use proptest::prelude::*;

    use super::*;
    use crate::memory::MemorySettings;

    fn governor() -> Governor {
        Governor::new(MemorySettings::default())
    }

    /// If rows came back different, or were copied into memory, mapping would be pointless.
    #[test]
    fn mapped_rows_are_the_same_and_lie_in_the_file() {
        let n: Int64Array = (0..5000).map(|row| (row % 7 != 0).then_some(row)).collect();
        let s: StringArray = (0..5000).map(|row| Some(format!("text {row}"))).collect();
        let v: StringViewArray = (0..5000).map(|row| Some(format!("a text that is not short {row}"))).collect();
        let d: DictionaryArray<Int32Type> = (0..5000).map(|row| Some(["a", "b"][row % 2])).collect();
        let columns: [(&str, ArrayRef, bool); 4] =
            [("n", Arc::new(n), true), ("s", Arc::new(s), true), ("v", Arc::new(v), true), ("d", Arc::new(d), true)];
        let rows = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
        let governor = governor();
        for rows in [rows.clone(), rows.slice(17, 1234), rows.slice(3, 0)] {
            assert_eq!(governor.map(&rows).unwrap(), rows);
        }
        assert!(governor.spilled_bytes() > 5000 * 8);
        let mapped = governor.map(&rows).unwrap();
        let column = mapped.column(0).as_primitive::<Int64Type>().values().inner().data_ptr().as_ptr() as usize;
        let text = mapped.column(1).as_string::<i32>().values().data_ptr().as_ptr() as usize;
        assert_eq!(column, text, "both lie in one mapping");
        let part = mapped.column(1).slice(100, 2);
        drop(mapped);
        assert_eq!(part.as_string::<i32>().value(1), "text 101", "it stays as long as anybody has a part of it");
    }

    /// Changes a byte of a mapped file, as a faulty disk would.
    fn damage(at: *const u8) {
        let address = at as usize;
        let page = address - address % rustix::param::page_size();
        // SAFETY: the page is mapped from a file that was opened for writing; the test reads it only through the code
        // under test.
        unsafe {
            let writable = libc::PROT_READ | libc::PROT_WRITE;
            assert_eq!(libc::mprotect(page as *mut _, rustix::param::page_size(), writable), 0);
            *at.cast_mut() ^= 4;
        }
    }

    /// Rows with a byte that has changed on disk must be an error, wherever it lies and whatever the column type; but
    /// rows read from other pages must not be rejected.
    #[test]
    fn damage_is_an_error() {
        use arrow::array::{BooleanArray, FixedSizeListArray, ListArray, StructArray};
        use arrow::datatypes::{Field, Fields, Int32Type};

        const ROWS: i64 = 20_000;
        let text = |row: i64| Some(format!("a text that is not short {row}"));
        let n: ArrayRef = Arc::new((0..ROWS).map(|row| (row % 7 != 0).then_some(row)).collect::<Int64Array>());
        let s: ArrayRef = Arc::new((0..ROWS).map(text).collect::<StringArray>());
        let fields = Fields::from(vec![Field::new("n", DataType::Int64, true), Field::new("s", DataType::Utf8, true)]);
        let lists = (0..ROWS).map(|row| Some((0..row % 3).map(Some).collect::<Vec<_>>()));
        let columns: Vec<ArrayRef> = vec![
            n.clone(),
            s.clone(),
            Arc::new((0..ROWS).map(text).collect::<StringViewArray>()),
            Arc::new((0..ROWS).map(|row| Some(["a", "b"][row as usize % 2])).collect::<DictionaryArray<Int32Type>>()),
            Arc::new((0..ROWS).map(|row| Some(row % 3 == 0)).collect::<BooleanArray>()),
            Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists)),
            Arc::new(StructArray::new(fields, vec![n.clone(), s], None)),
            Arc::new(FixedSizeListArray::new(Arc::new(Field::new_list_field(DataType::Int64, true)), 2, n, None)),
        ];
        let governor = governor();
        for column in columns {
            let rows = RecordBatch::try_from_iter_with_nullable([("c", column.slice(0, 10_000), true)]).unwrap();
            let count = buffers(&governor.map(&rows).unwrap().column(0).to_data()).len();
            let mut damaged = 0;
            for which in 0..count {
                let mapped = governor.map(&rows).unwrap();
                verify_rows(&mapped).unwrap();
                let buffer = buffers(&mapped.column(0).to_data())[which].clone();
                if buffer.is_empty() {
                    continue;
                }
                damage(&raw const buffer[buffer.len() / 2]);
                let error = verify_rows(&mapped).expect_err(&format!("{} buffer {which}", column.data_type()));
                assert!(error.to_string().contains("differs from the data written: the checksum of bytes"), "{error}");
                assert!(error.to_string().contains(&governor.settings().spill_dir.display().to_string()), "{error}");
                // Data on other pages is unaffected; in a dictionary all values count.
                let is_small = buffer.len() < 4 * PAGE_BYTES;
                for (from, rows) in [(0, 100), (9900, 100)] {
                    assert!(
                        is_small || verify_rows(&mapped.slice(from, rows)).is_ok(),
                        "{} {which}",
                        column.data_type()
                    );
                }
                damaged += 1;
            }
            assert!(damaged > 0);
        }
    }

    /// All buffers of a column.
    fn buffers(data: &ArrayData) -> Vec<Buffer> {
        let nulls = data.nulls().map(|nulls| nulls.buffer().clone());
        let own = nulls.into_iter().chain(data.buffers().iter().cloned());
        own.chain(data.child_data().iter().flat_map(buffers)).collect()
    }

    /// Pieces of any length have the checksums of the pages they fall into.
    #[test]
    fn bytes_are_verified_however_they_were_written() {
        let mut writer = MapWriter::new(&governor()).unwrap();
        let all: Vec<u8> = (0..50_000_u32).map(|n| (n / 3) as u8).collect();
        let mut rest = all.as_slice();
        for len in [1, 4095, 4096, 5000, 0, 3, 20_000] {
            let (piece, others) = rest.split_at(len);
            writer.write(piece).unwrap();
            rest = others;
        }
        writer.write(rest).unwrap();
        let mapped = writer.finish().unwrap();
        assert_eq!(mapped, all);
        verify(&mapped).unwrap();
        verify(&all).unwrap();
        damage(&raw const mapped[mapped.len() - 1]);
        assert!(verify(&mapped).is_err() && verify(&mapped[49_500..49_501]).is_err());
        verify(&mapped[..40_000]).unwrap();
    }

    /// A full disk must be an error that states the remedy.
    #[test]
    fn a_full_disk_is_a_clear_error() {
        let missing = MemorySettings { spill_dir: "/nowhere/at/all".into(), ..MemorySettings::default() };
        let error = MapWriter::new(&Governor::new(missing)).err().unwrap().to_string();
        assert!(error.contains("/nowhere/at/all"), "{error}");
        let mut writer = MapWriter::new(&governor()).unwrap();
        writer.file = BufWriter::new(File::options().write(true).open("/dev/full").unwrap());
        let error = match writer.write(&[1; 1000]) {
            Err(error) => error,
            Ok(()) => writer.finish().expect_err("nothing fits"),
        };
        assert!(error.to_string().contains("--spill-dir"), "{error}");
    }

    proptest! {
        /// Catches numbers that change when they move to disk, or when they outgrow their space there.
        #[test]
        fn cells_are_a_vector(steps in prop::collection::vec((0u8..4, 0usize..3000), 1..40), spill_at in 0usize..40) {
            let governor = governor();
            let (mut cells, mut model) = (SpillVec::<u32>::default(), Vec::new());
            for (at, (what, count)) in steps.into_iter().enumerate() {
                if at == spill_at {
                    cells.spill(&governor).unwrap();
                    assert_eq!(cells.bytes(), 0);
                }
                match what {
                    0 => {
                        let more: Vec<u32> = (0..count as u32).map(|n| n * 7 + at as u32).collect();
                        cells.extend_from_slice(&more).unwrap();
                        model.extend(more);
                    }
                    1 if !model.is_empty() => {
                        let place = count % model.len();
                        (cells[place], model[place]) = (9, 9);
                    }
                    _ => {
                        cells.resize(count).unwrap();
                        model.resize(count, 0);
                    }
                }
                prop_assert_eq!(&*cells, &*model);
            }
        }
    }
}
