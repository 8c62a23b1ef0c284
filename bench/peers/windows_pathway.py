"""Windows with Pathway: a keyed count in tumbling windows of event time, on two workers (threads).

    pathway spawn --threads 2 python windows_pathway.py throughput|latency EVENTS PER_SECOND

The modes, the events and what is printed: see `harness/windows.py`.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import pathway as pw
from windows_events import LATENESS_MS, WINDOW_MS, events, report

TICK_S = 0.02  # between batches of a paced source
AUTOCOMMIT_MS = 1000  # when it goes as fast as it can

closed_ns: dict[int, int] = {}
arrived_ns: dict[int, int] = {}
rows: list[tuple[int, int, int]] = []
times_s = {"start": 0.0, "end": 0.0}


class Event(pw.Schema):
    key: int
    time: int


class Source(pw.io.python.ConnectorSubject):
    def __init__(self, paced: bool, count: int, per_second: int) -> None:
        super().__init__()
        self.paced, self.per_second = paced, per_second
        keys, times = (column.tolist() for column in events(np.arange(count), per_second))
        self.made = [{"key": key, "time": at} for key, at in zip(keys, times, strict=True)]

    def run(self) -> None:
        times_s["start"] = begin = time.monotonic()
        if not self.paced:
            for event in self.made:
                self.next(**event)
            return
        sent, latest, next_end = 0, 0, WINDOW_MS
        while sent < len(self.made):
            now = time.monotonic()
            due = min(len(self.made), int((now - begin) * self.per_second))
            for event in self.made[sent:due]:
                self.next(**event)
                latest = max(latest, event["time"])
            sent = due
            while latest - LATENESS_MS >= next_end:
                closed_ns[next_end - WINDOW_MS] = time.monotonic_ns()
                next_end += WINDOW_MS
            self.commit()
            time.sleep(max(0.0, now + TICK_S - time.monotonic()))


def arrived(key: pw.Pointer, row: dict[str, int], time_: int, is_addition: bool) -> None:
    assert is_addition
    rows.append((row["start"], row["key"], row["count"]))
    arrived_ns[row["start"]] = time.monotonic_ns()
    times_s["end"] = time.monotonic()


def main() -> None:
    paced, count, per_second = sys.argv[1] == "latency", int(sys.argv[2]), int(sys.argv[3])
    source = Source(paced, count, per_second)
    made = pw.io.python.read(source, schema=Event, autocommit_duration_ms=None if paced else AUTOCOMMIT_MS)
    counted = made.windowby(
        made.time,
        window=pw.temporal.tumbling(duration=WINDOW_MS, origin=0),
        instance=made.key,
        behavior=pw.temporal.exactly_once_behavior(shift=LATENESS_MS),
    ).reduce(start=pw.this._pw_window_start, key=pw.this._pw_instance, count=pw.reducers.count())
    pw.io.subscribe(counted, on_change=lambda key, row, time, is_addition: arrived(key, row, time, is_addition))
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    print(report(times_s["end"] - times_s["start"], rows, closed_ns, arrived_ns), flush=True)


main()
