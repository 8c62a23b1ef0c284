"""Streams in the tasks of a graph that makes checkpoints: what they send is sent once, as the stream's checkpoints and the
graph's meet in an *outbox*.

A stream's functions are sinks that commit. When a checkpoint of the stream is durable, each adds an *entry* for the rows before
it to the outbox of its copy, notes next to the graph's checkpoints, and only then is called with these rows. The
copy's position in the graph's checkpoints is the last entry that it was called for. So after a restart, wherever it was killed,

- the stream goes on from its newest checkpoint, and commits again what may not have been: an entry that exists, or that
  a position is behind, changes nothing;
- the functions are called again for the entries behind the position, in the same order; of what they send, the copy
  leaves out what came before the graph's checkpoint.

An entry is removed when no checkpoint of the graph that is kept may need it.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
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

_thread = threading.local()


@dataclass(frozen=True)
class Saves:
    """Where a graph that runs makes its checkpoints."""

    checkpoint: Checkpoint
    native: GraphCheckpoints


class Part(NamedTuple):
    """What a copy of a sink has prepared for a checkpoint of its stream. `attempt` tells apart what is prepared again after a
    failure.
    """

    epoch: int
    sink: int
    copy: int
    attempt: str

    def __str__(self) -> str:
        return f"{self.epoch}.{self.sink}.{self.copy}.{self.attempt}"

    @classmethod
    def parsed(cls, text: str) -> Part:
        epoch, sink, copy, attempt = text.split(".")
        return cls(int(epoch), int(sink), int(copy), attempt)

    @property
    def of(self) -> tuple[int, int]:
        """The sink and its copy, whose parts have ascending epochs."""
        return self.sink, self.copy


class Entry(NamedTuple):
    """A part that was committed, by its number in the copy's outbox."""

    number: int
    part: Part


class Place(NamedTuple):
    """How far a copy has come in a stream's outbox: its last entry, and the last epoch of each sink's copies."""

    number: int = 0
    epochs: dict[tuple[int, int], int] = {}  # noqa: RUF012 - never changed


class TaskStreams:
    """The streams of a running copy of a task with a communicator.

    Parameters
    ----------
    copy : NativeStreamCopy
    comm : Intracomm
        Of the task's copies.
    saves : Saves
    position : dict of str to Place
        Of each stream, from the checkpoint that the graph goes on from.
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
        """As of `EnclosingTask`."""
        if self._sends:
            raise self._mixed()
        if stream in self._opened:
            raise GraphError(f"task {self.name!r} has two streams named {stream!r}; give each a name=", self.name)
        if init().comm._world_ranks() != self.comm._world_ranks():
            raise GraphError(
                f"task {self.name!r}: stream {stream!r} does not run on the workers of all copies, whose checkpoints are one; "
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
        """Raise unless what is about to be sent will be sent again, or left out, after a restart."""
        if getattr(_thread, "committing", False):
            return
        if self._opened:
            raise self._mixed()
        self._sends = True

    def _mixed(self) -> GraphError:
        return GraphError(
            f"task {self.name!r} sends rows of a stream, and others by itself: after a restart nobody knows which of these were "
            "before which; send everything from the stream, or by another source",
            self.name,
        )

    def place(self, stream: str) -> Place:
        """Return how far the copy has come with a stream."""
        return self._position.get(stream, Place())

    def durable_place(self, stream: str) -> Place | None:
        """Return how far it had come at the last checkpoint of this run, if there is one."""
        saved = self.copy.durable
        if saved is None:
            return None
        position: dict[str, Place] = pickle.loads(saved) if saved else {}
        return position.get(stream, Place())

    def come_to(self, stream: str, place: Place) -> None:
        """Let the graph's checkpoints have this place from now on."""
        with self._lock:
            self._position[stream] = place
            self.copy.position(pickle.dumps(self._position, protocol=5))


class Outbox:
    """What a stream has committed on one copy.

    Notes are `rows/PART`, the tables of a part, and `sent/COPYofCOPIES/NUMBER.PART`, an entry, which is empty.
    """

    def __init__(self, streams: TaskStreams, stream: str, functions: list[Callable[[Table], object] | None]) -> None:
        self.functions = functions
        self._streams = streams
        self._stream = stream
        self._folder = f"outbox/{_folder(streams.name)}/{_folder(stream)}"
        self._sent = f"{self._folder}/sent/{streams.copy.copy}of{streams.copy.copies}"
        self._lock = threading.Lock()
        self._entries: deque[Entry] = deque()
        #: Epochs that entries of any copy have, or positions.
        self._epochs: dict[tuple[int, int], int] = {}
        self._prepared: dict[Part, list[Table]] = {}
        #: Parts that nothing refers to but perhaps the stream's checkpoint.
        self._loose: set[Part] = set()
        #: Numbers of the last entries in the last checkpoints of the graph.
        self._durable: deque[int] = deque(maxlen=streams.saves.checkpoint.keep)

    def begin(self) -> None:
        """Call the functions again for what comes after the checkpoint that the graph goes on from. Collective."""
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
                    f"task {self._streams.name!r} had {of.split('of')[1]} copies, and has {self._streams.copy.copies}; what each of "
                    "them has sent belongs to it: run the graph with as many as before (parallelism=), or begin anew in another "
                    "folder",
                    self._streams.name,
                )
            committed.add(made.part)
            self._come_to({made.part.of: made.part.epoch})
            if f"{self._folder}/sent/{of}" == self._sent:
                self._entries.append(made)
        self._loose = {Part.parsed(name.split("/")[-1]) for name in self._names("rows")} - committed
        # What other copies add from here on is not theirs to commit again, but this must not see half of it.
        self._streams.comm.barrier()
        for made in list(self._entries):
            if made.number > place.number:
                self._send(made, self._rows(made.part))

    def prepare(self, part: Part, tables: list[Table]) -> None:
        """Keep the rows of a part, which is to be committed."""
        if part.epoch <= self._epochs.get(part.of, 0):
            raise GraphError(
                f"task {self._streams.name!r}: stream {self._stream!r} goes on from before epoch {part.epoch}, whose rows it has sent "
                f"already: its checkpoints in {self._streams.saves.checkpoint.path}/streams were lost or put back; begin anew in "
                "another folder, or restore them",
                self._streams.name,
            )
        self._put(f"rows/{part}", pickle.dumps(tables, protocol=5))
        self._prepared[part] = tables

    def commit(self, part: Part) -> None:
        """Call the function with the rows of a part, unless that has been done."""
        with self._lock:
            if part.epoch <= self._epochs.get(part.of, 0):
                return
            tables = self._prepared.pop(part, None)
            tables = self._rows(part) if tables is None else tables
            last = max([self._streams.place(self._stream).number, *(entry.number for entry in self._entries)])
            entry = Entry(last + 1, part)
            self._put(f"{self._sent.removeprefix(self._folder + '/')}/{entry.number:012}.{part}", b"")
            self._entries.append(entry)
            self._come_to({part.of: part.epoch})
            self._send(entry, tables)
            self._tidy(part)

    def _send(self, entry: Entry, tables: list[Table]) -> None:
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
        """Remove what no checkpoint needs any more, of those before a part that was committed."""
        dead = {loose for loose in self._loose if loose.of == part.of and loose.epoch <= part.epoch}
        self._loose -= dead
        names = [f"{self._folder}/rows/{loose}" for loose in dead - {part}]
        place = self._streams.durable_place(self._stream)
        if place is not None and (not self._durable or self._durable[-1] != place.number):
            self._durable.append(place.number)
        if len(self._durable) == self._durable.maxlen:
            while self._entries and self._entries[0].number <= self._durable[0]:
                entry = self._entries.popleft()
                # The entry last: without its rows it could not be read.
                names += [f"{self._sent}/{entry.number:012}.{entry.part}", f"{self._folder}/rows/{entry.part}"]
        if names:
            self._streams.saves.native.remove_notes(engine(), names)

    def _come_to(self, epochs: dict[tuple[int, int], int]) -> None:
        for of, epoch in epochs.items():
            self._epochs[of] = max(epoch, self._epochs.get(of, 0))

    def _rows(self, part: Part) -> list[Table]:
        saved = self._streams.saves.native.note(engine(), f"{self._folder}/rows/{part}")
        if saved is None:
            raise GraphError(
                f"task {self._streams.name!r}: the rows that stream {self._stream!r} has committed are missing in "
                f"{self._streams.saves.checkpoint.path}: notes/{self._folder}/rows/{part}; restore them, or begin anew in "
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
    """A copy of a stream's sink, a function, which is called by the outbox."""

    def __init__(self, outbox: Outbox, number: int, function: Callable[[Table], object]) -> None:
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        if (most := getattr(function, "_copies_max", None)) is not None:
            self._copies_max = most
        self._outbox = outbox
        self._number = number
        self._function = function
        self._copy = 0
        self._attempt = secrets.token_hex(4)
        self._tables: list[Table] = []

    def __deepcopy__(self, memo: object) -> OutboxSink:
        return OutboxSink(self._outbox, self._number, self._function)

    def _placed(self, copy: int) -> None:
        """Take the number of the sink's copy that this is."""
        self._copy = copy

    def write(self, rows: Table) -> None:
        self._tables.append(rows)

    def prepare(self, epoch: int) -> bytes:
        if not self._tables:
            return b""
        part = Part(epoch, self._number, self._copy, self._attempt)
        self._outbox.prepare(part, self._tables)
        self._tables = []
        return str(part).encode()

    def commit(self, prepared: bytes) -> None:
        self._outbox.commit(Part.parsed(prepared.decode()))


def _called(sink: Any) -> Callable[[Table], object] | None:
    """Return a sink that is a function of a table, to be called like one, or None."""
    return run_in_callback("a sink", sink) if callable(sink) and not hasattr(sink, "prepare") else None


def _folder(name: str) -> str:
    """Return a name of a folder for a task or a stream: what stores take, and no other's."""
    return f"{re.sub('[^A-Za-z0-9]+', '-', name)[:40]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
