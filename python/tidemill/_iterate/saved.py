"""Checkpoints of an iteration: after some rounds, each worker saves its part, and worker 0 then writes a manifest.

A checkpoint is a folder ``round-NUMBER`` with a pickle for each worker, ``part-RANK``, and ``manifest.json``, which appears
last and at once: without it, the checkpoint does not exist. The manifest has a digest of each part. With the key of
``TIDEMILL_CHECKPOINT_KEY`` or ``TIDEMILL_CHECKPOINT_KEY_FILE``, digests are keyed and the manifest is signed, because
reading a pickle can run code.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import pickle
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tidemill._collective_errors import fail_together
from tidemill._iterate.result import IterationAccount
from tidemill._tables.checkpoint import Checkpoint
from tidemill._tables.durations import seconds
from tidemill._tables.errors import DataSetError

__all__ = ["Manifest", "Saved"]

#: Seconds between checkpoints, if nothing else is said; as for streams.
_INTERVAL_S = 10.0
_VERSION = 1


@dataclass
class Manifest:
    """What a checkpoint says of itself.

    Attributes
    ----------
    round : int
        Number of rounds before it.
    form : {"arrays", "items"}
    converged : bool
        Whether the iteration had ended.
    digests : list of str
        Of the parts, by rank.
    """

    round: int
    form: str
    converged: bool
    digests: list[str]
    version: int = _VERSION


class Saved:
    """The checkpoints of one iteration; all methods are collective, except `due`. `newest` comes first."""

    def __init__(self, comm: Any, account: IterationAccount, given: Checkpoint, rounds: int | None, form: str) -> None:
        if "://" in os.fspath(given.path):
            raise DataSetError(
                f"iterate saves its checkpoints in a folder that all workers share, not at {os.fspath(given.path)!r}"
            )
        self._comm, self._account, self._form = comm, account, form
        self._folder, self._keep = Path(given.path).absolute(), given.keep
        self._rounds = rounds
        self._interval_s: float | None = _INTERVAL_S if rounds is None else None
        if given.interval is not None:
            self._interval_s = seconds(given.interval, "interval")
        self._key: bytes | None = None
        self._round, self._begin = 0, time.monotonic()

    def due(self, number: int) -> bool:
        """Return whether it is time to save the state after this round. What worker 0 says goes."""
        if self._rounds is not None and number - self._round >= self._rounds:
            return True
        return self._interval_s is not None and time.monotonic() - self._begin >= self._interval_s

    def newest(self) -> tuple[Manifest, list[Any]] | None:
        """Return the newest checkpoint that is not damaged, with the parts that this worker goes on from.

        These are part r, r + P, r + 2 P and so on for rank r of P workers. Returns None if there is no checkpoint.
        """
        # A host may lack the file with the key.
        self._key = fail_together(self._comm, _key, _without_key)
        found: list[Manifest] | Exception = []
        if self._comm.rank == 0:
            try:
                found = self._manifests()
            except Exception as error:
                found = error
        found = self._comm.bcast(found, root=0)
        if isinstance(found, Exception):
            raise found
        trouble = ""
        for manifest in found:
            if manifest.form != self._form:
                raise DataSetError(
                    f"the checkpoint in {self._folder} is of an iteration on {manifest.form}, but this one is on {self._form}: "
                    "give each iteration a folder of its own"
                )
            if self._form == "arrays" and len(manifest.digests) != self._comm.size:
                raise DataSetError(
                    f"the checkpoint in {self._folder} has {len(manifest.digests)} parts, but there are {self._comm.size} workers: "
                    f"start {len(manifest.digests)}, or iterate on items with keys (lmap=, lreduce=), which resume on any number"
                )
            parts, own = self._parts(manifest)
            troubles = [one for one in self._comm.allgather(own) if one]
            if not troubles:
                self._round, self._begin = manifest.round, time.monotonic()
                self._account.resumed_round = self._account.rounds = manifest.round
                return manifest, parts
            trouble = trouble or troubles[0]
        if trouble:
            raise DataSetError(
                f"no checkpoint in {self._folder} can be used: {trouble}. Remove the folder to start from the beginning"
            )
        return None

    def save(self, number: int, state: Any, converged: bool) -> None:
        """Save all workers' states after round `number`."""
        begin = time.monotonic()
        place, digest, error = self._folder / f"round-{number:010}", "", None
        try:
            place.mkdir(parents=True, exist_ok=True)
            body = pickle.dumps(state, protocol=5)
            digest = self._digest("part", body)
            _write(place / f"part-{self._comm.rank}", body)
        except Exception as caught:
            error = caught
        every = self._comm.allgather((digest, error and f"{type(error).__name__}: {error}"))
        if error is None and self._comm.rank == 0 and not any(text for _, text in every):
            try:
                self._finish(place, Manifest(number, self._form, converged, [one for one, _ in every]))
            except Exception as caught:
                error = caught
        # Nobody goes on before the checkpoint exists: a worker may be about to end the job.
        failed = self._comm.bcast(error and f"{type(error).__name__}: {error}", root=0)
        if error is not None:
            raise error
        for rank, (_, text) in enumerate([("", failed), *every[1:]]):
            if text:
                raise RuntimeError(f"iterate: worker {rank} could not save a checkpoint: {text}")
        self._round, self._begin = number, time.monotonic()
        self._account.checkpoint_seconds += self._begin - begin

    def _finish(self, place: Path, manifest: Manifest) -> None:
        for rank in range(len(manifest.digests)):
            if not (place / f"part-{rank}").exists():
                raise DataSetError(
                    f"worker 0 does not see what worker {rank} saved in {place}: checkpoint= must be a folder that all workers share"
                )
        body = json.dumps(asdict(manifest)).encode()
        signed = self._digest("manifest", body).encode()
        _write(place / "manifest.json", body + b"\n" + signed + b"\n")
        kept = 0
        for folder in self._folders():
            # Newer ones are of a life of the job that did not get so far as to finish them.
            if folder > place or not (folder / "manifest.json").exists() or kept >= self._keep:
                shutil.rmtree(folder, ignore_errors=True)
            else:
                kept += 1

    def _folders(self) -> list[Path]:
        """Return the folders of checkpoints, the newest first."""
        return sorted(self._folder.glob("round-*"), reverse=True)

    def _manifests(self) -> list[Manifest]:
        found = []
        for folder in self._folders():
            file = folder / "manifest.json"
            if not file.exists():
                continue
            body, _, signed = file.read_bytes().rstrip(b"\n").partition(b"\n")
            if not hmac.compare_digest(signed, self._digest("manifest", body).encode()):
                if self._key is not None:
                    raise DataSetError(
                        f"{file} is not signed with this job's TIDEMILL_CHECKPOINT_KEY, or was changed: nothing in it is read"
                    )
                raise DataSetError(
                    f"{file} is damaged, or was signed: pass the TIDEMILL_CHECKPOINT_KEY it was signed with, or remove {folder}"
                )
            values = json.loads(body)
            if values.get("version") != _VERSION:
                raise DataSetError(f"{file} was written by another version of Tidemill: remove {self._folder}")
            found.append(Manifest(**values))
        return found

    def _parts(self, manifest: Manifest) -> tuple[list[Any], str]:
        """Return this worker's parts of a checkpoint, and what is wrong with them, if anything."""
        parts, place = [], self._folder / f"round-{manifest.round:010}"
        for rank in range(self._comm.rank, len(manifest.digests), self._comm.size):
            file = place / f"part-{rank}"
            try:
                body = file.read_bytes()
            except OSError as error:
                return [], f"worker {self._comm.rank} cannot read {file} ({error.strerror})"
            if not hmac.compare_digest(self._digest("part", body), manifest.digests[rank]):
                return [], f"{file} is damaged"
            try:
                parts.append(pickle.loads(body))
            except Exception as error:
                return [], f"{file} cannot be unpickled ({type(error).__name__}: {error})"
        return parts, ""

    def _digest(self, what: str, body: bytes) -> str:
        message = f"tidemill iterate {what}\n".encode() + body
        if self._key is None:
            return hashlib.sha256(message).hexdigest()
        return hmac.new(self._key, message, "sha256").hexdigest()


def _key() -> bytes | None:
    text, file = (os.environ.get(f"TIDEMILL_CHECKPOINT_KEY{end}") for end in ("", "_FILE"))
    if text and file:
        raise DataSetError("set TIDEMILL_CHECKPOINT_KEY or TIDEMILL_CHECKPOINT_KEY_FILE, not both")
    if not text and not file:
        return None
    key = text.encode().strip() if text else Path(file or "").read_bytes().strip()
    if len(key) < 16:
        raise DataSetError("the key that signs checkpoints must have at least 16 bytes")
    return key


def _without_key(said: str, worker: int | None) -> DataSetError:
    return DataSetError(said if worker is None else f"the key that signs checkpoints, on worker {worker}: {said}")


def _write(file: Path, body: bytes) -> None:
    """Write a file that appears at once and survives a crash of the machine."""
    partial = file.with_name(f"{file.name}#")
    with partial.open("wb") as out:
        out.write(body)
        out.flush()
        os.fsync(out.fileno())
    partial.replace(file)
    # Not every file system lets a folder be opened.
    with contextlib.suppress(OSError):
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
