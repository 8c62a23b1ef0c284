"""What keeping state costs a stream: checkpoints, going on after a worker was killed, keys that move to another worker.

The stream: keys that each come once, then at random; of each key 48 bytes are kept, four aggregates among them, in a window that does not
end before the stream. Each system is a program that is given

    MODE EVERY_S KEYS HOT ROWS FOLDER

`EVERY_S` is the time between checkpoints, 0 for none, into FOLDER; once all KEYS have come, rows are of the first HOT of them. Modes:

- `cost`: ROWS rows, as fast as they go. Prints {"per_s", "longest_wait_s", "elapsed_s", "checkpoints", "counted"}: the rate of rows once all keys
  have come, the longest time between two batches of them, the time of all rows, the number of checkpoints, and of rows that were counted.
- `recovery`: 1,000,000 rows a second. Writes lines of the number of the run and the time into FOLDER/results-WORKER, for each result.
- `move`: 1,000,000 rows a second. All keys move to the other worker, some times. Prints {"moves"}: of each how long a copy took no rows.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .comm import SystemFailed
from .exchange import FLINK_CLASSES, flink_java
from .machine import touch_memory
from .memory import descendants
from .once import in_turn, run_once
from .systems import BENCH, Launch, present
from .systems import SYSTEMS as LAUNCHERS

OURS = LAUNCHERS["tidemill"]
WORKER = BENCH / "harness" / "state_worker.py"
EVERY_S = 1.0
KEY_BYTES = 48
HOT_SHARE = 100  # of the keys, one of so many is hot
ROWS_WITHOUT_END = 1 << 40
TIMEOUT_S = 900
RECOVERED_S = 120  # in which a job must have gone on


@dataclass(frozen=True)
class Setting:
    keys: int  # whose checkpoints are measured
    rows: int  # after each key has come
    fewer_keys: int  # which come back after a failure, and move
    rounds: int
    memory_gib: int  # that a system may want


SETTINGS = {
    "full": Setting(20_000_000, 100_000_000, 2_000_000, 3, 9),
    "quick": Setting(5_000_000, 30_000_000, 2_000_000, 1, 3),
    "tiny": Setting(20_000, 400_000, 20_000, 1, 0),
}


@dataclass(frozen=True)
class System:
    launch: Callable[[list[str]], Launch]  # from what the program is given
    share: float = 1.0  # of the rows, where they take long


def tidemill(workers: int, threads: int) -> System:
    options = ["--threads", str(threads), "--restarts", "1"]
    return System(lambda given: OURS.launch(workers, "shm", [str(WORKER), *given], options))


def flink(backend: str, share: float) -> System:
    return System(lambda given: flink_java("StateFlink", [backend, *given], heap="8g"), share)


SYSTEMS = {
    "tidemill-2x1": tidemill(2, 1),
    "tidemill-1x2": tidemill(1, 2),
    "flink-hashmap": flink("hashmap", 0.2),
    "flink-rocksdb": flink("rocksdb", 0.1),
}


def missing(system: str) -> str | None:
    """What keeps a system from running here, with the remedy; None when it can run."""
    if not system.startswith("flink"):
        return None
    built = shutil.which("java") and (FLINK_CLASSES / "StateFlink.class").exists()
    return None if built else "java or its program is missing: run bench/setup_peers.sh"


@contextlib.contextmanager
def folder() -> Any:
    with tempfile.TemporaryDirectory(prefix="state-", ignore_cleanup_errors=True) as made:
        yield Path(made)


# --- modes -----------------------------------------------------------------------------------------------------------
def cost(system: str, setting: Setting, hot: int, every_s: float) -> dict[str, Any]:
    rows = setting.keys + int(setting.rows * SYSTEMS[system].share)
    touch_memory(setting.memory_gib)
    with folder() as at:
        given = ["cost", str(every_s), str(setting.keys), str(hot), str(rows), str(at / "checkpoints")]
        found = run_once(SYSTEMS[system].launch(given), "per_s", TIMEOUT_S)
    if found["counted"] != rows:
        raise SystemFailed(f"counted {found['counted']:,} of {rows:,} rows")
    return found


def move(system: str, setting: Setting) -> list[float]:
    """How long a copy took no rows, at each move."""
    keys = str(setting.fewer_keys)
    with folder() as at:
        given = ["move", str(EVERY_S), keys, keys, str(ROWS_WITHOUT_END), str(at / "checkpoints")]
        moves = run_once(SYSTEMS[system].launch(given), "moves", TIMEOUT_S)["moves"]
    if wrong := [one["error"] for one in moves if one["error"]]:
        raise SystemFailed(wrong[0])
    return [one["waited_s"] for one in moves]


def recovery(system: str, setting: Setting) -> float:
    """From the moment when a worker is killed until the first result of the run after that."""
    keys = str(setting.fewer_keys)
    with folder() as at:
        given = ["recovery", str(EVERY_S), keys, keys, str(ROWS_WITHOUT_END), str(at)]
        with (at / "output").open("wb") as output:
            process = SYSTEMS[system].launch(given).start(output)
        try:
            # All keys have come, and a checkpoint has them.
            epochs = at / "checkpoints" / "epochs"
            time.sleep(setting.fewer_keys / 1e6)
            until(process, lambda: results(at, 0) != [], "a result")
            time.sleep(3 * EVERY_S)
            until(process, lambda: any(epochs.glob("[0-9]*")), "a checkpoint")
            # The last child is a worker; the first one is the launcher's own.
            os.kill(descendants(process.pid)[-1], signal.SIGKILL)
            killed_ns = time.monotonic_ns()
            until(process, lambda: results(at, 1) != [], "a result after the failure")
            return (min(results(at, 1)) - killed_ns) / 1e9
        except SystemFailed as error:
            said = (at / "output").read_text(errors="replace").strip().splitlines()[-3:]
            raise SystemFailed(" | ".join([str(error), *said])) from None
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def results(at: Path, run: int) -> list[int]:
    """When results of this run came."""
    found = []
    for file in at.glob("results-*"):
        # The last line may not be whole yet.
        lines = file.read_text().split("\n")[:-1]
        found += [int(line.split()[1]) for line in lines if line.startswith(f"{run} ")]
    return found


def until(process: Any, happened: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + RECOVERED_S
    while not happened():
        if process.poll() is not None:
            raise SystemFailed(f"it ended before {what}")
        if time.monotonic() > deadline:
            raise SystemFailed(f"no sign of {what} in {RECOVERED_S} s")
        time.sleep(0.01)


# --- turns -----------------------------------------------------------------------------------------------------------
def measure(
    name: str,
    systems: Sequence[str] | None,
    cases: Sequence[str] | None,
    rounds: int | None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Runs setting `name`; the raw results: of each mode what every system has found, and failures."""
    setting = SETTINGS[name]
    rounds = rounds or setting.rounds
    running = present(name, systems, SYSTEMS, missing, lambda line: say(f"state: {line}"))
    measured: list[dict[str, Any]] = []

    def turns(title: str, systems: Sequence[str], turn: Callable[[str], Any]) -> None:
        if cases and not any(part in title for part in cases):
            return
        found, failures = in_turn(
            systems, rounds, lambda system, _: {"found": turn(system)}, lambda line: say(f"state: {line}"), title
        )
        measured.append({"case": title, "found": found.get("found", {}), "failures": failures})

    for title, hot in (("cost-all", setting.keys), ("cost-hot", setting.keys // HOT_SHARE)):
        # With and without, one right after the other.
        turns(title, running, lambda system, hot=hot: [cost(system, setting, hot, every) for every in (0, EVERY_S)])
    # Keys move, and a worker can be killed, where there are two.
    two = [system for system in running if system == "tidemill-2x1"]
    turns("recovery", two, lambda system: recovery(system, setting))
    turns("move", two, lambda system: move(system, setting))
    say(f"state: {len(measured)} cases, {rounds} rounds")
    described = {"keys": setting.keys, "fewer_keys": setting.fewer_keys, "key_bytes": KEY_BYTES, "every_s": EVERY_S}
    return {"rounds": rounds, **described, "cases": [case for case in measured if case["found"] or case["failures"]]}


def ratio(pairs: Sequence[Sequence[dict[str, Any]]]) -> float:
    """The median, over rounds, of the rate with checkpoints over that without."""
    return statistics.median(saved["per_s"] / plain["per_s"] for plain, saved in pairs)
