"""A small map of the course: lessons and appendices by axis, and the reader's place.

Dependencies go from left to right: Parts II and III both need Part I, but not each other. The map
is the first picture of every lesson.
"""

from __future__ import annotations

from typing import NamedTuple

from course_classroom.figures.colours import CARD, INK, PAPER, QUIET, Picture, draw
from course_classroom.figures.shapes import arrow, box, in_inches, label

TITLES = {"00": "first\nranks", "01": "collectives,\nthe ledger", "02": "columns\nand rows"}
TITLES |= {"03": "f and g", "04": "MLP", "05": "attention", "06": "sequence\nparallelism"}
TITLES |= {"07": "vocabulary", "08": "a GPT\nthat trains", "09": "ZeRO-1:\noptimizer"}
TITLES |= {"10": "ZeRO-2:\ngradients", "11": "ZeRO-3:\nparameters", "12": "offload"}
TITLES |= {"13": "DeepSpeed,\nTrainer", "14": "checkpoints,\ninference", "15": "both\nat once"}
TITLES |= {"B": "measuring", "C": "clusters", "D": "formulas", "E1": "tokenizers"}
TITLES |= {"E2": "quantization", "E3": "processors", "E4": "pipeline, context, expert"}
WIDTH, HEIGHT = 7.5, 2.56
HIGH, LOW, GAP = 0.5, 0.27, 0.045  # heights of a lesson's and an appendix's box, and their gap
LANES = (0.28, 1.2)  # tops of the boxes of Part II and of Part III
APPENDICES = 2.06  # their top
FIRST, LANE, LAST = 0.07, 1.14, 6.77  # left edges: of Part I, of the lanes, of Part IV
WORDS = 8.2  # points, which is 12 pixels on the screen
ARROW = {"color": QUIET, "linewidth": 1.0, "mutation_scale": 8}


class Box(NamedTuple):
    """The place of a lesson on the map, in inches."""

    left: float
    top: float
    wide: float
    high: float


HEADINGS = {  # first and last box
    "Part I": ("00", "00"),
    "Part II: tensor parallelism, axis tp": ("02", "05"),
    "sequence": ("06", "06"),
    "tensor parallelism": ("07", "08"),
    "Part III: data parallelism and ZeRO, axis dp": ("09", "12"),
    "tools": ("13", "14"),
    "IV: dp × tp": ("15", "15"),
    "Appendices": ("B", "E4"),
}


def course_map(here: str) -> Picture:
    """Draw the map with "you are here" at a lesson, such as "02", or an appendix, such as "E4"."""
    name = here.upper()
    if name not in TITLES:
        raise ValueError(
            f"there is no lesson or appendix {here!r}; the course has {', '.join(sorted(TITLES))}"
        )
    words = _in_words(name)  # greys, because the map is in every notebook and must be small
    return draw((WIDTH, HEIGHT), words, lambda figure: _paint(figure, name), few_colours=16)


def boxes() -> dict[str, Box]:
    """Return the place of every lesson and appendix."""
    part_1 = 0.86
    found = {"00": Box(FIRST, 0.42, part_1, HIGH), "01": Box(FIRST, 1.0, part_1, HIGH)}
    lanes = (("02", "03", "04", "05", "06", "07", "08"), ("09", "10", "11", "12", "13", "14"))
    for names, top in zip(lanes, LANES, strict=True):
        wide = (LAST - 0.28 - LANE - GAP * (len(names) - 1)) / len(names)
        for i, name in enumerate(names):
            found[name] = Box(LANE + i * (wide + GAP), top, wide, HIGH)
    found["15"] = Box(LAST, sum(LANES) / 2, WIDTH - LAST - FIRST, HIGH)
    names = [name for name in TITLES if not name.isdigit()]
    letters = {name: len(name + TITLES[name]) + 2.5 for name in names}
    left, room = FIRST, WIDTH - 2 * FIRST - GAP * (len(names) - 1)
    for name in names:  # widths follow the titles
        wide = room * letters[name] / sum(letters.values())
        found[name] = Box(left, APPENDICES, wide, LOW)
        left += wide + GAP
    return found


def _in_words(here: str) -> str:
    titles = {name: text.replace("\n", " ") for name, text in TITLES.items()}
    kind = "lesson" if here[0].isdigit() else "appendix"
    every = "; ".join(f"{name} {title}" for name, title in titles.items())
    return (
        f"Map of the course. You are here: {kind} {here}, {titles[here]}. Part I (00, 01) comes "
        "first. Part II (02 to 08, tensor parallelism over the axis tp, with sequence parallelism "
        "in 06) and Part III (09 to 12, data parallelism and ZeRO over the axis dp, with the "
        "tools in 13 and 14) both need Part I but not each other. Part IV (15) combines the two. "
        f"The appendices can be read at any time. All: {every}."
    )


def _paint(figure, here: str) -> None:
    axis, places = in_inches(figure), boxes()
    for text, (start, stop) in HEADINGS.items():
        first, last = places[start], places[stop]
        left, right = first.left, last.left + last.wide
        label(axis, (left + right) / 2, first.top - 0.12, text, fontsize=WORDS)
        axis.plot([left, right], [first.top - 0.035] * 2, color=QUIET, linewidth=0.7)
    for name, place in places.items():
        _place(axis, name, place, name == here)
    start, stop = places["01"].left + places["01"].wide, places["15"]
    for top, last in zip(LANES, ("08", "14"), strict=True):
        middle = top + HIGH / 2
        arrow(axis, (start + 0.02, 0.96), (LANE - 0.02, middle), **ARROW)
        end = places[last].left + places[last].wide
        towards = stop.top + HIGH * (0.3 if top < stop.top else 0.7)
        arrow(axis, (end + 0.02, middle), (LAST - 0.02, towards), **ARROW)
    spot = places[here]
    x = min(max(spot.left + spot.wide / 2, 0.5), WIDTH - 0.5)  # keeps the words on the card
    y, sign = spot.top + spot.high + (0.38 if here == "15" else 0.1), "▲"  # the arrow goes below 15
    if here == "00":  # 01 is below
        y, sign = spot.top - 0.28, "▼"
    label(axis, x, y, f"{sign} you are here", fontsize=WORDS, fontweight="bold")


def _place(axis, name: str, place: Box, here: bool) -> None:
    """Draw a box with its number and title; the reader's place is dark and framed."""
    look = {"facecolor": INK if here else PAPER, "edgecolor": INK if here else QUIET}
    box(axis, *place, linewidth=2.0 if here else 0.6, **look)
    middle, text = place.left + place.wide / 2, {"fontsize": WORDS, "color": CARD if here else INK}
    if place.high == LOW:  # number and title on one line
        y, start = place.top + LOW / 2, place.left + 0.09 + 0.085 * len(name)
        label(axis, place.left + 0.05, y, name, fontweight="bold", **{**text, "ha": "left"})
        label(axis, start, y, TITLES[name], **{**text, "ha": "left"})
        return
    label(axis, middle, place.top + 0.1, name, fontweight="bold", **text)
    label(axis, middle, place.top + 0.32, TITLES[name], linespacing=1.05, **text)
