"""On a machine with a GPU a test runs where it says: its tensors lie there, or it says `cpu`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from tests import devices

ROOT = Path(__file__).resolve().parents[2]
META = torch.device("meta")
# A machine that takes itself for one with a GPU, on which a test has made so many tensors.
PRETENDED = """
import os
import torch
from contextlib import nullcontext
from tests import devices
torch.cuda.is_available = lambda: True
devices.default = lambda device: nullcontext()
made = [0]
devices.made = lambda: made.append(made[-1] + int(os.environ["MADE"])) or made[-1]
"""


@pytest.mark.parametrize("made", [0, 1])
def test_a_test_that_makes_no_tensor_on_the_gpu_fails_there_unless_it_says_cpu(tmp_path, made):
    (tmp_path / "pretended.py").write_text(PRETENDED)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pretended", "-p", "no:cacheprovider"]
    on_device, on_cpu = "test_rms_norm", "test_configs_say_what_a_family_is"
    ended = subprocess.run(
        [*command, "tests/test_gpt.py", "-k", f"{on_device} or {on_cpu}"],
        cwd=ROOT,
        env={"PYTHONPATH": str(tmp_path), "MADE": str(made), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if made:
        assert "2 passed" in ended.stdout, ended.stdout
    else:
        assert "1 failed, 1 passed" in ended.stdout, ended.stdout
        assert f"{on_device} - AssertionError: no tensor was made" in ended.stdout


def test_new_tensors_go_to_the_default_device_and_random_ones_are_the_cpus():
    with devices.default(META):
        generator = torch.Generator().manual_seed(3)
        assert torch.ones(2).device == torch.randn(2, generator=generator).device == META
        there = torch.randn(2, generator=generator, device="cpu", requires_grad=True)
    again = torch.Generator().manual_seed(3)
    torch.randn(2, generator=again)
    assert torch.equal(there, torch.randn(2, generator=again)) and there.is_leaf
    assert torch.ones(2).device.type == "cpu"


def test_what_is_moved_keeps_its_kind():
    values = {"a": [torch.ones(2), nn.Parameter(torch.ones(3))], "b": ("text", 1)}
    moved = devices.moved(values, META)
    assert [x.device for x in moved["a"]] == [META, META]
    assert type(moved["a"][1]) is nn.Parameter and moved["a"][1].requires_grad
    assert moved["b"] == ("text", 1)
    assert devices.moved(values, "cpu")["a"][0] is values["a"][0]
