"""The course on one small map: lessons and appendices by axis, and where the reader is.

What rests on what goes from left to right: Parts II and III both need Part I, and not each other.
The first picture of every lesson.
"""

from __future__ import annotations

from typing import NamedTuple

from course_lib.figures.colours import CARD, INK, QUIET, Picture, draw
from course_lib.figures.smaller import smaller

TITLES = {
    "00": "first\nranks", "01": "collectives,\nthe ledger",
    "02": "column- and\nrow-parallel", "03": "f and g", "04": "MLP", "05": "attention",
    "06": "sequence\nparallelism", "07": "vocabulary", "08": "a GPT\nthat trains",
    "09": "ZeRO-1:\noptimizer", "10": "ZeRO-2:\ngradients", "11": "ZeRO-3:\nparameters",
    "12": "offload", "13": "DeepSpeed,\nTrainer", "14": "checkpoints,\ninference",
    "15": "both at once,\nhow far",
    "E4": "pipeline, context, expert\nparallelism", "B": "measuring", "E1": "tokenizers",
    "C": "clusters", "E2": "quantization", "D": "formulas", "E3": "processors",
}  # fmt: skip
WIDTH, HEIGHT = 8.76, 1.72
WIDE, HIGH, GAP = 0.71, 0.42, 0.045  # a lesson's box and the space between two
LANES = (0.23, 1.06)  # tops of the boxes of Part II and of Part III
PAPER = "#f2f2f2"
FIRST, LAST, BESIDE = 0.08, 6.36, 7.16  # left edges: of Part I, of the lanes' ends, of appendices


class Box(NamedTuple):
    """Where a lesson is on the map, in inches."""

    left: float
    top: float
    wide: float
    high: float


class Heading(NamedTuple):
    """A name above some boxes."""

    text: str
    over: tuple[str, ...]


HEADINGS = (
    Heading("Part I", ("00",)),
    Heading("Part II: tensor parallelism, axis tp", ("02", "03", "04", "05")),
    Heading("sequence", ("06",)),
    Heading("tensor parallelism", ("07", "08")),
    Heading("Part III: data parallelism and ZeRO, axis dp", ("09", "10", "11", "12")),
    Heading("tools", ("13", "14")),
    Heading("IV: dp × tp", ("15",)),
    Heading("Appendices", ("E4",)),
)


def course_map(here: str) -> Picture:
    """Draw the map with "you are here" at a lesson, "02", or at an appendix, "E4"."""
    name = str(here).strip().upper()
    if name not in TITLES:
        raise ValueError(
            f"there is no lesson or appendix {here!r}; the course has {', '.join(sorted(TITLES))}"
        )
    picture = draw((WIDTH, HEIGHT), in_words(name), lambda figure: _paint(figure, name))
    return smaller(picture, 16)  # greys: a map in each notebook has to be small


def boxes() -> dict[str, Box]:
    """The place of every lesson and appendix."""
    found = {"00": Box(FIRST, 0.42, 0.8, HIGH), "01": Box(FIRST, 0.42 + HIGH + 0.06, 0.8, HIGH)}
    lanes = (("02", "03", "04", "05", "06", "07", "08"), ("09", "10", "11", "12", "13", "14"))
    for names, top in zip(lanes, LANES, strict=True):
        wide = (LAST - 0.18 - 1.09 - GAP * (len(names) - 1)) / len(names)
        for i, name in enumerate(names):
            found[name] = Box(1.09 + i * (wide + GAP), top, wide, HIGH)
    found["15"] = Box(LAST, (LANES[0] + LANES[1]) / 2, 0.66, HIGH)
    wide = WIDTH - BESIDE - 0.08
    found["E4"] = Box(BESIDE, LANES[0], wide, 0.4)
    short = 0.66
    for i, (left, right) in enumerate((("B", "E1"), ("C", "E2"), ("D", "E3"))):
        top = LANES[0] + 0.45 + 0.29 * i
        found[left] = Box(BESIDE, top, short, 0.26)
        found[right] = Box(BESIDE + short + 0.04, top, wide - short - 0.04, 0.26)
    return found


def label(here: str) -> tuple[float, float, str]:
    """The middle of "you are here" and its text: below a box, or above its heading where another
    box is below."""
    places = boxes()
    spot = places[here]
    low = places["D"] if here in ("B", "C", "D", "E1", "E2", "E3", "E4") else spot
    x = min(max(spot.left + spot.wide / 2, 0.42), WIDTH - 0.42)  # the words stay on the card
    if here == "00":  # 01 is below
        return x, spot.top - 0.26, "▼ you are here"
    return x, low.top + low.high + 0.1, "▲ you are here"


def in_words(here: str) -> str:
    """The map's alternative text."""
    title = TITLES[here].replace("\n", " ")
    kind = "lesson" if here[0].isdigit() else "appendix"
    told = "; ".join(f"{name} {text}".replace("\n", " ") for name, text in TITLES.items())
    return (
        f"Map of the course. You are here: {kind} {here}, {title}. Part I (00, 01) comes first. "
        "Part II (02 to 08: tensor parallelism over the axis tp, with sequence parallelism in 06) "
        "and Part III (09 to 12: data parallelism and ZeRO over the axis dp; 13 and 14: tools) "
        "both need Part I and not each other. Part IV (15) joins the two. Appendices are beside. "
        f"All: {told}."
    )


def _paint(figure, here: str) -> None:
    figure.set_layout_engine("none")
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set_xlim(0, WIDTH)
    axis.set_ylim(HEIGHT, 0)
    axis.axis("off")
    places = boxes()
    for heading in HEADINGS:
        first, last = places[heading.over[0]], places[heading.over[-1]]
        left, right = first.left, last.left + last.wide
        look = {"fontsize": 7, "color": INK, "ha": "center", "va": "center"}
        axis.text((left + right) / 2, first.top - 0.12, heading.text, **look)
        axis.plot([left, right], [first.top - 0.035] * 2, color=QUIET, linewidth=0.7)
    for name, box in places.items():
        _box(axis, name, box, name == here)
    start, stop = FIRST + 0.8, places["15"]
    for top, last in zip(LANES, ("08", "14"), strict=True):
        middle = top + HIGH / 2
        _arrow(axis, (start + 0.02, 0.87), (1.07, middle))
        end = places[last].left + places[last].wide
        towards = stop.top + HIGH * (0.3 if top < stop.top else 0.7)
        _arrow(axis, (end + 0.02, middle), (LAST - 0.02, towards))
    x, y, words = label(here)
    look = {"fontsize": 7, "fontweight": "bold", "color": INK, "ha": "center", "va": "center"}
    axis.text(x, y, words, **look)


def _box(axis, name: str, box: Box, here: bool) -> None:
    """A box with its number and its title; where the reader is, dark with a frame."""
    from matplotlib.patches import Rectangle

    look = {"facecolor": INK if here else PAPER, "edgecolor": INK if here else QUIET}
    width = 2.0 if here else 0.6
    axis.add_patch(Rectangle((box.left, box.top), box.wide, box.high, linewidth=width, **look))
    ink, middle = CARD if here else INK, box.left + box.wide / 2
    title = TITLES[name]
    text = {"ha": "center", "va": "center", "color": ink}
    if box.high < 0.3:  # a line for both
        axis.text(box.left + 0.05, box.top + box.high / 2, name, fontsize=7, fontweight="bold",
                  va="center", color=ink)  # fmt: skip
        start = box.left + 0.08 + 0.07 * len(name)
        axis.text(start, box.top + box.high / 2, title, fontsize=6, va="center", color=ink)
        return
    axis.text(middle, box.top + 0.09, name, fontsize=7, fontweight="bold", **text)
    axis.text(middle, box.top + 0.27, title, fontsize=6, linespacing=1.05, **text)


def _arrow(axis, start: tuple[float, float], stop: tuple[float, float]) -> None:
    style = {"arrowstyle": "-|>", "color": QUIET, "linewidth": 1.0, "shrinkA": 0, "shrinkB": 0}
    axis.annotate("", stop, start, arrowprops={**style, "mutation_scale": 8})
