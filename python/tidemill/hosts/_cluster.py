"""A cluster of emulated hosts: creating it, finding it by name, and changing it while jobs run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from tidemill._streaming import status
from tidemill.hosts._commands import HostsError, bandwidth_bits, checked, environment, missing, shape, start_time
from tidemill.hosts._cpus import CpuGroup
from tidemill.hosts._keeper import DEVICE, cut_file, twin
from tidemill.hosts._rights import lacking, refusal

__all__ = ["Cluster", "Host", "Traffic", "find", "names", "up"]

#: Maximum number of hosts in a cluster: each needs some processes and a device.
_HOSTS_MAX = 250
#: How long to wait for hosts to start or end.
_PATIENCE_S = 60.0
#: States of a bridge port.
_CUT, _JOINED = 0, 3


@dataclass(frozen=True)
class Host:
    """An emulated host.

    Attributes
    ----------
    number : int
        Number of the host, from 0.
    name, address : str
    init : int
        Id of the host's first process. When it ends, all of the host's processes end.
    """

    number: int
    name: str
    address: str
    init: int
    started: int = field(repr=False)
    cpu_group: tuple[str, ...] = field(repr=False, default=())

    @property
    def is_alive(self) -> bool:
        """Whether the host is up: False after `Cluster.kill`."""
        return start_time(self.init) == self.started


@dataclass(frozen=True)
class Traffic:
    """What a host has received and sent since it was made.

    Attributes
    ----------
    incoming_bytes, outgoing_bytes : int
    incoming, outgoing : int or None
        Limits in bits per second; None if there is no limit.
    is_cut : bool
        Whether the host is cut off.
    """

    incoming_bytes: int
    outgoing_bytes: int
    incoming: int | None
    outgoing: int | None
    is_cut: bool


class Cluster:
    """A cluster of emulated hosts on this machine. Make one with `up`, or get an existing one with `find`.

    A ``with`` statement takes the cluster down at its end.
    """

    def __init__(self, told: dict[str, Any]) -> None:
        self.name: str = told["name"]
        #: In the process that created the cluster, which must wait for its end.
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper: int = told["keeper"]
        self._started: int = told["started"]
        self._rootless: bool = told["rootless"]
        self.hosts = tuple(
            Host(n, of["name"], of["address"], of["init"], of["started"], tuple(of["cpu_group"] or ()))
            for n, of in enumerate(told["hosts"])
        )

    def __repr__(self) -> str:
        return f"<tidemill.hosts.Cluster {self.name!r} of {len(self.hosts)} hosts>"

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    @property
    def _file(self) -> Path:
        return _file_of(self.name)

    @property
    def is_up(self) -> bool:
        """Whether the cluster is up: False after `down`."""
        return start_time(self._keeper) == self._started

    def _kept_by(self, process: subprocess.Popen[bytes]) -> Cluster:
        self._process = process
        return self

    def _host(self, number: int) -> Host:
        if not self.is_up:
            raise HostsError(f"cluster {self.name!r} has been taken down")
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(self.hosts):
            raise HostsError(
                f"host {number!r} is not one of cluster {self.name!r}, whose hosts are 0 to {len(self.hosts) - 1}"
            )
        host = self.hosts[number]
        if not host.is_alive:
            raise HostsError(f"host {number} of cluster {self.name!r} has been killed")
        return host

    def _enter(self, process: int, *namespaces: str) -> list[str]:
        """Return the command prefix for running in namespaces of a process."""
        user = ["--user", "--preserve-credentials"] if self._rootless and os.geteuid() != 0 else []
        return ["nsenter", "--target", str(process), *user, *namespaces]

    def _world(self) -> list[str]:
        return self._enter(self._keeper, "--net")

    def prefix(self, host: int) -> list[str]:
        """Return what to put in front of a command to run it on a host: ``[*cluster.prefix(2), "hostname"]``."""
        return self._enter(self._host(host).init, "--net", "--pid", "--mount", "--uts")

    def set(
        self,
        host: int,
        *,
        incoming: str | None = None,
        outgoing: str | None = None,
        cpus: float | None = None,
    ) -> None:
        """Change the limits of a host while programs run on it.

        Parameters
        ----------
        host : int
        incoming, outgoing : str, optional
            Bandwidth, such as ``"20mbit"``; ``"none"`` removes the limit. By default a limit stays as it is.
        cpus : float, optional
            Number of processors, in a cluster that was made with `cpus`.

        Raises
        ------
        HostsError
            If there is no such host, or a limit is invalid.
        """
        of = self._host(host)
        if incoming is not None:
            shape(self._world(), twin(host), bandwidth_bits(incoming, "incoming"))
        if outgoing is not None:
            shape(self._enter(of.init, "--net"), DEVICE, bandwidth_bits(outgoing, "outgoing"))
        if cpus is not None:
            if not of.cpu_group:
                raise HostsError(f"cluster {self.name!r} was made without cpus=, so they cannot be changed")
            CpuGroup(Path(of.cpu_group[0]).parent).limit(_checked_cpus(cpus))

    def cut(self, host: int) -> None:
        """Cut a host off: everything it sends and receives is lost. As when you pull a cable, nothing announces it.

        Until you call `heal`, the launcher starts workers only on the other hosts.
        """
        self._host(host)
        self._port(host, _CUT)
        cut_file(self._file, host).touch()

    def heal(self, host: int) -> None:
        """Connect a host again after `cut`."""
        self._host(host)
        self._port(host, _JOINED)
        cut_file(self._file, host).unlink(missing_ok=True)

    def _port(self, host: int, state: int) -> None:
        checked(*self._world(), "bridge", "link", "set", "dev", twin(host), "state", str(state))

    def kill(self, host: int) -> None:
        """End all processes of a host at once, like a power failure: nothing more comes from it, and nothing announces its end."""
        of = self._host(host)
        self._port(host, _CUT)
        with contextlib.suppress(ProcessLookupError):
            os.kill(of.init, signal.SIGKILL)
        self._await(lambda: not of.is_alive, f"host {host} of cluster {self.name!r} does not end")

    def traffic(self) -> list[Traffic]:
        """Return what each host has received and sent, and its limits. For a killed host this is unknown, and all numbers are 0."""
        links = {
            link["ifname"]: link for link in json.loads(checked(*self._world(), "ip", "-j", "-s", "-d", "link", "show"))
        }
        limits = _limits(checked(*self._world(), "tc", "-j", "qdisc", "show"))
        found = []
        for host in self.hosts:
            link = links.get(twin(host.number))
            if link is None or not host.is_alive:
                found.append(Traffic(0, 0, None, None, is_cut=True))
                continue
            outgoing = _limits(checked(*self._enter(host.init, "--net"), "tc", "-j", "qdisc", "show")).get(DEVICE)
            # What the bridge sends is received by the host.
            received, sent = link["stats64"]["tx"]["bytes"], link["stats64"]["rx"]["bytes"]
            is_cut = link["linkinfo"]["info_slave_data"]["state"] != "forwarding"
            found.append(Traffic(received, sent, limits.get(twin(host.number)), outgoing, is_cut))
        return found

    def down(self) -> None:
        """End all processes on the hosts, and remove the cluster. Does nothing if it is down."""
        if not self.is_up:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._keeper, signal.SIGTERM)
        self._await(lambda: not self.is_up, f"cluster {self.name!r} does not end")
        if self._process is not None:
            self._process.wait()

    def _await(self, condition: Any, otherwise: str) -> None:
        until = time.monotonic() + _PATIENCE_S
        while not condition():
            if time.monotonic() > until:
                raise HostsError(otherwise)
            time.sleep(0.005)


def _limits(text: str) -> dict[str, int]:
    """Return the bits per second of each device in the output of `tc`."""
    rates = {}
    for line in json.loads(text):
        if line.get("kind") == "tbf":
            # tc counts in bytes.
            rates[line["dev"]] = round(line["options"]["rate"] * 8)
    return rates


def _checked_cpus(cpus: Any) -> float:
    if isinstance(cpus, bool) or not isinstance(cpus, (int, float)) or not 0.05 <= cpus <= 1024:
        raise HostsError(f"cpus={cpus!r} must be a number of processors, at least 0.05")
    return float(cpus)


def _folder() -> Path:
    """Return the folder with the files of this user's clusters."""
    folder = status.folder().with_name("hosts")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise HostsError(
            f"the list of clusters is in {folder}, which cannot be made ({error.strerror}); set XDG_RUNTIME_DIR to a folder of your own"
        ) from None
    if folder.stat().st_uid != os.getuid():
        raise HostsError(f"{folder} belongs to another user; set XDG_RUNTIME_DIR to a folder of your own")
    return folder


def _file_of(name: Any) -> Path:
    """Return the file that describes a cluster."""
    return _folder() / f"{_checked_name(name)}.json"


def names() -> Iterator[str]:
    """Yield the names of the clusters that are up."""
    for file in sorted(_folder().glob("*.json")):
        with contextlib.suppress(OSError, ValueError):
            if Cluster(json.loads(file.read_text())).is_up:
                yield file.stem


def find(name: str = "lab") -> Cluster:
    """Return a cluster by its name.

    Raises
    ------
    HostsError
        If there is no cluster of this name.
    """
    with contextlib.suppress(OSError, ValueError):
        if (found := Cluster(json.loads(_file_of(name).read_text()))).is_up:
            return found
    there = ", ".join(names())
    raise HostsError(
        f"there is no cluster {name!r}; " + (f"there is {there}" if there else "`tidemill hosts up` makes one")
    )


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9-]{0,19}", name):
        raise HostsError(
            f"name={name!r} must begin with a letter and have at most 20 letters, digits and hyphens, all lowercase"
        )
    return name


def up(
    hosts: int,
    *,
    bandwidth: str | None = None,
    cpus: float | None = None,
    name: str = "lab",
    owner: int | None = None,
) -> Cluster:
    """Make a cluster of emulated hosts on this machine.

    Each host has its own processes, network device, mounts and name. Tidemill's workers use shared memory within a
    host, and TCP between hosts, which a bridge connects. All hosts share this machine's file system.

    Parameters
    ----------
    hosts : int
        Number of hosts.
    bandwidth : str, optional
        How much each host can receive, and how much it can send: ``"100mbit"``, ``"1gbit"``. By default there is no
        limit.
    cpus : float, optional
        Number of processors that the workers on each host share, for example 0.5. Needs permission to create cgroups.
    name : str, default="lab"
        Name of the cluster.
    owner : int, optional
        Id of a process: the cluster goes away when it ends. By default this process; 0 for none.

    Returns
    -------
    Cluster

    Raises
    ------
    HostsError
        If a cluster of this name is up, or if this machine or user cannot have emulated hosts; the message says what is missing.

    Examples
    --------
    >>> import tidemill.hosts
    >>> with tidemill.hosts.up(4, bandwidth="100mbit") as cluster:  # doctest: +SKIP
    ...     cluster.set(3, incoming="20mbit")
    """
    if isinstance(hosts, bool) or not isinstance(hosts, int) or not 1 <= hosts <= _HOSTS_MAX:
        raise HostsError(f"hosts={hosts!r} must be a number of hosts, from 1 to {_HOSTS_MAX}")
    file = _file_of(name)
    if why := missing() or lacking():
        raise HostsError(why)
    if name in names():
        raise HostsError(
            f"cluster {name!r} is up; take it down with `tidemill hosts down {name}`, or choose another name"
        )
    rootless = os.geteuid() != 0
    spec = {
        "name": name,
        "hosts": hosts,
        "bandwidth": bandwidth_bits(bandwidth),
        "cpus": None if cpus is None else _checked_cpus(cpus),
        "owner": os.getpid() if owner is None else owner or None,
        "rootless": rootless,
        "file": str(file),
    }
    apart = ["unshare", *(["--user", "--map-root-user"] if rootless else []), "--net"]
    keeper = subprocess.Popen(
        [*apart, sys.executable, "-m", "tidemill.hosts._keeper", json.dumps(spec)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=environment(),
    )
    if keeper.stdout is None or keeper.stderr is None:
        raise HostsError("a process has no pipes")
    with keeper.stdout as out, keeper.stderr as errors:
        line = out.readline()
        told = json.loads(line) if line else {}
        if "made" in told:
            return find(name)._kept_by(keeper)
        text = errors.read().decode(errors="replace").strip()
    keeper.wait()
    raise HostsError(
        refusal(
            told.get("error") or text or "the process that keeps them has ended without an error message",
            rootless=rootless,
        )
    )
