"""A file has room for the states of what is trained, and for no others: as the estimate counts."""

from __future__ import annotations

import os

import pytest
import torch

from course_lib.estimate import states
from course_lib.gpt import GPT, Config
from course_lib.zero.offload.file_layout import FileLayout
from course_lib.zero.offload.files import aligned, buffer
from tests.course_lib.estimate.parts import engine_of, step_of

CONFIG = Config.gpt2(vocabulary=330, length=40, hidden=64, layers=3, heads=4, inner=210)
FROZEN = {
    "nothing": (),
    "a unit": ("blocks.1.",),
    "parts of units": ("blocks.0.mlp", "blocks.2.attention.out.weight", "positions"),
    "all but the norms": ("tokens", "positions", "blocks.0.a", "blocks.0.m", "blocks.1.a",
                          "blocks.1.m", "blocks.2.a", "blocks.2.m"),
}  # fmt: skip


def frozen_model(names):
    torch.manual_seed(7)
    model = GPT(CONFIG)
    for name, p in model.named_parameters():
        p.requires_grad_(not (names and name.startswith(names)))
    return model


def in_files(me, folder):
    seen = {}
    for which, names in FROZEN.items():
        for parameters in (None, "nvme"):
            for precision in ("as is", "bfloat16"):
                plan = {"optimizer": "nvme", "parameters": parameters, "folder": folder}
                engine = engine_of(
                    me, CONFIG, 3, model=frozen_model(names), offload=plan, precision=precision,
                    persist=0,
                )  # fmt: skip
                held = states(
                    frozen_model(names), stage=3, n=me.world, rank=me.rank, offload=plan,
                    precision=precision, persist=0,
                )  # fmt: skip
                on_disk = sum(os.stat(file.path).st_size for file in engine.home.folder.files)
                want = held.by_tier()["disk"]
                label = (which, parameters, precision)
                assert engine.home.file_bytes == on_disk == want, (label, on_disk, want)
                for step in range(2):
                    step_of(me, engine, CONFIG, step)
                assert engine.home.file_bytes == want, label
                seen[label] = want
                engine.close()
    return seen


@pytest.mark.parametrize("world", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_files_are_as_large_as_the_estimate_says(pool, world, tmp_path):
    for seen in pool.run(world, in_files, tmp_path, timeout=200):
        for parameters in (None, "nvme"):
            whole = seen["nothing", parameters, "as is"]
            for which in FROZEN:
                if which != "nothing":
                    assert seen[which, parameters, "as is"] < whole, which


def test_states_of_what_is_trained_lie_end_to_end():
    layout = FileLayout(
        5000, torch.float32, {"a": torch.float32, "b": torch.float64},
        spans={"a": [(100, 1100), (3000, 4000)], "b": [(3000, 4000)]},
    )  # fmt: skip
    assert (layout.length("a"), layout.length("b")) == (2000, 1000)
    assert layout.nbytes == aligned(20_000) + 2 * aligned(8000)
    memory = buffer(layout.nbytes, torch.device("cpu")).zero_()
    for number, (name, start, stop) in enumerate(
        (("a", 100, 1100), ("a", 3000, 4000), ("b", 3000, 4000)), 1
    ):
        layout.state_of(memory, name, start, stop).fill_(number)
    layout.values(memory).fill_(9)
    whole = layout.state(memory, "a")
    assert bool((whole[:1000] == 1).all()) and bool((whole[1000:] == 2).all())
    assert bool((layout.state(memory, "b") == 3).all())
    assert layout.has("a", 100, 1100) and not layout.has("a", 1100, 3000)
    assert not layout.has("b", 100, 1100) and not layout.has("c", 3000, 4000)
