"""The inputs of the benchmark of DataSets, from a fixed seed, and the check of what was sorted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SEED = 20240229
FILES = 8  # of each table: every thread has one to begin with
WORDS_A_LINE, VOCABULARY = 10, 50_000
RECORD, KEY = 100, 10
BLOCK = 200_000  # rows made at a time, where all together would take too much memory


# --- tables ----------------------------------------------------------------------------------------------------------
def tables(folder: Path, rows: int, keys: int, skewed: bool, dimension: bool) -> None:
    """`facts` with a key and a number in each row; `dimension` has each key once, and a group of at most 1000."""
    rng = np.random.default_rng(SEED)
    # Multiplied by a prime, so that frequent keys are not the small ones; one key in six rows, two in four, ...
    drawn = rng.zipf(1.2, rows) * 7_368_787 % keys if skewed else rng.integers(keys, size=rows)
    write(folder / "facts", {"k": drawn, "x": rng.integers(-1000, 1000, size=rows)})
    if dimension:
        groups = min(1000, keys)
        write(folder / "dimension", {"k": rng.permutation(keys), "g": rng.integers(groups, size=keys)})


def ordered(folder: Path, rows: int, keys: int) -> None:
    """`facts` with a key, a place in the order, which no two rows share, and a number in each row; rows come in no order."""
    rng = np.random.default_rng(SEED)
    columns = {
        "k": rng.integers(keys, size=rows),
        "v": rng.permutation(rows),
        "x": rng.integers(-1000, 1000, size=rows),
    }
    write(folder / "facts", columns)


def write(folder: Path, columns: dict[str, Any]) -> None:
    """A table as Parquet, its rows shared among `FILES` files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    table = pa.table(columns)
    for number in range(FILES):
        start, end = len(table) * number // FILES, len(table) * (number + 1) // FILES
        pq.write_table(table.slice(start, end - start), folder / f"{number}.parquet")


# --- text ------------------------------------------------------------------------------------------------------------
def text(path: Path, lines: int) -> None:
    """Lines of words, of which few are frequent and many are rare, as in a language."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rng = np.random.default_rng(SEED)
    words = pa.array([f"word{number:x}" for number in range(VOCABULARY)])
    with path.open("wb") as file:
        for start in range(0, lines, BLOCK):
            count = min(BLOCK, lines - start)
            drawn = np.minimum(rng.zipf(1.2, count * WORDS_A_LINE), VOCABULARY) - 1
            each = pa.ListArray.from_arrays(np.arange(count + 1, dtype=np.int32) * WORDS_A_LINE, words.take(drawn))
            joined = pc.binary_join(pa.ListArray.from_arrays([0, count], pc.binary_join(each, " ")), "\n")
            file.write(joined[0].as_buffer())
            file.write(b"\n")


# --- records ---------------------------------------------------------------------------------------------------------
def records(folder: Path, count: int, parquet: bool) -> None:
    """Records of the sort benchmark's size with random keys: as they are, and as Parquet for systems that cannot read such."""
    rng = np.random.default_rng(SEED)
    (folder / "records").mkdir(parents=True)
    if parquet:
        (folder / "parquet").mkdir()
    for number in range(FILES):
        start, end = count * number // FILES, count * (number + 1) // FILES
        with (folder / "records" / f"{number}.bin").open("wb") as file:
            writer = None
            for at in range(start, end, BLOCK):
                made = block(rng, at, min(BLOCK, end - at))
                made.tofile(file)
                if parquet:
                    writer = writer or parquet_writer(folder / "parquet" / f"{number}.parquet")
                    writer.write_table(as_table(made))
            if writer:
                writer.close()


def block(rng: np.random.Generator, start: int, count: int) -> NDArray[np.uint8]:
    """A random key, and a value that begins with the record's number in text; the rest repeats."""
    made = np.full((count, RECORD), ord("."), np.uint8)
    made[:, :KEY] = rng.integers(256, size=(count, KEY), dtype=np.uint8)
    digits = np.arange(start, start + count)[:, None] // 10 ** np.arange(15, -1, -1) % 10
    made[:, 12:28] = digits + ord("0")
    return made


def parquet_writer(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema({"key": pa.binary(KEY), "value": pa.binary(RECORD - KEY)})
    # Neither compressed nor with dictionaries: as close to the plain records as Parquet comes.
    return pq.ParquetWriter(path, schema, compression="none", use_dictionary=False)


def as_table(rows: NDArray[np.uint8]) -> Any:
    import pyarrow as pa

    def column(part: NDArray[np.uint8]) -> Any:
        kind, data = pa.binary(part.shape[1]), pa.py_buffer(np.ascontiguousarray(part))
        return pa.FixedSizeBinaryArray.from_buffers(kind, len(part), [None, data])

    return pa.table({"key": column(rows[:, :KEY]), "value": column(rows[:, KEY:])})


def sorted_digest(folder: Path) -> str:
    """How many records a folder has, a checksum that does not depend on their order, and whether they are in order."""
    odd = np.random.default_rng(SEED).integers(1 << 63, size=13, dtype=np.uint64) | np.uint64(1)
    count, total, last, ordered = 0, 0, b"", True
    for rows in blocks(folder):
        words = np.zeros((len(rows), 13), np.uint64)
        words.view(np.uint8)[:, :RECORD] = rows
        hashed = words @ odd
        hashed ^= hashed >> np.uint64(29)
        total = (total + int((hashed * hashed).sum(dtype=np.uint64))) % 2**64
        keys = np.concatenate(
            [np.frombuffer(last, f"V{KEY}"), np.ascontiguousarray(rows[:, :KEY]).view(f"V{KEY}")[:, 0]]
        )
        high = np.ascontiguousarray(keys).view(np.uint8).reshape(-1, KEY)
        first, rest = (
            np.ascontiguousarray(high[:, cut]).view(kind)[:, 0]
            for cut, kind in ((slice(8), ">u8"), (slice(8, 10), ">u2"))
        )
        ordered &= bool(((first[1:] > first[:-1]) | ((first[1:] == first[:-1]) & (rest[1:] >= rest[:-1]))).all())
        count, last = count + len(rows), rows[-1, :KEY].tobytes()
    return f"{count} {total:016x} {'in order' if ordered else 'NOT in order'}"


def blocks(folder: Path) -> Iterator[NDArray[np.uint8]]:
    """The records of a folder's files, in the order of their paths; plain, or Parquet."""
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith((".", "_"))):
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq

            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(BLOCK):
                    yield np.hstack([plain(batch["key"], KEY), plain(batch["value"], RECORD - KEY)])
        else:
            rows = np.memmap(path, np.uint8, "r").reshape(-1, RECORD) if path.stat().st_size else np.empty((0, RECORD))
            for start in range(0, len(rows), BLOCK):
                yield rows[start : start + BLOCK]


def plain(column: Any, width: int) -> NDArray[np.uint8]:
    """A column of binaries, whatever their Arrow type, as an array of bytes."""
    import pyarrow as pa

    column = column.cast(pa.binary()) if not pa.types.is_fixed_size_binary(column.type) else column
    column = column.cast(pa.binary(width))
    data = np.frombuffer(column.buffers()[1], np.uint8)
    return data[column.offset * width : (column.offset + len(column)) * width].reshape(-1, width)
