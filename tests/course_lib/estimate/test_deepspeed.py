"""DeepSpeed's estimator: its documented table to the last digit, and its own code as the oracle."""

from __future__ import annotations

import json
import random

import pytest

from course_lib.estimate import deepspeed
from course_lib.estimate.model import Model
from tests.support.commands import called

PARAMS, LAYER = 2783959040, 65798144
DOCUMENTED = {  # offload_param, offload_optimizer, zero_init: 1 GPU, 2 GPUs
    ("cpu", "cpu", 1): ((70.00, 0.25), (70.00, 0.25)),
    ("cpu", "cpu", 0): ((70.00, 0.25), (70.00, 0.25)),
    ("none", "cpu", 1): ((62.23, 5.43), (62.23, 2.84)),
    ("none", "cpu", 0): ((62.23, 5.43), (62.23, 2.84)),
    ("none", "none", 1): ((0.37, 46.91), (0.74, 23.58)),
    ("none", "none", 0): ((15.56, 46.91), (31.11, 23.58)),
}


@pytest.mark.parametrize("gpus", [1, 2])
def test_the_documented_table(gpus):
    names = ("offload_param", "offload_optimizer", "zero_init", "cpu_gb", "gpu_gb")
    want = [(*key, *both[gpus - 1]) for key, both in DOCUMENTED.items()]
    rows = deepspeed.table(PARAMS, LAYER, gpus)
    assert [row.as_dict() for row in rows] == [dict(zip(names, row, strict=True)) for row in want]


def test_deepspeeds_own_functions():
    stage3 = pytest.importorskip("deepspeed.runtime.zero.stage3")
    stage2 = pytest.importorskip("deepspeed.runtime.zero.stage_1_and_2")
    numbers = random.Random(5)
    for _ in range(200):
        params = numbers.randint(1, 10 ** numbers.randint(1, 12))
        layer, gpus, nodes = (numbers.randint(1, most) for most in (params, 16, 9))
        room = numbers.choice([1.5, 1.0, 2.25])
        for states in (True, False):
            want = stage2.estimate_zero2_model_states_mem_needs(params, gpus, nodes, states, room)
            got = deepspeed.stage_2(params, gpus, nodes, offload_optimizer=states, room=room)
            assert got == want
            for param in {states, False}:
                for init in (True, False):
                    want = stage3.estimate_zero3_model_states_mem_needs(
                        params, layer, gpus, nodes, states, param, init, room
                    )
                    got = deepspeed.stage_3(
                        params, layer, gpus, nodes,
                        offload_optimizer=states, offload_param=param, zero_init=init, room=room,
                    )  # fmt: skip
                    assert got == want[:2], (params, layer, gpus, nodes, states, param, init)


# ---- typed
def test_the_command_for_people_shows_every_digit(capsys, tmp_path):
    keys = {"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 1600}
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**keys, "n_layer": 48, "n_head": 25}))
    words = ("--config", file, "--gpus", 4, "--nodes", 2, "--stage", 2)
    code, out, err = called(capsys, "estimate", *words)
    assert code == 0, err
    cpu, gpu = deepspeed.stage_2(1557611200, 4, 2, offload_optimizer=False)
    assert "1,557,611,200" in out and "2 nodes with 4 GPUs each" in out
    assert f"{cpu / 2**30:.2f}" in out and f"{gpu / 2**30:.2f}" in out


def test_a_config_that_is_none_is_refused(tmp_path):
    for text, words in (("{}", "states no model_type"), ('{"model_type": "no such"}', "no such")):
        file = tmp_path / "config.json"
        file.write_text(text)
        with pytest.raises(ValueError, match=words):
            Model.read(file)
