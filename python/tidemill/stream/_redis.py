"""Redis: streams as sources, hashes and streams as sinks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from tidemill._streaming.sinks import Connector
from tidemill._tables.durations import Duration, micros
from tidemill._tables.errors import DataSetError
from tidemill._tidemill import NativeRedisHashes, NativeTable
from tidemill.dataset._dataset import DataSet
from tidemill.dataset._read import OnError, Schema
from tidemill.stream._options import ReadOptions, as_list, connection, described, guarantee
from tidemill.stream._time import Time
from tidemill.stream._tls import Tls

if TYPE_CHECKING:
    from tidemill.stream._options import Quarantine

__all__ = ["from_redis", "redis_lookup", "to_redis"]

#: The fields of a hash by name, or that there is none.
Found = Mapping[str, str | None] | None


def from_redis(
    url: str,
    streams: str | Iterable[str],
    schema: Schema,
    *,
    format: Literal["fields", "json"] = "fields",
    field: str = "value",
    time: Time | None = None,
    max_out_of_orderness: Duration = 0,
    idle_after: Duration = "1s",
    start: Literal["earliest", "latest"] = "earliest",
    stop_at_end: bool = False,
    on_error: OnError = "raise",
    quarantine: Quarantine | None = None,
    connect_timeout: Duration = "1m",
    tls: Tls | None = None,
) -> DataSet:
    """Read streams of Redis: each is a split, and the id of its last entry is part of checkpoints; no consumer group is used.

    Entries that the server drops before they are read are an error (of Redis 7 and later, which counts them): let it keep them for longer
    than a job may be away. Who reads needs ``XREAD`` and ``XINFO``.

    Parameters
    ----------
    url : str
        ``redis://HOST:PORT/NUMBER``, or ``rediss:`` for TLS. User and password are those in it, else ``TIDEMILL_REDIS_USER`` and
        ``TIDEMILL_REDIS_PASSWORD`` of the environment.
    streams : str or iterable of str
        Their keys.
    schema : mapping of str to str, or Arrow schema
        Types by column.
    format : {"fields", "json"}, default="fields"
        An entry's fields are the columns, their values as text; or one field is a JSON object with the columns.
    field : str, default="value"
        Which one, of JSON.
    time, max_out_of_orderness, idle_after
        As for `from_table`.
    start : {"earliest", "latest"}, default="earliest"
        Where a job starts reading if it does not resume from a checkpoint.
    stop_at_end : bool, default=False
        End when every stream has been read as far as there is anything.
    on_error, quarantine
        As for `from_files`; a bad entry is named by stream and id.
    connect_timeout : str, number of seconds or timedelta, default="1m"
        How long the server may be away, or keep silent, before the job fails: until then it is tried again.
    tls : Tls, optional
        Certificates, for ``rediss:``.

    Raises
    ------
    DataSetError
        If an option makes no sense. What is wrong with an entry is an error of the job that names its stream and id.
    """
    return ReadOptions(time, max_out_of_orderness, idle_after, stop_at_end, on_error, quarantine).stream(
        "redis",
        schema,
        **connection(connect_timeout, tls),
        url=url,
        streams=as_list(streams),
        format=format,
        field=field,
        start=start,
    )


def to_redis(
    url: str,
    *,
    key: str | Iterable[str] | None = None,
    stream: str | None = None,
    id: str | None = None,
    prefix: str = "",
    increment: str | Iterable[str] = (),
    expire: Duration | None = None,
    entries_max: int | None = None,
    epoch_bytes_max: int = 64 << 20,
    connect_timeout: Duration = "1m",
    tls: Tls | None = None,
) -> Connector:
    r"""A sink of `DataSet.write_stream`: hashes of Redis, one for each `key`, or entries of a stream.

    With `id`, each row is written once: rows are part of the checkpoint; when it is durable, one transaction of the server
    writes them and notes that it has, in a key ``tidemill:ID:...``. At half of `epoch_bytes_max` of them, of one thread, a
    checkpoint is made sooner. One server, no cluster, that keeps what it has: ``appendonly yes``, and no eviction; where it does not, that is printed.
    Without `id`, rows are written as they come, and again after a failure: a hash that is set again is as it was, entries of a
    stream come again.

    Parameters
    ----------
    url : str
        As for `from_redis`.
    key : str or iterable of str, optional
        Of hashes: the columns whose values, with colons between, are a hash's key. The others are its fields; a null removes
        one. So that other values have other keys, a colon or a backslash in a text that is not the last has a backslash before it,
        and a text that is null is ``\N``.
    stream : str, optional
        The stream that rows are added to, instead. Nulls are left out; a row of nulls is an entry whose one field has no name.
    id : str, optional
        What the job is called at the server, where nobody else may be called so.
    prefix : str, default=""
        Of hashes: what their keys begin with.
    increment : str or iterable of str, optional
        Of hashes: columns of numbers that are added to what is there. Needs `id`.
    expire : str, number of seconds or timedelta, optional
        Of hashes: how long one stays after it was written last; whole seconds.
    entries_max : int, optional
        Of a stream: about so many entries are kept.
    epoch_bytes_max : int, default=67108864
        With `id`: what a thread may keep of rows from one checkpoint to the next.
    connect_timeout, tls
        As for `from_redis`.
    """
    options = {
        "key": None if key is None else as_list(key),
        "stream": stream,
        "prefix": prefix or None,
        "increment": as_list(increment) or None,
        "expire_s": None if expire is None else _whole_seconds(expire, "expire"),
        "entries_max": entries_max,
        "epoch_bytes_max": epoch_bytes_max,
    }
    return Connector(described("redis", url=url, **guarantee(id), **connection(connect_timeout, tls), **options))


def redis_lookup(
    url: str, fields: str | Iterable[str], *, prefix: str = "", connect_timeout: Duration = "1m", tls: Tls | None = None
) -> Callable[[Any], list[Found]]:
    """Fields of hashes of Redis by key, for `DataSet.lookup`: those of a batch with one request.

    The function may also be called by hand, with a list of keys (values, or tuples of them), or with an Arrow table whose rows are keys; that
    one tells of what type a null is.

    Parameters
    ----------
    url : str
        As for `from_redis`.
    fields : str or iterable of str
        Which; a hash that has none of them is as one that is not there.
    prefix : str, default=""
        What the hashes' keys begin with; behind it the values of the row's key, with colons between, as `to_redis` writes columns of
        the same types.
    connect_timeout, tls
        As for `from_redis`.

    Raises
    ------
    DataSetError
        If an option makes no sense; of the function, if it is called with keys that do not tell their types.
    """
    names = as_list(fields)
    more = {"prefix": prefix or None, **connection(connect_timeout, tls)}
    return RedisLookup(described("redis", url=url, fields=names, **more), names)


class RedisLookup:
    """Fields of hashes by key; made by `redis_lookup`."""

    def __init__(self, spec: str, fields: list[str]) -> None:
        self._native = NativeRedisHashes(spec)
        self._fields = fields

    def __call__(self, keys: Any) -> list[Found]:
        """Those of a list of keys, or of a table whose rows are keys."""
        table = NativeTable.take(keys) if hasattr(keys, "__arrow_c_stream__") else _table(keys)
        return self.of_rows(table, [name for name, _ in table.fields])

    def of_rows(self, rows: NativeTable, on: Sequence[str]) -> list[Found]:
        """Those of rows whose keys are the columns `on`: the types tell how the sink wrote a null."""
        found = self._native.get(rows, on)
        return [None if values is None else dict(zip(self._fields, values, strict=True)) for values in found]


def _table(keys: list[Any]) -> NativeTable:
    """Keys as rows; of what types they are is seen from the values."""
    columns = zip(*(key if isinstance(key, tuple) else (key,) for key in keys), strict=True)
    table = NativeTable.from_lists([(str(at), list(values), None) for at, values in enumerate(columns)])
    for name, kind in table.fields:
        if kind == "Null":
            raise DataSetError(
                f"redis_lookup: part {name} of the keys is None in all of them, which does not tell whether that is a text or a number; "
                "give the keys as an Arrow table, whose columns have types"
            )
    return table


def _whole_seconds(duration: Duration, name: str) -> int:
    whole, rest = divmod(micros(duration, name), 1_000_000)
    if rest or whole < 1:
        raise DataSetError(f"{name}={duration!r} must be whole seconds, at least one")
    return whole
