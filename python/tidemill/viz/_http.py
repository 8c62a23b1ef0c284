"""The viewer's HTTP server: the page's own files are public; paths that begin with ``/api/`` need a token.

The token comes as ``Authorization: Bearer TOKEN``. Since no cookie is involved, no other site can make a browser send
requests; the server still checks that a request comes from this page and is addressed to this host.
"""

from __future__ import annotations

import contextlib
import gzip
import ipaddress
import json
import os
import re
import socket
import sys
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from tidemill.viz._format import Busy, FrameError

__all__ = ["STATIC", "Ask", "Http", "Refused", "Site", "is_loopback", "number"]

STATIC = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".md": "text/plain; charset=utf-8",
}

#: Paths of built pages and their files.
_PAGE = re.compile(r"[\w./-]{0,200}", re.ASCII)

#: Maximum size of a rejected body that is read and discarded, and for how long, so that a browser can read the
#: response.
_DRAIN_BYTES_MAX = 1 << 30
_DRAIN_S = 5.0

#: Data between these sizes is compressed: frames with few points, in which headers, bits and codes are a large part.
#: Positions of many points hardly get smaller, and compressing them would take longer than sending them.
_COMPRESSED_BYTES_MIN, _COMPRESSED_BYTES_MAX = 200, 1 << 16

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Notebooks show the page in a frame; they, too, are on this host.
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' blob: data:; media-src blob:; worker-src 'self' blob:; style-src 'self' 'unsafe-inline'; "
        "base-uri 'none'; object-src 'none'; form-action 'none'; "
        "frame-ancestors 'self' http://localhost:* http://127.0.0.1:* https://localhost:* vscode-webview:"
    ),
}


class Site(Protocol):
    """The content of a server: some of the built pages, and an API."""

    #: The folder that is served, which messages must not name.
    place: str

    def page(self, path: str) -> str | None:
        """Return the built page for a path, if it is not the path of a file."""

    def api(self, ask: Ask, path: str, query: dict[str, str]) -> None:
        """Answer a request below ``/api/``, or raise `Refused`."""


class Refused(Exception):
    """A request was refused; says why."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Http(ThreadingHTTPServer):
    """Listens, and handles each connection on its own thread."""

    daemon_threads = True
    closing = False
    #: Pending connections: a page opens several at once, and more than the standard library's 5 are not an attack.
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], site: Site) -> None:
        self.site = site
        self.loopback = is_loopback(address[0])
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, Ask)
        # A connection may disappear between the moment it arrives and the moment it is accepted. A blocking accept
        # would then wait for the next one, and could not be ended.
        self.socket.setblocking(False)

    def without_place(self, text: str) -> str:
        """Return a message without paths of this machine, which clients need not know."""
        return text.replace(str(STATIC.parent), "the viewer").replace(self.site.place, "the folder")

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report errors of a handler; a closed connection is not an error."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class Ask(BaseHTTPRequestHandler):
    """A request, and methods to answer it."""

    protocol_version = "HTTP/1.1"
    server_version = "tidemill"
    sys_version = ""
    #: A browser that sends nothing for this long is considered gone.
    timeout = 60
    server: Http

    def do_GET(self) -> None:
        """Answer the request; the other methods do the same."""
        self._unread = self._length()
        #: HEAD is answered like GET without a body; proxies use it to check whether a server is there.
        self._only_head = self.command == "HEAD"
        if self._only_head:
            self.command = "GET"
        try:
            url, query = self._asked()
            self._check_origin()
            if "Transfer-Encoding" in self.headers:
                raise Refused(HTTPStatus.LENGTH_REQUIRED, "say how long it is with Content-Length")
            if url.path.startswith("/api/"):
                self.server.site.api(self, url.path.removeprefix("/api/"), query)
            else:
                self._page(url.path)
        except Refused as refused:
            self._refuse(refused.status, str(refused))
        except Busy:
            self._refuse(
                HTTPStatus.SERVICE_UNAVAILABLE, "another program is using the library; try again", ("Retry-After", "5")
            )
        except (ConnectionError, TimeoutError):
            self.close_connection = True
            return
        except FrameError as error:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, self.server.without_place(str(error)))
        except OSError as error:
            # Without the file's path, which clients must not learn.
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"the server could not use a file: {error.strerror}")
        # A body that was not read must not be taken for the next request; and a closing server sends nothing more on
        # open connections.
        if self._unread or self.server.closing:
            self.close_connection = True

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    @property
    def token(self) -> str:
        """The token of the request, or ``""``."""
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def _asked(self) -> tuple[urllib.parse.SplitResult, dict[str, str]]:
        try:
            url = urllib.parse.urlsplit(self.path)
            return url, dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        except ValueError:
            raise Refused(HTTPStatus.BAD_REQUEST, "the address is not one") from None

    def _check_origin(self) -> None:
        host = self.headers.get("Host", "")
        origin = self.headers.get("Origin")
        try:
            name = urllib.parse.urlsplit(f"//{host}").hostname or ""
            site = None if origin is None else urllib.parse.urlsplit(origin).netloc
        except ValueError:
            raise Refused(HTTPStatus.BAD_REQUEST, "Host or Origin does not name a host") from None
        # Otherwise, a page of another site whose name resolves to this host would count as this one.
        if self.server.loopback and not is_loopback(name):
            raise Refused(
                HTTPStatus.FORBIDDEN,
                "this server is called 127.0.0.1 or localhost; a proxy in front must say so in Host",
            )
        if self.command != "GET" and site is not None and site != host:
            raise Refused(HTTPStatus.FORBIDDEN, "the request comes from a page of another site")

    def _page(self, path: str) -> None:
        name = path.removeprefix("/")
        # Names of built files are short and plain; other names are rejected without checking.
        if not _PAGE.fullmatch(name):
            raise Refused(HTTPStatus.NOT_FOUND, "no such page")
        file = STATIC / (self.server.site.page(path) or name)
        if self.command != "GET" or ".." in name or file.suffix not in _TYPES or not file.is_file():
            raise Refused(HTTPStatus.NOT_FOUND, "no such page")
        # Vite includes a hash of the content in the names of built files.
        cache = "public, max-age=31536000, immutable" if name.startswith("assets/") else "no-cache"
        self.send(HTTPStatus.OK, file.read_bytes(), _TYPES[file.suffix], cache)

    # ---- request bodies

    def _length(self) -> int:
        told = self.headers.get("Content-Length", "0")
        return int(told) if re.fullmatch(r"\d{1,15}", told) else -1

    def body(self, most: int, what: str) -> bytes:
        """Read the body of the request, at most `most` bytes."""
        return b"".join(self.parts(most, what))

    def parts(self, most: int, what: str) -> Iterator[bytes]:
        """Read the body of the request piece by piece; more than `most` bytes are refused before any is read."""
        if not 0 < self._unread <= most:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"{what} at least one byte, and at most {most}")
        while self._unread:
            part = self.rfile.read(min(self._unread, 1 << 20))
            if not part:
                raise ConnectionAbortedError("the connection was closed halfway")
            self._unread -= len(part)
            yield part

    def json(self, most: int, what: str) -> dict[str, Any]:
        """Read a JSON object from the body of the request."""
        try:
            told = json.loads(self.body(most, what))
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict):
            raise Refused(HTTPStatus.BAD_REQUEST, "the request body is not a JSON object")
        return told

    # ---- responses

    def send(self, status: HTTPStatus, body: bytes, kind: str, cache: str = "no-store", *more: tuple[str, str]) -> None:
        """Answer with bytes."""
        self._head(status, kind, len(body), cache, *more)
        if not self._only_head:
            self.wfile.write(body)

    def send_parts(
        self,
        parts: Sequence[bytes | memoryview],
        kind: str = "application/octet-stream",
        compressed_max: int = _COMPRESSED_BYTES_MAX,
    ) -> None:
        """Answer with data in several buffers, compressed if this helps and the browser accepts it."""
        length = sum(len(part) for part in parts)
        encoding: list[tuple[str, str]] = []
        if _COMPRESSED_BYTES_MIN <= length <= compressed_max and "gzip" in self.headers.get("Accept-Encoding", ""):
            compressed = gzip.compress(b"".join(parts), compresslevel=6, mtime=0)
            # Positions alone get longer.
            if len(compressed) < length:
                parts, length, encoding = [compressed], len(compressed), [("Content-Encoding", "gzip")]
        self._head(HTTPStatus.OK, kind, length, "no-store", *encoding)
        for part in () if self._only_head else parts:
            self.wfile.write(part)

    def send_json(self, told: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
        """Answer with JSON."""
        self.send(status, json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode(), "application/json")

    def send_file(self, file: BinaryIO) -> None:
        """Answer with an open file."""
        size = os.fstat(file.fileno()).st_size
        self._head(HTTPStatus.OK, "application/octet-stream", size, "no-store")
        if self._only_head or not size:
            return
        # Copied from the file to the socket within the kernel.
        self.connection.settimeout(self.timeout)
        self.connection.sendfile(file, count=size)

    def _refuse(self, status: HTTPStatus, reason: str, *more: tuple[str, str]) -> None:
        # The body was not read, and must not be taken for the next request. A browser that is still sending when the
        # connection closes never reads the response, so the response is sent first, and incoming data is discarded for
        # a moment.
        self.close_connection = True
        self.send(status, reason.encode(errors="replace"), "text/plain; charset=utf-8", "no-store", *more)
        if not self._unread:
            return
        left, until = _DRAIN_BYTES_MAX, time.monotonic() + _DRAIN_S
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(_DRAIN_S)
            while left > 0 and time.monotonic() < until and (part := self.connection.recv(1 << 18)):
                left -= len(part)

    def _head(self, status: HTTPStatus, kind: str, length: int, cache: str, *more: tuple[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        self.send_header("Cache-Control", cache)
        if self.close_connection:
            self.send_header("Connection", "close")
        for name, value in (*_HEADERS.items(), *more):
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Do nothing: URLs contain the token, and logs are kept."""


def number(query: dict[str, str], name: str, most: int) -> int:
    """Return a number of the query, 0 if it is missing."""
    text = query.get(name, "0")
    if not re.fullmatch(r"\d{1,16}", text) or int(text) > most:
        raise Refused(HTTPStatus.BAD_REQUEST, f"{name} is a number up to {most}")
    return int(text)


def is_loopback(host: str) -> bool:
    """Return whether only programs on this machine can reach a host of that name."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
