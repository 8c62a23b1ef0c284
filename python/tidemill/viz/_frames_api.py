"""The API of one folder of frames: its growing index, its files, points by row, id or text, and their trajectories.

A page says with ``run=`` which frames it has. If they have been rewritten under the same names, it gets status 409, and
never any data of the new ones.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from tidemill.viz._format import INDEX, MISSING, FrameError, read_tensors, run_of, tensor_parts
from tidemill.viz._http import Ask, Refused, number
from tidemill.viz._read import FrameReader

__all__ = ["answer", "check_run", "of_run"]

#: The only files of the folder that are served.
_FILES = re.compile(r"(frame|points|edges|sample)-\d{6,}\.safetensors")

#: Maximum time to hold a request for new frames, and the interval between checks of the index.
_WAIT_S_MAX = 30.0
_LOOK_S = 0.1
#: Maximum number of points, and of trajectories, in one request.
_ROWS_MAX = 256


def answer(ask: Ask, folder: Path, path: str, query: dict[str, str]) -> None:
    """Answer a request for the folder's frames."""
    if ask.command != "GET":
        raise Refused(HTTPStatus.NOT_FOUND, "frames can only be read")
    if path == "index":
        _index(ask, folder, query)
    elif path == "trajectories":
        with of_run(folder, query):
            found = FrameReader(folder).trajectories(_rows(query.get("rows", "")))
        ask.send_parts(tensor_parts({"trajectories": found}))
    elif path == "points":
        with of_run(folder, query):
            points = _points(folder, query)
        ask.send_json(points)
    elif path.startswith("files/") and _FILES.fullmatch(path.removeprefix("files/")):
        _file(ask, folder, path.removeprefix("files/"), query)
    else:
        raise Refused(HTTPStatus.NOT_FOUND, "there is nothing of that name")


def check_run(folder: Path, query: dict[str, str]) -> None:
    """Refuse requests for other frames than the folder has now."""
    if "run" in query and query["run"] != run_of(folder):
        raise Refused(HTTPStatus.CONFLICT, "the frames were rewritten; reload the page")


@contextmanager
def of_run(folder: Path, query: dict[str, str]) -> Iterator[None]:
    """Let files be opened and read, and check afterwards that they belong to the frames that the page has.

    Writers remove the index first: while it exists, so do all files that it names.
    """
    try:
        yield
    except (FrameError, FileNotFoundError, Refused):
        check_run(folder, query)
        raise
    check_run(folder, query)


def _file(ask: Ask, folder: Path, name: str, query: dict[str, str]) -> None:
    """Send a file, or some of its tensors, of those that it has."""
    tensors = _texts("tensors", query["tensors"]) if "tensors" in query else None
    with ExitStack() as opened:
        with of_run(folder, query):
            path = folder / name
            if not path.is_file():
                raise Refused(HTTPStatus.NOT_FOUND, f"{name} is gone from the folder")
            if tensors is None:
                file = opened.enter_context(path.open("rb"))
            else:
                found = {name: tensor for name, tensor in read_tensors(path).items() if name in tensors}
        if tensors is None:
            ask.send_file(file)
        else:
            ask.send_parts(tensor_parts(found))


def _index(ask: Ask, folder: Path, query: dict[str, str]) -> None:
    """Send the lines of the index from a byte on; if there are none, wait for some."""
    begin, wait_s = number(query, "from", 1 << 53), min(number(query, "wait", 3600), _WAIT_S_MAX)
    path = folder / INDEX
    deadline = time.monotonic() + wait_s
    while True:
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(min(begin, size))
                text = file.read(size - begin) if size > begin else b""
        except FileNotFoundError:
            size, text = 0, b""
        check_run(folder, query)
        if size < begin:
            raise Refused(HTTPStatus.CONFLICT, "the frames were rewritten; reload the page")
        whole = text[: text.rfind(b"\n") + 1]
        if whole:
            ask.send_parts([whole], "application/jsonl; charset=utf-8", compressed_max=len(whole))
            return
        if time.monotonic() >= deadline or ask.server.closing:
            ask.send(HTTPStatus.OK, b"", "application/jsonl; charset=utf-8")
            return
        time.sleep(_LOOK_S)


def _points(folder: Path, query: dict[str, str]) -> list[dict[str, Any]]:
    """Return the names and categories of points: by row, by id, or those that match a text."""
    reader = FrameReader(folder)
    if "rows" in query:
        rows = [row for row in _rows(query["rows"]) if row < reader.points]
    elif "ids" in query:
        rows = reader.rows_of(_texts("ids", query["ids"]))
    else:
        rows = reader.find(query.get("text", ""), min(number(query, "most", 1 << 16), _ROWS_MAX))
    return [
        {
            "row": row,
            "id": reader.id(row),
            "label": reader.own_label(row),
            "codes": {name: int(codes[row]) for name, codes in reader.codes.items() if codes[row] != MISSING},
        }
        for row in rows
    ]


def _rows(text: str) -> list[int]:
    words = text.split(",")
    if not all(re.fullmatch(r"[0-9]{1,10}", word) for word in words) or len(words) > _ROWS_MAX:
        raise Refused(HTTPStatus.BAD_REQUEST, f"rows is a list of at most {_ROWS_MAX} numbers")
    return [int(word) for word in words]


def _texts(name: str, text: str) -> list[str]:
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, list) or len(told) > _ROWS_MAX or not all(isinstance(one, str) for one in told):
        raise Refused(HTTPStatus.BAD_REQUEST, f"{name} is a list of at most {_ROWS_MAX} texts, as JSON")
    return told
