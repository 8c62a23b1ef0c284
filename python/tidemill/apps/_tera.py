"""Common parts of the terasort commands: records of the sort benchmark, with a key of 10 bytes and a value of 90, and
their checksum.

Source: the rules of sortbenchmark.org.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["COLUMNS", "KEY_BYTES", "RECORD_BYTES", "checksum", "files_of", "keys", "records"]

KEY_BYTES = 10
RECORD_BYTES = 100
#: Bytes of each column.
COLUMNS = {"key": KEY_BYTES, "value": RECORD_BYTES - KEY_BYTES}
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)


def records(start: int, count: int, seed: int) -> NDArray[np.uint8]:
    """Return records `start` to ``start + count``: random keys, and values that contain the record number.

    Returns
    -------
    numpy.ndarray of uint8, shape (count, 100)
    """
    # A generator that can start anywhere: the records do not depend on the number of workers. Four words per record.
    words = np.random.Philox(key=seed, counter=start).random_raw(4 * count).reshape(count, 4)
    made = np.full((count, RECORD_BYTES), ord("."), np.uint8)
    made[:, :8] = words[:, 0].astype(">u8").view(np.uint8).reshape(count, 8)
    made[:, 8:10] = words[:, 1].astype(">u8").view(np.uint8).reshape(count, 8)[:, :2]
    number = np.arange(start, start + count, dtype=np.uint64)
    for place in range(16):
        made[:, 12 + place] = _HEX[(number >> np.uint64(60 - 4 * place)) & np.uint64(15)]
    made[:, 32:40] = words[:, 2].astype(">u8").view(np.uint8).reshape(count, 8)
    return made


def keys(block: NDArray[np.uint8]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the keys as numbers: their first eight bytes and their last two."""
    high = block[:, :8].copy().view(">u8")[:, 0].astype(np.uint64)
    low = block[:, 8:10].copy().view(">u2")[:, 0].astype(np.uint64)
    return high, low


def checksum(block: NDArray[np.uint8]) -> int:
    """Return a checksum that does not depend on the order of records: the sum, modulo 2**64, of a hash of each."""
    words = np.zeros((len(block), 13), np.uint64)
    words[:, :12] = block[:, :96].copy().view(np.uint64)
    words[:, 12] = block[:, 96:].copy().view(np.uint32)[:, 0]
    odd = np.random.Philox(key=1).random_raw(13) | np.uint64(1)
    mixed = (words ^ (words >> np.uint64(29))) * odd
    mixed ^= mixed >> np.uint64(32)
    return int(np.bitwise_xor.reduce(mixed * odd[::-1], axis=1).sum(dtype=np.uint64))


def files_of(folder: Path) -> list[Path]:
    """Return the record files of a folder, in order, or the file itself."""
    if not folder.is_dir():
        return [folder]
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith((".", "_")))
