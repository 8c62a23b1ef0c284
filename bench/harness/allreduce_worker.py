"""All-reduces of one vector on every rank, timed by each rank itself: the same program for Tidemill, Open MPI and gloo.

    allreduce_worker.py SYSTEM POINTS

SYSTEM is `tidemill`, `openmpi` or `gloo`. POINTS is a JSON list of objects, told in `allreduce.py`; all of them are run in turn by the same workers.
Rank 0 prints a JSON object for each point. A point begins when its file `gate` is there: links are changed before.

Nothing here depends on Tidemill but the class that has its name: the peers' interpreters have no module of it.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
from pathlib import Path
from typing import Any, Protocol

import numpy as np

GATE_S = 0.05


class System(Protocol):
    """What is measured, and what the measurement itself needs of it."""

    rank: int
    size: int

    def barrier(self) -> None: ...

    def gather(self, value: Any) -> list[Any]:
        """What all have given, on rank 0."""

    def agree(self, value: bool) -> bool:
        """What rank 0 has given."""

    def allreduce(self, own: Any, result: Any, point: dict[str, Any], call: int) -> None:
        """Sum `own` of all ranks into `result`; raise a ValueError on all ranks if the algorithm does not exist."""


class MpiSystem:
    """What has a communicator as mpi4py's."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.rank, self.size = comm.rank, comm.size

    def barrier(self) -> None:
        self._comm.Barrier()

    def gather(self, value: Any) -> list[Any]:
        return self._comm.gather(value) or []

    def agree(self, value: bool) -> bool:
        return bool(self._comm.bcast(value))


class Tidemill(MpiSystem):
    def __init__(self) -> None:
        import tidemill

        super().__init__(tidemill.init().comm)
        self._shuffled: dict[int, Any] = {}
        self._fresh, self._fresh_for = self._comm, ""

    def shuffled(self, seed: int) -> Any:
        """The same workers, numbered at random."""
        if seed not in self._shuffled:
            numbers = list(range(self.size))
            random.Random(seed).shuffle(numbers)
            self._shuffled[seed] = self._comm.Split(0, numbers[self.rank])
        return self._shuffled[seed]

    def fresh(self, point: dict[str, Any]) -> Any:
        """A communicator that has measured nothing before this point, when links were others."""
        if self._fresh_for != point["gate"]:
            self._fresh, self._fresh_for = self._comm.Dup(), point["gate"]
        return self._fresh

    def allreduce(self, own: Any, result: Any, point: dict[str, Any], call: int) -> None:
        comm = self.shuffled(call % point["draws"]) if point["draws"] else self.fresh(point)
        comm.Allreduce(own, result, algorithm=point["algorithm"])


class OpenMpi(MpiSystem):
    def __init__(self) -> None:
        from mpi4py import MPI

        super().__init__(MPI.COMM_WORLD)
        self._mpi: Any = MPI

    def allreduce(self, own: Any, result: Any, point: dict[str, Any], call: int) -> None:
        self._comm.Allreduce(own, result, self._mpi.SUM)


class Gloo:
    """Told by the environment where its ranks meet, as programs of PyTorch are."""

    def __init__(self) -> None:
        import torch
        import torch.distributed

        self._torch: Any = torch
        self._group: Any = torch.distributed
        self._group.init_process_group(
            "gloo",
            init_method=f"file://{os.environ['GLOO_MEETING']}",
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
        )
        self.rank, self.size = self._group.get_rank(), self._group.get_world_size()

    def barrier(self) -> None:
        self._group.barrier()

    def gather(self, value: Any) -> list[Any]:
        found = [None] * self.size
        self._group.all_gather_object(found, value)
        return found

    def agree(self, value: bool) -> bool:
        found = [value]
        self._group.broadcast_object_list(found)
        return bool(found[0])

    def allreduce(self, own: Any, result: Any, point: dict[str, Any], call: int) -> None:
        # It adds up in place.
        result[:] = own
        self._group.all_reduce(self._torch.from_numpy(result))


SYSTEMS = {"tidemill": Tidemill, "openmpi": OpenMpi, "gloo": Gloo}


def busy_s() -> float:
    """Processor seconds of this worker."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def machine_busy_s() -> float:
    """Processor seconds of this whole machine, the kernel's for the links among them."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    # All but idle and waiting for disks.
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def measured(system: System, point: dict[str, Any]) -> dict[str, Any]:
    while not Path(point["gate"]).exists():
        time.sleep(GATE_S)
    own = np.full(point["size"] // 4, system.rank + 1, dtype=np.float32)
    result = np.empty_like(own)
    found: dict[str, Any] = {name: point[name] for name in ("variant", "scenario", "size")}
    try:
        # Makes the connections, of all draws.
        for call in range(max(point["draws"], 1)):
            system.allreduce(own[:16], result[:16].copy(), point, call)
    except ValueError as error:
        return found | {"skipped": str(error)}
    # An algorithm that measures links has done so.
    for call in range(point["settle"]):
        system.allreduce(own, result, point, call)
    took_s: list[float] = []
    is_right = True
    system.barrier()
    before, machine_before, begun = busy_s(), machine_busy_s(), time.monotonic()
    goes_on = True
    while goes_on:
        result[:] = 0
        system.barrier()
        start = time.perf_counter()
        system.allreduce(own, result, point, len(took_s))
        took_s.append(time.perf_counter() - start)
        is_right &= bool((result == system.size * (system.size + 1) / 2).all())
        enough = time.monotonic() - begun > point["budget_s"] and len(took_s) >= point["least"]
        goes_on = system.agree(len(took_s) < point["calls"] and not enough)
    system.barrier()
    wall_s, own_s = time.monotonic() - begun, busy_s() - before
    machine_s = machine_busy_s() - machine_before
    everywhere = system.gather((took_s, own_s, is_right))
    processors = (os.cpu_count() or 1) * wall_s
    found["ranks_s"] = [list(of) for of in zip(*(ranks for ranks, _, _ in everywhere), strict=True)]
    found |= {"cpu": sum(busy for _, busy, _ in everywhere) / processors, "machine": machine_s / processors}
    return found | {"right": all(right for _, _, right in everywhere)}


def main() -> None:
    system: System = SYSTEMS[sys.argv[1]]()
    for point in json.loads(sys.argv[2]):
        found = measured(system, point)
        if system.rank == 0:
            print(json.dumps(found), flush=True)


main()
