"""A training run in one picture: its loss, the memory of each rank, the bytes that each sends.

A mark across each bar is what the closed forms say of it. Lesson 12.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from course_lib.figures.bars import shown
from course_lib.figures.colours import INK, QUIET, Picture, draw, hatch_of_rank, of_rank

TIERS, AXES = ("device", "host", "disk"), ("dp", "tp")
WIDE, HIGH, ROW = 10.8, 3.4, 0.16  # inches; more ranks make it higher
GREYS = ("#5c5c5c", "#a8a8a8", "#dcdcdc", "#ffffff")  # one for each tier, and the peak


def run_summary(
    losses: Sequence[tuple[int, float]],
    validation: Sequence[tuple[int, float]],
    ranks: Sequence[Mapping],
    *,
    title: str = "",
) -> Picture:
    """Draw (step, loss) of training and validation, and what `course train --json` says of `ranks`:
    held by tier and at the peak, sent by axis; nothing of those where no step was measured."""
    if not losses:
        raise ValueError("a run's picture needs a step or more, as (step, loss)")
    alt = _in_words(losses, validation, ranks, title)
    high = max(HIGH, 1.2 + ROW * 2 * len(ranks))

    def paint(figure) -> None:
        axes = figure.subplots(1, 3 if ranks else 1, squeeze=False)[0]
        if title:
            figure.suptitle(title, fontsize=10, color=INK)
        _loss(axes[0], losses, validation)
        if ranks:
            _memory(axes[1], ranks)
            _sent(axes[2], ranks)

    return draw((WIDE if ranks else WIDE / 2, high), alt, paint)


def _loss(axis, losses, validation) -> None:
    for points, name, colour, style in (
        (losses, "training", of_rank(0), "-"), (validation, "validation", of_rank(5), "--"),
    ):  # fmt: skip
        if points:
            steps, values = zip(*points, strict=True)
            few = "o" if len(points) < 20 else None
            axis.plot(steps, values, style, color=colour, marker=few, markersize=3, label=name)
    axis.set_title("loss, mean over the tokens", fontsize=9, color=INK)
    axis.set_xlabel("step")
    axis.locator_params(axis="x", integer=True)
    axis.grid(color=QUIET, alpha=0.25, linewidth=0.5)
    axis.legend(frameon=False, fontsize=8)
    _plain(axis)


def _memory(axis, ranks) -> None:
    unit, size = _unit(max(max(r["peak"], r["held"]) for r in ranks))
    for row, report in enumerate(ranks):
        parts = {f"held, {tier}": report["held_by_tier"].get(tier, 0) for tier in TIERS}
        parts["more at the peak"] = report["peak"] - parts["held, device"]
        _bar(axis, row, {name: nbytes / size for name, nbytes in parts.items()}, GREYS)
        _mark(axis, row, report["estimate"]["held"] / size)
    _rows(axis, ranks, f"memory of each rank, {unit}")


def _sent(axis, ranks) -> None:
    unit, size = _unit(max(report["sent"] for report in ranks) or 1)
    colours, hatches = (of_rank(0), of_rank(1)), (hatch_of_rank(0), hatch_of_rank(1))
    for row, report in enumerate(ranks):
        parts = {f"over {name}": report["sent_by_axis"].get(name, 0) / size for name in AXES}
        _bar(axis, row, parts, colours, hatches)
        _mark(axis, row, report["estimate"]["sent"] / size)
    _rows(axis, ranks, f"sent in a step, {unit}")


def _bar(axis, row: int, parts: Mapping[str, float], colours, hatches=("",) * 4) -> None:
    """Parts beside parts; the first row of each names it."""
    left = 0.0
    for (name, wide), colour, hatch in zip(parts.items(), colours, hatches, strict=False):
        label = name if row == 0 and wide else None
        axis.barh(
            row, wide, left=left, height=0.66, color=colour, hatch=hatch, edgecolor=INK,
            linewidth=0.5, label=label,
        )  # fmt: skip
        left += wide


def _mark(axis, row: int, x: float) -> None:
    label = "formula" if row == 0 else None
    axis.plot([x, x], [row - 0.45, row + 0.45], color=of_rank(5), linewidth=2, label=label)


def _rows(axis, ranks, title: str) -> None:
    axis.set_title(title, fontsize=9, color=INK)
    axis.set_yticks(range(len(ranks)), [f"rank {report['rank']}" for report in ranks])
    axis.set_ylim(len(ranks) - 0.4, -0.6)
    axis.set_xlim(left=0)
    axis.legend(frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)
    _plain(axis)


def _plain(axis) -> None:
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _unit(most: float) -> tuple[str, float]:
    return next(
        ((u, s) for u, s in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if most >= s), ("bytes", 1)
    )


def _in_words(losses, validation, ranks, title: str) -> str:
    words = [f"Loss from {losses[0][1]:.3f} at step {losses[0][0]} to {losses[-1][1]:.3f} at step "
             f"{losses[-1][0]}."]  # fmt: skip
    if validation:
        words.append(f"Validation loss {validation[-1][1]:.3f} at step {validation[-1][0]}.")
    for report in ranks:
        tiers = ", ".join(
            f"{shown(report['held_by_tier'][tier])} on {'the ' if tier != 'disk' else ''}{tier}"
            for tier in TIERS
            if report["held_by_tier"].get(tier)
        )
        words.append(
            f"Rank {report['rank']} holds {tiers}, {shown(report['peak'])} of the device at the "
            f"peak, and sends {shown(report['sent'])} in a step; by formula it holds "
            f"{shown(report['estimate']['held'])} and sends {shown(report['estimate']['sent'])}."
        )
    return f"{title + '. ' if title else ''}{' '.join(words)}"
