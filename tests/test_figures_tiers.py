"""Tiers in a row: what each keeps, what goes between neighbours, and what cannot be drawn."""

from __future__ import annotations

import pytest

from course_lib.figures.tiers import tiers

KEEPS = {"device": ["activations"], "host": ["gradients", "the update"], "disk": []}
CARRIED = [("device", "host", "gradients, 4Ψ/N"), ("disk", "host", "states, 12Ψ/N")]


def test_a_tier_says_what_it_keeps_and_an_arrow_what_it_carries():
    picture = tiers(KEEPS, CARRIED, title="A step")
    assert picture.png[:8] == b"\x89PNG\r\n\x1a\n" and len(picture.png) < 200_000
    assert picture.alt == (
        "A step. device keeps activations. host keeps gradients, the update. disk keeps nothing. "
        "From device to host: gradients, 4Ψ/N. From disk to host: states, 12Ψ/N."
    )


@pytest.mark.parametrize(
    ("carried", "said"),
    [
        ([("device", "disk", "states")], "no neighbours"),
        ([("device", "tape", "states")], "the tiers are device, host, disk"),
    ],
)
def test_an_arrow_joins_two_neighbours(carried, said):
    with pytest.raises(ValueError, match=said):
        tiers(KEEPS, carried)


def test_one_tier_is_no_picture():
    with pytest.raises(ValueError, match="fewer than two"):
        tiers({"device": []}, [])


def test_an_arrow_points_the_way_it_says():
    """The same arrow the other way round is another picture."""
    there = tiers(KEEPS, [("device", "host", "x")]).png
    back = tiers(KEEPS, [("host", "device", "x")]).png
    assert there != back
