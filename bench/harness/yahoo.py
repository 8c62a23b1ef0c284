"""The Yahoo benchmark: views of advertisements by campaign in windows of ten seconds, from JSON into Redis, beside Flink.

Of S. Chintapalli et al.: Benchmarking Streaming Computation Engines: Storm, Flink and Spark Streaming (2016). An event is a JSON object of
seven fields. A job parses it, keeps views, finds the campaign of its advertisement in Redis, which it may keep, counts by campaign in windows
of ten seconds of event time, and sets a hash of Redis for each campaign and window. Each system is a program that is given

    PORT PREFIX FOLDER FILE...

a Redis on this host, what its keys begin with, a folder for checkpoints, and files of events, which lie in the system's cache and whose lines
are each in the order of their times. It reads ads and their campaigns from the hash PREFIXads, writes the hashes PREFIXcount:CAMPAIGN:MS, of
which the field `seen` is the number of views, and prints {"elapsed_s"}: the time from the first event until the last hash is written, with
a checkpoint every second. Every hash is read and compared.

Tidemill alone, which makes checkpoints if told `--checkpoints`, runs two more ways, of which each can be had without the other. With `--query` it keeps no campaigns: each view asks Redis for
the field `campaign` of the hash PREFIXad:AD, which the server's own count of its commands must confirm. With `--paced` each event comes when
it is due by its time, and it prints also {"views", "latency_s", "write_s"} and, with queries, {"lookup_s"}: percentiles over views of

    latency_s    from when an event was due until Redis has answered that the count of its window that holds it is set
    lookup_s     how long of this its batch waited for the answers to its queries
    write_s      and for the answers to what it set

An event is due whether or not the job is ready for it, so time in queues counts, those before the source too.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
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
PIPELINED, PLAIN_QUERIES = 1000, 100_000


@dataclass(frozen=True)
class Setting:
    events: int
    per_second: int  # of event time
    rounds: int
    paces: tuple[int, ...]  # events in a second of the paced runs
    paced_s: int  # how long each of them takes


SETTINGS = {
    "full": Setting(4_000_000, 10_000, 5, (10_000, 30_000, 100_000), 30),
    "quick": Setting(1_000_000, 10_000, 2, (10_000, 30_000), 5),
    "tiny": Setting(20_000, 1000, 1, (1000,), 1),
}
#: Where a view's campaign comes from, and what the worker is told; paced and as fast as it goes.
CHECKPOINTS = "--checkpoints"
WAYS = {"table": [CHECKPOINTS], "query": ["--query", CHECKPOINTS]}
PACED_WAYS = {"table": ["--paced"], "query": ["--paced", "--query"], "checkpoints": ["--paced", CHECKPOINTS]}


def tidemill(workers: int, threads: int) -> Callable[[list[str]], Launch]:
    return lambda given: OURS.launch(workers, "shm", [str(WORKER), *given], ["--threads", str(threads)])


def flink(given: list[str]) -> Launch:
    """It always makes checkpoints."""
    return flink_java("YahooFlink", [one for one in given if one != CHECKPOINTS], [f"{JEDIS}/*"])


SYSTEMS: dict[str, Callable[[list[str]], Launch]] = {
    "tidemill-2x1": tidemill(2, 1),
    "tidemill-1x2": tidemill(1, 2),
    "flink": flink,
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


def queries_per_s(port: int, prefix: str) -> float:
    """What the server gives to a plain client that does nothing else: one connection, many queries sent at a time."""
    ads = [f"{prefix}ad:ad{number % (CAMPAIGNS * ADS_OF_EACH)}" for number in range(PIPELINED)]
    sent = b"".join(f"*3\r\n$5\r\nHMGET\r\n${len(ad)}\r\n{ad}\r\n$8\r\ncampaign\r\n".encode() for ad in ads)
    with socket.create_connection(("127.0.0.1", port)) as server:
        begin = time.perf_counter()
        for _ in range(PLAIN_QUERIES // PIPELINED):
            server.sendall(sent)
            lines = 0
            while lines < 3 * PIPELINED:  # of an answer: that it has one field, the field's length, and the field
                received = server.recv(1 << 16)
                if not received:
                    raise SystemFailed("redis-server closed a connection")
                lines += received.count(b"\n")
        return PLAIN_QUERIES / (time.perf_counter() - begin)


def own_time(client: Any, elapsed_s: float) -> dict[str, float]:
    """What the server itself took since its counts began: queries, the time in each, and the share of a core, system calls included."""
    commands, cpu = client.info("commandstats"), client.info("cpu")
    asked = commands.get("cmdstat_hmget", {"calls": 0, "usec_per_call": 0.0})
    core_s = cpu["used_cpu_user"] + cpu["used_cpu_sys"]
    return {"queries": asked["calls"], "query_us": asked["usec_per_call"], "core": core_s / elapsed_s}


# --- turns -----------------------------------------------------------------------------------------------------------
def measure(
    name: str,
    systems: Sequence[str] | None,
    cases: Sequence[str] | None,
    rounds: int | None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Runs setting `name`, or those of its `cases` named by a part of table, query, paced-table-10000 and such; the raw results."""
    setting = SETTINGS[name]
    rounds = rounds or setting.rounds
    running = present(name, systems, SYSTEMS, missing, lambda line: say(f"yahoo: {line}"))
    found: dict[str, list[dict[str, Any]]] = {"cases": [], "paced": []}
    ways = [(0, way) for way in WAYS] + list(itertools.product(setting.paces, PACED_WAYS))
    for pace, way in ways:
        case = f"paced-{way}-{pace}" if pace else way
        able = [system for system in running if system.startswith("tidemill") or case == "table"]
        if able and (not cases or any(part in case for part in cases)):
            of = replace(setting, events=pace * setting.paced_s, per_second=pace) if pace else setting
            options = (PACED_WAYS if pace else WAYS)[way]
            values, failures = measure_case(case, options, of, able, rounds, say)
            given = {"campaigns": way, "per_second": pace, "elapsed_s": {}, **values, "failures": failures}
            found["paced" if pace else "cases"].append(given)
    say(f"yahoo: {rounds} rounds")
    sizes = {"events": setting.events, "per_second": setting.per_second, "paced_s": setting.paced_s}
    return {"rounds": rounds, **sizes, **found}


def measure_case(
    case: str,
    options: Sequence[str],
    setting: Setting,
    systems: Sequence[str],
    rounds: int,
    say: Callable[[str], None],
) -> tuple[dict[str, dict[str, list[Any]]], dict[str, str]]:
    """What each system's program prints of these events, each round, and what Redis took of it; and failures."""
    with tempfile.TemporaryDirectory(prefix="yahoo-") as made:
        (Path(made) / "events").mkdir()
        files, right = write_events(Path(made) / "events", setting)

        def turn(system: str, _: int) -> dict[str, Any]:
            return run(system, options, Path(made), files, right)

        return in_turn(systems, rounds, turn, say, f"yahoo, {case}")


def run(
    system: str, options: Sequence[str], folder: Path, files: Sequence[Path], right: dict[str, int]
) -> dict[str, Any]:
    """What one job prints, with a Redis of its own, whose hashes must be right, and what this took itself."""
    import redis

    ads = {f"ad{number}": f"campaign{number // ADS_OF_EACH}" for number in range(CAMPAIGNS * ADS_OF_EACH)}
    query = "--query" in options
    with redis_server(folder) as port, redis.Redis(port=port, decode_responses=True) as client:
        client.hset("yahoo:ads", mapping=ads)
        for ad, campaign in ads.items() if query else ():
            client.hset(f"yahoo:ad:{ad}", "campaign", campaign)
        plain = {"plain_per_s": queries_per_s(port, "yahoo:")} if query else {}
        before = own_time(client, 1.0)
        client.config_resetstat()
        with tempfile.TemporaryDirectory(dir=folder) as checkpoints:
            given = [*options, str(port), "yahoo:", checkpoints, *map(str, files)]
            found = run_once(SYSTEMS[system](given), "elapsed_s", TIMEOUT_S)
        own = own_time(client, found["elapsed_s"])
        own["core"] -= before["core"] / found["elapsed_s"]
        if wrong := difference(client, "yahoo:", right):
            raise SystemFailed(f"a wrong result: {wrong}")
    views = sum(right.values())
    if own["queries"] != (views if query else 0):
        raise SystemFailed(f"Redis was asked {own['queries']:,} times for {views:,} views")
    if found.get("views", views) != views:
        raise SystemFailed(f"{found['views']:,} of {views:,} views have a time")
    return {**found, "redis": own | plain}
