"""One colour per rank throughout the course, others for methods, and the picture a notebook shows.

The colours stay apart for colour-blind eyes and are never alone: a label or a hatch says the same.
What is no rank (a method, a part, an operation) has greys and one accent. A picture is a white
card, so that it reads in a dark notebook too, and carries its words with it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
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
TITLE = 0.3  # inches above a picture that has a title
PAPER = "#f2f2f2"  # of a box that is no rank's
REPLICATED, EDGE = "#e9e9e9", "#bdbdbd"  # what all ranks hold


def of_rank(rank: int) -> str:
    """The colour of a rank; beyond eight they repeat, and the labels tell them apart."""
    return RANKS[rank % len(RANKS)]


def rank_look(rank: int) -> dict[str, str | float]:
    """How the shapes of a rank look: its colour, its hatch, and a white edge of no width."""
    hatch = HATCHES[rank % len(HATCHES)]
    return {"facecolor": of_rank(rank), "hatch": hatch, "edgecolor": CARD, "linewidth": 0.0}


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


def line_look(i: int, **more) -> dict:
    """How the line of method i looks: its colour and its dashes."""
    return {"color": line_of_method(i), "linestyle": DASHES[i % len(DASHES)], **more}


def mark_look(i: int, **more) -> dict:
    """How the marks of method i look: its colour and its shape."""
    return {"color": line_of_method(i), "marker": MARKERS[i % len(MARKERS)], **more}


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


def draw(
    size: tuple[float, float], words: str, paint: Callable, title: str = "", few_colours: int = 0
) -> Picture:
    """A picture of `size` inches, and of more where its title needs them; `paint(figure)` fills it.

    `words` say what it shows; the title stands before them. With `few_colours`, such as 256, it has
    no more, and a third of the bytes in a notebook: pictures with hatches need it.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style = {
        "font.family": "DejaVu Sans",  # comes with matplotlib: the same on every machine
        "font.size": 9,
        "figure.titlesize": 10,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": QUIET,
        "axes.titlesize": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": QUIET,
        "ytick.color": QUIET,
        "grid.color": QUIET,
        "grid.alpha": 0.25,
        "grid.linewidth": 0.5,
        "legend.frameon": False,
        "legend.fontsize": 8,
        "hatch.linewidth": 0.6,
    }
    wide, high = max(size[0], 0.085 * len(title) + 0.3), size[1] + TITLE * bool(title)
    with rc_context(style):
        # A figure of its own: pyplot's state, and the reader's, is left alone.
        figure = Figure(figsize=(wide, high), dpi=2 * DPI, facecolor=CARD, layout="constrained")
        FigureCanvasAgg(figure)
        if title:
            figure.suptitle(title)
        paint(figure)
        page = io.BytesIO()
        figure.savefig(page, format="png", facecolor=CARD, metadata={"Software": None})
    png = _with_palette(page.getvalue(), few_colours) if few_colours else page.getvalue()
    return Picture(png, f"{title}. {words}" if title else words, int(wide * DPI))


def in_words(first: str, parts: Mapping[str, Iterable[str]], between: str = ", ") -> str:
    """Words for a picture: what is drawn, and a sentence for each name with its parts."""
    said = [f"{name}: {between.join(each)}." for name, each in parts.items()]
    return " ".join([*([f"{first}."] if first else []), *said])


def _with_palette(png: bytes, colours: int) -> bytes:
    """The same picture with a palette: the colours that fill most of it stay exact, a rank's among
    them; those of smoothed edges become the nearest of these."""
    import numpy as np
    from PIL import Image  # both come with matplotlib

    def channels(packed):
        """(n,) packed colours → (n, 3)."""
        return np.stack([packed >> 16, packed >> 8 & 255, packed & 255], -1).astype(np.int32)

    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(np.int32)
    packed = (pixels[..., 0] << 16) | (pixels[..., 1] << 8) | pixels[..., 2]  # (high, wide)
    there, place, counts = np.unique(packed, return_inverse=True, return_counts=True)
    palette = there[np.argsort(-counts, kind="stable")[:colours]]
    apart = channels(there)[:, None] - channels(palette)[None]  # (colours, 256, 3)
    index = (apart**2).sum(-1).argmin(1).astype(np.uint8)[place].reshape(packed.shape)
    image = Image.fromarray(index, "P")
    image.putpalette(channels(palette).astype(np.uint8).tobytes())
    page = io.BytesIO()
    image.save(page, "PNG", optimize=True)
    return page.getvalue()
