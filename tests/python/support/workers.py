"""Starts workers one by one, without a launcher that would stop the others when one fails."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import launched
from local_servers.server import free_ports


class Job:
    """Workers that run one program, joined through ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT``."""

    def __init__(
        self,
        folder: Path,
        size: int,
        program: str,
        env: Mapping[str, str] | None = None,
        prefixes: Mapping[int, Sequence[str]] | None = None,
    ) -> None:
        script = folder / "app.py"
        script.write_text(textwrap.dedent(program))
        common = {
            **os.environ,
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_ports(1)[0]),
            "TIDEMILL_SECRET": secrets.token_hex(32),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            **(env or {}),
        }
        self.workers = [
            subprocess.Popen(
                [*(prefixes or {}).get(rank, ()), sys.executable, str(script)],
                env={**common, "RANK": str(rank)},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()
            for pipe in worker.stdout, worker.stderr:
                if pipe is not None:
                    pipe.close()

    def finish(self, patience_s: float = launched.PATIENCE_S) -> list[tuple[int, str, str]]:
        """Wait for all workers; return exit code, standard output and standard error of each."""
        results = []
        for worker in self.workers:
            out, err = worker.communicate(timeout=patience_s)
            results.append((worker.returncode, out, err))
        return results

    def succeed(self, patience_s: float = launched.PATIENCE_S) -> list[str]:
        """Wait for all workers, which must end successfully; return their output."""
        results = self.finish(patience_s)
        for rank, (code, out, err) in enumerate(results):
            assert code == 0, f"rank {rank} ended with {code}:\n{out}\n{err}"
        return [out for _, out, _ in results]
