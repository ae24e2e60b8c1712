"""The life of a stage-3 parameter in one step: sharded, gathered for use, freed, repeated.

The picture shows each rank's part of the parameter and of its gradient in each state, the
operations between states, and the memory. `course_lib.zero.stage3` implements it. Lesson 11.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from course_classroom.figures.colours import CARD, EDGE, INK, QUIET, REPLICATED, Picture, draw
from course_classroom.figures.shapes import arrow, box, chip, in_inches, label, rank_box

SHARDED, FULL, PARTIAL, NONE = "sharded", "full", "partial sum", ""
MESSAGES = ("all-gather", "reduce-scatter")


class State(NamedTuple):
    """A state: the form of a parameter and its gradient on the ranks, and the next operation."""

    phase: str
    parameter: str
    gradient: str
    then: str  # the operation that ends the state

    def memory(self, n: int) -> tuple[Fraction, Fraction, Fraction]:
        """Return one rank's shard, gathered buffer and gradient as fractions of the parameter."""
        gradient = {PARTIAL: Fraction(1), SHARDED: Fraction(1, n), NONE: Fraction(0)}
        return Fraction(1, n), Fraction(self.parameter == FULL), gradient[self.gradient]


STATES = (
    State("before", SHARDED, NONE, "all-gather"),
    State("forward", FULL, NONE, "free"),
    State("forward of later units", SHARDED, NONE, "all-gather"),
    State("backward", FULL, PARTIAL, "free"),
    State("backward", SHARDED, PARTIAL, "reduce-scatter"),
    State("backward of earlier units", SHARDED, SHARDED, "update"),
    State("after", SHARDED, NONE, ""),
)
CELL, HOP, LEFT, ROW, BAR = 0.66, 0.66, 0.95, 0.3, 0.2  # inches
END = LEFT + len(STATES) * CELL + (len(STATES) - 1) * HOP
PARAMETER, UNIT = 0.88, 0.34  # top of the parameter's rows; height of one parameter in memory
SHADES = {"shard": "#8a8a8a", "gathered": REPLICATED, "gradient": CARD}
PHASES = {"at rest": (0, 0), "forward": (1, 1), "other units run": (2, 2), "backward": (3, 5)}
PHASES["step"] = (6, 6)  # first and last state of each


def parameter_life(n: int = 2, *, title: str = "") -> Picture:
    """Draw the states of a parameter, or of a unit of parameters, on `n` ranks of the axis dp."""
    if not 2 <= n <= 6:
        raise ValueError(f"n={n}: the picture has 2 to 6 ranks, since one rank shards nothing")
    told = []
    for state in STATES:
        held = " + ".join(str(part) for part in state.memory(n) if part)
        gradient = f", gradient {state.gradient}" if state.gradient else ""
        then = f"; then {state.then}" if state.then else ""
        told.append(f"{state.phase}: parameter {state.parameter}{gradient}, memory {held}{then}")
    words = (
        "Memory is that of one rank, in full parameters: the shard, the gathered buffer, the "
        f"gradient. {'; '.join(told)}. The last unit of the forward pass is not freed, because its "
        "backward pass comes next."
    )
    title = title or f"ZeRO-3 (FSDP): the parameters of one unit in one training step, {n} ranks"
    size = (END + 0.25, PARAMETER + 2 * n * ROW + 0.42 + 2.85 * UNIT + 0.46)
    return draw(size, words, lambda figure: _paint(figure, n), title, few_colours=256)


def _paint(figure, n: int) -> None:
    axis = in_inches(figure)
    gradient = PARAMETER + n * ROW + 0.26
    look = {"va": "center", "fontsize": 8, "color": INK}
    for top, name in ((PARAMETER, "parameter"), (gradient, "gradient")):
        axis.text(0.08, top - 0.1, name, fontweight="bold", **look)
        for rank in range(n):
            axis.text(0.2, top + rank * ROW + ROW / 2, f"rank {rank}", **look)
    for phase, (first, last) in PHASES.items():
        start, stop = LEFT + first * (CELL + HOP), LEFT + last * (CELL + HOP) + CELL
        label(axis, (start + stop) / 2, 0.32, phase, fontsize=9)
        axis.plot([start - 0.08, stop + 0.08], [0.46, 0.46], color=QUIET, linewidth=1.0)
    for i, state in enumerate(STATES):
        left = LEFT + i * (CELL + HOP)
        for rank in range(n):
            _bar(axis, left, PARAMETER + rank * ROW, rank, n, state.parameter)
            _bar(axis, left, gradient + rank * ROW, rank, n, state.gradient)
        words = {FULL: "full (replicated)"}.get(state.parameter, state.parameter)
        for y, text in ((PARAMETER, words), (gradient, state.gradient)):
            label(axis, left + CELL / 2, y - 0.1, text, fontsize=7, color=QUIET)
        if state.then:  # its chip is dark if a message is sent
            of_gradient, x = state.then == "reduce-scatter", left + CELL
            y = (gradient if of_gradient else PARAMETER) + n * ROW / 2
            arrow(axis, (x + 0.06, y), (x + HOP - 0.06, y))
            words, sends = state.then.replace("-", "-\n"), state.then in MESSAGES
            chip(axis, x + HOP / 2 - 0.02, y - 0.1, words, sends, va="bottom")
    _memory(axis, n, gradient + n * ROW + 0.3 + 2.6 * UNIT)


def _bar(axis, left: float, top: float, rank: int, n: int, holds: str) -> None:
    """Draw a tensor on one rank: grey if full, in the rank's colour if sharded or partial, and
    nothing if not held."""
    y = top + (ROW - BAR) / 2
    if holds == NONE:
        return
    empty = {"facecolor": CARD, "edgecolor": EDGE, "linestyle": (0, (2, 2))}
    box(axis, left, y, CELL, BAR, linewidth=0.7, **empty)
    if holds == FULL:
        box(axis, left, y, CELL, BAR, facecolor=REPLICATED, edgecolor=EDGE, linewidth=0.7)
        return
    start, wide = (rank * CELL / n, CELL / n) if holds == SHARDED else (0.0, CELL)
    rank_box(axis, (left + start, y, wide, BAR), rank)


def _memory(axis, n: int, bottom: float) -> None:
    """Draw one rank's memory by state: shard, gathered buffer and gradient, stacked."""
    axis.text(0.08, bottom - 1.9 * UNIT, "memory", fontweight="bold", fontsize=8)
    axis.text(0.08, bottom - 1.9 * UNIT + 0.16, "of one rank", fontsize=8)
    axis.plot([LEFT - 0.05, END + 0.05], [bottom, bottom], color=INK, linewidth=0.9)
    for i, state in enumerate(STATES):
        start = LEFT + i * (CELL + HOP) - (HOP / 2 if i else 0)
        wide = CELL + HOP / 2 + (HOP / 2 if 0 < i < len(STATES) - 1 else 0)
        top = bottom
        for (name, shade), part in zip(SHADES.items(), state.memory(n), strict=True):
            high, hatch = float(part) * UNIT, "////" if name == "gradient" else ""
            look = {"facecolor": shade, "edgecolor": INK, "hatch": hatch, "linewidth": 0.7}
            if high:
                box(axis, start, top - high, wide, high, **look)
            if high > 0.14:
                label(axis, start + wide / 2, top - high / 2, name, on=shade, fontsize=7)
            top -= high
        words = f"{float(sum(state.memory(n))):.3g}"
        label(axis, start + wide / 2, top - 0.08, words, fontsize=7.5, fontweight="bold")
    note = (
        "1: the unit's full parameters. Optimizer states are not drawn. The last unit of the "
        "forward pass is not freed, because its backward pass comes next."
    )
    label(axis, (LEFT + END) / 2, bottom + 0.17, note, fontsize=7.5, color=QUIET)
