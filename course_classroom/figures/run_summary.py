"""A training run in one picture: its loss, each rank's memory, and each rank's bytes sent.

A mark on each bar shows the closed form, which is exact to the byte for memory held and bytes sent
but an estimate for the peak. Lesson 12.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from course_classroom.figures.bars import shown
from course_classroom.figures.colours import CARD, INK, Picture, draw, hatch_of_method, method

GREYS = {"device": "#7a7a7a", "host": "#a8a8a8", "disk": "#dcdcdc"}  # by tier
OVER = {"dp": (method(2), ""), "tp": (method(3), hatch_of_method(1))}  # by axis
WIDE, HIGH, ROW = 10.8, 3.4, 0.16  # inches; more ranks need more height
BAR, DASHES = 0.8, (0, (1.2, 0.8))  # height of a bar in its row; an estimate has a dashed mark


def run_summary(
    losses: Sequence[tuple[int, float]],
    validation: Sequence[tuple[int, float]],
    ranks: Sequence[Mapping],
    *,
    title: str = "",
) -> Picture:
    """Draw (step, loss) of training and validation. If steps were measured, add the memory and
    traffic of `ranks`, as reported by `course train --json`."""
    if not losses:
        raise ValueError("a run's picture needs at least one step, as (step, loss)")
    high = max(HIGH, 1.2 + ROW * (2 + len(_below(ranks))) * len(ranks))

    def paint(figure) -> None:
        axes = figure.subplots(1, 3 if ranks else 1, squeeze=False)[0]
        _loss(axes[0], losses, validation)
        if ranks:
            _memory(axes[1], ranks)
            _sent(axes[2], ranks)

    words = " ".join([*_of_losses(losses, validation), *map(_of_rank, ranks)])
    return draw((WIDE if ranks else WIDE / 2, high), words, paint, title)


def _loss(axis, losses, validation) -> None:
    looks = {"training": (method(0), "-"), "validation": (method(1), "--")}
    for (name, (colour, style)), points in zip(looks.items(), (losses, validation), strict=True):
        if points:
            steps, values = zip(*points, strict=True)
            few = "o" if len(points) < 20 else None
            axis.plot(steps, values, style, color=colour, marker=few, markersize=3, label=name)
    axis.set_title("loss, mean over the tokens", fontsize=9)
    axis.set_xlabel("step")
    axis.locator_params(axis="x", integer=True)
    axis.grid()
    axis.legend()


def _below(ranks) -> list[str]:
    """Return the tiers other than the device that hold data, measured or estimated."""
    held = [
        by_tier for r in ranks for by_tier in (r["held_by_tier"], r["estimate"]["held_by_tier"])
    ]
    return [tier for tier in ("host", "disk") if any(by_tier.get(tier) for by_tier in held)]


def _memory(axis, ranks) -> None:
    """Draw the memory: the device's bar up to its peak, host and disk in narrower bars below."""
    unit, size = _unit(max(max(r["peak"], *r["held_by_tier"].values()) for r in ranks))
    below = _below(ranks)
    narrow = BAR / (2 + len(below))
    y, high = narrow - BAR / 2, 2 * narrow  # of the device, relative to the middle of a rank's row
    for tier in ("device", *below):
        held = [r["held_by_tier"].get(tier, 0) / size for r in ranks]
        _bars(axis, y, f"held, {tier}", held, GREYS[tier], high=high)
        formula = [r["estimate"]["held_by_tier"].get(tier, 0) / size for r in ranks]
        _marks(axis, y, "formula", formula, high=high)
        if tier == "device":
            more = [r["peak"] / size - h for r, h in zip(ranks, held, strict=True)]
            _bars(axis, y, "more at the peak", more, CARD, high=high, left=held)
            peaks = [r["estimate"].get("peak", 0) / size for r in ranks]
            if any(peaks):
                _marks(axis, y, "estimated peak", peaks, high=high)
        y, high = y + (high + narrow) / 2, narrow
    _rows(axis, ranks, f"memory of each rank, {unit}")


def _sent(axis, ranks) -> None:
    unit, size = _unit(max(report["sent"] for report in ranks) or 1)
    left = [0.0] * len(ranks)
    for name, (colour, hatch) in OVER.items():
        wide = [report["sent_by_axis"].get(name, 0) / size for report in ranks]
        if any(wide):
            _bars(axis, 0.0, f"over {name}", wide, colour, left=left, hatch=hatch)
        left = [a + b for a, b in zip(left, wide, strict=True)]
    _marks(axis, 0.0, "formula", [report["estimate"]["sent"] / size for report in ranks])
    _rows(axis, ranks, f"sent in a step, {unit}")


def _bars(axis, y: float, name: str, wide: list[float], colour: str, high=BAR, **look) -> None:
    rows = [rank + y for rank in range(len(wide))]
    look |= {"color": colour, "edgecolor": INK, "linewidth": 0.5}
    axis.barh(rows, wide, height=high, label=name, **look)


def _marks(axis, y: float, name: str, at: list[float], high: float = BAR) -> None:
    look = {"linestyle": "-" if name == "formula" else DASHES, "color": method(1), "linewidth": 2}
    for rank, x in enumerate(at):
        ends = [rank + y - 0.56 * high, rank + y + 0.56 * high]
        axis.plot([x, x], ends, label=name, clip_on=False, **look)


def _rows(axis, ranks, title: str) -> None:
    axis.set_title(title)
    axis.set_yticks(range(len(ranks)), [f"rank {report['rank']}" for report in ranks])
    axis.set_ylim(len(ranks) - 0.4, -0.6)
    axis.set_xlim(0, 1.05 * axis.dataLim.x1 or 1)  # room for a mark at the end of the longest bar
    handles, labels = axis.get_legend_handles_labels()
    names = dict(zip(labels, handles, strict=True))  # each label once, whichever row has it
    where = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.12), "ncols": 2}
    axis.legend(names.values(), names.keys(), frameon=False, fontsize=7, **where)


def _unit(most: float) -> tuple[str, float]:
    return next(
        ((u, s) for u, s in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if most >= s), ("bytes", 1)
    )


def _of_losses(losses, validation) -> list[str]:
    (first, before), (last, after) = losses[0], losses[-1]
    words = [f"Loss from {before:.3f} at step {first} to {after:.3f} at step {last}."]
    if validation:
        words.append(f"Validation loss {validation[-1][1]:.3f} at step {validation[-1][0]}.")
    return words


def _of_rank(report) -> str:
    formula = report["estimate"]
    peak = f"; its peak is estimated at {shown(formula['peak'])}" if "peak" in formula else ""
    return (
        f"Rank {report['rank']} holds {_by_tier(report['held_by_tier'])}, uses "
        f"{shown(report['peak'])} of the device at the peak, and sends {shown(report['sent'])} in "
        f"a step; by formula it holds {_by_tier(formula['held_by_tier'])} and sends "
        f"{shown(formula['sent'])}{peak}."
    )


def _by_tier(held: Mapping[str, int]) -> str:
    names = {"device": "the device", "host": "the host", "disk": "disk"}
    return ", ".join(f"{shown(held[t])} on {name}" for t, name in names.items() if held.get(t))
