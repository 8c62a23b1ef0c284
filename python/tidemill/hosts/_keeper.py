"""The process that keeps a cluster of emulated hosts: what it has made ends with it.

It runs in a network namespace of its own, the world, in which a bridge joins the hosts. Each host is a first process in
network, PID, mount and UTS namespaces of its own. No namespace has a name, so the kernel takes all of them away when
their processes are gone; and the first processes are killed when their keeper dies in any way.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidemill.hosts._commands import HostsError, checked, shape, start_time
from tidemill.hosts._cpus import CpuGroup

__all__ = ["DEVICE", "address", "cut_file", "main", "twin"]

_BRIDGE = "hosts"
#: The name of a host's device within the host. Workers prefer other devices to those whose names begin with veth.
DEVICE = "eth0"


def twin(host: int) -> str:
    """Return the name of a host's device at the bridge."""
    return f"port{host}"


def address(host: int) -> str:
    """Return the address of a host."""
    return f"10.77.{(host + 1) // 256}.{(host + 1) % 256}"


def cut_file(cluster: Path, host: int) -> Path:
    """Return the file that exists while a host is cut off, next to its cluster's file: launchers then skip the host."""
    return cluster.with_suffix(f".{host}.cut")


class _Host:
    """A host's first process."""

    def __init__(self, number: int, name: str, group: CpuGroup | None) -> None:
        self.name = name
        self.group = group
        apart = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts"]
        begin = 'hostname "$0" && ip link set lo up && echo up && exec sleep infinity'
        command = [*apart, "sh", "-c", begin, name]
        if group is not None:
            command = group.joined(command)
        # If the keeper dies, its hosts end; and with a host's first process, all of the host's processes end.
        self.outer = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )
        out, errors = self.outer.stdout, self.outer.stderr
        if out is None or errors is None or out.read(3) != b"up\n":
            why = "" if errors is None else errors.read().decode(errors="replace").strip()
            raise HostsError(f"host {name} cannot be made: {why or 'unshare(1) makes no namespaces here'}")
        children = Path(f"/proc/{self.outer.pid}/task/{self.outer.pid}/children").read_text().split()
        self.init = int(children[0])
        self.number = number

    def plug(self, bandwidth: int | None) -> None:
        """Join it to the bridge."""
        port, inside = twin(self.number), ["nsenter", "--target", str(self.init), "--net"]
        checked("ip", "link", "add", port, "type", "veth", "peer", "name", DEVICE, "netns", str(self.init))
        checked("ip", "link", "set", port, "master", _BRIDGE, "up")
        checked(*inside, "ip", "address", "add", f"{address(self.number)}/16", "dev", DEVICE)
        checked(*inside, "ip", "link", "set", DEVICE, "up")
        if bandwidth is not None:
            shape([], port, bandwidth)
            shape(inside, DEVICE, bandwidth)

    def end(self) -> None:
        """Kill all of its processes."""
        self.outer.kill()
        self.outer.wait()
        for pipe in self.outer.stdout, self.outer.stderr:
            if pipe is not None:
                pipe.close()
        if self.group is not None:
            self.group.remove()


def _built(spec: dict[str, Any], hosts: list[_Host]) -> None:
    """Make the world and the hosts, which are added to the list one by one."""
    checked("ip", "link", "add", _BRIDGE, "type", "bridge")
    checked("ip", "link", "set", _BRIDGE, "up")
    for number in range(spec["hosts"]):
        name = f"{spec['name']}-{number}"
        group = None if spec["cpus"] is None else CpuGroup.made(f"tidemill-{os.getpid()}-{number}", spec["cpus"])
        hosts.append(_Host(number, name, group))
        hosts[-1].plug(spec["bandwidth"])


def _told(spec: dict[str, Any], hosts: Sequence[_Host]) -> dict[str, Any]:
    """Return the description of the cluster for its file."""
    return {
        "name": spec["name"],
        "keeper": os.getpid(),
        "started": start_time(os.getpid()),
        "rootless": spec["rootless"],
        "hosts": [
            {
                "name": host.name,
                "address": address(host.number),
                "init": host.init,
                "started": start_time(host.init),
                "cpu_group": None if host.group is None else [str(file) for file in host.group.files],
            }
            for host in hosts
        ],
    }


def _opened(owner: int) -> int:
    """Return a file descriptor that becomes readable when a process ends."""
    try:
        return os.pidfd_open(owner)
    except OSError as error:
        raise HostsError(f"owner={owner} is not a process that this one can wait for ({error.strerror})") from None


def _awaited_end() -> int:
    """Return a file descriptor that becomes readable when this process gets a signal to end, instead of ending it."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    for one in signal.SIGTERM, signal.SIGINT, signal.SIGHUP:
        signal.signal(one, lambda *_: None)
    return wake_read


def main(argv: Sequence[str]) -> int:
    """Create and keep the cluster described by the first argument; print ``{"made": ...}`` or ``{"error": ...}``."""
    spec: dict[str, Any] = json.loads(argv[0])
    file = Path(spec["file"])
    hosts: list[_Host] = []
    # The creator may take the cluster down as soon as it reads the line.
    ends = [_awaited_end()]
    try:
        try:
            if spec["owner"] is not None:
                ends.append(_opened(spec["owner"]))
            _built(spec, hosts)
            _healed(file, hosts)
            text = json.dumps(_told(spec, hosts))
            part = file.with_suffix(f".{os.getpid()}")
            part.write_text(text)
            part.replace(file)
        except (HostsError, OSError) as error:
            print(json.dumps({"error": str(error)}), flush=True)
            return 1
        print(json.dumps({"made": spec["name"]}), flush=True)
        # The reader of the line waits for the end of the pipe.
        os.close(sys.stdout.fileno())
        select.select(ends, [], [])
        return 0
    finally:
        with contextlib.suppress(OSError, ValueError):
            if json.loads(file.read_text())["keeper"] == os.getpid():
                file.unlink()
                _healed(file, hosts)
        for host in hosts:
            host.end()


def _healed(file: Path, hosts: Sequence[_Host]) -> None:
    """Remove the files of hosts that are cut off: of these, or of an earlier cluster whose keeper was killed."""
    for number in range(len(hosts)):
        cut_file(file, number).unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
