"""Where a test runs on a machine with a GPU: on its ranks' device, or on the CPU if marked so.

A test of DEVICE_TESTS makes its tensors on the rank's device, which is torch's default device while
it runs. `cpu(why)` says that it is about the CPU or computes with no tensor; its ranks then see no
GPU. `own_ranks(why)` says that it starts the course's commands, whose ranks choose for themselves.
Any other test that makes no tensor on the GPU fails there: it would prove nothing about the GPU.
`python -m tests.support.devices` lists the tests by where they run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

ROOT = Path(__file__).resolve().parents[2]
_CORE = ROOT / "tests" / "course_lib"
DEVICE_TESTS = tuple(
    f"{_CORE}/{name}"
    for name in (
        *("collectives/test_collectives", "test_norms", "gpt/test_gpt.py", "test_generate"),
        *("ledger/", "memory/", "tensor_parallel/", "step/", "zero/", "checkpoint/", "train/"),
    )
)
MARKERS = ("cpu", "own_ranks", "gpu")
DRAWN = ("rand", "randn", "randint", "randperm")
HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}  # the environment of a rank that is to see no GPU


def of_the_devices(item: pytest.Item) -> bool:
    """Whether a test belongs to those that have to say where they run."""
    return item.path.as_posix().startswith(DEVICE_TESTS)


def where(item: pytest.Item) -> str:
    """The marker that says where a test runs; "device" without one."""
    return next((name for name in MARKERS if item.get_closest_marker(name)), "device")


def made() -> int:
    """How many tensors this process has put on its GPU so far."""
    if not torch.cuda.is_initialized():
        return 0
    return torch.cuda.memory_stats().get("allocation.all.allocated", 0)


@contextmanager
def default(device: torch.device) -> Iterator[None]:
    """A block whose new tensors are on `device`. The CPU needs no mode, which would cost time."""
    if device.type == "cpu":
        yield
        return
    torch.set_default_device(device)
    plain = {name: getattr(torch, name) for name in DRAWN}
    try:
        for name, draw in plain.items():
            setattr(torch, name, _on_the_cpu_first(draw, device))
        yield
    finally:
        torch.set_default_device(None)
        for name, draw in plain.items():
            setattr(torch, name, draw)


def _on_the_cpu_first(draw: Callable[..., Tensor], device: torch.device) -> Callable[..., Tensor]:
    """A CPU's generator gives the same numbers on every machine; they go where new tensors go."""

    def drawn(*args, **kwargs):
        kwargs["device"] = place = kwargs.get("device") or device
        generator = kwargs.get("generator")
        if generator is None or generator.device.type != "cpu":
            return draw(*args, **kwargs)
        learns = kwargs.pop("requires_grad", False)
        return draw(*args, **(kwargs | {"device": "cpu"})).to(place).requires_grad_(learns)

    return drawn


def moved(values: object, device: torch.device | str) -> object:
    """Values with their tensors on another device: parameters stay parameters."""

    def move(x: object) -> object:
        if not isinstance(x, Tensor) or x.is_meta or x.device == torch.device(device):
            return x
        there = x.detach().to(device).requires_grad_(x.requires_grad)
        return (
            torch.nn.Parameter(there, x.requires_grad) if type(x) is torch.nn.Parameter else there
        )

    return pytree.tree_map(move, values)


def main() -> None:
    """Print how many tests of each file run on the device, on the CPU, on ranks of their own."""
    options = ["-p", "tests.support.devices", "-p", "no:terminal", "--collect-only", "-m", ""]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=ROOT,
        env={**os.environ, "TESTS_BY_DEVICE": "1"},
    )
    sys.exit(ended.returncode)


def pytest_collection_finish(session: pytest.Session) -> None:
    if not os.environ.get("TESTS_BY_DEVICE"):
        return
    counts: dict[str, Counter] = defaultdict(Counter)
    for item in filter(of_the_devices, session.items):
        counts[item.path.relative_to(ROOT).as_posix()][where(item)] += 1
    kinds = ("device", *MARKERS)
    print(" ".join(f"{kind:>9}" for kind in kinds))
    for file, by_kind in [*sorted(counts.items()), ("all", sum(counts.values(), Counter()))]:
        print(" ".join(f"{by_kind[kind]:9}" for kind in kinds), file)
    sys.stdout.flush()
    os._exit(0)  # pytest would list every test


if __name__ == "__main__":
    main()
