"""The loss's Triton kernels: right in the interpreter, compiled for cards that are not here, chosen
where they work, and left out with one sentence where they do not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from course_lib.memory import peak
from course_lib.tensor_parallel import kernel_choice as chooser
from course_lib.tensor_parallel.cross_entropy import cross_entropy
from tests.course_lib.tensor_parallel.loss_cases import every_size, whole_road
from tests.course_lib.tensor_parallel.parts import close

ROOT = Path(__file__).resolve().parents[3]


def version(module) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", module.__version__)[:2])


def test_the_numbers_in_the_interpreter():
    triton, numpy = pytest.importorskip("triton"), pytest.importorskip("numpy")
    if version(triton) < (3, 7) and version(numpy) >= (2, 4):
        pytest.skip("the interpreter of triton 3.6 does not run on numpy 2.4")
    done = subprocess.run(
        [sys.executable, "-m", "tests.course_lib.tensor_parallel.loss_cases"],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]


NUMBERS = {"stats": "*fp32", "share": "*fp32", "weight": "*fp32", "targets": "*i64"}
NUMBERS |= {"of_target": "fp32", "each": "fp32", "start": "i32", "real": "i32", "width": "i32"}
NUMBERS |= {"stride": "i32", "out_stride": "i32", "stats_stride": "i32"}
SIXTEENS = ("logits", "out", "stride", "out_stride", "width")  # multiples of 16, as most are


@pytest.mark.parametrize(("dtype", "bytes_each"), [("fp32", 4), ("bf16", 2), ("fp16", 2)])
@pytest.mark.parametrize("kernel", ["row_numbers", "row_gradients"])
def test_compiled_without_a_card(kernel, dtype, bytes_each, tmp_path, monkeypatch):
    """Down to the card's own code; 16 bytes a load and a store, or the memory's speed is missed."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from course_lib.tensor_parallel import loss_kernels

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    function = getattr(loss_kernels, kernel)
    names = function.arg_names
    kinds = {**NUMBERS, "logits": f"*{dtype}", "out": f"*{dtype}"}
    lanes = 32 * 4 * 16 // bytes_each
    for capability, smoothed in ((80, True), (90, False)):
        fixed = {"SMOOTHED": smoothed, "ROWS": 4096 // lanes, "LANES": lanes, "TILE": 4096}
        kept = {name: kinds[name] for name in names if name not in fixed}
        source = ASTSource(
            function,
            {name: kept.get(name, "constexpr") for name in names},
            {(names.index(name),): value for name, value in fixed.items() if name in names},
            {(names.index(name),): [["tt.divisibility", 16]] for name in SIXTEENS if name in names},
        )
        target = GPUTarget("cuda", capability, 32)
        code = triton.compile(source, target=target, options={"num_warps": 4}).asm
        assert len(code["cubin"]) > 1000
        assert "ld.global.v4.b32" in code["ptx"]
        assert ("st.global.v4.b32" in code["ptx"]) == (kernel == "row_gradients")
        # One number of the logits' dtype at a time: the target's, and no other.
        single = f"ld.global.b{8 * bytes_each}"
        assert code["ptx"].count(single) <= (4 if bytes_each == 4 else 1)


def logits_there(dtype=torch.float32, stride=1, numel=4):
    """As much of a GPU's tensor as the choice looks at."""
    return SimpleNamespace(
        is_cuda=True, device="cuda:0", dtype=dtype, stride=lambda dim: stride, numel=lambda: numel
    )


def test_the_choice(monkeypatch):
    monkeypatch.setattr(chooser, "_tried", lambda device, dtype: f"kernels for {dtype}")
    monkeypatch.delenv("COURSE_KERNELS", raising=False)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert chooser.kernels_for(logits_there(dtype)) == f"kernels for {dtype}"
    assert chooser.kernels_for(torch.ones(2, 3)) is None
    assert chooser.kernels_for(logits_there(torch.float64)) is None  # summed in float64
    assert chooser.kernels_for(logits_there(stride=3)) is None
    assert chooser.kernels_for(logits_there(numel=0)) is None
    monkeypatch.setenv("COURSE_KERNELS", "0")
    assert chooser.kernels_for(logits_there()) is None


def test_where_kernels_do_not_work_one_sentence_says_why(monkeypatch):
    name = "course_lib.tensor_parallel.loss_kernels"
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delattr("course_lib.tensor_parallel.loss_kernels", raising=False)
    monkeypatch.delenv("COURSE_KERNELS", raising=False)
    chooser._tried.cache_clear()
    try:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            assert [chooser.kernels_for(logits_there()) for _ in range(3)] == [None] * 3
    finally:
        chooser._tried.cache_clear()
    (warning,) = heard
    assert "on cuda:0 without its Triton kernels" in str(warning.message)
    assert "ModuleNotFoundError: import of course_lib" in str(warning.message)


def on_a_card(me):
    """The same on this rank's GPU, compiled; or the sentence that says why not."""
    group, device = dist.group.WORLD, me.device
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        chooser._tried.cache_clear()
        kernels = chooser.kernels_for(torch.ones(1, device=device))
    if kernels is None:
        return str(heard[0].message)
    every_size(kernels, device)
    for dtype, bound in ((torch.float32, 1e-6), (torch.bfloat16, 2.0**-6)):
        by_kernels = whole_road(group, device, dtype)
        os.environ["COURSE_KERNELS"] = "0"
        try:
            by_torch = whole_road(group, device, dtype)
        finally:
            del os.environ["COURSE_KERNELS"]
        for number, (got, want) in enumerate(zip(by_kernels, by_torch, strict=True)):
            close(f"{dtype}, result {number}", got, want, bound)
    return [peaks(group, device, dtype) for dtype in (torch.float32, torch.bfloat16)]


def peaks(group, device, dtype):
    """(a shard of logits, the forward's peak, that of both) in bytes, with kernels and without."""
    vocabulary, padded = 4000 * group.size() - 5, 4000 * group.size()
    mine = torch.randn(512, 4000, device=device).to(dtype).requires_grad_()
    targets = torch.arange(512, device=device) % vocabulary
    found = []
    for switch in ("1", "0"):
        os.environ["COURSE_KERNELS"] = switch
        try:
            for _ in range(2):  # the first time, torch loads what it needs
                mine.grad = None
                with peak() as whole:
                    with peak() as forward:
                        loss = cross_entropy(
                            mine, targets, group, vocabulary=vocabulary, padded=padded
                        )
                    loss.backward()
        finally:
            del os.environ["COURSE_KERNELS"]
        found.append((mine.nbytes, forward.bytes, whole.bytes))
    return found


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("world", [1, 3])
def test_kernels_and_torch_on_a_card(pool, world):
    every = pool.run(world, on_a_card, timeout=240)
    if isinstance(every[0], str):
        pytest.skip(every[0])
    for by_dtype in every:
        for dtype, ((shard, forward, whole), without) in zip((4, 2), by_dtype, strict=True):
            slack = 64 * 8 * 512  # 64 numbers a token
            assert forward <= slack
            assert shard <= whole <= shard + slack
            if dtype == 4:  # and torch's operations, on the rank with padding
                assert shard <= without[1] <= 1.1 * shard + slack
