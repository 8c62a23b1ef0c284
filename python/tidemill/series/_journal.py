"""State needed to resume following: the input of each frame, and the last positions without rounding, stored beside the
frames.

``following.jsonl`` begins with the options, and has a line for each frame: its metrics, and a fingerprint of all rows
up to the end of its window. ``following.npz`` has the start and the base of the next frames. Both are written before
the frame is, so that a worker that is killed in between leaves at most one line too many; the state before that line is
kept, too. Only worker 0 calls these functions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from tidemill.series._read import SeriesError
from tidemill.series._relay import Base, Past
from tidemill.viz import FrameError, FrameReader

__all__ = ["Journal", "Standing"]

LINES, STATE = "following.jsonl", "following.npz"
#: The fields of a `Past` that refer to frames.
_BASES = ("first", "last", "key", "before")


@dataclass
class Standing:
    """The state of following: the lines of existing frames, and the past of the next one."""

    lines: list[dict[str, Any]]
    past: Past


class Journal:
    """The journal of a folder of frames.

    Parameters
    ----------
    folder : path
    options : dict
        For JSON: everything that frames depend on, except the rows.
    """

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        self._folder, self._options = folder, options
        self._frames = 0
        self._past = Past()

    def begin(self) -> None:
        """Start a new journal."""
        self._frames, self._past = 0, Past()
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / LINES).write_text(json.dumps({"options": self._options}) + "\n", encoding="utf-8")

    def is_begun(self) -> bool:
        """Return whether this journal was begun, with these options.

        Raises
        ------
        SeriesError
            If it was begun with other options.
        """
        try:
            with (self._folder / LINES).open(encoding="utf-8") as file:
                head = json.loads(file.readline())["options"]
        except FileNotFoundError:
            return False
        except (OSError, ValueError, KeyError) as error:
            raise SeriesError(f"{self._folder / LINES} cannot be read: {error}") from error
        self._check(head)
        return True

    def note(self, line: dict[str, Any], past: Past) -> None:
        """Record the next frame, and the past after it, before the frame is written."""
        with (self._folder / LINES).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
        arrays: dict[str, Any] = {"frames": np.array(self._frames + 1)}
        for when, known in (("before", self._past), ("after", past)):
            arrays[f"{when}_counts"] = np.array([known.windows, known.frames])
            for which in _BASES:
                base = getattr(known, which)
                if base is not None:
                    arrays |= {f"{when}_{which}_ids": base.ids, f"{when}_{which}_positions": base.positions}
        made = self._folder / f".{STATE}"
        with made.open("wb") as file:
            np.savez(file, **arrays)
        made.replace(self._folder / STATE)
        self._frames, self._past = self._frames + 1, past

    def read(self) -> Standing | None:
        """Return the state of following; None if nothing was followed, or no frame was computed.

        Raises
        ------
        SeriesError
            If the frames were computed with other options, or do not belong to the journal.
        """
        path = self._folder / LINES
        try:
            count = len(FrameReader(self._folder))
            told = path.read_text(encoding="utf-8").splitlines(keepends=True)
        except (FrameError, FileNotFoundError):
            return None
        if not count:
            return None
        doubt = f"{self._folder} has frames that do not fit {LINES}; --overwrite recomputes them"
        try:
            # The end of a line may be missing if its frame does not exist.
            head, *lines = [json.loads(line) for line in told if line.endswith("\n")]
            self._check(head["options"])
            with np.load(self._folder / STATE, allow_pickle=False) as arrays:
                ahead = int(arrays["frames"]) - count
                if ahead not in (0, 1) or len(lines) < count:
                    raise SeriesError(doubt)
                when = "after" if ahead == 0 else "before"
                windows, frames = arrays[f"{when}_counts"].tolist()
                past = Past(
                    windows,
                    frames,
                    *(Base(arrays[f"{when}_{which}_ids"], arrays[f"{when}_{which}_positions"]) for which in _BASES),
                )
        except SeriesError:
            raise
        except (OSError, EOFError, KeyError, ValueError, BadZipFile) as error:
            raise SeriesError(f"{doubt}: {error}") from error
        lines = lines[:count]
        # The line of a frame that was not written must not precede that of the next one.
        made = path.with_name(f".{LINES}")
        made.write_text("".join(json.dumps(line) + "\n" for line in [head, *lines]), encoding="utf-8")
        made.replace(path)
        self._frames, self._past = count, past
        return Standing(lines, self._past)

    def _check(self, given: dict[str, Any]) -> None:
        is_stream = self._options.get("checkpoint") is not None
        remedy = "remove them and the checkpoints to start over" if is_stream else "--overwrite recomputes them"
        for name, value in self._options.items():
            if given.get(name) != value:
                raise SeriesError(
                    f"{self._folder} has frames made with {name}={given.get(name)!r}, not {value!r}; {remedy}"
                )
