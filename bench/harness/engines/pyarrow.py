"""Sorting with pyarrow: records as fixed-size binaries over the files' bytes, keys as a column beside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from . import Sorter, Task

RECORD, KEY = 100, 10


def sorter(task: Task) -> Sorter:
    return sort


def sort(source: Path, target: Path) -> None:
    target.mkdir()
    bytes_ = np.concatenate([np.fromfile(path, np.uint8) for path in sorted((source / "records").iterdir())])
    count = len(bytes_) // RECORD
    keys = np.ascontiguousarray(bytes_.reshape(count, RECORD)[:, :KEY])
    key = pa.FixedSizeBinaryArray.from_buffers(pa.binary(KEY), count, [None, pa.py_buffer(keys)])
    records = pa.FixedSizeBinaryArray.from_buffers(pa.binary(RECORD), count, [None, pa.py_buffer(bytes_)])
    order = pc.sort_indices(pa.table({"key": key}), sort_keys=[("key", "ascending")])
    with pa.OSFile(str(target / "0"), "wb") as file:
        file.write(records.take(order).buffers()[1])
