"""Files that each host has of its own (``each_host=True``): assigns them to workers, and checks that their schemas
match.

Files on two hosts are the same if their path, size and modification time are the same. Every file is read once, by a
worker of a host that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tidemill._callback import check_outside
from tidemill._collective_errors import fail_together
from tidemill._job import Job, init
from tidemill._tables.engine import engine
from tidemill._tables.errors import DataSetError
from tidemill._tables.table import Table
from tidemill._tidemill import NativeDataSet, NativeTable, QueryEngine

__all__ = ["own_files"]

T = TypeVar("T")

#: Path, bytes, and modification time.
_File = tuple[str, int, int]


def own_files(
    paths: list[str], read: Callable[[list[str], object], NativeDataSet], *, schema: object, one_header: bool
) -> NativeDataSet:
    """Return the rows of the files that match `paths` on any host. Collective in a job on several hosts.

    Parameters
    ----------
    paths : list of str
    read : callable
        Reads some files, with an optional schema: `schema`, or a common one if types differ between hosts.
    schema : object
    one_header : bool
        Whether all files must have the same columns in the same order, as for CSV.

    Raises
    ------
    DataSetError
        On every worker: if no host has a matching file, one cannot be read, or columns are incompatible.
    """
    job = init()
    hosts = [worker["host_id"] for worker in job.workers]
    if len(set(hosts)) == 1:
        return read(paths, schema)
    check_outside(DataSetError)
    # One worker per host checks: another one might see a growing file differently.
    found = _told(job, lambda: QueryEngine.find_local_files(paths) if hosts[job.rank] == job.rank else [])
    shares = _shares(found, hosts)
    if not any(shares):
        names = ", ".join(dict.fromkeys(worker["host"] for worker in job.workers))
        raise DataSetError(f"there are no files in {', '.join(paths)}, on none of the hosts {names}")
    mine = shares[job.rank]
    data: list[NativeDataSet] = []

    def look(schema: object) -> tuple[Table, bool] | None:
        if not mine:
            return None
        data[:] = [read(mine, schema)]
        return Table(data[0].empty()), data[0].is_lenient

    def looks(schema: object) -> list[tuple[int, NativeTable, bool]]:
        told = enumerate(_told(job, lambda: look(schema)))
        return [(rank, seen[0]._native, seen[1]) for rank, seen in told if seen is not None]

    seen = looks(schema)
    schemas = [native for _, native, _ in seen]
    if any(other.fields != schemas[0].fields for other in schemas):
        files = [f"{shares[rank][0]} on host {job.workers[rank]['host']}" for rank, *_ in seen]
        if one_header:
            _check_headers(schemas, files)
        seen = looks(NativeTable.unite(schemas, files))
    _, native, is_lenient = seen[0]
    return engine().own_files(native, data[0] if data else None, is_lenient, job.rank, job.size)


def _check_headers(schemas: Sequence[NativeTable], files: Sequence[str]) -> None:
    """Raise if columns have other names or another order: values would go to other columns."""
    wanted = [name for name, _ in schemas[0].fields]
    for schema, file in zip(schemas, files, strict=True):
        names = [name for name, _ in schema.fields]
        if names != wanted:
            raise DataSetError(
                f"{file}: its columns are {', '.join(names)}, but those of {files[0]} are {', '.join(wanted)}: "
                "read them separately, and combine them with union, by name"
            )


def _told(job: Job, make: Callable[[], T]) -> list[T]:
    """Return every worker's result; if one fails, all raise its error with its host."""

    def error(said: str, rank: int | None) -> DataSetError:
        return DataSetError(said if rank is None else f"{said} (on host {job.workers[rank]['host']})")

    return job.comm.allgather(fail_together(job.comm, make, error))


def _shares(found: Sequence[Sequence[_File]], hosts: Sequence[int]) -> list[list[str]]:
    """Assign files to workers: largest first, each to the worker with the least to read on a host that has it."""
    there: dict[_File, set[int]] = {}
    for host, files in enumerate(found):
        for file in files:
            there.setdefault(file, set()).add(host)
    # Empty files have no rows, and their columns cannot be determined.
    files = [file for file in there if file[1]] or list(there)
    load = [0] * len(hosts)
    shares: list[list[str]] = [[] for _ in hosts]
    for file in sorted(files, key=lambda file: (-file[1], file)):
        rank = min((rank for rank, host in enumerate(hosts) if host in there[file]), key=load.__getitem__)
        load[rank] += file[1]
        shares[rank].append(file[0])
    return [sorted(share) for share in shares]
