"""Restarting a stream's job with other workers: files that the job, its launcher and ``tidemill scale`` exchange.

They are in the private folder of the job; `crates/launch/src/scale.rs` has a table of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidemill import _crash

__all__ = ["answering", "ask", "described", "launch_folder", "leave_if_asked", "withdraw"]

_ASKED = "scale.json"
_STOPPED = "stopped"
_SCALED = "scaled.json"


def launch_folder() -> str | None:
    """Return the folder through which this job's launcher can be asked for other workers; None if it cannot.

    A stream of another thread cannot end the program.
    """
    return _crash.folder() if threading.current_thread() is threading.main_thread() else None


def ask(folder: Path, request: dict[str, Any]) -> None:
    """Ask the launcher to start the job with other workers when its stream has stopped.

    Raises
    ------
    FileExistsError
        If somebody else has asked before.
    OSError
        If the folder cannot be written to.
    """
    draft = folder / f"scale-{os.getpid()}.draft"
    draft.write_text(json.dumps(request))
    try:
        os.link(draft, folder / _ASKED)
    finally:
        draft.unlink()


def withdraw(folder: Path) -> None:
    """Withdraw a request to a stream that cannot be asked to stop."""
    (folder / _ASKED).unlink(missing_ok=True)


def leave_if_asked(comm: Any) -> None:
    """End the program if the launcher is to start it again with other workers; collective, behind a stream's end.

    Raises
    ------
    SystemExit
        On all workers, with exit code 0.
    """
    is_asked = False
    if comm.rank == 0 and (folder := launch_folder()) is not None and (Path(folder) / _ASKED).exists():
        (Path(folder) / _STOPPED).touch()
        is_asked = True
    if comm.size > 1:
        is_asked = comm.bcast(is_asked)
    if is_asked:
        sys.exit(0)


def answering(watch: Callable[[Any], object] | None) -> Callable[[Any], object] | None:
    """Wrap `watch`, called while the stream runs: its first call answers the restart request. Worker 0 only."""
    folder = launch_folder()
    if folder is None or not (scaled := Path(folder) / _SCALED).exists():
        return watch
    answered = False

    def look(running: Any) -> None:
        nonlocal answered
        if not answered:
            answered = True
            _answer(scaled)
        if watch is not None:
            watch(running)

    return look


def _answer(scaled: Path) -> None:
    """Tell the requester and standard error that the stream runs again. Deleting the file tells the launcher."""
    told = json.loads(scaled.read_text())
    answer = {"from": told["from"], "to": told["workers"], "stood_s": time.time() - told["asked_s"]}
    if told["reverted"] is not None:
        answer = {"error": told["reverted"]}
    else:
        print(f"tidemill: {described(answer)}", file=sys.stderr, flush=True)
    file = Path(told["answer"])
    # The requester may have stopped waiting.
    with contextlib.suppress(OSError):
        new = file.with_suffix(".new")
        new.write_text(json.dumps(answer))
        new.replace(file)
    scaled.unlink()


def described(answer: dict[str, Any]) -> str:
    """Return an answer as a sentence."""
    stood = f"the stream stood for {answer['stood_s']:.1f} s"
    if answer["from"] == answer["to"]:
        return f"started again with {answer['to']} workers; {stood}"
    return f"scaled from {answer['from']} to {answer['to']} workers; {stood}"
