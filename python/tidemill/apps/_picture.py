"""An SVG picture of clusters, in the two directions of largest variance; needs only NumPy."""

from __future__ import annotations

import colorsys
from html import escape

import numpy as np
from numpy.typing import NDArray

from tidemill.ml._job import Comm, allreduce

__all__ = ["Plane", "sample_rows", "scatter"]

Array = NDArray[np.float64]

#: Maximum number of points drawn: enough to see shapes, few enough for any viewer.
POINTS_MAX = 6000
#: Rows that principal components are computed from.
_PCA_ROWS_MAX = 50_000
_SIZE = (900, 640)
_MARGIN = (70, 50, 20, 60)  # left, top, right, bottom
_COLOURS = (
    "#4e79a7",
    "#f28e2b",
    "#e15759",
    "#76b7b2",
    "#59a14f",
    "#edc948",
    "#b07aa1",
    "#ff9da7",
    "#9c755f",
    "#86a4c8",
)


class Plane:
    """Two axes to project onto: the columns themselves if there are at most two, else the first two principal
    components.
    """

    def __init__(self, comm: Comm, x: Array, names: list[str]) -> None:
        d = x.shape[1]
        self.mean = np.zeros(d)
        if d <= 2:
            self.axes = np.eye(d, 2)
            self.labels = (names[0], names[1] if d == 2 else "")
            return
        # Evenly spaced rows give visually the same directions, in a fraction of the time.
        x = x[sample_rows(comm, len(x), _PCA_ROWS_MAX)]
        sums = allreduce(comm, np.append(x.sum(axis=0), len(x)))
        self.mean = sums[:-1] / sums[-1]
        centred = x - self.mean
        values, vectors = np.linalg.eigh(allreduce(comm, centred.T @ centred))
        # The sign of an eigenvector is arbitrary, but ranks and runs must agree.
        axes = vectors[:, [-1, -2]]
        self.axes = axes * np.where(axes[np.abs(axes).argmax(axis=0), [0, 1]] < 0, -1.0, 1.0)
        share = 100 * np.maximum(values[[-1, -2]], 0) / max(values.sum(), np.finfo(float).tiny)
        self.labels = (
            f"principal component 1 ({share[0]:.0f} % of the variance)",
            f"principal component 2 ({share[1]:.0f} %)",
        )

    def project(self, x: Array) -> Array:
        """Return the projection, (n, 2)."""
        result: Array = (x - self.mean) @ self.axes
        return result


def sample_rows(comm: Comm, n: int, most: int = POINTS_MAX) -> NDArray[np.intp]:
    """Sample some of this rank's `n` rows: at most `most` over all ranks, evenly spread."""
    counts = comm.allgather(n)
    offset, total = sum(counts[: comm.rank]), sum(counts)
    step = max(1, -(-total // most))
    return np.arange(-offset % step, n, step, dtype=np.intp)


def _colour(i: int, k: int) -> str:
    if k <= len(_COLOURS):
        return _COLOURS[i]
    # Steps of the golden ratio keep neighbors apart for any number.
    red, green, blue = colorsys.hls_to_rgb(i * 0.618033988749895 % 1.0, 0.45 + 0.15 * (i % 3 - 1), 0.6)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def _ticks(low: float, high: float) -> list[float]:
    step = 10 ** np.floor(np.log10((high - low) / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 7)
    return [float(tick) for tick in np.arange(np.ceil(low / step), np.floor(high / step) + 1) * step + 0.0]


def scatter(points: Array, labels: NDArray[np.int32], centres: Array, title: str, axes: tuple[str, str]) -> str:
    """Return an SVG of points (n, 2) colored by label, and centers (k, 2).

    The axes leave out the outermost 0.5 % on each side if those would take more than half of the space.
    """
    width, height = _SIZE
    left, top, right, bottom = _MARGIN
    everything = np.concatenate([points, centres])
    low, high = everything.min(axis=0), everything.max(axis=0)
    inner_low, inner_high = np.quantile(everything, [0.005, 0.995], axis=0)
    crowded = (inner_high - inner_low) * 2 < high - low
    wide = inner_high > inner_low
    low, high = np.where(crowded & wide, inner_low, low), np.where(crowded & wide, inner_high, high)
    room = np.where(high > low, (high - low) * 0.04, 0.5)
    low, high = low - room, high + room
    scale = np.array([(width - left - right), (height - top - bottom)]) / (high - low)

    def place(xy: Array) -> Array:
        at = (xy - low) * scale
        result: Array = np.column_stack([left + at[:, 0], height - bottom - at[:, 1]])
        return result

    k = len(centres)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{left}" y="30" font-size="17">{escape(title)}</text>',
        f'<text x="{(left + width - right) / 2}" y="{height - 14}" text-anchor="middle">{escape(axes[0])}</text>',
        f'<text transform="translate(18 {(top + height - bottom) / 2}) rotate(-90)" text-anchor="middle">{escape(axes[1])}</text>',
        '<g stroke="#ddd" fill="#555">',
    ]
    for tick in _ticks(low[0], high[0]):
        x = left + (tick - low[0]) * scale[0]
        out.append(f'<path d="M{x:.1f} {top}V{height - bottom}"/>')
        out.append(f'<text x="{x:.1f}" y="{height - bottom + 18}" text-anchor="middle" stroke="none">{tick:.4g}</text>')
    for tick in _ticks(low[1], high[1]) if axes[1] else []:
        y = height - bottom - (tick - low[1]) * scale[1]
        out.append(f'<path d="M{left} {y:.1f}H{width - right}"/>')
        out.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end" stroke="none">{tick:.4g}</text>')
    out.append("</g>")
    visible = ((points >= low) & (points <= high)).all(axis=1)
    placed = place(points)
    for label in range(k):
        chosen = placed[visible & (labels == label)]
        if len(chosen):
            # One path per cluster: a dot is a line of length zero with round ends.
            dots = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in chosen)
            out.append(
                f'<path d="{dots}" stroke="{_colour(label, k)}" stroke-width="3.4" stroke-linecap="round" '
                'stroke-opacity="0.6" fill="none"/>'
            )
    for label, (x, y) in enumerate(place(np.clip(centres, low, high))):
        out.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{6 if k <= 50 else 3}" fill="{_colour(label, k)}" stroke="black" '
            f'stroke-width="1.5"><title>centre {label}</title></circle>'
        )
    out.append("</svg>")
    return "\n".join(out) + "\n"
