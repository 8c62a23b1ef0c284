"""Reports the exception that ends a worker.

Under ``tidemill run`` an uncaught exception is written to the job's crash folder instead of being printed, so that the
launcher can show the traceback of the worker where the trouble began, once, instead of one from every worker. Without a
launcher, or when the report cannot be written, the traceback is printed as always. The exit code stays Python's: 1.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from types import TracebackType

#: Exceptions that only report the failure of another worker. Given by name: this module is imported first and imports
#: nothing else of Tidemill.
_CONSEQUENCES = frozenset({"PeerFailed", "WorkerLost"})

#: Characters of a traceback and of its last line that are kept. The launcher reads 4 MiB, and JSON takes up to 12 bytes
#: per character.
_TEXT_MAX = 300_000
_SUMMARY_MAX = 1000

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], None]
_installed_in: int | None = None
_notify: Callable[[str], None] | None = None
_folder: str | None = None


def folder() -> str | None:
    """Return the private folder of this worker's job, which its launcher made; None without `tidemill run`."""
    return _folder if _installed_in == os.getpid() else None


def install(notify: Callable[[str], None] | None = None) -> None:
    """Report the exception that ends this worker, if one does.

    Reads ``TIDEMILL_CRASH_DIR`` and ``TIDEMILL_RANK``, and removes the former from the environment, so that programs
    that this worker starts do not report in its name. Installing again in the same process only sets `notify`.

    Parameters
    ----------
    notify : callable taking str, optional
        Called with the formatted traceback if the trouble began in this worker, to tell the other workers.
    """
    global _installed_in, _notify, _folder
    process = os.getpid()
    _notify = notify or _notify
    if _installed_in == process:
        return
    _installed_in = process
    folder = _folder = os.environ.pop("TIDEMILL_CRASH_DIR", None)
    rank = int(os.environ.get("TIDEMILL_RANK", "0"))
    earlier: Hook = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
        # A forked child inherits this hook, but is not the worker.
        if os.getpid() != process:
            earlier(kind, error, frames)
            return
        # File names and messages may contain bytes that are not valid text.
        text = "".join(traceback.format_exception(kind, error, frames)).encode("utf-8", "backslashreplace").decode()
        text = _shortened(text, _TEXT_MAX)
        origin = not any(type(link).__name__ in _CONSEQUENCES for link in _chain(error))
        if folder is None or not _write(folder, rank, _report(rank, error, text, origin)):
            earlier(kind, error, frames)
        if origin and _notify is not None:
            _notify(text)

    sys.excepthook = hook


def _report(rank: int, error: BaseException, text: str, origin: bool) -> dict[str, object]:
    if isinstance(error, KeyboardInterrupt):
        kind = "interrupt"
    else:
        kind = "error" if origin else "peer_failed"
    lines = text.strip().splitlines()
    summary = _shortened(lines[-1], _SUMMARY_MAX) if lines else ""
    return {"rank": rank, "kind": kind, "summary": summary, "traceback": text}


def _shortened(text: str, length_max: int) -> str:
    """Return the text, without its middle if it is too long: people read the two ends."""
    if len(text) <= length_max:
        return text
    half = length_max // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters left out ...] {text[-half:]}"


def _write(folder: str, rank: int, report: dict[str, object]) -> bool:
    """Write the report atomically; returns whether it exists."""
    try:
        # Imported here, so that workers that do not fail start sooner. The import may fail if no more files can be
        # opened.
        import json
        from pathlib import Path

        part = Path(folder, f"rank-{rank}.part")
        part.write_text(json.dumps(report), encoding="utf-8")
        part.replace(part.with_suffix(".json"))
    except (OSError, ImportError):
        return False
    return True


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the exception and those that it was raised from or while handling."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ if link.__suppress_context__ else link.__cause__ or link.__context__
