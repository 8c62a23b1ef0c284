"""``tidemill series --follow --checkpoint``: from rows to frames as one running stream.

Rows are cleaned with a state for each series, the solver that all workers enter for each time embeds the windows that
are full, and the sink writes their frames. A job that is started again goes on from its newest checkpoint; frames since
then come again, the same, and those that are there are left alone.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill import series, stream
from tidemill._job import init
from tidemill._tables.table import Table
from tidemill.dataset import DataSet, DataSetError
from tidemill.ml._job import active, using
from tidemill.series._errors import SeriesError
from tidemill.series._keyed import CLEAN, ROWS, cleaning, file_rows
from tidemill.series._read import Columns
from tidemill.series._rules import Rules
from tidemill.series._solver import FRAMES, Cut, solver
from tidemill.series._tail import FileTail
from tidemill.viz import FrameError, FrameReader

__all__ = ["Frames", "Running", "check_cut"]

#: The checkpoint interval.
_INTERVAL = "1s"
#: Bytes of a file that are read at a time; checkpoints are possible between two pieces.
_PIECE_BYTES = 1 << 20


def check_cut(cut: Cut) -> None:
    """Raise if the lengths of windows cannot be used, before anything is read."""
    cut.windows(np.array(["2000-01-01"], "datetime64[us]"))


@dataclass(frozen=True)
class Running:
    """The job.

    Parameters
    ----------
    checkpoint : str
        The folder of its checkpoints, or the URL of one.
    rules : Rules
    chosen : mapping of str to str
        Columns by role.
    embedder : Embedder
    cut : Cut
    options : mapping of str to JSON
        All that frames depend on, except the rows.
    """

    checkpoint: str
    rules: Rules
    chosen: Mapping[str, str | None]
    embedder: series.Embedder
    cut: Cut
    options: Mapping[str, Any]

    def of_files(self, path: str, settle_s: float, delimiter: str | None, null: Any, *, lenient: bool) -> DataSet:
        """Return the rows of files that grow; one worker reads them."""

        def opened() -> FileTail:
            return FileTail(path, dict(self.chosen), settle_s, delimiter, null, lenient, _PIECE_BYTES)

        time = stream.punctuated_watermarks("at", watermark="until")
        return stream.from_function(file_rows(opened), ROWS, time=time, idle_after="365d", name="files of series")

    def run(
        self,
        rows: DataSet,
        frames: Frames,
        look: Callable[[], object],
        columns: Columns | None = None,
        check: Callable[[NDArray[Any]], object] | None = None,
    ) -> None:
        """Run until interrupted, or until the stream ends; `look` is called on worker 0 now and then. For `columns` and `check` of a
        stream see `solver`.
        """

        def stop() -> bool:
            look()
            return False

        cleaned = rows.key_by("id").process(cleaning(self.rules), CLEAN)
        made = cleaned.bsp(
            solver(self.embedder, self.cut, self.options, columns, check),
            FRAMES,
            window=stream.window(stream.tumbling("1us"), on="at"),
            by="id",
            merge=lambda states: states[0],
            parallelism=init().size,
        )
        try:
            made.write_stream(
                frames.put,
                name="series",
                checkpoint=stream.Checkpoint(self.checkpoint, interval=_INTERVAL),
                stop_when=stop,
            )
        except DataSetError as error:
            # Report invalid rows in the same way as without a checkpoint.
            raise SeriesError(re.sub(r"(?s)^.*?\bSeriesError: ", "", str(error))) from error


class Frames:
    """The sink: writes frames that are not there yet, and the summary.

    Parameters
    ----------
    out : path
    folder : dict
        Options of `FrameFolder`.
    summary : dict
        What the summary says beside figures.
    say : callable
        Prints a line.
    """

    def __init__(
        self, out: Path, folder: Mapping[str, Any], summary: Mapping[str, Any], say: Callable[[str], object]
    ) -> None:
        self._out, self._options, self._summary, self._say = out, dict(folder), dict(summary), say
        self._folder: series.FrameFolder | None = None
        self._figures: list[dict[str, Any]] = []
        self._times: list[str] = []

    def put(self, table: Table) -> None:
        """Write the frames of a table, in order."""
        if self._folder is None:
            self._open()
        for row in table.to_pylist():
            self._write(row["number"], row["time"], pickle.loads(row["frame"]))
            if row["told"]:
                self._summarize(json.loads(row["told"]))

    def _open(self) -> None:
        with using(None):
            alone = active()
        self._folder = series.FrameFolder(self._out, append=True, lazily=True, comm=alone, **self._options)
        try:
            self._times = list(FrameReader(self._out).times)
            self._figures = json.loads((self._out / "summary.json").read_text(encoding="utf-8"))["per_frame"]
        except (FrameError, FileNotFoundError):
            # There is no frame yet, or the first one was not summarized.
            pass

    def _write(self, number: int, time: str, frame: series.Frame) -> None:
        assert self._folder is not None
        if number > len(self._times) or self._times[number : number + 1] not in ([], [time]):
            raise SeriesError(
                f"{self._out} does not have the {number} frames before {time} that the checkpoint is behind; remove both to start over"
            )
        self._figures[number:] = [frame.figures()]
        if number < len(self._times):
            return
        self._folder.write(frame)
        self._times.append(time)
        fit = "none" if np.isnan(frame.fit) else f"{frame.fit:.3f}"
        self._say(f"{time}: {len(frame.ids)} ids, stress {frame.stress:.3g}, fit {fit}")

    def _summarize(self, told: dict[str, Any]) -> None:
        fits = [one["alignment_fit"] for one in self._figures if one["alignment_fit"] is not None]
        means = {name: float(np.mean([one[name] for one in self._figures])) for name in ("stress", "iterations")}
        summary = {
            **self._summary,
            **told,
            "frames": len(self._figures),
            **means,
            "alignment_fit": float(np.mean(fits)) if fits else None,
            "per_frame": self._figures,
        }
        made = self._out / ".summary.json"
        made.write_text(json.dumps(summary, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        made.replace(self._out / "summary.json")
