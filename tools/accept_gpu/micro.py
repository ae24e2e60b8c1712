"""`python -m tools.accept_gpu.micro COPIED PRODUCT TOKENS VOCABULARY TRANSFER`: measurements.

It measures the device's maximum copy and product rates, the vocabulary-sharded loss as a share of
the copy rate, and how much of a host copy is hidden. It prints a complete line of JSON after each
measurement. No lesson derives it.
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.benchmark import Timer

from course_lib import ranks
from course_lib.tensor_parallel.cross_entropy import cross_entropy
from course_lib.zero.offload.copies import copy_times

SECONDS = 0.3  # per measurement
PASSES = 3  # minimum passes over the logits: read in forward, read in backward, write the gradient


def main(copied: int, product: int, tokens: int, vocabulary: int, transfer: int) -> None:
    folder = tempfile.TemporaryDirectory()
    me = ranks.start(0, 1, rendezvous=f"{folder.name}/meeting")
    gpu = me.device.type == "cuda"
    found = {"device": torch.cuda.get_device_name(me.device) if gpu else "CPU", "rows": []}
    found["copy_gb_per_s"] = rate = _copy(me.device, copied)
    _say(found)
    for dtype in (torch.bfloat16, torch.float32):
        found[f"{_name(dtype)}_tflops"] = _product(me.device, product, dtype)
        _say(found)
    for dtype in (torch.float32, torch.bfloat16):
        for row in _losses(me.device, tokens, vocabulary, dtype):
            row["share_of_copy"] = PASSES * row.pop("nbytes") / row["seconds"] / 1e9 / rate
            found["rows"].append(row)
            _say(found)
    times = copy_times(me.device, transfer) or {}
    found["transfers"] = {kind: {**asdict(one), "hidden": one.hidden, "words": str(one)}
                          for kind, one in times.items()}  # fmt: skip
    _say(found)
    ranks.stop()
    folder.cleanup()


def _copy(device: torch.device, nbytes: int) -> float:
    """Measure the GB per second that a copy on the device reads and writes."""
    a = torch.ones(nbytes, dtype=torch.uint8, device=device)
    b = torch.empty_like(a)
    return 2 * nbytes / _seconds(lambda: b.copy_(a)) / 1e9


def _product(device: torch.device, n: int, dtype: torch.dtype) -> float:
    """Measure the TFLOP per second of a square product."""
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    return 2 * n**3 / _seconds(lambda: a @ b) / 1e12


def _losses(device: torch.device, tokens: int, vocabulary: int, dtype: torch.dtype):
    """Time forward and backward, and measure the peak without the logits: ours and torch's."""
    logits = torch.randn(tokens, vocabulary, device=device).to(dtype).requires_grad_()
    targets = torch.randint(vocabulary, (tokens,), device=device)
    ours = functools.partial(
        cross_entropy, logits, targets, dist.group.WORLD, vocabulary=vocabulary
    )
    ways = {
        "ours": ours,
        "ours, check=False": functools.partial(ours, check=False),
        "torch": lambda: F.cross_entropy(logits.float(), targets),
    }
    for name, loss in ways.items():

        def step(loss: Callable = loss) -> None:
            logits.grad = None
            loss().backward()

        row = {"loss": name, "dtype": _name(dtype), "nbytes": logits.nbytes}
        if device.type == "cuda":
            step()
            logits.grad = None
            torch.cuda.reset_peak_memory_stats(device)
            held = torch.cuda.memory_allocated(device)
            step()
            peak = torch.cuda.max_memory_allocated(device) - held
            row["peak_over_logits"] = peak / logits.nbytes
        yield {**row, "seconds": _seconds(step)}


def _seconds(work: Callable[[], object]) -> float:
    """Measure the median time of `work`, including the wait for the device."""
    timer = Timer("work()", globals={"work": work}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=SECONDS).median


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _say(found: dict) -> None:
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
