"""What a rank reads of a checkpoint, counted by the operating system: its quarter, and the copies.

`rchar` counts the bytes that the process asked for, `read_bytes` those that came from the disk,
with a cold cache. Each rank has a copy of the file, so that none finds what another has fetched.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

from course_lib import ranks
from course_lib.gpt import Config
from course_lib.pretrained import from_pretrained, save
from tests.pretrained.parts import GPT2, model_of

IO = Path("/proc/self/io")
SLACK = 1 << 12  # bytes; what the ranks tell each other
# Few rows, and long: a quarter of a row is many pages.
LONG = {"vocabulary": 1 << 14, "length": 8, "hidden": 32, "layers": 1, "heads": 4, "inner": 1 << 14}
CONFIGS = {"gpt2": Config.gpt2(**LONG), "llama": Config.llama(**LONG)}


def io():
    told = dict(line.split(": ") for line in IO.read_text().splitlines())
    return int(told["rchar"]), int(told["read_bytes"])


def forget(path):
    """Ask the kernel to drop the file from its cache."""
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def counted(me, folder, small):
    """(bytes asked for, bytes from the disk, whether the cache could be emptied, numbers held)"""
    mesh = ranks.mesh(me, dp=1, tp=me.world)
    from_pretrained(small, mesh)  # imports read files too
    own = f"{folder}-{me.rank}"
    shutil.copytree(folder, own)
    probe = f"{own}/probe"
    Path(probe).write_bytes(os.urandom(1 << 16))
    for name in os.listdir(own):
        forget(f"{own}/{name}")
    start = io()
    model = from_pretrained(own, mesh)
    asked, came = (after - before for before, after in zip(start, io(), strict=True))
    start = io()
    Path(probe).read_bytes()
    cold = io()[1] - start[1] >= 1 << 16
    shutil.rmtree(own)
    return asked, came, cold, sum(p.numel() for p in model.parameters())


@pytest.mark.skipif(not IO.exists(), reason="no /proc/self/io: this system counts no reads")
@pytest.mark.parametrize("family", CONFIGS)
def test_a_rank_of_four_reads_a_quarter(pool, tmp_path, family):
    save(model_of(CONFIGS[family], dtype=torch.float32), tmp_path / "one")
    save(model_of(GPT2), tmp_path / "small")
    file = tmp_path / "one" / "model.safetensors"
    header = int.from_bytes(file.read_bytes()[:8], "little")
    # Read twice: once for the dtype, before there is a model, and once for the tensors.
    beside = 2 * (8 + header + (tmp_path / "one" / "config.json").stat().st_size)
    whole = dict(model_of(CONFIGS[family]).named_parameters())
    copied = sum(
        4 * p.numel()
        for name, p in whole.items()
        if name.startswith("positions")
        or "norm" in name
        or name.endswith(("out.bias", "down.bias"))
    )
    cut = 4 * sum(p.numel() for p in whole.values()) - copied
    assert cut > 4e6 and abs(cut + copied + 8 + header - file.stat().st_size) < 8
    due = cut // 4 + copied
    found = pool.run(4, counted, str(tmp_path / "one"), str(tmp_path / "small"), timeout=60)
    for rank, (asked, came, cold, numbers) in enumerate(found):
        assert 4 * numbers == due, "the model is not cut evenly: the count would say nothing"
        assert due <= asked <= due + beside + SLACK, (rank, asked, due)
        if cold:
            print(f"rank {rank}: {due} due, {asked} asked for, {came} from the disk")
            assert 0.95 * due <= came <= 1.25 * due, (rank, came, due)  # a page more at each end
    if not all(cold for _, _, cold, _ in found):
        pytest.skip("the bytes asked for are right; this disk's cache cannot be emptied")
