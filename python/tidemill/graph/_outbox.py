"""Streams in the tasks of a graph that makes checkpoints: an *outbox* connects the stream's checkpoints to the graph's, so
that each row is sent exactly once.

A function to which a stream is written becomes a sink that commits. When a checkpoint of the stream is durable, the sink adds an
*entry* for its rows to the outbox of its copy, which consists of notes next to the graph's checkpoints. Only then is the
function called with these rows. In the graph's checkpoints, the position of the copy is the last entry that the function was
called for. After a restart, wherever the worker was killed,

- the stream resumes from its newest checkpoint, and commits again what may not have been committed. This has no effect on
  rows that have an entry, or that are before the position of any copy;
- the function is called again for the entries after the position, in the same order. The copy drops messages that the graph's
  checkpoint covers.

An entry is removed when none of the graph's checkpoints that are kept needs it.

Up to `PIECE_BYTES` of rows wait in memory for the stream's next checkpoint; further rows are written to the outbox at once.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemill._callback import run_in_callback
from tidemill._job import init
from tidemill._tables.checkpoint import Checkpoint
from tidemill._tables.engine import engine
from tidemill._tables.table import Table
from tidemill._tidemill import GraphCheckpoints, NativeStreamCopy
from tidemill.graph._errors import GraphError

if TYPE_CHECKING:
    from tidemill.mpi import Intracomm

__all__ = ["Saves", "TaskStreams"]

#: Bytes of rows that a copy of a sink keeps in memory until they are in a checkpoint.
PIECE_BYTES = 16 << 20

_thread = threading.local()


@dataclass(frozen=True)
class Saves:
    """Where a running graph stores its checkpoints."""

    checkpoint: Checkpoint
    native: GraphCheckpoints


class Part(NamedTuple):
    """The rows that a copy of a sink has prepared for a checkpoint of its stream. `attempt` is unique to a part, also to one that is
    prepared again after a failure. The first rows are in `pieces`, which were written before the epoch was known.
    """

    epoch: int
    sink: int
    copy: int
    attempt: str
    pieces: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.sink}.{self.copy}.{self.attempt}.{self.pieces}"

    @classmethod
    def parsed(cls, text: str) -> Part:
        epoch, sink, copy, attempt, pieces = text.split(".")
        return cls(int(epoch), int(sink), int(copy), attempt, int(pieces))

    @property
    def of(self) -> tuple[int, int]:
        """The sink and its copy; the epochs of their parts ascend."""
        return self.sink, self.copy

    def piece_names(self) -> list[str]:
        """Of its pieces, in their order."""
        return [piece_name(self.attempt, number) for number in range(self.pieces)]


def piece_name(attempt: str, number: int) -> str:
    return f"{attempt}.{number}"


class Entry(NamedTuple):
    """A committed part, with its number in the outbox of the copy."""

    number: int
    part: Part


class Place(NamedTuple):
    """How far a copy is in a stream's outbox: its last entry, and the last epoch of each copy of each sink."""

    number: int = 0
    epochs: dict[tuple[int, int], int] = {}  # noqa: RUF012 - never changed


class TaskStreams:
    """The streams of a running copy of a task with a communicator.

    Parameters
    ----------
    copy : NativeStreamCopy
    comm : Intracomm
        The communicator of the task's copies.
    saves : Saves
    position : dict of str to Place
        The place in each stream's outbox, from the checkpoint that the graph resumes from.
    """

    def __init__(self, copy: NativeStreamCopy, comm: Intracomm, saves: Saves, position: dict[str, Place]) -> None:
        self.name = copy.task
        self.copy = copy
        self.comm = comm
        self.saves = saves
        self._position = position
        self._lock = threading.Lock()
        self._opened: set[str] = set()
        #: Whether the function itself has sent something.
        self._sends = False

    def open(self, stream: str, sinks: Sequence[Any]) -> tuple[Checkpoint, list[Any]]:
        """See `EnclosingTask`."""
        if self._sends:
            raise self._mixed()
        if stream in self._opened:
            raise GraphError(f"task {self.name!r} has two streams named {stream!r}; give each a name=", self.name)
        if init().comm._world_ranks() != self.comm._world_ranks():
            raise GraphError(
                f"task {self.name!r}: stream {stream!r} does not run on the workers of all copies, but their checkpoints are shared: "
                "run it within tidemill.group(context.comm)",
                self.name,
            )
        self._opened.add(stream)
        place = self.saves.checkpoint.path
        path = "/".join([os.fspath(place).rstrip("/"), "streams", _folder(self.name), _folder(stream)])
        outbox = Outbox(self, stream, [_called(sink) for sink in sinks])
        made = [
            sink if called is None else OutboxSink(outbox, at, sink)
            for at, (sink, called) in enumerate(zip(sinks, outbox.functions, strict=True))
        ]
        outbox.begin()
        return replace(self.saves.checkpoint, path=path), made

    def check_send(self) -> None:
        """Raise `GraphError` unless the next message can be repeated, or dropped, after a restart."""
        if getattr(_thread, "committing", False):
            return
        if self._opened:
            raise self._mixed()
        self._sends = True

    def _mixed(self) -> GraphError:
        return GraphError(
            f"task {self.name!r} sends rows of a stream, and messages of its own: after a restart, their order would not be known; "
            "send everything from the stream, or send the other messages from another source",
            self.name,
        )

    def place(self, stream: str) -> Place:
        """Return how far the copy is in the outbox of a stream."""
        return self._position.get(stream, Place())

    def durable_place(self, stream: str) -> Place | None:
        """Return how far it was at the last checkpoint of this run, or None before the first."""
        saved = self.copy.durable
        if saved is None:
            return None
        position: dict[str, Place] = pickle.loads(saved) if saved else {}
        return position.get(stream, Place())

    def come_to(self, stream: str, place: Place) -> None:
        """Put this place into the graph's checkpoints from now on."""
        with self._lock:
            self._position[stream] = place
            self.copy.position(pickle.dumps(self._position, protocol=5))


class Outbox:
    """The rows that a stream has committed on one copy.

    A note `rows/PART` has the last tables of a part, notes `pieces/ATTEMPT.NUMBER` have those before, and
    `sent/COPYofCOPIES/NUMBER.PART` is an entry; it is empty.
    """

    def __init__(self, streams: TaskStreams, stream: str, functions: list[Callable[[Table], object] | None]) -> None:
        self.functions = functions
        self._streams = streams
        self._stream = stream
        self._folder = f"outbox/{_folder(streams.name)}/{_folder(stream)}"
        self._sent = f"sent/{streams.copy.copy}of{streams.copy.copies}"
        self._lock = threading.Lock()
        self._entries: deque[Entry] = deque()
        #: The last epochs in the entries, or the position, of any copy.
        self._epochs: dict[tuple[int, int], int] = {}
        self._prepared: dict[Part, list[Table]] = {}
        #: Parts without an entry; the stream's checkpoint may still refer to them.
        self._loose: set[Part] = set()
        #: The number of the last entry in each of the graph's last checkpoints.
        self._durable: deque[int] = deque(maxlen=streams.saves.checkpoint.keep)

    def begin(self) -> None:
        """Call the functions again for rows after the checkpoint that the graph resumes from. Collective."""
        place = self._streams.place(self._stream)
        for epochs in self._streams.comm.allgather(place.epochs):
            self._come_to(epochs)
        committed = set()
        for name in self._names("sent"):
            of, entry = name.split("/")[-2:]
            number, _, part = entry.partition(".")
            made = Entry(int(number), Part.parsed(part))
            if of.split("of")[1] != str(self._streams.copy.copies):
                raise GraphError(
                    f"task {self._streams.name!r} had {of.split('of')[1]} copies, and now has {self._streams.copy.copies}, but what a "
                    "copy has sent cannot move to another: run the graph with as many copies as before (parallelism=), or start "
                    "over in another folder",
                    self._streams.name,
                )
            committed.add(made.part)
            self._come_to({made.part.of: made.part.epoch})
            if f"sent/{of}" == self._sent:
                self._entries.append(made)
        parts = {Part.parsed(name.split("/")[-1]) for name in self._names("rows")}
        self._loose = parts - committed
        pieces = {name.split("/")[-1] for name in self._names("pieces")}
        # Other copies add entries from here on. All copies must have listed them before that, or some would see half of them.
        self._streams.comm.barrier()
        if self._streams.comm.rank == 0:
            # Of parts that were never prepared, or are no more.
            self._remove(
                f"pieces/{piece}" for piece in pieces - {name for part in parts for name in part.piece_names()}
            )
        for made in list(self._entries):
            if made.number > place.number:
                self._send(made, self._rows(made.part))

    def prepare(self, part: Part, tables: list[Table]) -> None:
        """Store the rows of a part, which will be committed later."""
        if part.epoch <= self._epochs.get(part.of, 0):
            raise GraphError(
                f"task {self._streams.name!r}: stream {self._stream!r} resumes before epoch {part.epoch}, but has already sent its rows: "
                f"the stream's checkpoints in {self._streams.saves.checkpoint.path}/streams were lost or replaced by older ones; "
                "restore them, or start over in another folder",
                self._streams.name,
            )
        self._put(f"rows/{part}", pickle.dumps(tables, protocol=5))
        self._prepared[part] = tables

    def put_piece(self, name: str, tables: list[Table]) -> None:
        """Keep rows of a part that is to be prepared."""
        self._put(f"pieces/{name}", pickle.dumps(tables, protocol=5))

    def commit(self, part: Part) -> None:
        """Call the function with the rows of a part, unless it has been called with them before."""
        with self._lock:
            if part.epoch <= self._epochs.get(part.of, 0):
                return
            tables = self._rows(part)
            last = max([self._streams.place(self._stream).number, *(entry.number for entry in self._entries)])
            entry = Entry(last + 1, part)
            self._put(f"{self._sent}/{entry.number:012}.{part}", b"")
            self._entries.append(entry)
            self._come_to({part.of: part.epoch})
            self._send(entry, tables)
            self._tidy(part)

    def _send(self, entry: Entry, tables: Iterator[Table]) -> None:
        function = self.functions[entry.part.sink]
        assert function is not None
        _thread.committing = True
        try:
            for table in tables:
                function(table)
        finally:
            _thread.committing = False
        before = self._streams.place(self._stream)
        place = Place(entry.number, {**before.epochs, entry.part.of: entry.part.epoch})
        self._streams.come_to(self._stream, place)

    def _tidy(self, part: Part) -> None:
        """Remove notes that no checkpoint needs any more, now that a part is committed."""
        dead = {loose for loose in self._loose if loose.of == part.of and loose.epoch <= part.epoch}
        self._loose -= dead
        gone = dead - {part}
        names: list[str] = []
        place = self._streams.durable_place(self._stream)
        if place is not None and (not self._durable or self._durable[-1] != place.number):
            self._durable.append(place.number)
        if len(self._durable) == self._durable.maxlen:
            while self._entries and self._entries[0].number <= self._durable[0]:
                entry = self._entries.popleft()
                names.append(f"{self._sent}/{entry.number:012}.{entry.part}")
                gone.add(entry.part)
        # Entries first: should this worker die in between, an entry without its rows could not be read. Pieces last, because
        # their parts name them.
        names += [f"rows/{part}" for part in gone]
        self._remove([*names, *(f"pieces/{name}" for part in gone for name in part.piece_names())])

    def _remove(self, names: Iterable[str]) -> None:
        if whole := [f"{self._folder}/{name}" for name in names]:
            self._streams.saves.native.remove_notes(engine(), whole)

    def _come_to(self, epochs: dict[tuple[int, int], int]) -> None:
        for of, epoch in epochs.items():
            self._epochs[of] = max(epoch, self._epochs.get(of, 0))

    def _rows(self, part: Part) -> Iterator[Table]:
        for name in part.piece_names():
            yield from self._saved(f"pieces/{name}")
        last = self._prepared.pop(part, None)
        yield from self._saved(f"rows/{part}") if last is None else last

    def _saved(self, name: str) -> list[Table]:
        saved = self._streams.saves.native.note(engine(), f"{self._folder}/{name}")
        if saved is None:
            raise GraphError(
                f"task {self._streams.name!r}: rows that stream {self._stream!r} has committed are missing in "
                f"{self._streams.saves.checkpoint.path}: notes/{self._folder}/{name}; restore them, or start over in "
                "another folder",
                self._streams.name,
            )
        tables: list[Table] = pickle.loads(saved)
        return tables

    def _names(self, kind: str) -> list[str]:
        return self._streams.saves.native.note_names(engine(), f"{self._folder}/{kind}")

    def _put(self, name: str, data: bytes) -> None:
        self._streams.saves.native.put_note(engine(), f"{self._folder}/{name}", data)


class OutboxSink:
    """A copy of a stream's sink; the outbox calls its function."""

    def __init__(self, outbox: Outbox, number: int, function: Callable[[Table], object]) -> None:
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        if (most := getattr(function, "_copies_max", None)) is not None:
            self._copies_max = most
        self._outbox = outbox
        self._number = number
        self._function = function
        self._copy = 0
        self._begin_part()

    def __deepcopy__(self, memo: object) -> OutboxSink:
        return OutboxSink(self._outbox, self._number, self._function)

    def _placed(self, copy: int) -> None:
        """Take the number of this copy of the sink."""
        self._copy = copy

    def _begin_part(self) -> None:
        self._attempt = secrets.token_hex(8)
        self._pieces = 0
        self._tables: list[Table] = []
        self._bytes = 0

    def write(self, rows: Table) -> None:
        self._tables.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= PIECE_BYTES:
            self._outbox.put_piece(piece_name(self._attempt, self._pieces), self._tables)
            self._pieces += 1
            self._tables, self._bytes = [], 0

    def prepare(self, epoch: int) -> bytes:
        if not self._tables and not self._pieces:
            return b""
        part = Part(epoch, self._number, self._copy, self._attempt, self._pieces)
        self._outbox.prepare(part, self._tables)
        self._begin_part()
        return str(part).encode()

    def commit(self, prepared: bytes) -> None:
        self._outbox.commit(Part.parsed(prepared.decode()))


def _called(sink: Any) -> Callable[[Table], object] | None:
    """Return the function to call if the sink is a function of a table, else None."""
    return run_in_callback("a sink", sink) if callable(sink) and not hasattr(sink, "prepare") else None


def _folder(name: str) -> str:
    """Return a folder name for a task or a stream: unique, and of characters that all stores accept."""
    return f"{re.sub('[^A-Za-z0-9]+', '-', name)[:40]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
