"""The four stages in one picture: the ZeRO paper's numbers, from the library's closed forms."""

from __future__ import annotations

import io

import pytest
import torch

from course_lib.estimate import per_parameter
from course_lib.figures import stage_bars
from course_lib.figures.colours import method
from course_lib.figures.stage_bars import PRECISIONS, counted, gigabytes, stage_bytes


def totals(parameters: float, ranks: int, **how) -> list[float]:
    return [parameters / 1e9 * sum(stage_bytes(s, ranks, **how).values()) for s in range(4)]


def test_the_paper_s_figure_1_is_found_again():
    """Rajbhandari et al. 2020, figure 1: 7.5 billion parameters, 64 ranks, 16 bits and Adam."""
    assert totals(7.5e9, 64) == pytest.approx([120.0, 31.40625, 16.640625, 1.875])
    words = stage_bars().alt
    for stage, said in enumerate(("(DDP): 120 GB", "1: 31.4 GB", "2: 16.6 GB", "(FSDP): 1.9 GB")):
        assert said in words, stage
    assert "parameters 15, gradients 15, optimizer states 90." in words


def test_megatron_s_eighteen_bytes_and_float32_s_sixteen():
    bytes_ = {name: totals(1e9, 1, precision=name) for name in PRECISIONS}
    assert bytes_["bf16, float32 gradients"] == pytest.approx([18.0] * 4)
    assert bytes_["float32"] == bytes_["bf16"] == pytest.approx([16.0] * 4)
    with_zero_1 = totals(1e9, 4, precision="bf16, float32 gradients")[1]
    assert with_zero_1 == pytest.approx(6 + 12 / 4)  # its distributed optimizer


@pytest.mark.parametrize(("optimizer", "states"), [("sgd", 0), ("momentum", 1), ("adamw", 2)])
def test_each_kind_is_a_part_of_the_library_s_form(optimizer, states):
    for stage in range(4):
        row = stage_bytes(stage, 8, precision="float32", optimizer=optimizer)
        whole = per_parameter(stage, 8, states=states, alive=True)
        assert sum(row.values()) == pytest.approx(whole)
        assert row["parameters"] == pytest.approx(4 / (8 if stage == 3 else 1))
        assert row["gradients"] == pytest.approx(4 / (8 if stage > 1 else 1))
        assert row["optimizer states"] == pytest.approx(4 * states / (8 if stage else 1))
    masters = stage_bytes(0, 8, optimizer=optimizer)["optimizer states"]
    assert masters == pytest.approx(4 * states + 4)


def test_a_segment_is_as_long_as_its_bytes():
    from PIL import Image

    image = Image.open(io.BytesIO(stage_bars(1e9, 1, "float32").png)).convert("RGB")
    array = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    array = array.view(image.size[1], image.size[0], 3)
    long = {}
    for shade in (0, 1, 3):
        wanted = torch.tensor([int(method(shade)[i : i + 2], 16) for i in (1, 3, 5)])
        long[shade] = int((array == wanted).all(-1).sum(1).max())
    assert long[1] == pytest.approx(long[0], abs=4)
    assert long[3] / long[0] == pytest.approx(2.0, rel=0.02)


def test_how_numbers_are_written():
    assert [counted(n) for n in (7.5e9, 1.2e8, 1e12, 999)] == [
        "7.5 billion", "120 million", "1 trillion", "999",
    ]  # fmt: skip
    assert [gigabytes(n) for n in (120.0, 31.40625, 1.875, 0.234375, 1260.0)] == [
        "120", "31.4", "1.9", "0.23", "1,260",
    ]  # fmt: skip


def test_what_is_no_job_is_refused():
    for wrong, said in (
        ({"precision": "bf8"}, "'bf8' is none of 'float32', 'bf16'"),
        ({"optimizer": "lion"}, "'lion' is none of 'sgd'"),
        ({"ranks": 0}, "a job has one or more"),
        ({"parameters": 0}, "a model has more than none"),
    ):
        with pytest.raises(ValueError, match=said):
            stage_bars(**wrong)


@pytest.mark.parametrize("how", [(), (1e12, 1024), (7e10, 8, "bf16, float32 gradients", "sgd")])
def test_the_picture_is_a_small_card_that_cuts_nothing_off(how):
    from PIL import Image

    picture = stage_bars(*how)
    assert picture.png == stage_bars(*how).png and len(picture.png) < 150_000
    image = Image.open(io.BytesIO(picture.png)).convert("RGB")
    wide, high = image.size
    edge = [(x, y) for x in range(wide) for y in (0, high - 1)]
    edge += [(x, y) for x in (0, wide - 1) for y in range(high)]
    assert all(image.getpixel(at) == (255, 255, 255) for at in edge)
