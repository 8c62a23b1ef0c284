"""Permissions for emulated hosts, and what to change if the system denies them."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["lacking", "refusal"]

#: The capabilities that root needs, with the kernel's numbers. Containers drop some of them.
_NEEDED = {"SYS_ADMIN": 21, "NET_ADMIN": 12, "SYS_CHROOT": 18}

_SYSCTL = Path("/proc/sys")
#: Kernel settings that prevent ordinary users from creating namespaces: the value that does, and what to set instead.
_SETTINGS = {
    "kernel.unprivileged_userns_clone": ("0", "1"),
    "kernel.apparmor_restrict_unprivileged_userns": ("1", "0"),
    "user.max_user_namespaces": ("0", "10000"),
}

#: Kernel messages about a missing part, and the module that provides it.
_MODULES = {"type bridge": "bridge", "type veth": "veth", " tbf ": "sch_tbf"}


def lacking() -> str | None:
    """Return a sentence on capabilities that root lacks here; None if none is missing, or this is an ordinary user."""
    if os.geteuid() != 0:
        return None
    names = [name for name, bit in _NEEDED.items() if not _capabilities() >> bit & 1]
    if not names:
        return None
    add = " ".join(f"--cap-add {name}" for name in names)
    have = ", ".join(f"CAP_{name}" for name in names)
    return f"emulated hosts need {have}, which root does not have here; run this container with {add}, or --privileged"


def _capabilities() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return -1


def refusal(text: str, *, rootless: bool) -> str:
    """Return a sentence on why hosts cannot be made, and what to do, from a program's message."""
    remedy = _remedy(text, rootless=rootless)
    return f"emulated hosts cannot be made: {text}" + (f"; {remedy}" if remedy else "")


def _remedy(text: str, *, rootless: bool) -> str | None:
    if text.startswith("cpus="):
        # The message already says it.
        return None
    if "Unknown device type" in text or "kind is unknown" in text or "not supported" in text:
        modules = [module for word, module in _MODULES.items() if word in text]
        return f"this kernel lacks a part: run `modprobe {' '.join(modules)}` as root" if modules else None
    if "No space left" in text:
        kind = "user" if rootless else "net"
        return (
            f"the kernel has as many namespaces as it may have: run `sysctl user.max_{kind}_namespaces=10000` as root"
        )
    if "not permitted" not in text and "denied" not in text.lower():
        return None
    if "mount /proc" in text or "filesystem propagation" in text:
        # If a container hides parts of /proc, user namespaces cannot mount a complete one.
        more = " --security-opt systempaths=unconfined" if rootless else ""
        return (
            f"this container may not mount /proc: run it with --security-opt apparmor=unconfined{more}, or --privileged"
        )
    if not rootless:
        return "a policy of this system forbids it to root: run this container with --privileged"
    if settings := _forbidding():
        return f"run `sysctl {' '.join(settings)}` as root, or run this as root"
    return (
        "ordinary users may not make namespaces here: run this as root, or, in a container, run that with --privileged"
    )


def _forbidding() -> list[str]:
    """Return the settings to change, as sysctl(8) takes them."""
    change = []
    for name, (forbids, allows) in _SETTINGS.items():
        file = _SYSCTL.joinpath(*name.split("."))
        if file.exists() and file.read_text().strip() == forbids:
            change.append(f"{name}={allows}")
    return change
