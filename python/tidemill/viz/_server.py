"""Serves a folder of frames, or a library of plots, to clients with the token."""

from __future__ import annotations

import hmac
import re
import secrets
import threading
import urllib.parse
from http import HTTPStatus
from os import PathLike
from pathlib import Path

from tidemill.viz import _frames_api, _selections
from tidemill.viz._format import FrameError
from tidemill.viz._http import STATIC, Ask, Http, Refused, Site, is_loopback
from tidemill.viz._read import FrameReader
from tidemill.viz.library import Library
from tidemill.viz.library._site import LibrarySite

__all__ = ["Server"]


class Server:
    """A server for one folder of frames, or for a library, on its own threads until `close`.

    Parameters
    ----------
    what : path or Library
        A folder written by `FrameWriter`, which may still grow; or a library, which clients with the token may also
        change.
    host : str, default="127.0.0.1"
        Address to listen on. Any address other than loopback requires that you set `token`, since anyone who knows the
        token has access.
    port : int, default=0
        Port to listen on; 0 means any free port.
    token : str, optional
        At least 16 characters; random by default.

    Attributes
    ----------
    url : str
        URL for the browser, including the token.

    Raises
    ------
    FrameError
        If the folder has no frames, or the page was not built.
    ValueError
        If the host is not loopback and there is no token, or the token is too short.
    """

    def __init__(
        self, what: str | PathLike[str] | Library, *, host: str = "127.0.0.1", port: int = 0, token: str | None = None
    ) -> None:
        if token is None and not is_loopback(host):
            raise ValueError(f"others can reach {host!r}: choose a token (--token), which they need")
        if token is not None and not re.fullmatch(r"[\w.~-]{16,}", token, re.ASCII):
            raise ValueError("a token must have at least 16 characters: letters, digits and . _ ~ -")
        if not (STATIC / "index.html").exists():
            raise FrameError("the page was not built; run `make setup`, or install a wheel, which has it")
        self.token = token or secrets.token_urlsafe(24)
        site: Site
        if isinstance(what, Library):
            self.folder = what.folder
            site = LibrarySite(what, self.token)
        else:
            self.folder = Path(what)
            # Reports problems with the folder immediately.
            FrameReader(self.folder)
            site = _FolderSite(self.folder, self.token)
        self._http = Http((host, port), site)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._http.server_address[1]}/?token={self.token}"
        self._thread = threading.Thread(target=self._http.serve_forever, name="tidemill-view", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Serve until `close` is called, or the program is interrupted."""
        # Check now and then: a signal that arrives just before the thread sleeps does not wake it.
        while self._thread.is_alive():
            self._thread.join(1.0)

    def close(self) -> None:
        """Stop listening, within a second. Pending requests are still answered while the program runs."""
        self._http.closing = True
        self._http.shutdown()
        self._http.server_close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _FolderSite:
    """A folder of frames, and its viewers' groups."""

    def __init__(self, folder: Path, token: str) -> None:
        self.folder, self.token = folder, token
        self.place = str(folder)

    def page(self, path: str) -> str | None:
        return "index.html" if path == "/" else None

    def api(self, ask: Ask, path: str, query: dict[str, str]) -> None:
        if not hmac.compare_digest(ask.token.encode(), self.token.encode()):
            raise Refused(HTTPStatus.UNAUTHORIZED, "the token is missing or wrong: open the URL as it was printed")
        what, _, name = path.partition("/")
        if what == "selections":
            with _frames_api.of_run(self.folder, query):
                text = self._selections(ask, urllib.parse.unquote(name), query)
            ask.send(HTTPStatus.OK, text, "application/json")
        else:
            _frames_api.answer(ask, self.folder, path, query)

    def _selections(self, ask: Ask, name: str, query: dict[str, str]) -> bytes:
        """Return all groups, after making the requested change."""
        folder = self.folder
        if ask.command == "GET" and not name:
            return _selections.told(_selections.read(folder))
        if ask.command not in (("PUT", "DELETE") if name else ("PUT",)):
            raise Refused(HTTPStatus.NOT_FOUND, "groups can be read and put, one of them put and deleted")
        text = ask.body(_selections.BYTES_MAX, "groups take") if ask.command == "PUT" else b""
        points = FrameReader(folder).points
        try:
            if ask.command == "DELETE":
                make = _selections.delete(name)
            elif name:
                make = _selections.put(name, text, points)
            else:
                everything = _selections.checked(text, points)
                make = lambda _: everything  # noqa: E731

            def made(groups: _selections.Groups) -> _selections.Groups:
                # A writer that rewrites the frames waits for this lock.
                _frames_api.check_run(folder, query)
                return make(groups)

            return _selections.change(folder, made)
        except FrameError:
            raise
        except ValueError as error:
            raise Refused(HTTPStatus.BAD_REQUEST, str(error)) from error
