"""The API of one folder of frames: its index as it grows, its files, points by row, id or text, and their ways through all frames."""

from __future__ import annotations

import json
import re
import time
from http import HTTPStatus
from pathlib import Path

from tidemill.viz._format import INDEX, MISSING, read_tensors, tensor_bytes
from tidemill.viz._http import Ask, Refused, number
from tidemill.viz._read import FrameReader

__all__ = ["answer"]

#: The only files of the folder that leave it.
_FILES = re.compile(r"(frame|points|edges|sample)-\d{6,}\.safetensors")

#: Longest that a question for news is left open, and how often the index is looked at meanwhile.
_WAIT_S_MAX = 30.0
_LOOK_S = 0.1
#: Most points, and trajectories, in one question.
_ROWS_MAX = 256


def answer(ask: Ask, folder: Path, path: str, query: dict[str, str]) -> None:
    """Answer a question about the folder's frames."""
    if ask.command != "GET":
        raise Refused(HTTPStatus.NOT_FOUND, "frames can only be read")
    if path == "index":
        _index(ask, folder, number(query, "from", 1 << 53), min(number(query, "wait", 3600), _WAIT_S_MAX))
    elif path == "trajectories":
        _trajectories(ask, folder, query.get("rows", ""))
    elif path == "points":
        _points(ask, folder, query)
    elif path.startswith("files/") and _FILES.fullmatch(path.removeprefix("files/")):
        file = folder / path.removeprefix("files/")
        if "tensors" in query:
            _tensors(ask, file, query["tensors"])
        else:
            ask.send_file(file)
    else:
        raise Refused(HTTPStatus.NOT_FOUND, "there is nothing of that name")


def _index(ask: Ask, folder: Path, begin: int, wait_s: float) -> None:
    """Send the lines of the index from a byte on; if there are none, wait for some."""
    path = folder / INDEX
    deadline = time.monotonic() + wait_s
    while True:
        size = path.stat().st_size if path.exists() else 0
        if size < begin:
            raise Refused(HTTPStatus.CONFLICT, "the frames were written anew; load the page again")
        if size > begin:
            with path.open("rb") as file:
                file.seek(begin)
                text = file.read(size - begin)
            whole = text[: text.rfind(b"\n") + 1]
            if whole:
                ask.send(HTTPStatus.OK, whole, "application/jsonl; charset=utf-8")
                return
        if time.monotonic() >= deadline or ask.server.closing:
            ask.send(HTTPStatus.OK, b"", "application/jsonl; charset=utf-8")
            return
        time.sleep(_LOOK_S)


def _tensors(ask: Ask, file: Path, text: str) -> None:
    """Send some tensors of a file, of those that it has."""
    if not file.is_file():
        raise Refused(HTTPStatus.NOT_FOUND, f"{file.name} is gone from the folder")
    names = _texts("tensors", text)
    tensors = {name: tensor for name, tensor in read_tensors(file).items() if name in names}
    ask.send(HTTPStatus.OK, tensor_bytes(tensors), "application/octet-stream")


def _points(ask: Ask, folder: Path, query: dict[str, str]) -> None:
    """Send what points are called and their categories: of rows, of ids, or of those that a text is found in."""
    reader = FrameReader(folder)
    if "rows" in query:
        rows = [row for row in _rows(query["rows"]) if row < reader.points]
    elif "ids" in query:
        rows = reader.rows_of(_texts("ids", query["ids"]))
    else:
        rows = reader.find(query.get("text", ""), min(number(query, "most", 1 << 16), _ROWS_MAX))
    ask.send_json(
        [
            {
                "row": row,
                "id": reader.id(row),
                "label": reader.own_label(row),
                "codes": {name: int(codes[row]) for name, codes in reader.codes.items() if codes[row] != MISSING},
            }
            for row in rows
        ]
    )


def _trajectories(ask: Ask, folder: Path, text: str) -> None:
    path = FrameReader(folder).trajectories(_rows(text))
    ask.send(HTTPStatus.OK, tensor_bytes({"trajectories": path}), "application/octet-stream")


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
