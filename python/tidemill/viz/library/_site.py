"""The library over HTTP: a few REST routes over `Library`, and the permissions of a share's token.

``docs/library.md`` lists the routes. Each request is answered by one call of the library, which is atomic.
"""

from __future__ import annotations

import dataclasses
import hmac
import re
import tempfile
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import Any

from tidemill.viz import _frames_api
from tidemill.viz._format import Busy
from tidemill.viz._http import Ask, Refused, number
from tidemill.viz.library import _changes
from tidemill.viz.library._cloud import UploadError
from tidemill.viz.library._library import Library
from tidemill.viz.library._upload import FORMATS

__all__ = ["LibrarySite"]

_TEXTS_BYTES_MAX = 1 << 20
#: Maximum number of plots in one response.
_PLOTS_MAX = 200

_PLOT = re.compile(r"plots/([0-9a-f]{16})(?:/(.*))?")


class LibrarySite:
    """A library for clients with its token, and single plots for clients with the token of a share."""

    def __init__(self, library: Library, token: str) -> None:
        self.library, self.token = library, token
        self.place = str(library.folder)

    def page(self, path: str) -> str | None:
        """Return the list of plots, or the viewer of one."""
        if path == "/":
            return "library.html"
        return "index.html" if re.fullmatch(r"/plots/[0-9a-f]{16}", path) else None

    def api(self, ask: Ask, path: str, query: dict[str, str]) -> None:
        """Answer, if the token permits it."""
        found = _PLOT.fullmatch(path)
        if hmac.compare_digest(ask.token.encode(), self.token.encode()):
            answer = self._of_plot if found else self._of_library
        else:
            shared = self.library.shared(ask.token)
            if shared is None:
                raise Refused(
                    HTTPStatus.UNAUTHORIZED,
                    "the token is missing or wrong, or the link was withdrawn; ask for a new one",
                )
            if found is None or found[1] != shared[0] or ask.command != "GET":
                raise Refused(HTTPStatus.FORBIDDEN, "this link only shows one plot")
            answer = _Looking(self.library, shared[1])
        try:
            if found:
                answer(ask, found[1], query, found[2] or "")
            else:
                answer(ask, path, query, "")
        except KeyError as error:
            raise Refused(HTTPStatus.NOT_FOUND, str(error.args[0])) from error
        except Busy:
            raise
        except (UploadError, ValueError, TypeError) as error:
            raise Refused(HTTPStatus.BAD_REQUEST, ask.server.without_place(str(error))) from error

    def _of_library(self, ask: Ask, path: str, query: dict[str, str], _: str) -> None:
        library = self.library
        if (ask.command, path) == ("GET", "library"):
            ask.send_json(
                {
                    "tags": library.tags(),
                    "collections": library.collections(),
                    "formats": list(FORMATS),
                    "limits": {
                        "bytes": library.limits.bytes,
                        "points": library.limits.points,
                        "frames": library.limits.frames,
                    },
                }
            )
        elif (ask.command, path) == ("GET", "plots"):
            search = query.get("search", "")
            offset = number(query, "offset", 1 << 40)
            plots = library.plots(search, limit=_PLOTS_MAX, offset=offset)
            ask.send_json({"plots": list(map(dataclasses.asdict, plots)), "total": library.count(search)})
        elif (ask.command, path) == ("POST", "plots"):
            self._upload(ask, query)
        else:
            raise Refused(HTTPStatus.NOT_FOUND, "there is nothing of that name")

    def _upload(self, ask: Ask, query: dict[str, str]) -> None:
        # The file's name appears in messages, and its suffix tells the format; no file here is created with this name.
        name = PurePosixPath(query.get("name", "").replace("\\", "/")).name[:200]
        if not name:
            raise Refused(HTTPStatus.BAD_REQUEST, "an upload needs a name: POST /api/plots?name=points.csv")
        suffix = PurePosixPath(name).suffix.lower()
        with (
            self.library.uploading(),
            tempfile.TemporaryDirectory(dir=self.library.folder / "plots", prefix=".upload-") as folder,
        ):
            path = Path(folder) / f"upload{suffix if suffix in FORMATS else ''}"
            with path.open("wb") as file:
                file.writelines(ask.parts(self.library.limits.bytes, f"{name}: an upload has"))
            plot = self.library.add_files(
                {name: path},
                title=query.get("title", ""),
                description=query.get("description", ""),
                tags=query.get("tags", "").split(","),
                collection=query.get("collection", ""),
                apart=True,
            )
        ask.send_json(dataclasses.asdict(plot), HTTPStatus.CREATED)

    def _of_plot(self, ask: Ask, id: str, query: dict[str, str], rest: str) -> None:
        library = self.library
        kind, _, which = rest.partition("/")
        told: Callable[[], dict[str, Any]] = lambda: ask.json(_TEXTS_BYTES_MAX, "it takes")  # noqa: E731
        match ask.command, kind, bool(which):
            case "PATCH", "", _:
                given = _fields(told(), title=str, description=str, tags=list, collection=str)
                ask.send_json(dataclasses.asdict(library.update(id, **given)))
            case "DELETE", "", _:
                library.remove(id)
                ask.send_json({})
            case "POST", "comments", False:
                given = _fields(told(), text=str, author=str)
                ask.send_json(
                    dataclasses.asdict(library.comment(id, given.pop("text", ""), **given)), HTTPStatus.CREATED
                )
            case "DELETE", "comments", True:
                library.remove_comment(id, _whole(which))
                ask.send_json({})
            case "POST", "versions", False:
                given = _fields(
                    ask.json(2 * _changes.BYTES_MAX, "a version takes"),
                    name=str,
                    changes=list,
                    parent=int,
                    note=str,
                    author=str,
                )
                saved = library.save_version(id, given.pop("name", ""), given.pop("changes", None), **given)
                ask.send_json(dataclasses.asdict(saved), HTTPStatus.CREATED)
            case "PATCH", "versions", True:
                given = _fields(told(), name=str, note=str)
                ask.send_json(dataclasses.asdict(library.update_version(id, _whole(which), **given)))
            case "DELETE", "versions", True:
                library.remove_version(id, _whole(which))
                ask.send_json({})
            case "POST", "shares", False:
                given = _fields(told(), name=str, version=int)
                ask.send_json(dataclasses.asdict(library.share(id, **given)), HTTPStatus.CREATED)
            case "DELETE", "shares", True:
                library.withdraw(id, _whole(which))
                ask.send_json({})
            case "GET", "", _:
                ask.send_json(
                    {
                        **_shown(library, id, None),
                        "writable": True,
                        "comments": list(map(dataclasses.asdict, library.comments(id))),
                        "shares": list(map(dataclasses.asdict, library.shares(id))),
                    }
                )
            case _:
                _looked(library, ask, id, query, rest, None)


class _Looking:
    """The requests that the token of a share permits."""

    def __init__(self, library: Library, version: int | None) -> None:
        self.library, self.version = library, version

    def __call__(self, ask: Ask, id: str, query: dict[str, str], rest: str) -> None:
        if rest == "":
            ask.send_json({**_shown(self.library, id, self.version), "writable": False, "comments": [], "shares": []})
        else:
            _looked(self.library, ask, id, query, rest, self.version)


def _shown(library: Library, id: str, only: int | None) -> dict[str, Any]:
    versions = [version for version in library.versions(id) if only is None or version.number == only]
    return {"plot": dataclasses.asdict(library.plot(id)), "versions": list(map(dataclasses.asdict, versions))}


def _looked(library: Library, ask: Ask, id: str, query: dict[str, str], rest: str, only: int | None) -> None:
    """Answer read-only requests: a version's changes, or frames."""
    kind, _, which = rest.partition("/")
    if kind == "frames":
        _frames_api.answer(ask, library.frames(id), which, query)
    elif (ask.command, kind) == ("GET", "versions") and which:
        if only not in (None, _whole(which)):
            raise Refused(HTTPStatus.FORBIDDEN, "this link shows another version")
        ask.send_json({"changes": library.changes(id, _whole(which))})
    else:
        raise Refused(HTTPStatus.NOT_FOUND, "there is nothing of that name")


def _fields(told: dict[str, Any], **types: type) -> dict[str, Any]:
    """Return the given fields; an unknown one, or one of another type, is refused."""
    kept = {}
    for name, value in told.items():
        kind = types.get(name)
        if kind is None:
            raise ValueError(f"there is no field {name[:40]!r}; there are {', '.join(types)}")
        if value is None:
            continue
        fits = isinstance(value, kind) and not isinstance(value, bool)
        if not fits or (name == "tags" and not all(isinstance(tag, str) for tag in told[name])):
            raise ValueError(f"the field {name!r} has a value of another type")
        kept[name] = value
    return kept


def _whole(text: str) -> int:
    if not re.fullmatch(r"\d{1,15}", text):
        raise KeyError("there is nothing of that number")
    return int(text)
