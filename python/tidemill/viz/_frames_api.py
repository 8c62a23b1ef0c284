"""The API of one folder of frames: its index as it grows, its files, ways of points through all frames."""

from __future__ import annotations

import re
import time
from http import HTTPStatus
from pathlib import Path

from tidemill.viz._format import INDEX, tensor_bytes
from tidemill.viz._http import Ask, Refused, number
from tidemill.viz._read import FrameReader

__all__ = ["answer"]

#: The only files of the folder that leave it.
_FILES = re.compile(r"(frame|points|edges|sample)-\d{6,}\.safetensors")

#: Longest that a question for news is left open, and how often the index is looked at meanwhile.
_WAIT_S_MAX = 30.0
_LOOK_S = 0.1
#: Most trajectories in one question.
_ROWS_MAX = 256


def answer(ask: Ask, folder: Path, path: str, query: dict[str, str]) -> None:
    """Answer a question about the folder's frames."""
    if ask.command != "GET":
        raise Refused(HTTPStatus.NOT_FOUND, "frames can only be read")
    if path == "index":
        _index(ask, folder, number(query, "from", 1 << 53), min(number(query, "wait", 3600), _WAIT_S_MAX))
    elif path == "trajectories":
        _trajectories(ask, folder, query.get("rows", ""))
    elif path.startswith("files/") and _FILES.fullmatch(path.removeprefix("files/")):
        ask.send_file(folder / path.removeprefix("files/"))
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


def _trajectories(ask: Ask, folder: Path, text: str) -> None:
    words = text.split(",")
    if not all(re.fullmatch(r"\d{1,10}", word) for word in words) or len(words) > _ROWS_MAX:
        raise Refused(HTTPStatus.BAD_REQUEST, f"rows is a list of at most {_ROWS_MAX} numbers")
    path = FrameReader(folder).trajectories([int(word) for word in words])
    ask.send(HTTPStatus.OK, tensor_bytes({"trajectories": path}), "application/octet-stream")
