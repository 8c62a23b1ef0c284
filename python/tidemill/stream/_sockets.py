"""What comes over a connection and cannot be asked for again: lines of a server, messages of a WebSocket, posts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import TYPE_CHECKING, Literal

from tidemill._tables.durations import Duration, seconds
from tidemill._tables.engine import engine
from tidemill._tables.errors import DataSetError
from tidemill._tidemill import stream_of
from tidemill.dataset._dataset import DataSet
from tidemill.dataset._read import OnError, Schema, optional_schema
from tidemill.stream._options import ReadOptions, as_list, connection, described
from tidemill.stream._time import Time, times
from tidemill.stream._tls import Tls, files

if TYPE_CHECKING:
    from tidemill.stream._options import Quarantine

__all__ = ["from_socket", "from_webhook", "from_websocket"]


def _port(port: int) -> int:
    """The number of a port. Of 0 the system would choose one, and nobody would be told which."""
    if isinstance(port, bool) or not isinstance(port, Integral) or not 1 <= port <= 65_535:
        raise DataSetError(f"port={port!r} must be a port, an integer from 1 to 65535")
    return int(port)


def from_socket(
    host: str,
    port: int,
    schema: Schema | None = None,
    *,
    format: Literal["json", "csv", "text"] = "json",
    delimiter: str = ",",
    time: Time | None = None,
    max_out_of_orderness: Duration = 0,
    idle_after: Duration = "1s",
    stop_at_end: bool = False,
    on_error: OnError = "raise",
    quarantine: Quarantine | None = None,
    line_bytes_max: int = 1 << 20,
    connect_timeout: Duration = "1m",
    tls: Tls | None = None,
) -> DataSet:
    """Connect to a TCP server, and read the lines that it sends: one thread of one worker does.

    At most once: what was read since the last checkpoint is lost with the job, and so is what the server sends while there is
    no connection. It is made again for as long as `connect_timeout`, and a line tells when it was lost.

    Parameters
    ----------
    host : str
    port : int
        From 1 to 65535.
    schema : mapping of str to str, or Arrow schema
        Types by column; ``"text"`` has one column, ``line`` unless a schema of one names it.
    format : {"json", "csv", "text"}, default="json"
        JSON objects, CSV without a header or anything, a line each.
    delimiter : str, default=","
        Of CSV.
    time, max_out_of_orderness, idle_after
        As for `from_table`.
    stop_at_end : bool, default=False
        End when the server closes the connection.
    on_error, quarantine
        As for `from_files`; a bad line is named by address and number.
    line_bytes_max : int, default=1048576
        A line that is longer is bad.
    connect_timeout : str, number of seconds or timedelta, default="1m"
        As for `from_redis`.
    tls : Tls, optional
        The server speaks TLS, and its certificate is for `host`.

    Raises
    ------
    DataSetError
        If an option makes no sense. What is wrong with a line or the connection is an error of the job, and names it.
    """
    csv = {"delimiter": delimiter} if format == "csv" else {}
    return ReadOptions(time, max_out_of_orderness, idle_after, stop_at_end, on_error, quarantine).stream(
        "socket",
        schema,
        **connection(connect_timeout, tls),
        host=host,
        port=_port(port),
        format=format,
        line_bytes_max=line_bytes_max,
        **csv,
    )


def from_websocket(
    url: str,
    schema: Schema | None = None,
    *,
    format: Literal["json", "text", "raw"] = "json",
    headers: Mapping[str, str] | None = None,
    send: str | Iterable[str] = (),
    time: Time | None = None,
    max_out_of_orderness: Duration = 0,
    idle_after: Duration = "1s",
    stop_at_end: bool = False,
    on_error: OnError = "raise",
    quarantine: Quarantine | None = None,
    message_bytes_max: int = 1 << 20,
    connect_timeout: Duration = "1m",
    tls: Tls | None = None,
) -> DataSet:
    """Read the messages of a WebSocket, each a row; at most once, as `from_socket`.

    Parameters
    ----------
    url : str
        ``ws://HOST:PORT/PATH``, or ``wss:`` for TLS.
    schema : mapping of str to str, or Arrow schema
        Types by column; ``"text"`` and ``"raw"`` have one column, ``value`` unless a schema of one names it.
    format : {"json", "text", "raw"}, default="json"
        What a message is, whether it comes as text or as bytes; ``"raw"`` is its bytes as they are.
    headers : mapping of str to str, optional
        What the request for the connection has, such as ``{"X-Api-Key": key}``; no message shows values. Without an ``Authorization`` among them
        it is ``Bearer`` and the token of ``TIDEMILL_WEBSOCKET_TOKEN``, if that is set: let `url` be ``wss:`` then.
    send : str or iterable of str, optional
        Messages that are sent after connecting, such as what to subscribe to.
    time, max_out_of_orderness, idle_after
        As for `from_table`.
    stop_at_end : bool, default=False
        End when the server closes the connection.
    on_error, quarantine
        As for `from_files`; a bad message is named by address and number.
    message_bytes_max : int, default=1048576
        A message that is longer loses the connection.
    connect_timeout : str, number of seconds or timedelta, default="1m"
        As for `from_redis`.
    tls : Tls, optional
        Certificates, for ``wss:``.

    Raises
    ------
    DataSetError
        If an option makes no sense. What is wrong with a message or the connection is an error of the job, and names it.
    """
    return ReadOptions(time, max_out_of_orderness, idle_after, stop_at_end, on_error, quarantine).stream(
        "websocket",
        schema,
        **connection(connect_timeout, tls),
        url=url,
        headers=dict(headers) if headers else None,
        send=as_list(send),
        format=format,
        message_bytes_max=message_bytes_max,
    )


def from_webhook(
    port: int,
    schema: Schema,
    *,
    path: str = "/",
    host: str = "127.0.0.1",
    answer: Literal["taken", "durable"] = "taken",
    auth: Literal["token", "signature"] | None = None,
    signature_header: str = "X-Hub-Signature-256",
    body_bytes_max: int = 1 << 20,
    body_timeout: Duration = "30s",
    tls: Tls | None = None,
    time: Time | None = None,
    max_out_of_orderness: Duration = 0,
    idle_after: Duration = "1s",
) -> DataSet:
    """Be a web server that others post rows to, on one worker: JSON objects, one behind the other or in an array.

    It answers 200 when all rows of a post were taken; 400 with the reason, if one is no row of the schema, and takes none of
    them; 401 if it lacks what `auth` wants; 408 if the body does not come; 413 if it is too long; 415 if it is compressed; 503 and ``Retry-After`` when
    the job takes no more just now. It listens on loopback unless `host` says otherwise. With ``tls=Tls(ca=...)`` only who has a certificate can
    post.

    Parameters
    ----------
    port : int
        From 1 to 65535, one that nobody else listens on.
    schema : mapping of str to str, or Arrow schema
        Types by column.
    path : str, default="/"
        Where rows are posted; other paths are answered 404.
    host : str, default="127.0.0.1"
        The address to listen on.
    answer : {"taken", "durable"}, default="taken"
        When 200 is said. ``"taken"``: at once; what came since the last checkpoint is lost with the job, so rows come at
        most once. ``"durable"``: when a checkpoint has the rows; who has no answer posts again, so they come at least once.
        The answer takes as long as from one checkpoint to the next.
    auth : {"token", "signature"}, optional
        What a post has to carry. ``"token"``: ``Authorization: Bearer`` and the token of ``TIDEMILL_WEBHOOK_TOKEN``. ``"signature"``: the HMAC-SHA256
        of its body with the secret of ``TIDEMILL_WEBHOOK_SECRET``, in hexadecimal digits with or without ``sha256=`` before them, as
        GitHub signs. By default the one whose variable is set; nothing, if none is.
    signature_header : str, default="X-Hub-Signature-256"
        The header that has the signature.
    body_bytes_max : int, default=1048576
        A post that is longer is refused.
    body_timeout : str, number of seconds or timedelta, default="30s"
        How long a body may take to come.
    tls : Tls, optional
        Speak TLS only, with `certificate` and `key`; if `ca` is given, clients need a certificate by one of these authorities.
    time, max_out_of_orderness, idle_after
        As for `from_table`.

    Raises
    ------
    DataSetError
        If an option makes no sense, or the secret that `auth` needs is not in the environment.
    """
    spec = described(
        "webhook",
        host=host,
        port=_port(port),
        path=path,
        answer=answer,
        auth=auth,
        signature_header=signature_header,
        body_bytes_max=body_bytes_max,
        patience_s=seconds(body_timeout, "body_timeout"),
        tls=files(tls),
    )
    return DataSet(stream_of(engine(), spec, optional_schema(schema), times(time, max_out_of_orderness, idle_after)))
