"""The picture of pipeline schedules: each step where it ran, and what it shows in words."""

from __future__ import annotations

import io

import numpy as np
import pytest

from course_lib.axes.schedule import gpipe, one_f_one_b, timetable
from course_lib.figures.colours import INK
from course_lib.figures.pipeline_steps import LIGHT, pipeline_steps


def walks(schedule, p, m):
    return timetable([schedule(p, m, stage) for stage in range(p)])


def pixels(picture):
    from PIL import Image

    return Image.open(io.BytesIO(picture.png)).convert("RGB")


def test_the_words_give_each_stage_its_steps_and_its_idle_units():
    assert pipeline_steps({"1F1B": walks(one_f_one_b, 2, 2)}, title="A title").alt == (
        "A title. Forwards F and backwards B of micro-batches by stage. 1F1B, 9 units: "
        "stage 0 takes F0 F1 B0 B1 and is idle for 3 units; "
        "stage 1 takes F0 B0 F1 B1 and is idle for 3 units."
    )


@pytest.mark.parametrize("bad", [{}, {"GPipe": []}, {"GPipe": [[]]}])
def test_a_picture_needs_steps(bad):
    with pytest.raises(ValueError, match="needs a schedule or more, each with steps on every"):
        pipeline_steps(bad)


LONG = "a title that is longer than any picture of one short schedule would be wide on its card"


@pytest.mark.parametrize("title", ["", LONG], ids=["none", "long"])
def test_pictures_are_cards_that_cut_nothing_off(title):
    for p, m in ((1, 1), (4, 8)):
        both = {"GPipe": walks(gpipe, p, m), "1F1B": walks(one_f_one_b, p, m)}
        picture = pipeline_steps(both, title=title)
        image = pixels(picture)
        wide, high = image.size
        edge = [image.getpixel((x, y)) for x in range(wide) for y in (0, high - 1)]
        edge += [image.getpixel((x, y)) for x in (0, wide - 1) for y in range(high)]
        assert set(edge) == {(255, 255, 255)}  # the card's own margin, all round
        assert len(picture.png) < 200_000


def test_backwards_are_dark_and_take_twice_as_long_as_forwards():
    image = pixels(pipeline_steps({"one": walks(gpipe, 1, 4)}))
    seen = [tuple(p) for row in np.asarray(image).tolist() for p in row]
    light, dark = (
        sum(pixel == tuple(int(c[i : i + 2], 16) for i in (1, 3, 5)) for pixel in seen)
        for c in (LIGHT, INK)
    )
    assert 1.7 < dark / light < 2.5  # numbers stand in both
