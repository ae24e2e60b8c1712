"""The loss by step, of one run or of several that should agree.

Runs that agree have different marks and a second panel with each run's distance from the first on a
logarithmic axis, because their curves are too close together. Lesson 08.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from course_classroom.figures.colours import CARD, INK, QUIET, Picture, draw, line_look, mark_look

AGREE = 0.01  # relative to the range of the first run's losses: closer runs coincide
BOUNDS = (1e-12, 1e-9, 1e-4)  # bounds for distances in words, to hide changes by noise
LEAST = 1e-17  # a distance of 0 is drawn here because a logarithm cannot show it
Points = Sequence[tuple[int, float]]


def loss_curve(
    runs: Mapping[str, Points], *, bound: float | None = None, title: str = ""
) -> Picture:
    """Draw each run's (step, loss) points, and distances from the first run if all runs agree.

    `bound`, an asserted limit, is drawn as a line in the panel of distances.
    """
    if not runs or not all(runs.values()):
        raise ValueError("a loss curve needs at least one step of each run, as (step, loss)")
    apart = distances(runs)
    shown = agrees(runs, apart)
    if bound is not None and not shown:
        raise ValueError(
            "bound= is for runs that agree step by step, but these do not: leave it out"
        )
    alt = _in_words(runs, apart if shown else {})

    def paint(figure) -> None:
        ratios = (3, 2) if shown else (1,)
        axes = figure.subplots(len(ratios), sharex=True, squeeze=False, height_ratios=ratios)[:, 0]
        _curves(axes[0], runs, marked=shown)
        if shown:
            _residuals(axes[1], apart, bound, next(iter(runs)))
        axes[-1].set_xlabel("step")

    return draw((6.4, 4.4 if shown else 3.2), alt, paint, title)


def distances(runs: Mapping[str, Points]) -> dict[str, list[tuple[int, float]]]:
    """Return |loss − loss of the first run| by step, for every other run with the same steps."""
    first, *others = runs.items()
    steps = [step for step, _ in first[1]]
    return {
        name: [(step, abs(a - b)) for (step, a), (_, b) in zip(points, first[1], strict=True)]
        for name, points in others
        if [step for step, _ in points] == steps
    }


def agrees(runs: Mapping[str, Points], apart: Mapping[str, Points]) -> bool:
    """Return True if all runs have the first run's steps and losses close to its losses."""
    losses = [loss for _, loss in next(iter(runs.values()))]
    room = AGREE * (max(losses) - min(losses))
    most = [gap for points in apart.values() for _, gap in points]
    return bool(most) and len(apart) == len(runs) - 1 and max(most) <= room


def _curves(axis, runs: Mapping[str, Points], *, marked: bool) -> None:
    others = len(runs) - 1
    for i, (name, points) in enumerate(runs.items()):
        steps, losses = zip(*points, strict=True)
        look = line_look(i, linewidth=1.6)
        if len(points) == 1:
            look["marker"] = "o"  # a line with one point would be invisible
        elif marked and i:  # on the line of the first run, each at different steps
            every = max(others, len(points) // 8)
            turn, first = divmod((i - 1) * max(1, every // others), len(points))
            look = mark_look(i, linestyle="none", markersize=6, markevery=(first, every))
            if others > len(points):  # a smaller mark with a white edge on a larger one
                look |= {"markersize": max(4, 10 - 3 * turn), "markeredgecolor": CARD}
        axis.plot(steps, losses, label=name, **look)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_ylabel("loss, mean over the tokens" if not marked else "loss")
    axis.grid()
    if len(runs) > 1:
        axis.legend()


def _residuals(axis, apart: Mapping[str, Points], bound: float | None, first: str) -> None:
    for i, (name, points) in enumerate(apart.items(), 1):
        look = {**line_look(i), **mark_look(i), "markersize": 4, "linewidth": 0.8}
        steps, gaps = zip(*points, strict=True)
        axis.plot(steps, [max(gap, LEAST) for gap in gaps], label=name, **look)
    every = [max(gap, LEAST) for points in apart.values() for _, gap in points]
    axis.set_yscale("log")
    equal = min(every) == LEAST
    axis.set_ylim(min(every) / (1000 if equal else 5), max(*every, bound or 0.0) * 8)
    where = axis.get_yaxis_transform()
    if bound is not None:
        axis.axhline(bound, color=INK, linewidth=1.0, linestyle="--")
        look = {"ha": "right", "va": "bottom", "fontsize": 8, "color": INK}
        axis.text(0.995, bound, f"asserted: below {_power(bound)}", transform=where, **look)
    if equal:  # written below the lowest line, where no other line crosses
        look = {"va": "top", "fontsize": 7.5, "color": QUIET}
        axis.text(0.005, LEAST / 3, "equal, bit for bit", transform=where, **look)
    axis.set_ylabel(f"distance to\n{first if len(first) < 20 else 'the first run'}")
    axis.grid()


def _power(bound: float) -> str:
    return f"{bound:.0e}".replace("e-0", "e-")


def _in_words(runs: Mapping[str, Points], apart: Mapping[str, Points]) -> str:
    told = [
        f"{name} goes from {points[0][1]:.3f} at step {points[0][0]} to {points[-1][1]:.3f} at "
        f"step {points[-1][0]}, and is lowest with {min(loss for _, loss in points):.3f}"
        for name, points in runs.items()
    ]
    words = f"Loss by step: {'; '.join(told)}."
    for name, points in apart.items():
        most = max(gap for _, gap in points)
        below = next((_power(bound) for bound in BOUNDS if most < bound), "a percent")
        words += f" {name} differs from {next(iter(runs))} by less than {below} at every step."
    return words
