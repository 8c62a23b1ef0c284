"""Prometheus metrics of a running job: an HTTP endpoint on worker 0 with the figures that workers report to `tidemill
top`.
"""

from __future__ import annotations

import http.server
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tidemill._streaming import status as _status
from tidemill._tables.errors import DataSetError

__all__ = ["address", "serving", "text"]

#: By name: the kind and the help text. All names begin with ``tidemill_``.
_KINDS = {
    "rows_total": ("counter", "Rows that went over an edge."),
    "local_bytes_total": ("counter", "Bytes that went to copies of the same worker."),
    "remote_bytes_total": ("counter", "Bytes that went to other workers."),
    "queue_bytes": ("gauge", "Bytes that wait at the end of an edge."),
    "blocked_seconds_total": ("counter", "Time that senders waited for room, together."),
    "watermark_seconds": ("gauge", "The event time of an edge, in seconds since 1970."),
    "watermark_lag_seconds": ("gauge", "By how much that is behind the clock."),
    "step_busy_seconds_total": ("counter", "Time that the copies of a step worked, together."),
    "step_rows_total": ("counter", "Rows that a step has taken."),
    "step_copies": ("gauge", "Copies of a step."),
    "late_rows_total": ("counter", "Rows that came too late for a step."),
    "untimed_rows_total": ("counter", "Rows that had no time for a step."),
    "busy_rows_total": ("counter", "Rows of windows that ended while a step was busy, and were left out."),
    "rounds_total": ("counter", "Rounds of an all_reduce that a copy has ended."),
    "round_seconds_total": ("counter", "Time from a copy's part to the result, of all rounds together."),
    "round_seconds_max": ("gauge", "The longest time from a copy's part to the result of a round."),
    "rounds_left_out_total": ("counter", "Rounds that left out a copy, because it was late."),
    "spilled_bytes_total": ("counter", "Bytes that went to the spill directory."),
    "silent_seconds": ("gauge", "Time since a worker's last report."),
    "checkpoint": ("gauge", "Number of the newest checkpoint."),
    "checkpoint_age_seconds": ("gauge", "Time since the newest checkpoint, or since the job began."),
    "checkpoint_duration_seconds": ("gauge", "How long the newest checkpoint took."),
    "checkpoint_bytes": ("gauge", "Bytes of state that the newest checkpoint refers to."),
}

_Samples = dict[str, list[tuple[dict[str, Any], float]]]


def address(given: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``, ``:PORT`` or ``PORT``; without a host it is loopback.

    Raises
    ------
    DataSetError
        If it has none of these forms.
    """
    host, _, port = given.strip().rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise DataSetError(f"TIDEMILL_METRICS={given!r} is not an address; use HOST:PORT, such as 127.0.0.1:9100")
    return host.strip("[]") or "127.0.0.1", int(port)


def text(told: list[dict[str, Any]]) -> str:
    """Return the figures that workers report, in Prometheus text format."""
    samples: _Samples = {name: [] for name in _KINDS}
    for status in told:
        _of_worker(status, samples)
    lines = []
    for name, (kind, about) in _KINDS.items():
        if samples[name]:
            lines += [f"# HELP tidemill_{name} {about}", f"# TYPE tidemill_{name} {kind}"]
            lines += [f"tidemill_{name}{_labels(labels)} {value!r}" for labels, value in samples[name]]
    return "".join(f"{line}\n" for line in lines)


def _of_worker(status: Mapping[str, Any], samples: _Samples) -> None:
    of = {"job": status["job"], "worker": status["worker"]}

    def put(name: str, value: float | None, **labels: Any) -> None:
        if value is not None:
            samples[name].append(({**of, **labels}, float(value)))

    for edge in status["edges"]:
        name = edge["edge"]
        put("rows_total", edge["rows_sent"], edge=name)
        put("local_bytes_total", edge["local_bytes"], edge=name)
        put("remote_bytes_total", edge["remote_bytes"], edge=name)
        put("queue_bytes", edge["queue_bytes"], edge=name)
        put("blocked_seconds_total", edge["blocked_ns"] / 1e9, edge=name)
        if edge["time"] is not None:
            put("watermark_seconds", edge["time"] / 1e6, edge=name)
            put("watermark_lag_seconds", status["at_s"] - edge["time"] / 1e6, edge=name)
    for step in status.get("steps", []):
        put("step_busy_seconds_total", step["busy_ns"] / 1e9, step=step["step"])
        put("step_rows_total", step["rows"], step=step["step"])
        put("step_copies", step["copies"], step=step["step"])
    for name, counts in (
        ("late_rows_total", "late"),
        ("untimed_rows_total", "untimed"),
        ("busy_rows_total", "skipped"),
    ):
        for step, rows in status.get(counts, []):
            put(name, rows, step=step)
    for copy in status.get("collectives") or []:
        if rounds := copy.get("rounds"):
            by = {"step": copy["step"], "copy": copy["copy"]}
            put("rounds_total", rounds["rounds"], **by)
            put("round_seconds_total", rounds["rounds"] * rounds["mean_s"], **by)
            put("round_seconds_max", rounds["worst_s"], **by)
            put("rounds_left_out_total", rounds["left_out"], **by)
    put("spilled_bytes_total", status["spilled_bytes"])
    put("silent_seconds", status["silent_s"])
    if status["worker"] == 0 and status["durable"] is not None:
        made = status["checkpoint"]
        put("checkpoint", status["durable"])
        put("checkpoint_age_seconds", max(time.time() - (made["at_s"] if made else status["begun_s"]), 0.0))
        if made:
            put("checkpoint_duration_seconds", made["took_s"])
            put("checkpoint_bytes", made["bytes"])


def _labels(labels: Mapping[str, Any]) -> str:
    def escaped(value: Any) -> str:
        return str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items()) + "}"


@contextmanager
def serving(job_id: str) -> Iterator[None]:
    """Serve a job's metrics at ``TIDEMILL_METRICS``, if it is set, for the duration of the context. On worker 0.

    Raises
    ------
    DataSetError
        If it cannot listen on this address.
    """
    given = os.environ.get("TIDEMILL_METRICS")
    if not given:
        yield
        return
    where = address(given)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.split("?")[0] not in ("/", "/metrics"):
                self.send_error(404, "figures are at /metrics")
                return
            body = text([status for status in _status.jobs() if status["job_id"] == job_id]).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *values: Any) -> None:
            """Do nothing: by default, each request writes a line to standard error."""

    try:
        server = http.server.ThreadingHTTPServer(where, Handler)
    except OSError as error:
        raise DataSetError(
            f"figures cannot be served at {where[0]}:{where[1]}: {error.strerror or error}; name a free port in "
            "TIDEMILL_METRICS or with --metrics"
        ) from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="tidemill-metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
