"""Scaling efficiency as grouped bars: measured, predicted by a model, and published.

All panels share one scale in percent from 0, with a line at 100 %, which is perfect scaling. Lesson
15 draws the article's eight bars next to bars for this machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from course_classroom.figures.colours import CARD, INK, QUIET, Picture, draw, in_words, method
from course_classroom.figures.shapes import label, legend

LOOKS = {
    "measured": {"facecolor": method(0), "edgecolor": INK},
    "predicted": {"facecolor": CARD, "hatch": "|||", "edgecolor": INK},
    "published": {"facecolor": method(3), "edgecolor": INK},
}
WIDE, BETWEEN, HIGH = 0.34, 0.3, 2.9  # inches: a bar's width, a gap between groups, the height
NARROWEST = 3.2  # so that the legend fits


@dataclass(frozen=True)
class ScalingBar:
    """A configuration and its efficiency in percent, for each kind that is known."""

    label: str
    measured: float | None = None
    predicted: float | None = None
    published: float | None = None

    @property
    def values(self) -> dict[str, float]:
        every = {kind: getattr(self, kind) for kind in LOOKS}
        return {kind: value for kind, value in every.items() if value is not None}


def scaling_bars(panels: Mapping[str, Sequence[ScalingBar]], *, title: str = "") -> Picture:
    """Draw a group of bars for each configuration, with the panels side by side.

    A kind without bars takes no space and has no entry in the legend.
    """
    words = {
        name: [
            f"{' '.join(bar.label.split())}: "
            + ", ".join(f"{kind} {value:.3g} %" for kind, value in bar.values.items())
            for bar in bars
        ]
        for name, bars in panels.items()
    }
    alt = in_words("Scaling efficiency", words, between="; ")
    size = (max(sum(map(_inches, panels.values())) + 0.7, NARROWEST), HIGH)
    return draw(size, alt, lambda figure: _paint(figure, panels), title)


def _kinds(bars: Sequence[ScalingBar]) -> list[str]:
    """Return the kinds for which a panel has bars, in a fixed order."""
    return [kind for kind in LOOKS if any(kind in bar.values for bar in bars)]


def _inches(bars: Sequence[ScalingBar]) -> float:
    letters = max(len(line) for bar in bars for line in bar.label.splitlines() or [""])
    return len(bars) * max(WIDE * len(_kinds(bars)) + BETWEEN, 0.075 * letters + 0.1)


def _paint(figure, panels: Mapping[str, Sequence[ScalingBar]]) -> None:
    ratios = [_inches(bars) for bars in panels.values()]
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True, width_ratios=ratios)[0]
    every = [bar for bars in panels.values() for bar in bars]
    top = max([100.0, *(value for bar in every for value in bar.values.values())])
    for axis, (name, bars) in zip(axes, panels.items(), strict=True):
        kinds = _kinds(bars)
        share = _inches(bars) / len(bars)  # inches for each group
        for i, bar in enumerate(bars):
            for kind, value in bar.values.items():
                at = i + (kinds.index(kind) - (len(kinds) - 1) / 2) * WIDE / share
                axis.bar(at, value, width=0.92 * WIDE / share, linewidth=0.6, **LOOKS[kind])
                paper = {"facecolor": CARD, "edgecolor": "none", "pad": 0.4}
                label(axis, at, value + 0.01 * top, f"{value:.0f}", va="bottom", bbox=paper)
        axis.axhline(100, color=QUIET, linewidth=0.8, linestyle=":", zorder=0)
        axis.set_xlim(-0.55, len(bars) - 0.45)
        axis.set_xticks(range(len(bars)), [bar.label for bar in bars], fontsize=8)
        axis.set_title(name)
        axis.tick_params(axis="x", length=0, labelcolor=INK)
    axes[0].set_ylim(0, 1.12 * top)  # of all panels, because they share the axis
    axes[0].set_ylabel("efficiency, %")
    legend(figure, {kind: LOOKS[kind] for kind in _kinds(every)})
