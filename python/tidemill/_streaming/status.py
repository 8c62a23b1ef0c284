"""Status files of running streams: a small file for each worker, in a folder of the user on the worker's machine.

Worker 0 gets the status of the others over the links between workers, and writes all of it to its file.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import secrets
import stat
import tempfile
import time
from pathlib import Path
from typing import Any

from tidemill._job import init
from tidemill._streaming import scale as _scale

__all__ = ["folder", "jobs", "moving", "place", "stopping"]

_NUMBERS = itertools.count()
#: A running worker reports every half second; in a job with many workers, each reports less often. After this much
#: silence, another process now has its process ID.
_SILENT_S = 60
#: How long others can still see that a job has stopped, or has answered.
_STOPPED_S = 300
#: Files that this module and the Rust side create; others in the folder are left alone.
_OURS = re.compile(r"\d+-\d+\.(json|stop|stopped|new|move|[0-9a-f]+\.(draft|moved))")
#: Maximum size of a file, for jobs with thousands of workers.
_BYTES_MAX = 256 << 20


def folder() -> Path:
    """Return the folder of the status files, whether it exists or not."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(base) / f"tidemill-{os.getuid()}" / "streams"


def place(job: str, comm: Any) -> tuple[str | None, str]:
    """Return a worker's file, and the constant part of its content. No file if none can be created; a job works without
    it.

    Collective: other streams may have the same name, so worker 0 draws a number, which all workers report, along with
    worker 0's location.
    """
    member = init()
    host = member.workers[member.rank]["host"]
    job_id, first_host = comm.bcast((secrets.token_hex(8), host))
    about = {
        "job": job,
        "job_id": job_id,
        "worker": comm.rank,
        "workers": comm.size,
        "host": host,
        "first_host": first_host,
        "pid": os.getpid(),
        "begun_s": time.time(),
        "begun_up_s": _up_s(),
        "launch": _scale.launch_folder(),
    }
    return _file(), json.dumps(about)


def _file() -> str | None:
    """Return a new file of this process, and remove files that killed workers have left behind."""
    where = folder()
    try:
        # The umask may have removed permissions, but cannot have added any.
        where.parent.mkdir(mode=0o700, exist_ok=True)
        where.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return None
    if not _is_own(where):
        return None
    jobs()
    return str(where / f"{os.getpid()}-{next(_NUMBERS)}.json")


def _is_own(where: Path) -> bool:
    """Return whether a folder and its parent belong to this user, and nobody else can write there.

    In the folder for temporary files, another user may have created a link, or a folder with their own files.
    """
    for path in (where.parent, where):
        try:
            found = path.lstat()
        except OSError:
            return False
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
            return False
    return True


def _told(file: Path) -> list[dict[str, Any]]:
    """Return the lines of a file, which must belong to this user.

    Raises
    ------
    OSError
        If it does not exist, is a link, or belongs to another user.
    ValueError
        If it is not a status file.
    """
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as data:
        found = os.fstat(data.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
            raise PermissionError(f"{file} is not a file of this user")
        if found.st_size > _BYTES_MAX:
            raise ValueError("it is too long")
        told = [json.loads(line) for line in data.read(_BYTES_MAX).splitlines()]
    if not told or not all(isinstance(one, dict) for one in told):
        raise ValueError("it does not have objects")
    return told


def _up_s() -> float:
    """Return the seconds since this machine was started, a clock that nobody can set."""
    return float(Path("/proc/uptime").read_text().split()[0])


def _silent_s(status: dict[str, Any]) -> float:
    """Return the seconds since a worker of this machine has written `status`.

    With the wall clock, setting it a day ahead would make all workers look silent for a day, and their files would be
    removed.
    """
    told_s: float | None = status.get("up_s")
    if told_s is not None and (silent_s := _up_s() - told_s) > -1:
        return max(silent_s, 0.0)
    # The file was written before the machine was started, in a folder that has survived the restart.
    return float(max(time.time() - status["at_s"], 0.0))


def jobs() -> list[dict[str, Any]]:
    """Return the current status of workers: those on this machine, and all others of jobs whose worker 0 is on it.

    Those on this machine also have their file. Each has ``silent_s``, the seconds since its last report, and ``over``,
    whether its part of the job has ended, so that it reports nothing more. Files that killed workers have left behind
    are removed.
    """
    here: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    if not _is_own(folder()):
        return []
    for file in sorted(folder().glob("*.json")):
        try:
            status, *heard = _told(file)
            silent_s = _silent_s(status)
            if silent_s > _SILENT_S:
                raise ProcessLookupError
            # 0 and negative numbers mean process groups.
            if int(status["pid"]) > 0:
                os.kill(int(status["pid"]), 0)
        except ProcessLookupError:
            if _OURS.fullmatch(file.name):
                file.unlink(missing_ok=True)
        except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
            # The file has just disappeared, or is not one of ours.
            continue
        else:
            here.append({**status, "file": str(file), "silent_s": silent_s, "over": False})
            for other in heard:
                # By the clock of worker 0: the clocks of other machines may differ.
                age_s = other["age_s"] + silent_s
                others.append({**other["status"], "silent_s": age_s, "over": other["over"]})
    _clear()
    # Workers on this machine have written their own files more recently.
    known = {(status["job_id"], status["worker"]) for status in here}
    return here + [status for status in others if (status["job_id"], status["worker"]) not in known]


def _clear() -> None:
    """Remove files that stopped jobs have left behind, once nobody waits for them."""
    for kind in ("stop", "stopped", "new", "move", "draft", "moved"):
        for file in folder().glob(f"*.{kind}"):
            if not _OURS.fullmatch(file.name):
                continue
            try:
                # The time at which it was renamed.
                since_s = time.time() - file.lstat().st_ctime
            except OSError:
                continue
            job = file.with_name(f"{file.name.partition('.')[0]}.json")
            if since_s > _STOPPED_S and (kind in ("stopped", "moved") or not job.exists()):
                file.unlink(missing_ok=True)


def stopping(status: dict[str, Any]) -> tuple[Path, Path]:
    """Return the file that asks a job to stop, given its worker 0's status, and the file that confirms it."""
    file = Path(status["file"])
    return file.with_suffix(".stop"), file.with_suffix(".stopped")


def moving(status: dict[str, Any], request_id: str) -> tuple[Path, Path]:
    """Return the file that asks a job to move keys, given its worker 0's status, and the file with its answer."""
    file = Path(status["file"])
    return file.with_suffix(".move"), file.with_suffix(f".{request_id}.moved")
