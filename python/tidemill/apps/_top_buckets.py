"""``tidemill top --buckets``: buckets of keys as a heat map, by the host that owns them, with the heaviest by name."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tidemill.apps._top_cluster import Buckets, Cluster, Task, host_names
from tidemill.apps._top_text import Screen, clipped, counted, fitting, percent, size, table

__all__ = ["bucket_lines"]

#: From nothing to the heaviest bucket.
_BLOCKS = "·▁▂▃▄▅▆▇█"
_ASCII = ".:-=+*#%@"
#: The number of cells in a line of the map: the largest of these that fits.
_CELLS = (128, 64, 32, 16)
_HEAVY_SHOWN = 5
_NAME_WIDTH = 20
_KEY_WIDTH = 40
#: In a display that fits the height: lines for each task that are not rows of hosts.
_OTHER_LINES = 18


def bucket_lines(cluster: Cluster, screen: Screen) -> list[str]:
    """Return a heat map of each task partitioned by key."""
    keyed = [(task, task.buckets) for task in cluster.tasks if task.buckets is not None and task.buckets.hosts]
    if not keyed:
        return ["  no task of this job takes rows by key"]
    names = [clipped(name, _NAME_WIDTH) for name in host_names(cluster)]
    room = None if screen.height is None else max(screen.height // len(keyed) - _OTHER_LINES, 4)
    lines = []
    for task, buckets in keyed:
        lines += [*_map(task.name, buckets, names, screen, room), *_heaviest(buckets, names), *_heavy_keys(task, names)]
    return lines


def _measured(buckets: Buckets) -> tuple[str, Sequence[float]]:
    """Return what buckets are shaded by: their work, unless that is unknown."""
    kinds = (("work", buckets.work), ("bytes", buckets.bytes_s), ("rows", buckets.rows_s))
    return next(((what, values) for what, values in kinds if any(value > 0 for value in values)), ("rows", ()))


def _map(name: str, buckets: Buckets, names: Sequence[str], screen: Screen, room: int | None) -> list[str]:
    what, values = _measured(buckets)
    heading = f"  {name}: {counted(len(buckets.hosts), 'bucket')}"
    if not values:
        return [f"{heading}, to which nothing has come"]
    shades = _BLOCKS if screen.blocks else _ASCII
    most, total = max(values), sum(value for value in values if value > 0)
    owned: dict[int, list[int]] = {}
    for bucket, host in enumerate(buckets.hosts):
        owned.setdefault(host, []).append(bucket)
    share = {host: sum(max(values[bucket], 0) for bucket in of) for host, of in owned.items()}
    label = 2 + max(len(names[host]) for host in owned) + len("  buckets  <0.1%  ") + 2
    width = next((cells for cells in _CELLS if cells <= screen.width - label), _CELLS[-1])
    rows = {host: -(-len(of) // width) for host, of in owned.items()}
    shown = sorted(owned)
    if room is not None and sum(rows.values()) > room:
        shown = fitting(sorted(owned, key=lambda host: -share[host]), rows, room)
    cells = [("owner", "buckets", what, "")]
    for host in shown:
        shaded = "".join(shades[_level(values[bucket], most)] for bucket in owned[host])
        parts = [shaded[at : at + width] for at in range(0, len(shaded), width)]
        cells.append((names[host], f"{len(owned[host]):,}", percent(share[host], total), parts[0]))
        cells += [("", "", "", part) for part in parts[1:]]
    lines = [
        f"{heading}, shaded by {what}: {shades[0]} nothing, {shades[-1]} {_amount(what, most)}",
        *table(cells, texts=(0, 3)),
    ]
    if left := [host for host in owned if host not in shown]:
        part = percent(sum(share[host] for host in left), total)
        lines.append(f"  left out: {counted(len(left), 'host')} with {part} of the {what}")
    return lines


def _level(value: float, most: float) -> int:
    """Return a shade: 0 for nothing, 8 for the heaviest bucket."""
    return min(math.ceil(8 * value / most), 8) if value > 0 else 0


def _amount(what: str, value: float) -> str:
    if what == "work":
        return f"{percent(value)} of a CPU"
    return f"{size(value)}/s" if what == "bytes" else f"{value:,.0f} rows/s"


def _heaviest(buckets: Buckets, names: Sequence[str]) -> list[str]:
    """Return the heaviest buckets, with their shares."""
    what, values = _measured(buckets)
    heaviest = sorted(range(len(values)), key=lambda bucket: -values[bucket])[:_HEAVY_SHOWN]
    rows = [
        (
            f"bucket {bucket}",
            names[buckets.hosts[bucket]],
            percent(values[bucket], sum(value for value in values if value > 0)),
            _amount(what, values[bucket]),
            f"{buckets.rows_s[bucket]:,.0f}" if buckets.rows_s else "",
            f"{size(buckets.bytes_s[bucket])}/s" if buckets.bytes_s else "",
            size(buckets.state_bytes[bucket]) if buckets.state_bytes else "",
        )
        for bucket in heaviest
        if values[bucket] > 0
    ]
    if not rows:
        return []
    return table([("heaviest", "owner", f"of the {what}", what, "rows/s", "bytes", "state"), *rows], texts=(0, 1))


def _heavy_keys(task: Task, names: Sequence[str]) -> list[str]:
    """Return the most frequent keys, by name, with their share of the rows."""
    buckets = task.buckets
    if buckets is None or not task.heavy_keys:
        return []
    rows = [
        (clipped(key.key, _KEY_WIDTH), names[buckets.hosts[key.bucket]], percent(key.share), str(key.bucket))
        for key in task.heavy_keys[:_HEAVY_SHOWN]
    ]
    return table([("heavy key", "owner", "of the rows", "bucket"), *rows], texts=(0, 1))
