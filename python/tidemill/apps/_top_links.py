"""``tidemill top --links``: what hosts send to each other, as a matrix."""

from __future__ import annotations

from collections import defaultdict

from tidemill.apps._top_cluster import Cluster, HostLink, host_names
from tidemill.apps._top_text import Screen, clipped, counted, fitting, mbit, percent, short, size, table

__all__ = ["links_lines"]

_WAITING = ("senders wait", "Mbit/s", "can carry", "busy", "for link", "for credit", "queued", "RTT")
#: Waits are marked from this average number of waiting senders on.
_WAIT_MIN = 0.01
_WAITING_SHOWN = 10
_NAME_WIDTH = 20
#: In a display that fits the height: lines that are not rows of hosts.
_OTHER_LINES = 9


def links_lines(cluster: Cluster, screen: Screen) -> list[str]:
    """Return a matrix of hosts by hosts, as much of it as fits, heaviest first, and the links where senders wait."""
    if len(cluster.hosts) < 2:
        return ["  all workers are on one host: there are no links between hosts"]
    if not cluster.links:
        return ["  hosts have sent nothing to each other"]
    return [*_matrix(cluster, screen), *_waiting(cluster)]


def _matrix(cluster: Cluster, screen: Screen) -> list[str]:
    names = [clipped(name, _NAME_WIDTH) for name in host_names(cluster)]
    hosts, links = range(len(names)), {(link.from_, link.to): link for link in cluster.links}
    cells = {
        (row, column): "-" if row == column else _cell(links.get((row, column))) for row in hosts for column in hosts
    }
    sent = [f"{_use(host.out_bytes_s, host.out_capacity)} " for host in cluster.hosts]
    received = [f"{_use(host.in_bytes_s, host.in_capacity)} " for host in cluster.hosts]
    # A mark may follow each cell, so headings also end one column earlier.
    widths = {
        at: 2 + max(len(names[at]) + 1, len(received[at]), *(len(cells[row, at]) for row in hosts)) for at in hosts
    }
    edges = 2 + max(map(len, [*names, "from \\ to"])) + 2 + max(map(len, [*sent, "sent"]))
    columns, rows = list(hosts), list(hosts)
    if screen.height is not None and len(rows) > screen.height - _OTHER_LINES:
        rows = _heaviest(cluster)[: max(screen.height - _OTHER_LINES, 1)]
    if edges + sum(widths.values()) > screen.width:
        columns = fitting(_heaviest(cluster), widths, screen.width - edges)
    shown = [("from \\ to", *(f"{names[at]} " for at in columns), "sent ")]
    shown += [(names[row], *(cells[row, column] for column in columns), sent[row]) for row in rows]
    shown.append(("received", *(received[at] for at in columns), ""))
    lines = [f"  Mbit/s over the last {short(cluster.span_s)}: used/can carry, where it has been full"]
    lines += table(shown, texts=(0,))
    return [*lines, *_legend([cells[row, column] for row in rows for column in columns]), *_left(links, rows, columns)]


def _cell(link: HostLink | None) -> str:
    """Return use and capacity of a link, and a mark if senders wait for it; empty without traffic."""
    if link is None:
        return ""
    mark = " "
    if max(link.link_wait, link.credit_wait) >= _WAIT_MIN:
        mark = "!" if link.link_wait >= link.credit_wait else "+"
    return _use(link.bytes_s, link.capacity) + mark


def _use(rate: float, capacity: float | None) -> str:
    return mbit(rate) if capacity is None else f"{mbit(rate)}/{mbit(capacity)}"


def _heaviest(cluster: Cluster) -> list[int]:
    """Return the hosts: first those for whose links senders wait longest, then those with most traffic."""
    waits: defaultdict[int, float] = defaultdict(float)
    for link in cluster.links:
        for host in (link.from_, link.to):
            waits[host] += link.link_wait + link.credit_wait

    def weight(host: int) -> tuple[float, float]:
        of = cluster.hosts[host]
        return waits[host] if waits[host] >= _WAIT_MIN else 0.0, of.in_bytes_s + of.out_bytes_s

    return sorted(range(len(cluster.hosts)), key=weight, reverse=True)


def _legend(cells: list[str]) -> list[str]:
    """Return what the marks in the matrix mean, if there are any."""
    marks = {
        "!": "! senders wait for the link",
        "+": "+ senders wait for credit of a slow receiver",
    }
    told = [text for mark, text in marks.items() if any(cell.endswith(mark) for cell in cells)]
    return [f"  {', '.join(told)}"] if told else []


def _left(links: dict[tuple[int, int], HostLink], rows: list[int], columns: list[int]) -> list[str]:
    """Return a line about links that are not shown."""
    hosts = {host for link in links for host in link}
    missing = [
        counted(len(hosts - set(of)), what) for of, what in ((rows, "sender"), (columns, "receiver")) if hosts - set(of)
    ]
    if not missing:
        return []
    total = sum(link.bytes_s for link in links.values())
    part = sum(link.bytes_s for at, link in links.items() if at[0] in rows and at[1] in columns)
    return [f"  left out: {' and '.join(missing)}; shown: {percent(part, total)} of the bytes"]


def _waiting(cluster: Cluster) -> list[str]:
    """Return the links where senders wait, the longest wait first."""
    waiting = [link for link in cluster.links if max(link.link_wait, link.credit_wait) >= _WAIT_MIN]
    if not waiting:
        return ["  no sender waits for a link"]
    waiting.sort(key=lambda link: -(link.link_wait + link.credit_wait))
    names = [clipped(name, _NAME_WIDTH) for name in host_names(cluster)]
    rows = [
        (
            f"{names[link.from_]} to {names[link.to]}",
            mbit(link.bytes_s),
            "" if link.capacity is None else mbit(link.capacity),
            percent(min(link.busy, 1)),
            f"{link.link_wait:.2f}",
            f"{link.credit_wait:.2f}",
            size(link.queued_bytes),
            "" if link.rtt_us is None else f"{link.rtt_us / 1000:.1f} ms",
        )
        for link in waiting[:_WAITING_SHOWN]
    ]
    more = [f"  and {counted(len(waiting) - len(rows), 'more link')}"] if len(waiting) > len(rows) else []
    return [*table([_WAITING, *rows], texts=(0,)), *more]
