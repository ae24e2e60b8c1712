"""What crosses between tiers is noted as it goes, and drawn as high as its bytes."""

from __future__ import annotations

import io
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from course_lib.collectives import all_gather
from course_lib.figures.bars import stacked_bars
from course_lib.figures.crossings import (
    FROM,
    LANES,
    TIERS,
    Crossing,
    crossing,
    crossings,
    totals,
)
from course_lib.memory import mark, tiers

NOTED = [
    Crossing("read", 3_000, "forward"),
    Crossing("up", 3_000, "forward"),
    Crossing("down", 1_000, "backward"),
    Crossing("down", 2_000, "backward"),
    Crossing("written", 6_000, "step"),
]


class Files:
    def read(self, file, at, into):
        return "reading"

    def write(self, file, at, data):
        return "writing"


class Home:
    def __init__(self):
        self.io = Files()


class Engine:
    """As much of an engine as is looked at: a home with files, and a step."""

    def __init__(self):
        self.home, self.weight = Home(), torch.ones(3, requires_grad=True)
        self.host = mark(torch.zeros(3), "host")
        self.weight.register_hook(lambda grad: (self.host.copy_(grad), None)[1])

    def step(self):
        with torch.no_grad():
            self.weight.copy_(self.host)
            torch.zeros(3).copy_(self.weight)  # within a tier
        return self.home.io.write("file", 0, torch.zeros(7, dtype=torch.uint8)) == "writing"


def test_every_crossing_is_noted_with_its_phase():
    engine = Engine()
    with crossing(engine) as noted:
        assert engine.home.io.read("file", 0, torch.zeros(5, dtype=torch.uint8)) == "reading"
        x = torch.empty(3).copy_(engine.host)
        (x * engine.weight).sum().backward()
        assert engine.step() is True
    assert noted == [
        Crossing("read", 5, "forward"),
        Crossing("up", 12, "forward"),
        Crossing("down", 12, "backward"),
        Crossing("up", 12, "step"),
        Crossing("written", 7, "step"),
    ]
    before = list(noted)
    engine.step()
    assert noted == before, "it went on noting"
    assert totals(noted) == {"down": 12, "up": 24, "read": 5, "written": 7}


def gather_through_the_host(me):
    """An all-gather into memory of another device: its result lies on the host, and is copied."""
    into = torch.empty(3 * me.world, device="meta")
    on_gpu = mock.patch.object(tiers, "rank_computes_on", return_value="cuda")
    with on_gpu, crossing(Engine()) as noted:  # memory of the CPU is then the host's
        all_gather(torch.ones(3), dist.group.WORLD, into=into, async_op=True).wait()
        into.copy_(torch.ones(3 * me.world))
    return noted


def test_what_a_collective_copies_for_its_own_sake_crosses_nothing(pool):
    for noted in pool.run(2, gather_through_the_host):
        assert noted == [Crossing("up", 24, "forward")]


def test_every_phase_is_told_with_its_bytes():
    assert crossings(NOTED, title="A step").alt == (
        "A step. What crosses between the tiers. Forward: host to device 3 kB, file to host 3 kB. "
        "Backward: device to host 3 kB. Step: host to file 6 kB."
    )


def test_a_bar_is_as_high_as_its_bytes():
    from PIL import Image

    image = Image.open(io.BytesIO(crossings(NOTED).png)).convert("RGB")
    wide, high = image.size
    dark = (0x22, 0x27, 0x2B)  # of the first lane
    columns = [sum(image.getpixel((x, y)) == dark for y in range(high)) for x in range(wide)]
    seen = sorted({count for count in columns if columns.count(count) > 20 and count})
    assert seen[-1] / seen[0] == pytest.approx(2.0, rel=0.1), seen


def test_a_bar_has_the_colour_that_its_tier_has_among_stacked_bars():
    from PIL import Image

    def many(picture) -> set[str]:
        image = Image.open(io.BytesIO(picture.png)).convert("RGB")
        return {
            "#{:02X}{:02X}{:02X}".format(*rgb) for n, rgb in image.getcolors(1 << 24) if n > 900
        }

    for way, tier in (("down", "device"), ("up", "host"), ("read", "disk"), ("written", "host")):
        drawn = many(crossings([Crossing(way, 5, "step")])) & set(TIERS.values())
        beside = dict.fromkeys(TIERS, 0) | {tier: 5}
        assert FROM[way] == tier
        assert drawn == many(stacked_bars({"x": beside})) & set(TIERS.values()) == {TIERS[tier]}


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="nothing has crossed"):
        crossings([])
    for strange in (Crossing("sideways", 1, "step"), Crossing("up", 1, "evening")):
        with pytest.raises(ValueError, match=r"sideways|evening"):
            crossings([*NOTED, strange])
    assert set(totals([])) == set(LANES)
