"""The map of the course: every lesson has its box, in order, and one of them is the reader's."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from course_lib.figures import course_map
from course_lib.figures.colours import DPI
from course_lib.figures.course_map import (
    HEADINGS,
    HEIGHT,
    TITLES,
    WIDTH,
    WORDS,
    boxes,
    in_words,
    label,
)

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"


def test_it_holds_every_notebook_and_no_other():
    there = set()
    for file in NOTEBOOKS.glob("*.ipynb"):
        first, second, *_ = file.stem.split("_")
        there.add(second.upper() if first == "appendix" else first)
    assert set(TITLES) == set(boxes()) == there


def test_boxes_are_on_the_card_and_none_on_another():
    placed = list(boxes().values())
    for i, one in enumerate(placed):
        assert one.left > 0 < one.top
        assert one.left + one.wide < WIDTH
        assert one.top + one.high < HEIGHT
        for other in placed[i + 1 :]:
            beside = one.left + one.wide <= other.left or other.left + other.wide <= one.left
            below = one.top + one.high <= other.top or other.top + other.high <= one.top
            assert beside or below


def test_the_smallest_letters_are_twelve_pixels_high():
    assert WORDS * DPI / 72 >= 12


def test_parts_two_and_three_are_lanes_after_part_one_and_before_four():
    at = boxes()
    for lane in (["02", "03", "04", "05", "06", "07", "08"], ["09", "10", "11", "12", "13", "14"]):
        assert len({at[name].top for name in lane}) == 1
        lefts = [at[name].left for name in lane]
        assert lefts == sorted(lefts)
        assert at["01"].left + at["01"].wide < lefts[0]
        assert lefts[-1] < at["15"].left
    assert at["08"].top + at["08"].high < at["09"].top


def test_the_words_say_where_the_reader_is_and_what_rests_on_what():
    words = course_map("06").alt
    assert words.startswith("Map of the course. You are here: lesson 06, sequence parallelism.")
    assert "both need Part I and not each other" in words
    assert all(f"{name} " in words for name in TITLES)
    assert "You are here: appendix E4, pipeline, context, expert." in in_words("E4")
    assert course_map("e4").alt == in_words("E4")


@pytest.mark.parametrize("here", sorted(TITLES))
def test_you_are_here_lies_on_no_box_and_on_no_heading(here: str):
    x, y, words = label(here)
    left, right, top, bottom = x - 0.48, x + 0.48, y - 0.07, y + 0.07
    assert left > 0 < top
    assert right < WIDTH
    assert bottom < HEIGHT
    places = boxes()
    for box in places.values():
        beside = box.left + box.wide <= left or box.left >= right
        assert beside or box.top + box.high <= top or box.top >= bottom
    for heading in HEADINGS:
        first, last = places[heading.over[0]], places[heading.over[-1]]
        away = abs(y - (first.top - 0.12)) >= 0.12
        assert away or right <= first.left or left >= last.left + last.wide
    assert ("▲" in words) == (y > places[here].top)


def test_an_unknown_lesson_is_refused_with_the_names():
    with pytest.raises(
        ValueError, match=r"no lesson or appendix '16'; the course has 00, 01, .*E4"
    ):
        course_map("16")


@pytest.mark.parametrize("here", sorted(TITLES))
def test_each_map_is_small_and_marks_one_box(here: str):
    from PIL import Image

    picture = course_map(here)
    assert len(picture.png) < 40_000
    image = Image.open(io.BytesIO(picture.png)).convert("L")
    scale = image.size[0] / WIDTH
    for name, box in boxes().items():  # just inside of the upper left corner
        spot = (int((box.left + 0.02) * scale), int((box.top + 0.02) * scale))
        assert (image.getpixel(spot) < 80) == (name == here)
    assert picture.png == course_map(here).png
