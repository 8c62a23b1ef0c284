//! What does not fit in memory and is looked at again: in files of the spill directory that are mapped. Whoever reads need not
//! know where the bytes lie, and the kernel keeps in memory what is used of them, and lets go of it when others need memory.
//!
//! Like those that are [spilled](super::SpillFile) a file has no name, and is gone when nobody has its bytes any more, however
//! the worker ends. It is written to its end before it is mapped, so a full disk is an error of who writes. Rows lie in it
//! uncompressed, as they do in memory: an array of a mapped batch is a piece of the file.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use bytes::Bytes;

use super::Governor;
use super::spill::{IO_BYTES, spill_error};
use crate::error::DataflowError;
use crate::wire::{Decoder, Encoder};

/// A file's bytes. It has as many as are mapped as long as this is there: it has no name by which others could cut it.
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it owns its pages; what is shared of them is only read.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of a file, more than none, which are there.
    fn new(file: &File, len: usize, protection: libc::c_int) -> std::io::Result<Self> {
        // SAFETY: a new mapping, at an address that the kernel chooses, of a file that is open; the result is looked at.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        match NonNull::new(start.cast()).filter(|_| start != libc::MAP_FAILED) {
            Some(start) => Ok(Mapping { start, len }),
            None => Err(std::io::Error::last_os_error()),
        }
    }
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: so many bytes are mapped until it is dropped, and whoever could write to them has them to itself (`Cells`).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody has a reference into it any more.
        unsafe {
            libc::munmap(self.start.as_ptr().cast(), self.len);
        }
    }
}

/// A file that is being written, and then mapped.
pub struct MapWriter {
    governor: Governor,
    file: BufWriter<File>,
    len: usize,
}

impl MapWriter {
    /// A new file in the governor's spill directory.
    ///
    /// # Errors
    /// When it cannot be made there.
    pub fn new(governor: &Governor) -> Result<Self, DataflowError> {
        let file = tempfile::tempfile_in(&governor.settings().spill_dir).map_err(|e| spill_error(governor, &e))?;
        Ok(MapWriter { governor: governor.clone(), file: BufWriter::with_capacity(IO_BYTES, file), len: 0 })
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// When the disk is full or fails.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), DataflowError> {
        self.file.write_all(bytes).map_err(|error| spill_error(&self.governor, &error))?;
        self.len += bytes.len();
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

    /// All that was written.
    ///
    /// # Errors
    /// As [`MapWriter::write`].
    pub fn finish(self) -> Result<Bytes, DataflowError> {
        let MapWriter { governor, file, len } = self;
        let failed = |error: &std::io::Error| spill_error(&governor, error);
        let file = file.into_inner().map_err(|error| failed(error.error()))?;
        if len == 0 {
            return Ok(Bytes::new());
        }
        Ok(Bytes::from_owner(Mapping::new(&file, len, libc::PROT_READ).map_err(|error| failed(&error))?))
    }
}

impl Governor {
    /// The same rows, on disk.
    ///
    /// # Errors
    /// When the disk is full or fails; when a column cannot be encoded.
    pub fn map(&self, rows: &RecordBatch) -> Result<RecordBatch, DataflowError> {
        if rows.num_columns() == 0 || rows.num_rows() == 0 {
            return Ok(rows.clone());
        }
        let mut writer = MapWriter::new(self)?;
        for piece in Encoder::new(rows.schema_ref())?.encode(rows)? {
            writer.write(&piece)?;
        }
        Ok(Decoder::new(rows.schema_ref())?.decode(Buffer::from(writer.finish()?), rows.num_rows())?)
    }
}

/// A number that is stored as it is: any bits are one.
pub trait Cell: Copy + Default + sealed::Sealed {}

mod sealed {
    pub trait Sealed {}
}

macro_rules! cells {
    ($($number:ty),*) => {
        $(impl sealed::Sealed for $number {}
        impl Cell for $number {})*
    };
}
cells!(u8, u32, u64, i64);

/// A vector of numbers: in memory, or on disk when there is too little of it.
pub struct Cells<T> {
    memory: Vec<T>,
    /// Then `memory` is empty.
    disk: Option<Disk>,
}

struct Disk {
    governor: Governor,
    file: File,
    mapping: Mapping,
    /// Numbers, of those that there is room for.
    len: usize,
}

impl<T> Default for Cells<T> {
    fn default() -> Self {
        Cells { memory: Vec::new(), disk: None }
    }
}

impl<T: Cell> Cells<T> {
    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.memory.capacity() * size_of::<T>()
    }

    /// Who has put them on disk; `None` while they are in memory.
    pub fn governor(&self) -> Option<&Governor> {
        self.disk.as_ref().map(|disk| &disk.governor)
    }

    /// Puts them on disk, where they stay.
    ///
    /// # Errors
    /// When the disk is full or fails.
    pub fn spill(&mut self, governor: &Governor) -> Result<(), DataflowError> {
        if self.disk.is_some() {
            return Ok(());
        }
        let memory = std::mem::take(&mut self.memory);
        let file = tempfile::tempfile_in(&governor.settings().spill_dir).map_err(|e| spill_error(governor, &e))?;
        self.disk = Some(Disk::map(governor, file, memory.len() * size_of::<T>())?);
        self.extend_from_slice(&memory)
    }

    /// Appends numbers.
    ///
    /// # Errors
    /// When the disk is full or fails.
    pub fn extend_from_slice(&mut self, numbers: &[T]) -> Result<(), DataflowError> {
        let start = self.len();
        self.resize(start + numbers.len())?;
        self[start..].copy_from_slice(numbers);
        Ok(())
    }

    /// Makes them so many: cuts off the last, or appends zeros.
    ///
    /// # Errors
    /// When the disk is full or fails.
    pub fn resize(&mut self, len: usize) -> Result<(), DataflowError> {
        let Some(disk) = &mut self.disk else {
            self.memory.resize(len, T::default());
            return Ok(());
        };
        let wanted = len * size_of::<T>();
        if wanted > disk.mapping.len {
            let grown =
                Disk::map(&disk.governor, disk.file.try_clone().map_err(|e| spill_error(&disk.governor, &e))?, wanted)?;
            *disk = Disk { len: disk.len, ..grown };
        }
        let before = std::mem::replace(&mut self.disk.as_mut().expect("looked at above").len, len);
        if before < len {
            // What was cut off before may still be there.
            self[before..].fill(T::default());
        }
        Ok(())
    }
}

impl Disk {
    /// Room for so many bytes, and as many again.
    fn map(governor: &Governor, file: File, bytes: usize) -> Result<Self, DataflowError> {
        let bytes = (2 * bytes).next_multiple_of(rustix::param::page_size()).max(rustix::param::page_size());
        let failed = |error: &std::io::Error| spill_error(governor, error);
        // SAFETY: the file is open. Benefit: a disk without room says so here; a write to a page of a file that has none is a signal.
        let result = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes as libc::off_t) };
        if result != 0 {
            return Err(failed(&std::io::Error::from_raw_os_error(result)));
        }
        let mapping = Mapping::new(&file, bytes, libc::PROT_READ | libc::PROT_WRITE).map_err(|error| failed(&error))?;
        governor.0.spilled_bytes.fetch_add(bytes as u64 / 2, Ordering::Relaxed);
        Ok(Disk { governor: governor.clone(), file, mapping, len: 0 })
    }
}

impl<T: Cell> Deref for Cells<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.disk {
            // SAFETY: the mapping begins at a page and has room for so many; any bits are a number, and nobody writes meanwhile,
            // as that takes the cells mutably.
            Some(disk) => unsafe { std::slice::from_raw_parts(disk.mapping.start.as_ptr().cast(), disk.len) },
            None => &self.memory,
        }
    }
}

impl<T: Cell> DerefMut for Cells<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.disk {
            // SAFETY: as above; the mapping may be written, and is this one's alone.
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

    /// Rows that came back otherwise, or were copied into memory, would make mapping pointless.
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

    /// A full disk must be an error that says what to do.
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
        /// Numbers that change when they go to disk, or when there is no more room for them there.
        #[test]
        fn cells_are_a_vector(steps in prop::collection::vec((0u8..4, 0usize..3000), 1..40), spill_at in 0usize..40) {
            let governor = governor();
            let (mut cells, mut model) = (Cells::<u32>::default(), Vec::new());
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
