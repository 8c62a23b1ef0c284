"""Where running streams tell of themselves: a small file for each worker, in a folder of the user on this machine."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import tempfile
import time
from pathlib import Path
from typing import Any

__all__ = ["folder", "jobs", "place", "stopping"]

_NUMBERS = itertools.count()
#: Who runs tells so every half second. When one has not for so long, it is another process that has its number now.
_SILENT_S = 60
#: How long others may still find that a job has stopped.
_STOPPED_S = 300


def folder() -> Path:
    """Where the files are, whether it is there or not."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(base) / f"tidemill-{os.getuid()}" / "streams"


def place(job: str, comm: Any) -> tuple[str, str] | None:
    """A worker's file, and what is the same in it all the time. None where there can be none, which a job can do without.

    Collective: other streams may have the same name, so worker 0 draws a number, which all workers tell.
    """
    job_id = comm.bcast(secrets.token_hex(8))
    where = folder()
    try:
        where.parent.mkdir(mode=0o700, exist_ok=True)
        # Where everybody may write, somebody else may have been first.
        if where.parent.stat().st_uid != os.getuid():
            return None
        where.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return None
    about = {
        "job": job,
        "job_id": job_id,
        "worker": comm.rank,
        "workers": comm.size,
        "pid": os.getpid(),
        "begun_s": time.time(),
    }
    return str(where / f"{os.getpid()}-{next(_NUMBERS)}.json"), json.dumps(about)


def jobs() -> list[dict[str, Any]]:
    """What workers on this machine tell now, and in which file; files that killed ones have left behind are removed."""
    found = []
    for file in sorted(folder().glob("*.json")):
        try:
            status: dict[str, Any] = json.loads(file.read_text())
            if status["at_s"] < time.time() - _SILENT_S:
                raise ProcessLookupError
            os.kill(status["pid"], 0)
        except ProcessLookupError:
            file.unlink(missing_ok=True)
        except (OSError, ValueError):
            # It has just gone.
            continue
        else:
            found.append({**status, "file": str(file)})
    _clear()
    return found


def _clear() -> None:
    """Remove what jobs that were asked to stop have left behind, when nobody waits for it any more."""
    for kind in ("stop", "stopped", "new"):
        for file in folder().glob(f"*.{kind}"):
            try:
                # When it was named so.
                since_s = time.time() - file.stat().st_ctime
            except OSError:
                continue
            if since_s > _STOPPED_S and (kind == "stopped" or not file.with_suffix(".json").exists()):
                file.unlink(missing_ok=True)


def stopping(status: dict[str, Any]) -> tuple[Path, Path]:
    """The file that asks a job to stop, given what its worker 0 tells, and the one that says that it has."""
    file = Path(status["file"])
    return file.with_suffix(".stop"), file.with_suffix(".stopped")
