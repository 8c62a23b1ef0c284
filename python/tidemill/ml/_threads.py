"""The threads of this worker on which kernels run: one pool for each setting, kept until the process ends.

How many: the estimator's ``n_threads``, else ``TIDEMILL_THREADS`` (set by ``tidemill run --threads``), else the usable
processors shared among the workers of this host. ``TIDEMILL_THREAD_MODE`` is ``bsp`` (threads stay and meet at spin
barriers; the default) or ``fork-join``. ``TIDEMILL_AFFINITY`` is ``auto``, ``core``, ``socket`` or ``none``. Without it, it is
``auto`` when the workers of this host fill its processors exactly: threads are bound to cores until other programs take these.
"""

from __future__ import annotations

import os

from tidemill._tidemill import KernelPool, kernel_cpus

__all__ = ["pool"]

_pools: dict[tuple[object, ...], KernelPool] = {}
# A child made by fork has none of its parent's threads.
os.register_at_fork(after_in_child=_pools.clear)

#: Looks at a gate before a waiting thread sleeps, about 0.1 ms.
_SPINS = 2000


#: How many workers this host has, and which of them this one is: Tidemill's launcher, Open MPI, MPICH, PyTorch.
_LOCAL_SIZE = ("TIDEMILL_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "LOCAL_WORLD_SIZE")
_LOCAL_RANK = ("TIDEMILL_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "LOCAL_RANK")
#: Set where the processors this process may use are its own: Tidemill's launcher, Open MPI.
_BOUND = ("TIDEMILL_BOUND", "OMPI_MCA_orte_bound_at_launch")


def _number(names: tuple[str, ...], default: int, least: int = 1) -> int:
    """The first of the environment variables that is set, as a whole number."""
    for name in names:
        text = os.environ.get(name, "")
        if text:
            if not text.isascii() or not text.isdigit() or int(text) < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, not {text!r}")
            return int(text)
    return default


def pool(n_threads: int | None = None) -> KernelPool:
    """The pool of `n_threads` threads, the calling one included."""
    cpus = kernel_cpus()
    # Bound by its launcher, a worker has its processors for itself, whoever else is on the host.
    bound = any(os.environ.get(name) == "1" for name in _BOUND)
    local_size = 1 if bound else _number(_LOCAL_SIZE, 1)
    threads = n_threads or _number(("TIDEMILL_THREADS",), max(1, cpus // local_size))
    mode = os.environ.get("TIDEMILL_THREAD_MODE") or "bsp"
    fills = local_size * threads == cpus and cpus > 1
    affinity = os.environ.get("TIDEMILL_AFFINITY") or ("auto" if fills else "none")
    first = 0 if bound else _number(_LOCAL_RANK, 0, least=0) * threads
    # Where threads outnumber processors, one that spins keeps the one it waits for from running.
    spins = _SPINS if local_size * threads <= cpus else 0
    key = (threads, mode, affinity, first, spins)
    if key not in _pools:
        _pools[key] = KernelPool(threads, mode, affinity, first, spins)
    return _pools[key]
