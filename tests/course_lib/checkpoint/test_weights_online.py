"""How much of the weights a conversion holds at a time."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
import torch

from course_lib import memory, pretrained
from course_lib.checkpoint import sources
from course_lib.checkpoint.deepspeed_files import archive
from course_lib.checkpoint.weights import convert
from course_lib.pretrained import reader
from course_lib.pretrained.reader import Checkpoint
from tests.course_lib.checkpoint.deepspeed_parts import write
from tests.course_lib.pretrained.parts import GPT2, LLAMA, bits, model_of

AT_ONCE = 1 << 12


@pytest.fixture
def small_buffers(monkeypatch):
    for module in (archive, sources, reader):
        monkeypatch.setattr(module, "AT_ONCE", AT_ONCE)


@pytest.mark.parametrize(
    "config", [LLAMA.changed(hidden=168), GPT2.changed(hidden=160)], ids=["llama", "gpt2"]
)
def test_a_conversion_holds_one_tensor_and_one_buffer(tmp_path, small_buffers, config):
    """From two ranks' files to a folder, split, or transposed, on its way; the rest is names."""
    config = config.changed(layers=3, inner=1280)
    model = model_of(config, dtype=torch.float32)
    tensors = {name: p.detach() for name, p in model.named_parameters()}
    pretrained.save(model, tmp_path / "want")
    write(
        tmp_path / "run",
        2,
        2,
        tensors,
        tied={"head.weight": "tokens.weight"} if config.tied else {},
    )
    with Checkpoint(tmp_path / "want") as stored:
        sizes = [slot.stop - slot.start for slot in stored.slots.values()]
    most, total = max(sizes), sum(sizes)
    del model, tensors

    def go(out, dtype):
        convert(
            tmp_path / "run", tmp_path / out, config=tmp_path / "want" / "config.json", dtype=dtype
        )

    go("warm", "float32")
    assert bits(tmp_path / "warm") == bits(tmp_path / "want")
    gc.collect()
    tracemalloc.start()  # where buffers are; torch's own memory is seen by the meter
    before, _ = tracemalloc.get_traced_memory()
    go("float32", "float32")
    _, held = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most <= held - before < most + 4 * AT_ONCE + 400_000 < total / 3
    if config.tied:  # the transposed ones
        with memory.peak() as torchs:
            go("bfloat16", "bfloat16")
        assert torchs.bytes < 4 * AT_ONCE
