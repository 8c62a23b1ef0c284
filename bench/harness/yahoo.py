"""The Yahoo benchmark: views of advertisements by campaign in windows of ten seconds, from JSON into Redis, beside Flink.

Of S. Chintapalli et al.: Benchmarking Streaming Computation Engines: Storm, Flink and Spark Streaming (2016). An event is a JSON object of
seven fields. A job parses it, keeps views, finds the campaign of its advertisement in Redis, which it may keep, counts by campaign in windows
of ten seconds of event time, and sets a hash of Redis for each campaign and window. Each system is a program that is given

    PORT PREFIX FOLDER FILE...

a Redis on this host, what its keys begin with, a folder for checkpoints, and files of events, which lie in the system's cache and whose lines
are each in the order of their times. It reads ads and their campaigns from the hash PREFIXads, writes the hashes PREFIXcount:CAMPAIGN:MS, of
which the field `seen` is the number of views, and prints {"elapsed_s"}: the time from the first event until the last hash is written, with
a checkpoint every second. Every hash is read and compared.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .comm import SystemFailed
from .exchange import FLINK, FLINK_CLASSES, flink_java
from .once import in_turn, run_once
from .systems import BENCH, Launch, present
from .systems import SYSTEMS as LAUNCHERS
from .windows_events import BLOCK, mix

OURS = LAUNCHERS["tidemill"]
WORKER = BENCH / "harness" / "yahoo_worker.py"
JEDIS = FLINK / "jedis"
CAMPAIGNS, ADS_OF_EACH, WINDOW_MS = 100, 10, 10_000
START_MS = 1_767_225_600_000
FILES = 4  # between which events go round
TYPES = ("view", "click", "purchase")
AD_TYPES = ("banner", "modal", "sponsored-search", "mail", "mobile")
TIMEOUT_S = 600
REDIS_START_S = 20


@dataclass(frozen=True)
class Setting:
    events: int
    per_second: int  # of event time
    rounds: int


SETTINGS = {
    "full": Setting(4_000_000, 10_000, 5),
    "quick": Setting(1_000_000, 10_000, 2),
    "tiny": Setting(20_000, 1000, 1),
}


def tidemill(workers: int, threads: int) -> Callable[[list[str]], Launch]:
    return lambda given: OURS.launch(workers, "shm", [str(WORKER), *given], ["--threads", str(threads)])


SYSTEMS: dict[str, Callable[[list[str]], Launch]] = {
    "tidemill-2x1": tidemill(2, 1),
    "tidemill-1x2": tidemill(1, 2),
    "flink": lambda given: flink_java("YahooFlink", given, [f"{JEDIS}/*"]),
}


def missing(system: str) -> str | None:
    """What keeps a system from running here, with the remedy; None when it can run."""
    if not shutil.which("redis-server"):
        return "redis-server is missing: run tools/setup-servers"
    if system == "flink" and not (
        shutil.which("java") and JEDIS.exists() and (FLINK_CLASSES / "YahooFlink.class").exists()
    ):
        return "java, Jedis or its program is missing: run bench/setup_peers.sh"
    return None


# --- events ----------------------------------------------------------------------------------------------------------
def write_events(folder: Path, setting: Setting) -> tuple[list[Path], dict[str, int]]:
    """Files of events, and the number of views that each hash must have."""
    files = [folder / f"events-{number}.json" for number in range(FILES)]
    right = np.zeros((CAMPAIGNS, setting.events * 1000 // setting.per_second // WINDOW_MS + 1), np.int64)
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(file.open("w")) for file in files]
        for start in range(0, setting.events, BLOCK):
            numbers = np.arange(start, min(start + BLOCK, setting.events))
            random = mix(numbers + 1)
            ads = (random % np.uint64(CAMPAIGNS * ADS_OF_EACH)).astype(np.int64)
            types = (random >> np.uint64(16)) % np.uint64(len(TYPES))
            passed_ms = numbers * 1000 // setting.per_second
            viewed = types == 0
            np.add.at(right, (ads[viewed] // ADS_OF_EACH, passed_ms[viewed] // WINDOW_MS), 1)
            columns = (numbers, random, ads, types, passed_ms)
            for i, bits, ad, type_, after_ms in zip(*(column.tolist() for column in columns), strict=True):
                opened[i % FILES].write(
                    f'{{"user_id": "{bits:016x}", "page_id": "{bits * 5 & (1 << 64) - 1:016x}", "ad_id": "ad{ad}", '
                    f'"ad_type": "{AD_TYPES[bits >> 32 & 3]}", "event_type": "{TYPES[type_]}", '
                    f'"event_time": {START_MS + after_ms}, "ip_address": "10.0.{bits >> 40 & 255}.{bits >> 48 & 255}"}}\n'
                )
    return files, {
        f"campaign{campaign}:{START_MS + window * WINDOW_MS}": int(right[campaign, window])
        for campaign, window in zip(*right.nonzero(), strict=True)
    }


# --- Redis -----------------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def redis_server(folder: Path) -> Iterator[int]:
    """A Redis that keeps everything in memory, on a port of this host alone."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder)]
    command += ["--save", "", "--appendonly", "no"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        deadline = time.monotonic() + REDIS_START_S
        while True:
            with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemFailed("redis-server did not start")
            time.sleep(0.02)
        yield port
    finally:
        process.terminate()
        process.wait()


def difference(client: Any, prefix: str, right: dict[str, int]) -> str:
    """Say which hash is wrong, missing or too many."""
    begins = f"{prefix}count:"
    keys = [key[len(begins) :] for key in client.scan_iter(f"{begins}*", count=10_000)]
    if extra := set(keys) - set(right):
        return f"{min(extra)} should not be there"
    for name, count in right.items():
        if (seen := client.hget(begins + name, "seen")) != str(count):
            return f"{name} is {seen}, not {count}"
    return ""


# --- turns -----------------------------------------------------------------------------------------------------------
def measure(name: str, systems: Sequence[str] | None, rounds: int | None, say: Callable[[str], None]) -> dict[str, Any]:
    """Runs setting `name`; the raw results: times and failures of every system."""
    setting = SETTINGS[name]
    rounds = rounds or setting.rounds
    running = present(name, systems, SYSTEMS, missing, lambda line: say(f"yahoo: {line}"))
    found: dict[str, dict[str, list[Any]]] = {}
    failures: dict[str, str] = {}
    if running:
        with tempfile.TemporaryDirectory(prefix="yahoo-") as made:
            (Path(made) / "events").mkdir()
            files, right = write_events(Path(made) / "events", setting)

            def turn(system: str, _: int) -> dict[str, float]:
                return {"elapsed_s": run(system, Path(made), files, right)}

            found, failures = in_turn(running, rounds, turn, say, "yahoo")
    say(f"yahoo: {rounds} rounds")
    cases = [{"elapsed_s": found.get("elapsed_s", {}), "failures": failures}] if found or failures else []
    return {"rounds": rounds, "events": setting.events, "per_second": setting.per_second, "cases": cases}


def run(system: str, folder: Path, files: Sequence[Path], right: dict[str, int]) -> float:
    """The time of one job, with a Redis of its own, whose hashes must be right."""
    import redis

    ads = {f"ad{number}": f"campaign{number // ADS_OF_EACH}" for number in range(CAMPAIGNS * ADS_OF_EACH)}
    with redis_server(folder) as port, redis.Redis(port=port, decode_responses=True) as client:
        client.hset("yahoo:ads", mapping=ads)
        with tempfile.TemporaryDirectory(dir=folder) as checkpoints:
            given = [str(port), "yahoo:", checkpoints, *map(str, files)]
            found = run_once(SYSTEMS[system](given), "elapsed_s", TIMEOUT_S)
        if wrong := difference(client, "yahoo:", right):
            raise SystemFailed(f"a wrong result: {wrong}")
    return float(found["elapsed_s"])
