"""What all programs here share: the choice of MPI, and how their checks run.

A program is a script of functions named ``check_*``; every rank runs all of them in order. Each is written for mpi4py
and does not mention Tidemill: the one line that differs is chosen here, so the same file also runs under the real
mpi4py, which is how the checks themselves are checked (``TIDEMILL_TEST_MPI=mpi4py mpirun -n 3 python p2p_buffers.py``).
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

if os.environ.get("TIDEMILL_TEST_MPI") == "mpi4py":
    from mpi4py import MPI
else:
    from tidemill.mpi import MPI

__all__ = ["MPI", "PEER_IS_REAL_MPI", "TYPES", "main", "raises", "roots", "typed"]

PEER_IS_REAL_MPI = os.environ.get("TIDEMILL_TEST_MPI") == "mpi4py"

# One NumPy dtype of each kind in the standard, with the MPI type that names it.
TYPES: list[tuple[Any, Any]] = [
    (np.int8, MPI.INT8_T),
    (np.int16, MPI.INT16_T),
    (np.int32, MPI.INT32_T),
    (np.int64, MPI.INT64_T),
    (np.uint8, MPI.UINT8_T),
    (np.uint16, MPI.UINT16_T),
    (np.uint32, MPI.UINT32_T),
    (np.uint64, MPI.UINT64_T),
    (np.float32, MPI.FLOAT),
    (np.float64, MPI.DOUBLE),
    (np.complex64, MPI.C_FLOAT_COMPLEX),
    (np.complex128, MPI.C_DOUBLE_COMPLEX),
    (np.longdouble, MPI.LONG_DOUBLE),
    (np.clongdouble, MPI.C_LONG_DOUBLE_COMPLEX),
    (np.bool_, MPI.C_BOOL),
]
if not PEER_IS_REAL_MPI:
    # Extensions of the standard, which Debian's MPIs lack.
    TYPES.append((np.float16, MPI.FLOAT16_T))


def typed(count: int, dtype: Any, start: int = 0) -> np.ndarray:
    """``count`` values of ``dtype`` that depend on ``start``; sums over a few ranks are exact in every dtype."""
    values = (np.arange(count) + start) % 7  # small: some MPIs saturate where others wrap around
    return (values % 2 if dtype is np.bool_ else values).astype(dtype)


def roots(comm: Any) -> Iterator[int]:
    """Every rank of ``comm`` in turn."""
    yield from range(comm.size)


def raises(
    kind: type[BaseException] | tuple[type[BaseException], ...], call: Callable[..., Any], *args: Any, **kwargs: Any
) -> BaseException:
    """Asserts that the call raises ``kind`` and returns what was raised."""
    try:
        call(*args, **kwargs)
    except kind as error:
        return error
    raise AssertionError(f"{call} did not raise {kind}")


def main(names: dict[str, Any], wanted: list[str] | None = None, comm: Any = MPI.COMM_WORLD) -> None:
    """Runs the checks of a program on this rank; the first failure ends the whole job."""
    wanted = sys.argv[1:] if wanted is None else wanted
    checks = [(n, f) for n, f in names.items() if n.startswith("check_") and (not wanted or n in wanted)]
    for name, check in checks:
        try:
            check(comm)
            comm.Barrier()
        except BaseException:
            program = Path(names["__file__"]).stem
            sys.stderr.write(f"rank {MPI.COMM_WORLD.Get_rank()} failed in {program}: {name}\n{traceback.format_exc()}")
            sys.stderr.flush()
            MPI.COMM_WORLD.Abort(1)
    if MPI.COMM_WORLD.Get_rank() == 0:
        print(
            f"{Path(names['__file__']).stem} ok: {len(checks)} checks on {MPI.COMM_WORLD.Get_size()} ranks", flush=True
        )
