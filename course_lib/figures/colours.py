"""One colour per rank throughout the course, others for methods, and the picture a notebook shows.

The colours stay apart for colour-blind eyes and are never alone: a label or a hatch says the same.
What is no rank (a method, a part, an operation) has greys and one accent. A picture is a white
card, so that it reads in a dark notebook too, and carries its words with it.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path

# Okabe and Ito's palette, made to be told apart by everybody, in an order of our own: the first
# four stay furthest apart for each kind of colour-blindness.
RANKS = ("#0072B2", "#E69F00", "#009E73", "#56B4E9", "#CC79A7", "#D55E00", "#F0E442", "#5C5C5C")
HATCHES = ("", "//", "..", "xx", "--", "++", "oo", "\\\\")
# What is no rank: cool greys and one accent, told apart by their lightness alone. No colour and no
# hatch of a rank is among them, but for the plain one.
METHODS = ("#22272B", "#B5174B", "#888B8F", "#C6C8CB", "#6B0B2B")
METHOD_HATCHES = ("", "|||", "", "", "|")
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 2)))
INK, QUIET, CARD = "#1a1a1a", "#6b6b6b", "#ffffff"
DPI = 110


def of_rank(rank: int) -> str:
    """The colour of a rank; beyond eight they repeat, and the labels tell them apart."""
    return RANKS[rank % len(RANKS)]


def hatch_of_rank(rank: int) -> str:
    return HATCHES[rank % len(HATCHES)]


def method(i: int) -> str:
    """The colour of method i, or of anything else that is compared and is no rank.

    Beyond five they repeat; markers, dashes and labels tell those apart.
    """
    return METHODS[i % len(METHODS)]


def line_of_method(i: int) -> str:
    """As `method`, for thin lines and marks: without the light grey, too faint on a white card."""
    return METHODS[(0, 1, 2, 4)[i % 4]]


def hatch_of_method(i: int) -> str:
    return METHOD_HATCHES[i % len(METHOD_HATCHES)]


def marker_of_method(i: int) -> str:
    return MARKERS[i % len(MARKERS)]


def dashes_of_method(i: int) -> str | tuple:
    """A line's style for matplotlib."""
    return DASHES[i % len(DASHES)]


def ink_on(colour: str) -> str:
    """Black or white, whichever reads better on that colour."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return "#ffffff" if 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2 < 0.3 else INK


@dataclass(frozen=True)
class Picture:
    """A drawn figure and what it shows in words, for those who cannot see it."""

    png: bytes
    alt: str
    width: int  # in the notebook, in pixels

    def _ipython_display_(self) -> None:
        from IPython.display import display

        # JupyterLab gives an image no alternative text, whatever is asked: the words go below it,
        # where a screen reader and a page without images find them.
        data = {"image/png": self.png, "text/plain": self.alt}
        display(data, raw=True, metadata={"image/png": {"alt": self.alt, "width": self.width}})
        words = f"<details><summary>The figure in words</summary>{escape(self.alt)}</details>"
        display({"text/html": words, "text/plain": self.alt}, raw=True)

    def save(self, path: str | Path) -> None:
        Path(path).write_bytes(self.png)


def draw(size: tuple[float, float], alt: str, paint: Callable) -> Picture:
    """A picture of `size` inches; `paint(figure)` fills it."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style = {
        "font.family": "DejaVu Sans",  # comes with matplotlib: the same on every machine
        "font.size": 9,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": QUIET,
        "xtick.color": QUIET,
        "ytick.color": QUIET,
        "hatch.linewidth": 0.6,
    }
    with rc_context(style):
        # A figure of its own: pyplot's state, and the reader's, is left alone.
        figure = Figure(figsize=size, dpi=2 * DPI, facecolor=CARD, layout="constrained")
        FigureCanvasAgg(figure)
        paint(figure)
        page = io.BytesIO()
        figure.savefig(page, format="png", facecolor=CARD, metadata={"Software": None})
    return Picture(page.getvalue(), alt, int(size[0] * DPI))
