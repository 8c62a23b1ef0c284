"""The system's own programs for namespaces and links, start times of processes, and bandwidths as people write them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = [
    "NEEDED",
    "HostsError",
    "bandwidth_bits",
    "checked",
    "described",
    "environment",
    "missing",
    "shape",
    "start_time",
]

#: The programs, and the packages that contain them.
NEEDED = {
    "ip": "iproute2",
    "tc": "iproute2",
    "bridge": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
}

#: Where some systems put programs for root only: on Debian, tc(8).
_SYSTEM_FOLDERS = ("/usr/sbin", "/sbin")

_UNITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
#: Minimum size of a token bucket in bytes, and the fraction of a second that it must cover (1 / `_BURSTS`).
_BURST_MIN, _BURSTS = 64 << 10, 200
#: How long packets may wait for tokens before they are dropped.
_QUEUE = "50ms"


class HostsError(RuntimeError):
    """A cluster of emulated hosts cannot be created, found or changed."""


def environment() -> dict[str, str]:
    """Return this process's environment, extended so that the system's programs are found."""
    return {**os.environ, "PATH": os.pathsep.join([os.environ.get("PATH", os.defpath), *_SYSTEM_FOLDERS])}


def start_time(pid: int) -> int | None:
    """Return when a process started, in ticks since boot; None if it has ended. Process IDs are reused."""
    try:
        # After the name, which may contain any characters.
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] in "ZX" else int(words[19])


def missing() -> str | None:
    """Return a sentence that names programs that are not installed; None if all are."""
    lacking = [name for name in NEEDED if shutil.which(name, path=environment()["PATH"]) is None]
    if not lacking:
        return None
    packages = " ".join(dict.fromkeys(NEEDED[name] for name in lacking))
    return f"emulated hosts need {', '.join(lacking)}, which this machine does not have; install {packages}"


def checked(*command: str) -> str:
    """Run a program to its end, and return what it printed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment())
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostsError(f"{command[0]}: {error}") from None
    if done.returncode != 0:
        raise HostsError(f"{' '.join(command)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def bandwidth_bits(text: Any, name: str = "bandwidth") -> int | None:
    """Return the bits per second of a bandwidth such as ``"100mbit"``; None for ``"none"`` or None: no limit."""
    if text is None or text == "none":
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?bit)(?:/s)?", text.lower()) if isinstance(text, str) else None
    bits = round(float(found[1]) * _UNITS[found[2]]) if found else 0
    # Below this, one full packet would take more than a second.
    if bits < 16_000:
        raise HostsError(
            f'{name}={text!r} must be a bandwidth of at least 16kbit, such as "100mbit" or "1gbit", or "none"'
        )
    return bits


def described(bits: int | None) -> str:
    """Return a bandwidth as people write it."""
    if bits is None:
        return "none"
    unit, size = next((unit, size) for unit, size in reversed(_UNITS.items()) if bits >= size)
    return f"{bits / size:g}{unit}"


def shape(enter: Sequence[str], device: str, bits: int | None) -> None:
    """Limit what a device sends by a token bucket, in the namespaces of the command prefix `enter`."""
    if bits is None:
        # An error means that there was no limit, as requested.
        delete = [*enter, "tc", "qdisc", "del", "dev", device, "root"]
        subprocess.run(delete, capture_output=True, timeout=60, env=environment())
        return
    burst = max(_BURST_MIN, bits // 8 // _BURSTS)
    bucket = ["tbf", "rate", f"{bits}bit", "burst", str(burst), "latency", _QUEUE]
    checked(*enter, "tc", "qdisc", "replace", "dev", device, "root", *bucket)
