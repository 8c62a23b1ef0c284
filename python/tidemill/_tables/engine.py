"""The engine of this process: created on first use, kept until the process ends.

- Threads: ``TIDEMILL_THREADS``, else the CPUs of a host, within the quota of its container, shared among its workers.
- Memory that queries may hold before they spill: ``TIDEMILL_MEMORY`` (such as ``2GiB``, or ``none`` for no limit), else
  four fifths of the memory of the machine or container, shared among its workers, less 48 MiB for each worker's
  interpreter, and half of what ``ulimit -v`` leaves.
- Folder to spill to: ``TIDEMILL_SPILL_DIR``, else the system's folder for temporary files.
"""

from __future__ import annotations

import os
import re
import threading
from weakref import WeakKeyDictionary

from tidemill._job import Job, init, whole
from tidemill._membership import chosen_threads
from tidemill._tables.errors import DataSetError
from tidemill._tidemill import QueryEngine, address_bytes_left, memory_bytes

__all__ = ["bytes_of", "copies", "engine", "memory_budget", "new_engine", "query_threads"]

_lock = threading.RLock()
_engines: WeakKeyDictionary[Job, QueryEngine] = WeakKeyDictionary()
# A forked child has none of its parent's threads.
os.register_at_fork(after_in_child=_engines.clear)

#: The share of a machine's memory for its workers together; the rest is for the system, and for growth between two
#: measurements.
_MEMORY_SHARE = 0.8
#: The memory of a worker that the budget does not count: the interpreter, and memory shared with others. In a small
#: container, this is a large part of the limit.
_BASE_BYTES = 48 << 20
#: Minimum budget as a part of a worker's share, however small that is.
_LEAST_SHARE = 0.25

_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}


def engine() -> QueryEngine:
    """Return the engine of this process; within a `tidemill.group` block, that of the group."""
    return _engine_of(init())


def _engine_of(job: Job) -> QueryEngine:
    found = _engines.get(job)
    if found is None:
        with _lock:
            found = _engines.get(job)
            if found is None:
                new = job._ranks is None
                found = new_engine(job, query_threads(job), job.size) if new else _engine_of(whole()).beside(job.size)
                _engines[job] = found
    return found


def copies() -> int:
    """Return the maximum number of copies of a query's task: one for each thread of each worker."""
    job = init()
    return query_threads(job) * job.size


def new_engine(job: Job, threads: int, workers: int) -> QueryEngine:
    """Return an engine for this many workers, with this worker's share of memory."""
    spill_dir = os.environ.get("TIDEMILL_SPILL_DIR") or None
    return QueryEngine(threads, workers, memory_budget(job), spill_dir, _active_workers())


def _active_workers() -> int | None:
    """Return how many workers take part in streams at the start, the others being spare; None if all do."""
    text = os.environ.get("TIDEMILL_ACTIVE_WORKERS", "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and int(text)):
        raise DataSetError(f"TIDEMILL_ACTIVE_WORKERS must be a positive integer, not {text!r}")
    return int(text)


def query_threads(job: Job) -> int:
    """Return the number of threads that run queries: the same on all workers, since tables are split into as many
    parts.
    """
    return chosen_threads(DataSetError) or max(job._worker.threads())


def memory_budget(job: Job) -> int | None:
    """Return the bytes that this worker's queries and graphs may hold; None for no limit."""
    text = os.environ.get("TIDEMILL_MEMORY", "")
    if text == "none":
        return None
    if not text:
        host = job.workers[job.rank]["host_id"]
        sharing = sum(worker["host_id"] == host for worker in job.workers)
        there, addresses = memory_bytes(), address_bytes_left()
        shares = []
        if there is not None:
            share = int(there * _MEMORY_SHARE) // sharing
            shares.append(max(share - _BASE_BYTES, int(share * _LEAST_SHARE)))
        # Unlike memory, address space belongs to each process, and more of it is reserved than is ever used.
        shares += [] if addresses is None else [max(addresses // 2, 1)]
        return min(shares, default=None)
    try:
        return bytes_of(text)
    except ValueError:
        raise DataSetError(f"TIDEMILL_MEMORY must be a size such as 512MiB or 2GiB, or none, not {text!r}") from None


def bytes_of(text: str) -> int:
    """Parse a size such as ``2GiB`` and return its bytes; raise `ValueError` if it is not a size."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not found:
        raise ValueError(text)
    return int(float(found[1]) * _UNITS[found[2].upper()])
