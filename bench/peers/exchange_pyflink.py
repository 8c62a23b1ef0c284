"""Exchanges with PyFlink: the same as `ExchangeFlink.java`, as a streaming job whose tasks are functions in Python.

    exchange_pyflink.py OPERATION BYTES MESSAGES

What the operations are is told there, what is printed in `exchange_mpi.cc`. A mini-cluster with two slots of one task manager,
whose functions run on its threads, in one Python within the JVM (`python.execution-mode: thread`).
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from pyflink.common import Configuration, Types
from pyflink.datastream import ProcessFunction, StreamExecutionEnvironment

SLOTS = 2
WARM_UPS = 2  # jobs of all messages; the JIT compiler still gains in the second
SINGLE, PAUSE_S = 200, 0.002  # messages that are sent one at a time, and the time between them
MESSAGE = Types.PRIMITIVE_ARRAY(Types.BYTE())


class Notes:
    """What functions, which are in another process, leave for each other and for the program: files in a folder."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def leave(self, kind: str, what: Any = None) -> None:
        (self.folder / f"{kind}-{uuid4()}").write_text(json.dumps(what))

    def read(self, kind: str) -> list[Any]:
        return [json.loads(path.read_text()) for path in self.folder.glob(f"{kind}-*")]

    def wait(self, kind: str, count: int) -> None:
        while len(list(self.folder.glob(f"{kind}-*"))) < count:
            time.sleep(0.001)


class Source(ProcessFunction):
    """Sends all messages of one source when the one element comes that starts it, its number."""

    def __init__(self, words: int, messages: int, notes: Notes, functions: int) -> None:
        self.words, self.messages, self.notes, self.functions = words, messages, notes, functions

    def open(self, context: Any) -> None:
        self.notes.leave("ready")

    def process_element(self, source: int, context: Any) -> Iterator[bytes]:
        base = np.arange(self.words)
        self.notes.wait("ready", self.functions)
        self.notes.leave("start", time.monotonic())
        for number in range(self.messages):
            yield (base + (source + number)).tobytes()


class SingleSource(Source):
    """One message after the other; its words are the time when it was begun."""

    def process_element(self, source: int, context: Any) -> Iterator[bytes]:
        self.notes.wait("ready", self.functions)
        for _ in range(SINGLE):
            time.sleep(PAUSE_S)
            yield np.full(self.words, time.monotonic_ns()).tobytes()


class Combine(ProcessFunction):
    """Adds up messages, element by element, and sends the sums when the last has come."""

    def __init__(self, messages: int) -> None:
        self.left = messages

    def open(self, context: Any) -> None:
        self.sums: Any = 0

    def process_element(self, message: bytes, context: Any) -> Iterator[bytes]:
        self.sums = self.sums + np.frombuffer(message, np.int64)
        self.left -= 1
        if self.left == 0:
            yield self.sums.tobytes()


class Target(ProcessFunction):
    """Adds up all words of all messages."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    def open(self, context: Any) -> None:
        self.total = 0
        self.notes.leave("ready")

    def process_element(self, message: bytes, context: Any) -> tuple[()]:
        self.total += int(np.frombuffer(message, np.int64).sum())
        return ()

    def close(self) -> None:
        self.notes.leave("end", [time.monotonic(), self.total])


class SingleTarget(Target):
    """Tells how long each message took."""

    def open(self, context: Any) -> None:
        self.latencies_ns: list[int] = []
        self.notes.leave("ready")

    def process_element(self, message: bytes, context: Any) -> tuple[()]:
        self.latencies_ns.append(time.monotonic_ns() - int(np.frombuffer(message, np.int64)[0]))
        return ()

    def close(self) -> None:
        self.notes.leave("latencies", self.latencies_ns)


def environment(single: bool) -> StreamExecutionEnvironment:
    settings = Configuration()
    settings.set_string("python.execution-mode", "thread")
    # The Python within the JVM does not find by itself what is installed beside this one.
    settings.set_string("python.executable", sys.executable)
    settings.set_string("python.pythonpath", next(path for path in sys.path if path.endswith("site-packages")))
    settings.set_string("pipeline.object-reuse", "true")
    # Room for many messages of 128 KiB; without the two lines it would be 64 MiB.
    settings.set_string("taskmanager.memory.network.min", "512m")
    settings.set_string("taskmanager.memory.network.max", "512m")
    made = StreamExecutionEnvironment.get_execution_environment(settings)
    made.set_parallelism(SLOTS)
    # Buffers leave when they are full; a single message leaves at once.
    made.set_buffer_timeout(0 if single else -1)
    return made


def run(operation: str, words: int, messages: int, notes: Notes, single: bool = False) -> None:
    sources = 1 if operation == "broadcast" else SLOTS
    targets = 1 if operation in ("gather", "reduce") else SLOTS
    functions = sources + targets
    env = environment(single)
    # One element to each source.
    numbers = env.from_collection(list(range(sources)), Types.INT()).rebalance()
    source = (SingleSource if single else Source)(words, messages, notes, functions)
    sent = numbers.process(source, MESSAGE).set_parallelism(sources)
    if operation == "reduce":
        sent = sent.process(Combine(messages), MESSAGE).rebalance().process(Combine(SLOTS), MESSAGE).set_parallelism(1)
    # In turn to the targets: for one target that is all.
    exchanged = sent.broadcast() if operation == "broadcast" else sent.rebalance()
    target = (SingleTarget if single else Target)(notes)
    # Nothing comes out, but a job needs a sink.
    exchanged.process(target, MESSAGE).set_parallelism(targets).print()
    env.execute()


def main() -> None:
    operation, words, messages = sys.argv[1], int(sys.argv[2]) // 8, int(sys.argv[3])
    for _ in range(WARM_UPS + 1):
        with tempfile.TemporaryDirectory() as folder:
            notes = Notes(folder)
            run(operation, words, messages, notes)
            starts, ends = notes.read("start"), notes.read("end")
    rate_s = max(at for at, _ in ends) - max(starts)
    digest = sum(total for _, total in ends) % 2**64
    latency_s = None  # a reduction gives nothing before all has come
    if operation != "reduce":
        with tempfile.TemporaryDirectory() as folder:
            notes = Notes(folder)
            run(operation, words, messages, notes, single=True)
            latencies_ns = [latency for copy in notes.read("latencies") for latency in copy]
        latency_s = statistics.median(latencies_ns) / 1e9
    print(json.dumps({"rate_s": rate_s, "latency_s": latency_s, "digest": str(digest)}), flush=True)


if __name__ == "__main__":
    main()
