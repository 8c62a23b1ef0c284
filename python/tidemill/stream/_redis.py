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

#: The fields of a hash by name; None if it does not exist.
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
    """Read Redis streams: each is a split, and the id of its last entry is part of checkpoints; no consumer group is
    used.

    If the server drops entries before they are read, the job fails (with Redis 7 and later, which count them):
    configure it to keep entries for longer than a job may be down. The user needs permission for ``XREAD`` and
    ``XINFO``.

    Parameters
    ----------
    url : str
        ``redis://HOST:PORT/NUMBER``, or ``rediss:`` for TLS. User and password are those in the URL, else
        ``TIDEMILL_REDIS_USER`` and ``TIDEMILL_REDIS_PASSWORD`` from the environment.
    streams : str or iterable of str
        Keys of the streams.
    schema : mapping of str to str, or Arrow schema
        Types by column.
    format : {"fields", "json"}, default="fields"
        ``"fields"``: an entry's fields are the columns, with string values; ``"json"``: one field is a JSON object with
        the columns.
    field : str, default="value"
        For ``"json"``: the name of that field.
    time, max_out_of_orderness, idle_after
        As in `from_table`.
    start : {"earliest", "latest"}, default="earliest"
        Where a job starts reading if it does not resume from a checkpoint.
    stop_at_end : bool, default=False
        End when every stream has been read to its end.
    on_error, quarantine
        As in `from_files`; a bad entry is identified by stream and id.
    connect_timeout : str, number of seconds or timedelta, default="1m"
        How long the server may be unreachable or silent before the job fails; until then, the connection is retried.
    tls : Tls, optional
        Certificates, for ``rediss:``.

    Raises
    ------
    DataSetError
        If an option is invalid. Errors in an entry are errors of the job, which name its stream and id.
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
    r"""Write Redis hashes, one for each `key`, or entries of a Redis stream. A sink of `DataSet.write_stream`.

    With `id`, each row is written exactly once: rows are part of the checkpoint, and when it is durable, one
    transaction of the server writes them and records this in a key ``tidemill:ID:...``. When a thread holds half of
    `epoch_bytes_max`, a checkpoint is taken early. This needs a single server, not a cluster, with ``appendonly yes``
    and no eviction; otherwise a message on the terminal warns you. Without `id`, rows are written as they come, and
    again after a failure: hashes end up the same, while entries of a stream are duplicated.

    Parameters
    ----------
    url : str
        As in `from_redis`.
    key : str or iterable of str, optional
        For hashes: the columns whose values, joined by colons, are a hash's key. The other columns are its fields; a
        null removes a field. To keep keys distinct, a colon or a backslash in any string except the last is escaped
        with a backslash, and a null string is ``\N``.
    stream : str, optional
        The stream to add rows to, instead of hashes. Nulls are left out; a row of nulls becomes an entry with one field
        without a name.
    id : str, optional
        Unique name of the job at the server.
    prefix : str, default=""
        For hashes: beginning of their keys.
    increment : str or iterable of str, optional
        For hashes: columns of numbers that are added to the stored values. Needs `id`.
    expire : str, number of seconds or timedelta, optional
        For hashes: how long one is kept after it was last written; whole seconds.
    entries_max : int, optional
        For a stream: approximate number of entries to keep.
    epoch_bytes_max : int, default=67108864
        With `id`: bytes of rows that a thread may hold between two checkpoints.
    connect_timeout, tls
        As in `from_redis`.
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
    """Look up fields of Redis hashes by key, for `DataSet.lookup`: one request for each batch.

    You can also call the function yourself, with a list of keys (values, or tuples of them), or with an Arrow table
    whose rows are keys; the table also gives the types of nulls.

    Parameters
    ----------
    url : str
        As in `from_redis`.
    fields : str or iterable of str
        The fields to return; a hash that has none of them counts as missing.
    prefix : str, default=""
        Beginning of the hashes' keys. It is followed by the values of the row's key, joined by colons, as `to_redis`
        writes columns of the same types.
    connect_timeout, tls
        As in `from_redis`.

    Raises
    ------
    DataSetError
        If an option is invalid. The function raises it for keys whose types cannot be inferred.
    """
    names = as_list(fields)
    more = {"prefix": prefix or None, **connection(connect_timeout, tls)}
    return RedisLookup(described("redis", url=url, fields=names, **more), names)


class RedisLookup:
    """Looks up fields of hashes by key; returned by `redis_lookup`."""

    def __init__(self, spec: str, fields: list[str]) -> None:
        self._native = NativeRedisHashes(spec)
        self._fields = fields

    def __call__(self, keys: Any) -> list[Found]:
        """Return the fields for a list of keys, or for a table whose rows are keys."""
        table = NativeTable.take(keys) if hasattr(keys, "__arrow_c_stream__") else _table(keys)
        return self.of_rows(table, [name for name, _ in table.fields])

    def of_rows(self, rows: NativeTable, on: Sequence[str]) -> list[Found]:
        """Return the fields for rows whose keys are the columns `on`: their types tell how the sink wrote a null."""
        found = self._native.get(rows, on)
        return [None if values is None else dict(zip(self._fields, values, strict=True)) for values in found]


def _table(keys: list[Any]) -> NativeTable:
    """Return keys as rows, with types inferred from the values."""
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
