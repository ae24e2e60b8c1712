"""Time against message size, with a straight line fitted to the times: T = α + β · bytes.

α is a collective's cost at any size, and 1/β is the bytes per second that large messages reach.
Both are measured, never taken from a table. Lesson 01 draws the first fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from course_classroom.figures.bars import shown
from course_classroom.figures.colours import INK, QUIET, Picture, draw, line_look, mark_look


class Fit(NamedTuple):
    """The two parameters of a link, as measured with one collective."""

    alpha: float  # seconds
    beta: float  # seconds per byte

    def seconds(self, bytes_: float) -> float:
        return self.alpha + self.beta * bytes_

    @property
    def bytes_per_second(self) -> float:
        return 1 / self.beta

    @property
    def half(self) -> float:
        """Return the size in bytes at which starting takes as much time as moving the data."""
        return self.alpha / self.beta


def fit(bytes_: Sequence[float], seconds: Sequence[float]) -> Fit:
    """Fit the line with the smallest *relative* error: small and large messages count alike."""
    if len(bytes_) != len(seconds) or len(bytes_) < 2:
        raise ValueError(
            "a line needs at least two points, each with a size and a time; there are "
            f"{len(bytes_)} sizes and {len(seconds)} times"
        )
    # Least squares of (α + β b − t) / t: two normal equations, solved directly.
    weights = [1 / t**2 for t in seconds]
    w = sum(weights)
    wb = sum(k * b for k, b in zip(weights, bytes_, strict=True))
    wbb = sum(k * b * b for k, b in zip(weights, bytes_, strict=True))
    wt = sum(k * t for k, t in zip(weights, seconds, strict=True))
    wbt = sum(k * b * t for k, b, t in zip(weights, bytes_, seconds, strict=True))
    determinant = w * wbb - wb * wb
    if determinant <= 0:
        raise ValueError("all sizes are the same, so no line can be fitted")
    beta = (w * wbt - wb * wt) / determinant
    alpha = (wt - beta * wb) / w
    # Noise can push the fit below zero, but a message cannot take negative time.
    return Fit(max(alpha, 1e-9), max(beta, 1e-15))


def bandwidth(
    measured: Mapping[str, Sequence[tuple[float, float]]],
    fits: Mapping[str, Fit],
    *,
    title: str = "",
) -> Picture:
    """Draw the (bytes, seconds) points of one or more collectives, each with its fitted line.

    Time is on the left, bytes per second on the right; all axes are logarithmic. For a single line,
    α, 1/β and the size at which α is half of the time are marked.
    """

    def paint(figure) -> None:
        left, right = figure.subplots(1, 2)
        for i, (name, points) in enumerate(measured.items()):
            curve = [(b, fits[name].seconds(b)) for b in smooth([b for b, _ in points])]
            for pairs, look, words in (
                (points, mark_look(i, linestyle="none"), name),
                (curve, line_look(i, linewidth=1.3), f"{name}: α + β · bytes"),
            ):
                sizes, times = zip(*pairs, strict=True)
                left.plot(sizes, [t * 1e3 for t in times], label=words, **look)
                right.plot(sizes, [b / t / 1e9 for b, t in pairs], **look)
        left.set_ylabel("milliseconds")
        right.set_ylabel("GB per second")
        for axis in (left, right):
            axis.set(xscale="log", yscale="log", xlabel="bytes that each rank must send")
            axis.grid()
        if len(measured) == 1:
            _marks(left, right, fits[name], [b for b, _ in points])
        left.legend(loc="upper left")

    told = []
    for name, points in measured.items():
        sizes, line = [b for b, _ in points], fits[name]
        told.append(
            f"{name} measured at {len(points)} sizes from {min(sizes):,.0f} to {max(sizes):,.0f} "
            f"bytes; the line through them starts at {line.alpha * 1e3:.2g} ms and approaches "
            f"{line.bytes_per_second / 1e9:.2g} GB per second"
            + (f"; half of the time is α at {shown(line.half)}" if len(measured) == 1 else "")
        )
    words = f"Time and bytes per second against size, both logarithmic. {'. '.join(told)}."
    return draw((8.4, 3.5), words, paint, title)


def smooth(sizes: Sequence[float], points: int = 200) -> list[float]:
    """Return sizes from the smallest to the largest, evenly spaced on a logarithmic axis."""
    low, high = min(sizes), max(sizes)
    return [low * (high / low) ** (k / (points - 1)) for k in range(points)]


def _marks(left, right, line: Fit, sizes: Sequence[float]) -> None:
    """Mark the plateau's height α, the ceiling's height 1/β, and the size at which they meet."""
    rule = {"color": QUIET, "linewidth": 1.0, "linestyle": "--", "zorder": 0}
    milli, giga = line.alpha * 1e3, line.bytes_per_second / 1e9
    left.axhline(milli, **rule)
    right.axhline(giga, **rule)
    left.set_ylim(bottom=min(milli / 2, left.get_ylim()[0]))
    right.set_ylim(top=max(2.2 * giga, right.get_ylim()[1]))
    ends = {"fontsize": 8, "color": INK}
    away = {"textcoords": "offset points", **ends}
    inside = {"ha": "right", "va": "top", "xycoords": left.get_yaxis_transform(), **away}
    left.annotate(f"α = {milli:.2g} ms", (1, milli), (-2, -4), **inside)
    inside = {"ha": "left", "va": "bottom", "xycoords": right.get_yaxis_transform(), **away}
    right.annotate(f"1/β = {giga:.2g} GB/s", (0, giga), (4, 4), **inside)
    if min(sizes) < line.half < max(sizes):
        for axis in (left, right):
            axis.axvline(line.half, **{**rule, "linestyle": ":"})
        inside = {"va": "bottom", "transform": right.get_xaxis_transform(), **ends}
        right.text(line.half, 0.03, f" half of the time is α:\n {shown(line.half)}", **inside)
