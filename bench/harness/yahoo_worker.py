"""The Yahoo benchmark with Tidemill: JSON, joined with a table that is in Redis or asked for view by view, counted in windows, into Redis.

    yahoo_worker.py [--query] [--paced] [--checkpoints] PORT PREFIX FOLDER FILE...

With ``--query`` each view asks Redis for its campaign, and nothing is kept. With ``--paced`` events are not read as fast as they go, but each
comes when it is due: that is by its time, counted from the first one's, on a clock of the whole host. With
``--checkpoints`` there is one every second. What is printed: see `yahoo.py`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json
import redis
import tidemill as tm
from numpy.typing import NDArray

WINDOW_S = 10
#: Of the events' seven fields; the others are passed over.
SCHEMA = {"ad_id": "str", "event_type": "str", "event_time": "timestamp[ms]"}
ARROW = pa.schema({"ad_id": pa.string(), "event_type": pa.string(), "event_time": pa.int64()})
SPLITS = ("0", "1")  # of a paced stream, each read by a thread of its own
BATCH = 8192  # events that come together at most, once the job is behind
TICK_NS = 2_000_000  # from one look at what is due to the next, as in Tidemill's own generator
AHEAD_S = 1.0  # from the start of a paced job until the first event is due
PARTS = (50, 90, 99, 99.9)


# --- events that come when they are due ------------------------------------------------------------------------------
class Schedule:
    """The events of each split and when they are due, which does not depend on how far the job is."""

    def __init__(self, files: Sequence[str]) -> None:
        self.lines: dict[str, pa.Array] = {}
        self.times_ms: dict[str, NDArray[np.int64]] = {}
        for number, split in enumerate(SPLITS):
            own = [Path(file).read_bytes() for file in files[number :: len(SPLITS)]]
            times_ms = np.concatenate([parse(lines)["event_time"].to_numpy() for lines in own])
            in_order = np.argsort(times_ms, kind="stable")
            self.times_ms[split] = times_ms[in_order]
            self.lines[split] = pa.array([line for lines in own for line in lines.splitlines()]).take(in_order)
        self.first_ms = min(int(times[0]) for times in self.times_ms.values())
        self.last_ms = max(int(times[-1]) for times in self.times_ms.values())
        self.start_ns = 0

    def due_ns(self, times_ms: NDArray[np.int64]) -> NDArray[np.int64]:
        """All events of a millisecond are due at its beginning."""
        return self.start_ns + (times_ms - self.first_ms) * 1_000_000

    def read(self, split: str, position: int | None) -> Iterator[tuple[pa.Table, int]]:
        due_ns, lines, at = self.due_ns(self.times_ms[split]), self.lines[split], position or 0
        looked_ns = 0
        while at < len(lines):
            time.sleep(max(0, int(due_ns[at]) - time.monotonic_ns(), looked_ns + TICK_NS - time.monotonic_ns()) / 1e9)
            looked_ns = time.monotonic_ns()
            end = min(int(np.searchsorted(due_ns, looked_ns, "right")), at + BATCH)
            if end > at:
                yield pa.table({"line": lines.slice(at, end - at)}), end
            at = end

    def stream(self) -> tm.DataSet:
        def parsed(rows: Any) -> pa.Table:
            events = parse(b"\n".join(pa.table(rows)["line"].to_pylist()))
            return events.set_column(2, "event_time", events["event_time"].cast(pa.timestamp("ms")))

        events = tm.stream.from_function(self.read, {"line": "binary"}, splits=SPLITS).map_batches(parsed, SCHEMA)
        # The engine does not see the time in the lines.
        return events.with_columns(event_time=tm.stream.bounded_delay("event_time", "1ms"))


def parse(lines: bytes) -> pa.Table:
    # The job's own threads do the work.
    reading = pyarrow.json.ReadOptions(use_threads=False, block_size=len(lines) + 1)
    options = pyarrow.json.ParseOptions(explicit_schema=ARROW, unexpected_field_behavior="ignore")
    return pyarrow.json.read_json(pa.BufferReader(lines), reading, options)


# --- Redis -----------------------------------------------------------------------------------------------------------
class Waits:
    """How long each view waited for answers of Redis: as long as the whole batch that it was in."""

    def __init__(self) -> None:
        self.found: list[tuple[int, int]] = []

    def of(self, views: int, ask: Callable[[], Any]) -> Any:
        begin_ns = time.monotonic_ns()
        answer = ask()
        self.found.append((time.monotonic_ns() - begin_ns, views))
        return answer

    def by_view_ns(self) -> NDArray[np.int64]:
        waits, views = np.array(self.found, np.int64).reshape(-1, 2).T
        return np.repeat(waits, views)


def asked(views: tm.DataSet, url: str, prefix: str, waits: Waits) -> tm.DataSet:
    """With the campaign of each view, by a query for each."""
    # `DataSet.lookup` would ask once for all views of a batch that have the same advertisement.
    look_up = tm.stream.redis_lookup(url, "campaign", prefix=f"{prefix}ad:")

    def ask(rows: Any) -> pa.Table:
        rows = pa.table(rows)
        found = waits.of(len(rows), lambda: look_up(rows.select(["ad_id"])))
        return rows.append_column("campaign", pa.array([one["campaign"] for one in found], pa.string()))

    return views.map_batches(ask, {"ad_id": "str", "event_time": "timestamp[ms]", "campaign": "str"})


class Acknowledged:
    """Sets hashes, and keeps when Redis had answered for each view: a row has the count up to one view, and the sum of their times.

    Of the rows that come together only the newest of each hash is written; the answer holds for all of them.
    """

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self.client, self.prefix, self.waits = client, prefix, Waits()
        self.known: dict[str, tuple[int, int]] = {}
        self.found: list[tuple[int, list[int]]] = []

    def __call__(self, rows: tm.Table) -> None:
        times_ms, newest = [], {}
        columns = rows.to_dict()
        of_rows = (columns[name] for name in ("campaign", "start", "seen", "sum_ms"))
        for campaign, start_ms, seen, sum_ms in zip(*of_rows, strict=True):
            name = f"{campaign}:{start_ms}"
            before, sum_before_ms = self.known.get(name, (0, 0))
            if seen == before:  # a window that has ended, whose count has been written
                continue
            if seen != before + 1:
                raise RuntimeError(f"{name} went from {before} to {seen} views")
            times_ms.append(sum_ms - sum_before_ms)
            self.known[name] = seen, sum_ms
            newest[name] = seen
        if newest:
            pipeline = self.client.pipeline(transaction=False)
            for name, seen in newest.items():
                pipeline.hset(f"{self.prefix}count:{name}", "seen", seen)
            self.waits.of(len(times_ms), pipeline.execute)
            self.found.append((time.monotonic_ns(), times_ms))

    def latencies_ns(self, schedule: Schedule) -> tuple[int, NDArray[np.int64]]:
        """How many views there were, and how late the answers to them were, but for the first tenth of the time."""
        at_ns = np.repeat([at for at, _ in self.found], [len(times) for _, times in self.found]).astype(np.int64)
        times_ms = np.array([at for _, times in self.found for at in times], np.int64)
        counted = times_ms >= schedule.first_ms + (schedule.last_ms - schedule.first_ms) // 10
        return len(times_ms), (at_ns - schedule.due_ns(times_ms))[counted]


def percentiles(values_ns: NDArray[np.int64]) -> dict[str, float]:
    """In seconds; none of no values."""
    if not len(values_ns):
        return {}
    found = np.percentile(values_ns, PARTS, method="inverted_cdf").tolist()
    return {f"p{part:g}": at / 1e9 for part, at in zip(PARTS, found, strict=True)} | {"max": int(values_ns.max()) / 1e9}


# --- the job ---------------------------------------------------------------------------------------------------------
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--query", action="store_true")
    parser.add_argument("--paced", action="store_true")
    parser.add_argument("--checkpoints", action="store_true")
    parser.add_argument("port", type=int)
    parser.add_argument("prefix")
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", nargs="+")
    given = parser.parse_args()

    prefix, url = given.prefix, f"redis://127.0.0.1:{given.port}/0"
    job = tm.init()
    client = redis.Redis(port=given.port, decode_responses=True)
    if given.paced:
        schedule = Schedule(given.files)
        events = schedule.stream()
    else:
        events = tm.stream.from_files(Path(given.files[0]).parent, SCHEMA, time="event_time", stop_at_end=True)
    views = events.filter(tm.col("event_type") == "view").select("ad_id", "event_time")
    lookups = Waits()
    if given.query:
        views = asked(views, url, prefix, lookups)
    else:
        ads = client.hgetall(f"{prefix}ads")
        views = views.join(tm.from_dict({"ad_id": list(ads), "campaign": list(ads.values())}), on="ad_id")
    start = tm.col("window_start").cast("timestamp[ms]").cast("int64")
    if given.paced:
        # A row for each view, so that it is known which views a count holds.
        window = tm.stream.window(tm.stream.tumbling(WINDOW_S), on="event_time", emit_early_rows=1)
        timed = views.with_columns(time_ms=tm.col("event_time").cast("int64"))
        seen = timed.group_by("campaign", window).agg(seen=tm.count(), sum_ms=tm.sum("time_ms"))
        rows = seen.select("campaign", "seen", "sum_ms", start=start)
        sink: Any = Acknowledged(client, prefix)
    else:
        window = tm.stream.window(tm.stream.tumbling(WINDOW_S), on="event_time")
        rows = views.group_by("campaign", window).agg(seen=tm.count()).select("campaign", "seen", start=start)
        sink = tm.stream.to_redis(url, id=f"{prefix}counts", key=["campaign", "start"], prefix=f"{prefix}count:")

    # Threads, and connections between the workers, are there before.
    tm.stream.from_generator(0, rows=10).write_stream(lambda rows: None)
    job.comm.barrier()
    checkpoint = tm.stream.Checkpoint(given.folder / "counts", interval="1s") if given.checkpoints else None
    if given.paced:
        schedule.start_ns = job.comm.bcast(time.monotonic_ns() + round(AHEAD_S * 1e9))
    begin = time.perf_counter()
    rows.write_stream(sink, name="yahoo", checkpoint=checkpoint)
    elapsed_s = time.perf_counter() - begin
    late = sink.latencies_ns(schedule) if given.paced else (0, np.empty(0, np.int64))
    writes_ns = sink.waits.by_view_ns() if given.paced else np.empty(0, np.int64)
    parts = job.comm.gather((elapsed_s, late[0], late[1], lookups.by_view_ns(), writes_ns))
    if job.rank == 0:
        times, counts, latency_ns, lookup_ns, write_ns = zip(*parts, strict=True)
        found: dict[str, Any] = {"elapsed_s": max(times)}
        if given.paced:
            found |= {"views": sum(counts), "latency_s": percentiles(np.concatenate(latency_ns))}
            found |= {"write_s": percentiles(np.concatenate(write_ns))}
        if given.query:
            found |= {"lookup_s": percentiles(np.concatenate(lookup_ns))}
        print(json.dumps(found), flush=True)


main()
