"""Points by bits and cost: each told in words, names that do not cover each other."""

from __future__ import annotations

import pytest

from course_lib.figures import by_bits
from course_lib.figures.by_bits import apart, column_of

BITS = {"int8": 8.125, "int4": 4.5, "nf4": 4.5, "AWQ": 4.8}
PANELS = {
    "outputs off, %": {"int8": 0.18, "int4": 3.05, "nf4": 2.81, "AWQ": 2.85},
    "perplexity": {"int8": 0.0, "int4": 0.0, "nf4": 0.0, "AWQ": 0.0},  # no room between them
}


def test_every_point_is_told_with_its_bits_and_its_cost():
    picture = by_bits(BITS, PANELS, title="Rounding")
    assert picture.alt == (
        "Rounding. outputs off, %: int8 at 8.12 bits 0.18, int4 at 4.50 bits 3.05, nf4 at 4.50 "
        "bits 2.81, AWQ at 4.80 bits 2.85. perplexity: int8 at 8.12 bits 0, int4 at 4.50 bits 0, "
        "nf4 at 4.50 bits 0, AWQ at 4.80 bits 0."
    )
    assert picture.png.startswith(b"\x89PNG") and len(picture.png) < 200_000


def test_names_stand_apart_in_the_order_of_the_points():
    assert apart([1.0, 5.0, 1.1, 1.05], 0.5) == pytest.approx([1.0, 5.0, 2.0, 1.5])
    assert column_of(BITS) == pytest.approx({"int8": 8.525, "int4": 5.2, "nf4": 5.2, "AWQ": 5.2})


@pytest.mark.parametrize(
    ("bits", "panels"), [({}, PANELS), (BITS, {}), (BITS, {"a": {"int8": 1.0}})]
)
def test_panels_of_other_ways_are_refused(bits, panels):
    with pytest.raises(ValueError, match=r"by_bits needs|has the ways"):
        by_bits(bits, panels)
