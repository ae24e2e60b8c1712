"""What a rank asks a checkpoint's file for: its quarter of the tensors, and the copies."""

from __future__ import annotations

import os

import pytest
import torch

from course_lib import ranks
from course_lib.gpt import Config
from course_lib.pretrained import from_pretrained, save
from tests.course_lib.pretrained.parts import model_of

SIZES = {
    "vocabulary": 1 << 12,
    "length": 8,
    "hidden": 32,
    "layers": 1,
    "heads": 4,
    "inner": 1 << 10,
}
CONFIGS = {"gpt2": Config.gpt2(**SIZES), "llama": Config.llama(**SIZES)}


def asked(me, folder):
    """(bytes asked for, numbers held)"""
    mesh, counts, pread, preadv = ranks.mesh(me, dp=1, tp=me.world), [], os.pread, os.preadv

    def counted(file, count, at):
        counts.append(count)
        return pread(file, count, at)

    def counted_into(file, buffers, at):
        counts.append(sum(buffer.nbytes for buffer in buffers))
        return preadv(file, buffers, at)

    os.pread, os.preadv = counted, counted_into
    try:
        model = from_pretrained(folder, mesh)
    finally:
        os.pread, os.preadv = pread, preadv
    return sum(counts), sum(p.numel() for p in model.parameters())


@pytest.mark.skipif(not hasattr(os, "preadv"), reason="this system reads in another way")
@pytest.mark.parametrize("family", CONFIGS)
def test_a_rank_of_four_reads_a_quarter(pool, tmp_path, family):
    save(model_of(CONFIGS[family], dtype=torch.float32), tmp_path)
    header = 8 + int.from_bytes((tmp_path / "model.safetensors").read_bytes()[:8], "little")
    whole = dict(model_of(CONFIGS[family]).named_parameters())
    copied = sum(
        4 * p.numel()
        for name, p in whole.items()
        if name.startswith("positions")
        or "norm" in name
        or name.endswith(("out.bias", "down.bias"))
    )
    due = (4 * sum(p.numel() for p in whole.values()) - copied) // 4 + copied
    for count, numbers in pool.run(4, asked, str(tmp_path)):
        assert 4 * numbers == due, "the model is not cut evenly: the count would say nothing"
        # The header is read twice: for the dtype, before there is a model, and for the tensors.
        assert due <= count <= due + 2 * header
