"""Decodes an upload in a separate process: an untrusted file may need any amount of memory or time, or crash the
process.

The process reads its task from standard input and answers on standard output, both in JSON.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from tidemill._duration import micros
from tidemill.viz._format import FrameError
from tidemill.viz.library._cloud import Limits, UploadError
from tidemill.viz.library._upload import Upload, read_upload

__all__ = ["read_apart"]

#: Limits the uploads that are decoded at a time, each of which may use the maximum memory.
_AT_ONCE = threading.BoundedSemaphore(2)
#: The process does not belong to a job, even if this one does.
_OF_JOBS = ("TIDEMILL_", "PMI", "OMPI_", "SLURM_", "MPI_")
_PR_SET_PDEATHSIG = 1


def read_apart(files: Mapping[str, Path], folder: Path, limits: Limits) -> Upload:
    """Write the frames of an upload into a folder; like `read_upload`.

    Raises
    ------
    UploadError
        Also if it takes more memory or time than `limits` allows, or crashes the process that decodes it.
    """
    name = next(iter(files), "the upload")
    timeout_s = micros(limits.timeout, "timeout", ValueError) / 1_000_000
    told = {
        "files": {name: str(path) for name, path in files.items()},
        "folder": str(folder),
        "limits": dataclasses.asdict(limits) | {"timeout": timeout_s},
    }
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_OF_JOBS)}
    paths = [str(Path(__file__).parents[3]), *filter(None, [environment.get("PYTHONPATH")])]
    environment |= {"PYTHONPATH": os.pathsep.join(paths), "MALLOC_ARENA_MAX": "2", "OPENBLAS_NUM_THREADS": "1"}
    with _AT_ONCE:
        try:
            done = subprocess.run(
                [sys.executable, "-m", __name__],
                input=json.dumps(told).encode(),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UploadError(f"{name}: reading it takes more than {timeout_s:g} s, which is the limit") from None
    try:
        said = json.loads(done.stdout)
    except ValueError:
        raise UploadError(
            f"{name}: it is damaged, or takes more than {limits.memory_bytes >> 20} MiB of memory to read, which is the limit"
        ) from None
    match said:
        case {"kind": kind, "title": title, "changes": changes}:
            return Upload(kind, title, changes)
        case {"upload": text}:
            raise UploadError(text)
        case _:
            raise FrameError(said["frames"])


def _main() -> None:
    told = json.load(sys.stdin)
    # If the parent is killed, nobody needs the answer.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    limits = Limits(**told["limits"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    files = {name: Path(path) for name, path in told["files"].items()}
    try:
        said = dataclasses.asdict(read_upload(files, Path(told["folder"]), limits))
    except UploadError as error:
        said = {"upload": str(error)}
    except FrameError as error:
        said = {"frames": str(error)}
    # Memory is not freed here, because the process ends.
    sys.stdout.write(json.dumps(said))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    _main()
