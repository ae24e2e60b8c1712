"""One colour per rank throughout the course, other colours for methods, and the notebook's picture.

Colour-blind readers can distinguish the colours, and a label or hatch always repeats the
distinction. Methods, parts and operations have greys and one accent. A picture has a white
background, readable in a dark notebook, and includes its description.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

# Okabe and Ito's palette, designed for colour-blind readers, reordered so that the first four
# differ most for each kind of colour-blindness.
RANKS = ("#0072B2", "#E69F00", "#009E73", "#56B4E9", "#CC79A7", "#D55E00", "#F0E442", "#5C5C5C")
HATCHES = ("", "//", "..", "xx", "--", "++", "oo", "\\\\")
# For anything that is not a rank: cool greys and one accent that differ in lightness. Apart from
# the plain hatch, they share no colour and no hatch with the ranks.
METHODS = ("#22272B", "#B5174B", "#888B8F", "#C6C8CB", "#6B0B2B")
METHOD_HATCHES = ("", "|||", "", "", "|")
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 2)))
INK, QUIET, CARD = "#1a1a1a", "#6b6b6b", "#ffffff"
DPI = 110
TITLE = 0.3  # inches above a picture that has a title
PAPER = "#f2f2f2"  # of a box that belongs to no rank
REPLICATED, EDGE = "#e9e9e9", "#bdbdbd"  # held by all ranks


def of_rank(rank: int) -> str:
    """Return a rank's colour; beyond eight, colours repeat and labels distinguish the ranks."""
    return RANKS[rank % len(RANKS)]


def rank_look(rank: int) -> dict[str, str | float]:
    """Return the style of a rank's shapes: colour, hatch, and an edge without width."""
    hatch = HATCHES[rank % len(HATCHES)]
    return {"facecolor": of_rank(rank), "hatch": hatch, "edgecolor": CARD, "linewidth": 0.0}


def method(i: int) -> str:
    """Return the colour of method i; a method is anything compared that is not a rank.

    Beyond five, colours repeat; markers, dashes and labels distinguish the methods.
    """
    return METHODS[i % len(METHODS)]


def line_of_method(i: int) -> str:
    """Return method i's colour for thin lines and marks, but never the faint grey."""
    return METHODS[(0, 1, 2, 4)[i % 4]]


def hatch_of_method(i: int) -> str:
    return METHOD_HATCHES[i % len(METHOD_HATCHES)]


def line_look(i: int, **more) -> dict:
    """Return the line style of method i: colour and dashes."""
    return {"color": line_of_method(i), "linestyle": DASHES[i % len(DASHES)], **more}


def mark_look(i: int, **more) -> dict:
    """Return the marker style of method i: colour and shape."""
    return {"color": line_of_method(i), "marker": MARKERS[i % len(MARKERS)], **more}


def ink_on(colour: str) -> str:
    """Return black or white, whichever is more readable on that colour."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return "#ffffff" if 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2 < 0.3 else INK


@dataclass(frozen=True)
class Picture:
    """A drawn figure with a description for readers who cannot see it."""

    png: bytes
    alt: str
    width: int  # in the notebook, in pixels

    def _ipython_display_(self) -> None:
        from IPython.display import display

        # JupyterLab never gives an image alternative text, so the description goes below it, where
        # screen readers and pages without images find it.
        data = {"image/png": self.png, "text/plain": self.alt}
        display(data, raw=True, metadata={"image/png": {"alt": self.alt, "width": self.width}})
        words = f"<details><summary>The figure in words</summary>{escape(self.alt)}</details>"
        display({"text/html": words, "text/plain": self.alt}, raw=True)

    def save(self, path: str | Path) -> None:
        Path(path).write_bytes(self.png)


def draw(
    size: tuple[float, float], words: str, paint: Callable, title: str = "", few_colours: int = 0
) -> Picture:
    """Draw a picture of `size` inches (more if the title needs it); `paint(figure)` fills it.

    `words` describe the picture and follow the title. `few_colours`, for example 256, limits the
    colours, which reduces the file to a third; pictures with hatches need this limit.
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
        # A separate figure, so the state of pyplot and of the reader is not touched.
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
    """Return a description: `first`, then a sentence for each name with its parts."""
    said = [f"{name}: {between.join(each)}." for name, each in parts.items()]
    return " ".join([*([f"{first}."] if first else []), *said])


def _with_palette(png: bytes, colours: int) -> bytes:
    """Return the picture with a palette: frequent colours, including the rank colours, stay exact,
    and smoothed edges get the nearest of them."""
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
