"""mpi4py's startup options. You can set them, but they have no effect: a job is joined on first use and left at the
program's end, and all threads may communicate.
"""

from __future__ import annotations

initialize: bool = True
threads: bool = True
thread_level: str = "multiple"
finalize: bool | None = None
fast_reduce: bool = True
recv_mprobe: bool = True
irecv_bufsz: int = 32768
errors: str = "exception"
