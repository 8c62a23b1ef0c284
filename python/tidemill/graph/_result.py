"""Results of a run: return values of functions, and counters of edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidemill.graph._errors import GraphError

__all__ = ["EdgeReport", "Result"]


@dataclass(frozen=True)
class EdgeReport:
    """Counters of this worker for one edge, or for one part of an exchange that has several.

    Attributes
    ----------
    edge : str
        Its name, as in errors and plans.
    rows_sent, rows_received : int
        By this worker's copies; a row that is broadcast is sent once and received by each copy.
    local_blocks, local_bytes : int
        Batches passed to copies of the same worker, and their bytes.
    remote_blocks, remote_bytes : int
        Blocks sent to other workers, and their bytes on the wire.
    late_rows : int
        With rounds of time: rows that were left out because they came after their round, or have no time.
    blocked_s : float
        Total seconds that its copies waited for a receiver.
    queue_bytes_max : int
        Maximum number of bytes queued for one copy.
    bucket_rows, bucket_bytes : list of int
        For keyed edges: rows and bytes sent to each bucket; otherwise empty.
    bucket_work_s : list of float
        For keyed edges: approximate seconds that this worker's copies have spent on the rows of each bucket, including
        waits for downstream receivers. One batch in sixteen is sampled, and some of its rows. Otherwise empty.
    """

    edge: str
    rows_sent: int
    rows_received: int
    local_blocks: int
    local_bytes: int
    remote_blocks: int
    remote_bytes: int
    late_rows: int
    blocked_s: float
    queue_bytes_max: int
    bucket_rows: list[int]
    bucket_bytes: list[int]
    bucket_work_s: list[float]


class Result:
    """Results of a run; ``result["total"][0]`` is the return value of copy 0 of task ``"total"``.

    Attributes
    ----------
    values : dict of str to dict of int to object
        Return values of functions, by task and copy, except None; of tasks with ``each=True`` the last `Context.state`.
    seconds : dict of str to dict of int to float
        Seconds of processor time of the functions' threads, by task and copy.
    traffic : dict of (str, str) to int
        Bytes that tasks have sent, by pairs of tasks that an edge connects. If a task has several targets, each counts
        an equal part.
    edges : list of EdgeReport
        This worker's counters for every edge, including those inside exchanges.
    spilled_bytes : int
        Bytes that this worker wrote to disk.
    wall_s : float
        Seconds from the first copy's start to the last worker's end.
    """

    def __init__(
        self,
        values: dict[str, dict[int, Any]],
        seconds: dict[str, dict[int, float]],
        traffic: dict[tuple[str, str], int],
        report: Mapping[str, Any],
    ) -> None:
        self.values = values
        self.seconds = seconds
        self.traffic = traffic
        self.edges = [EdgeReport(**edge) for edge in report["edges"]]
        self.spilled_bytes: int = report["spilled_bytes"]
        self.wall_s: float = report["wall_s"]

    def __getitem__(self, task: str) -> dict[int, Any]:
        if task not in self.values:
            raise GraphError(f"the graph has no task {task!r}; the tasks are {', '.join(self.values)}", task)
        return self.values[task]

    def edge(self, part: str) -> EdgeReport:
        """Return the first edge whose name contains `part`.

        Raises
        ------
        GraphError
            If there is none.
        """
        found = next((edge for edge in self.edges if part in edge.edge), None)
        if found is None:
            raise GraphError(f"no edge {part!r}; the edges are {', '.join(edge.edge for edge in self.edges)}")
        return found

    def __repr__(self) -> str:
        returned = {task: len(values) for task, values in self.values.items() if values}
        return f"<result: {len(self.edges)} edges, {self.wall_s:.3f} s, returned by copies {returned}>"
