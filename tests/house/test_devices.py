"""On a machine with a GPU a test runs where it says: its tensors lie there, or it says `cpu`."""

from __future__ import annotations

import glob
import subprocess
import sys
from pathlib import Path

from tests.support import devices

ROOT = Path(__file__).resolve().parents[2]
# A machine that takes itself for one with a GPU, on which no test makes a tensor.
PRETENDED = """
import torch
from contextlib import nullcontext
from tests.support import devices
torch.cuda.is_available = lambda: True
devices.default = lambda device: nullcontext()
devices.made = lambda: 0
"""


def test_each_name_of_a_device_test_is_one():
    assert [name for name in devices.DEVICE_TESTS if not glob.glob(f"{name}*")] == []


def test_a_test_that_makes_no_tensor_on_the_gpu_fails_there_unless_it_says_cpu(tmp_path):
    (tmp_path / "pretended.py").write_text(PRETENDED)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pretended", "-p", "no:cacheprovider"]
    on_device, on_cpu = "test_rms_norm", "test_configs_say_what_a_family_is"
    ended = subprocess.run(
        [*command, "tests/course_lib/gpt/test_gpt.py", "-k", f"{on_device} or {on_cpu}"],
        cwd=ROOT,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "1 failed, 1 passed" in ended.stdout, ended.stdout
    assert f"{on_device} - AssertionError: no tensor was made" in ended.stdout
