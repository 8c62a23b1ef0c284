"""Serves the page and a folder of frames over HTTP, to whoever knows the token.

The page itself is no secret; whatever begins with ``/api/`` is, and wants ``Authorization: Bearer TOKEN``. As no cookie
is involved, no other site can make a browser ask for it.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
import socket
import sys
import threading
import time
import urllib.parse
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from os import PathLike
from pathlib import Path
from typing import Any

from tidemill.viz import _selections
from tidemill.viz._format import INDEX, FrameError, tensor_bytes
from tidemill.viz._read import FrameReader

__all__ = ["Server"]

_STATIC = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".md": "text/plain; charset=utf-8",
}
#: The only files of the folder that leave it.
_FILES = re.compile(r"(frame|points)-\d{6,}\.safetensors")

#: Longest that a question for news is left open, and how often the index is looked at meanwhile.
_WAIT_S_MAX = 30.0
_LOOK_S = 0.1
#: Most trajectories in one question.
_ROWS_MAX = 256

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Notebooks show the page in a frame; they too are on this host.
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' blob: data:; media-src blob:; style-src 'self' 'unsafe-inline'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'self' http://localhost:* http://127.0.0.1:* https://localhost:* vscode-webview:"
    ),
}


class Server:
    """A server of one folder, in threads of its own until `close`.

    Parameters
    ----------
    folder : path
        Written by `FrameWriter`; may still grow.
    host : str, default="127.0.0.1"
        Where to listen. Anything but loopback wants a `token` of your own, as whoever knows it can look.
    port : int, default=0
        0: one that is free.
    token : str, optional
        At least 16 characters; default: a random one.

    Attributes
    ----------
    url : str
        What a browser opens, token included.

    Raises
    ------
    FrameError
        The folder has no frames, or the page was not built.
    ValueError
        The host is reachable from elsewhere and there is no token, or the token is too short.
    """

    def __init__(
        self, folder: str | PathLike[str], *, host: str = "127.0.0.1", port: int = 0, token: str | None = None
    ) -> None:
        self.folder = Path(folder)
        if token is None and not _is_loopback(host):
            raise ValueError(f"others can reach {host!r}: choose a token that they must know (--token)")
        if token is not None and not re.fullmatch(r"[\w.~-]{16,}", token, re.ASCII):
            raise ValueError("a token has at least 16 characters: letters, digits and . _ ~ -")
        if not (_STATIC / "index.html").exists():
            raise FrameError("the page was not built; `make setup` does it, and wheels have it")
        # Says at once what is wrong with the folder.
        FrameReader(self.folder)
        self.token = token or secrets.token_urlsafe(24)
        self._http = _Http((host, port), self)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._http.server_address[1]}/?token={self.token}"
        self._thread = threading.Thread(target=self._http.serve_forever, name="tidemill-view", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Serve until `close` is called, or the program is interrupted."""
        self._thread.join()

    def close(self) -> None:
        """Stop listening; questions that are open end at once."""
        self._http.closing = True
        self._http.shutdown()
        self._http.server_close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    closing = False

    def __init__(self, address: tuple[str, int], server: Server) -> None:
        self.served = server
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say what went wrong in a handler; a browser that has closed its connection is nothing wrong."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Refused(Exception):
    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "tidemill"
    sys_version = ""
    #: A browser that sends nothing for so long is gone.
    timeout = 60
    server: _Http

    def do_GET(self) -> None:
        """Answer with a file of the page, or of the folder."""
        self._answer()

    def do_PUT(self) -> None:
        """Keep the groups that a reader has made."""
        self._answer()

    def _answer(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        try:
            if not url.path.startswith("/api/"):
                self._page(url.path)
                return
            given = self.headers.get("Authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), self.server.served.token.encode()):
                raise _Refused(HTTPStatus.UNAUTHORIZED, "the token is missing or wrong: open the URL as it was printed")
            self._api(url.path.removeprefix("/api/"), query)
        except _Refused as refused:
            # What came with it was not read, and must not be taken for the next question.
            self.close_connection = True
            self._send(refused.status, str(refused).encode(), "text/plain; charset=utf-8")
        except (FrameError, OSError) as error:
            if isinstance(error, ConnectionError | TimeoutError):
                self.close_connection = True
                return
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, str(error).encode(), "text/plain; charset=utf-8")

    def _page(self, path: str) -> None:
        name = path.removeprefix("/") or "index.html"
        file = _STATIC / name
        if self.command != "GET" or ".." in name or file.suffix not in _TYPES or not file.is_file():
            raise _Refused(HTTPStatus.NOT_FOUND, "there is no such page")
        # Vite names what it builds after its content.
        cache = "public, max-age=31536000, immutable" if name.startswith("assets/") else "no-cache"
        self._send(HTTPStatus.OK, file.read_bytes(), _TYPES[file.suffix], cache)

    def _api(self, path: str, query: dict[str, str]) -> None:
        folder = self.server.served.folder
        if self.command == "PUT":
            if path != "selections":
                raise _Refused(HTTPStatus.NOT_FOUND, "only selections can be written")
            self._save_selections()
        elif path == "index":
            self._index(_number(query, "from", 1 << 53), min(_number(query, "wait", 3600), _WAIT_S_MAX))
        elif path == "selections":
            self._send(HTTPStatus.OK, _selections.read(folder), "application/json")
        elif path == "trajectories":
            self._trajectories(query.get("rows", ""))
        elif path.startswith("files/") and _FILES.fullmatch(path.removeprefix("files/")):
            self._file(folder / path.removeprefix("files/"))
        else:
            raise _Refused(HTTPStatus.NOT_FOUND, "there is nothing of that name")

    def _index(self, begin: int, wait_s: float) -> None:
        """Send the lines of the index from a byte on; if there are none, wait for some."""
        path = self.server.served.folder / INDEX
        deadline = time.monotonic() + wait_s
        while True:
            size = path.stat().st_size if path.exists() else 0
            if size < begin:
                raise _Refused(HTTPStatus.CONFLICT, "the frames were written anew; load the page again")
            if size > begin:
                with path.open("rb") as file:
                    file.seek(begin)
                    text = file.read(size - begin)
                whole = text[: text.rfind(b"\n") + 1]
                if whole:
                    self._send(HTTPStatus.OK, whole, "application/jsonl; charset=utf-8")
                    return
            if time.monotonic() >= deadline or self.server.closing:
                self._send(HTTPStatus.OK, b"", "application/jsonl; charset=utf-8")
                return
            time.sleep(_LOOK_S)

    def _file(self, path: Path) -> None:
        if not path.is_file():
            raise _Refused(HTTPStatus.NOT_FOUND, f"{path.name} is gone from the folder")
        with path.open("rb") as file:
            size = path.stat().st_size
            self._head(HTTPStatus.OK, "application/octet-stream", size, "no-store")
            # From the file to the socket within the kernel.
            self.connection.settimeout(self.timeout)
            self.connection.sendfile(file, count=size) if size else None

    def _trajectories(self, text: str) -> None:
        words = text.split(",")
        if not all(re.fullmatch(r"\d{1,10}", word) for word in words) or len(words) > _ROWS_MAX:
            raise _Refused(HTTPStatus.BAD_REQUEST, f"rows is a list of at most {_ROWS_MAX} numbers")
        path = FrameReader(self.server.served.folder).trajectories([int(word) for word in words])
        self._send(HTTPStatus.OK, tensor_bytes({"trajectories": path}), "application/octet-stream")

    def _save_selections(self) -> None:
        told = self.headers.get("Content-Length", "")
        length = int(told) if re.fullmatch(r"\d{1,12}", told) else 0
        if not 0 < length <= _selections.BYTES_MAX:
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"groups take at most {_selections.BYTES_MAX} bytes")
        try:
            _selections.write(self.server.served.folder, self.rfile.read(length))
        except ValueError as error:
            raise _Refused(HTTPStatus.BAD_REQUEST, str(error)) from error
        self._send(HTTPStatus.OK, b"{}", "application/json")

    def _head(self, status: HTTPStatus, kind: str, length: int, cache: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        self.send_header("Cache-Control", cache)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, status: HTTPStatus, body: bytes, kind: str, cache: str = "no-store") -> None:
        self._head(status, kind, len(body), cache)
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: URLs have the token, and logs are kept."""


def _number(query: dict[str, str], name: str, most: int) -> int:
    text = query.get(name, "0")
    if not re.fullmatch(r"\d{1,16}", text) or int(text) > most:
        raise _Refused(HTTPStatus.BAD_REQUEST, f"{name} is a number up to {most}")
    return int(text)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
