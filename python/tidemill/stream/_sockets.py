"""Sources that read from a connection and cannot read again: lines from a server, messages of a WebSocket, HTTP posts."""

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
    """Return the number of a port. Port 0 is refused: the system would choose one that nobody would know."""
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
    """Connect to a TCP server and read the lines that it sends. One thread of one worker reads.

    At most once: lines read since the last checkpoint are lost if the job fails, and so are lines that the server sends
    while there is no connection. A lost connection is reported on the terminal and retried for `connect_timeout`.

    Parameters
    ----------
    host : str
    port : int
        From 1 to 65535.
    schema : mapping of str to str, or Arrow schema
        Types by column; ``"text"`` has one column, called ``line`` unless the schema names it.
    format : {"json", "csv", "text"}, default="json"
        JSON objects, CSV without a header, or plain text, one per line.
    delimiter : str, default=","
        For CSV.
    time, max_out_of_orderness, idle_after
        As in `from_table`.
    stop_at_end : bool, default=False
        End when the server closes the connection.
    on_error, quarantine
        As in `from_files`; a bad line is identified by address and number.
    line_bytes_max : int, default=1048576
        A longer line is bad.
    connect_timeout : str, number of seconds or timedelta, default="1m"
        As in `from_redis`.
    tls : Tls, optional
        Use TLS; the server's certificate must be valid for `host`.

    Raises
    ------
    DataSetError
        If an option is invalid. Errors in a line or the connection are errors of the job, which name it.
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
    """Read the messages of a WebSocket, one row each; at most once, like `from_socket`.

    Parameters
    ----------
    url : str
        ``ws://HOST:PORT/PATH``, or ``wss:`` for TLS.
    schema : mapping of str to str, or Arrow schema
        Types by column; ``"text"`` and ``"raw"`` have one column, called ``value`` unless the schema names it.
    format : {"json", "text", "raw"}, default="json"
        Format of messages, whether they come as text or as bytes; ``"raw"`` gives their bytes unchanged.
    headers : mapping of str to str, optional
        Headers of the request for the connection, such as ``{"X-Api-Key": key}``; error messages never show their
        values. Unless you set ``Authorization``, it is ``Bearer`` with the token in ``TIDEMILL_WEBSOCKET_TOKEN``, if
        that is set: use ``wss:`` in this case.
    send : str or iterable of str, optional
        Messages to send after connecting, such as subscriptions.
    time, max_out_of_orderness, idle_after
        As in `from_table`.
    stop_at_end : bool, default=False
        End when the server closes the connection.
    on_error, quarantine
        As in `from_files`; a bad message is identified by address and number.
    message_bytes_max : int, default=1048576
        A longer message closes the connection.
    connect_timeout : str, number of seconds or timedelta, default="1m"
        As in `from_redis`.
    tls : Tls, optional
        Certificates, for ``wss:``.

    Raises
    ------
    DataSetError
        If an option is invalid. Errors in a message or the connection are errors of the job, which name it.
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
    """Run a web server, on one worker, to which clients post rows: JSON objects, concatenated or in an array.

    Responses are 200 when all rows of a post were accepted; 400 with the reason if a row does not match the schema, in
    which case none is accepted; 401 if the post fails `auth`; 408 if the body does not arrive; 413 if it is too long;
    415 if it is compressed; 503 with ``Retry-After`` when the job cannot accept more at the moment. The server listens
    on loopback unless you set `host`. With ``tls=Tls(ca=...)``, clients need a certificate to post.

    Parameters
    ----------
    port : int
        An unused port from 1 to 65535.
    schema : mapping of str to str, or Arrow schema
        Types by column.
    path : str, default="/"
        The path to post rows to; other paths give 404.
    host : str, default="127.0.0.1"
        The address to listen on.
    answer : {"taken", "durable"}, default="taken"
        When to respond with 200. ``"taken"``: at once; rows since the last checkpoint are lost if the job fails, so
        each row is read at most once. ``"durable"``: when the rows are in a durable checkpoint; clients that get no
        response post again, so each row is read at least once. A response then takes up to one checkpoint interval.
    auth : {"token", "signature"}, optional
        How posts are authenticated. ``"token"``: ``Authorization: Bearer`` with the token in
        ``TIDEMILL_WEBHOOK_TOKEN``. ``"signature"``: the HMAC-SHA256 of the body with the secret in
        ``TIDEMILL_WEBHOOK_SECRET``, in hexadecimal, optionally with the prefix ``sha256=``, as GitHub signs. By default
        the one whose variable is set; if neither is set, posts are not authenticated.
    signature_header : str, default="X-Hub-Signature-256"
        The header with the signature.
    body_bytes_max : int, default=1048576
        A longer post is rejected.
    body_timeout : str, number of seconds or timedelta, default="30s"
        Time limit for receiving a body.
    tls : Tls, optional
        Use TLS only, with `certificate` and `key`; if `ca` is given, clients need a certificate issued by one of these
        authorities.
    time, max_out_of_orderness, idle_after
        As in `from_table`.

    Raises
    ------
    DataSetError
        If an option is invalid, or the secret that `auth` needs is not in the environment.
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
