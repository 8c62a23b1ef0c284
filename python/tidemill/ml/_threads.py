"""The threads of this worker that run kernels: one pool for each setting, kept until the process ends.

Number of threads: the estimator's ``n_threads``, else ``TIDEMILL_THREADS`` (set by ``tidemill run --threads``), else
this worker's share of the CPUs of its host, within the CPU quota of its container (`tidemill._membership.share`).
``TIDEMILL_THREAD_MODE`` is ``bsp`` (threads are kept and meet at spin barriers; the default) or ``fork-join``.
``TIDEMILL_AFFINITY`` is ``auto``, ``core``, ``socket`` or ``none``. The default is ``auto`` if the threads of the
workers fill the CPUs exactly: they are bound to cores until other programs use these.
"""

from __future__ import annotations

import os

from tidemill._membership import chosen_threads, share
from tidemill._tidemill import KernelPool

__all__ = ["pool"]

_pools: dict[tuple[object, ...], KernelPool] = {}
# A forked child has none of its parent's threads.
os.register_at_fork(after_in_child=_pools.clear)

#: How often a waiting thread polls before it sleeps: about 0.1 ms.
_SPINS = 2000


def pool(n_threads: int | None = None) -> KernelPool:
    """Return the pool of `n_threads` threads, including the calling one."""
    mine = share()
    threads = n_threads or chosen_threads(ValueError) or mine.threads
    mode = os.environ.get("TIDEMILL_THREAD_MODE") or "bsp"
    fits = threads <= mine.room
    fills = fits and mine.workers * threads == mine.cpus > 1
    affinity = os.environ.get("TIDEMILL_AFFINITY") or ("auto" if fills else "none")
    # If threads outnumber CPUs, or use up the quota, a spinning thread keeps the one that it waits for from running.
    spins = _SPINS if fits else 0
    key = (threads, mode, affinity, mine, spins)
    if key not in _pools:
        _pools[key] = KernelPool(threads, mode, affinity, mine.place, mine.workers, spins)
    return _pools[key]
