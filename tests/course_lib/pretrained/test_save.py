"""Weights out: bit by bit through any number of ranks, tensor by tensor, all of it or nothing."""

from __future__ import annotations

import importlib
import json
import math
import os
import resource
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import nn

from course_lib import collectives, ranks
from course_lib.gpt import GPT
from course_lib.pretrained import CheckpointError, from_pretrained, save
from course_lib.pretrained.sketch import without_numbers
from course_lib.pretrained.writer import Writer, shards
from course_lib.tensor_parallel import parallelize
from tests.course_lib.pretrained.parts import (
    GPT2,
    LLAMA,
    bits,
    change,
    model_of,
    odd_bits,
    whole,
    written,
)
from tests.course_lib.tensor_parallel.parts import said


def passed_on(me, jobs):
    """Read, cut for this world, write; how many numbers this rank held."""
    mesh = ranks.mesh(me, dp=1, tp=me.world)
    counts = []
    for source, target, options, save_options in jobs:
        model = from_pretrained(source, mesh, **options)
        counts.append(sum(p.numel() for p in model.parameters()))
        save(model, target, mesh, **save_options)
    return counts


def test_one_rank_to_four_to_two_to_one_bit_by_bit(pool, tmp_path):
    plans = [
        (GPT2.changed(inner=5), torch.float32, {"multiple_of": 16}),  # 4 ranks cut 5 as 2, 2, 1, 0
        (LLAMA, torch.bfloat16, {"sequence": True}),
        (GPT2.changed(tied=False), torch.float64, {"multiple_of": 3}),
    ]
    for number, (config, dtype, _) in enumerate(plans):
        save(odd_bits(model_of(config, dtype=dtype)), tmp_path / f"0-{number}")
        change(tmp_path / f"0-{number}", lambda tensors: None)  # in the order of safetensors
    held = []
    for step, world in enumerate([1, 4, 2, 1], start=1):
        jobs = [
            (
                str(tmp_path / f"{step - 1}-{number}"),
                str(tmp_path / f"{step}-{number}"),
                options if world > 1 else {},
                {"shard_bytes": 3000} if step == 2 else {},
            )
            for number, (_, _, options) in enumerate(plans)
        ]
        held.append(pool.run(world, passed_on, jobs))
    for number in range(len(plans)):
        want = bits(tmp_path / f"0-{number}")
        for step in (1, 2, 3, 4):
            assert bits(tmp_path / f"{step}-{number}") == want, (number, step)
        assert held[1][0][number] < held[2][0][number] < held[3][0][number] == held[0][0][number]
    assert len(list((tmp_path / "2-0").glob("model-*-of-*.safetensors"))) > 3
    assert whole(tmp_path / "4-1") == whole(tmp_path / "1-1")


def test_files_are_planned_by_size(tmp_path):
    kinds = {
        name: (torch.float32, (size, 5))
        for name, size in zip("abcde", (2, 3, 9, 1, 4), strict=True)
    }
    assert [list(one) for one in shards(kinds, 100)] == [["a", "b"], ["c"], ["d", "e"]]
    assert [list(one) for one in shards(kinds, 99)] == [["a"], ["b"], ["c"], ["d"], ["e"]]
    with pytest.raises(CheckpointError, match="shard_bytes=0 must be 1 or more"):
        shards(kinds, 0)
    model = model_of(LLAMA, dtype=torch.bfloat16)
    save(model, tmp_path / "many", shard_bytes=2000)
    save(model, tmp_path / "one")
    assert {f.name for f in (tmp_path / "one").iterdir()} == {"model.safetensors", "config.json"}
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    found, numbers = {}, 0
    files = sorted((tmp_path / "many").glob("*.safetensors"))
    for at, file in enumerate(files, start=1):
        assert file.name == f"model-{at:05d}-of-{len(files):05d}.safetensors"
        with safe_open(file, "pt") as inside:
            assert inside.metadata() == {"format": "pt"}
            names = list(inside.keys())
            sizes = [2 * math.prod(inside.get_slice(name).get_shape()) for name in names]
            assert sum(sizes) <= 2000 or len(sizes) == 1
            found |= dict.fromkeys(names, file.name)
            numbers += sum(sizes)
    assert found == index["weight_map"] and index["metadata"] == {"total_size": numbers}
    assert bits(tmp_path / "many") == bits(tmp_path / "one")


def test_weights_of_several_dtypes(tmp_path):
    """Norms in float32 between weights in bfloat16: each as it is, and where its size can start."""
    model = model_of(GPT2.changed(vocabulary=7), dtype=torch.bfloat16)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.float()
    save(model, tmp_path / "mixed")
    with safe_open(tmp_path / "mixed" / "model.safetensors", "pt") as inside:
        names = list(inside.keys())
        kinds = {name: inside.get_tensor(name).dtype for name in names}
    assert all((kind == torch.float32) == ("ln_" in name) for name, kind in kinds.items())
    got = from_pretrained(tmp_path / "mixed", dtype=torch.float32)
    for name, p in model.named_parameters():
        assert torch.equal(got.get_parameter(name), p.float()), name


def replicas(me, folder):
    """Two replicas, one of which has other numbers: rank 0's are written, by rank 0."""
    mesh = ranks.mesh(me, dp=2, tp=2)
    model = parallelize(model_of(LLAMA, f"replica {mesh.get_local_rank('dp')}"), mesh)
    refused = said(CheckpointError, save, model, folder + "-not")
    writers = []
    Writer.__init__, old = (
        lambda *a, **k: (writers.append(me.rank), old(*a, **k))[1],
        Writer.__init__,
    )
    try:
        save(model, folder, mesh)
    finally:
        Writer.__init__ = old
    return refused, writers


def test_of_two_replicas_one_is_written(pool, tmp_path):
    found = pool.run(4, replicas, str(tmp_path / "one"))
    assert [writers for _, writers in found] == [[0], [], [], []]
    assert all("sharded over 2 of 4 ranks" in refused for refused, _ in found)
    assert os.listdir(tmp_path) == ["one"]
    save(model_of(LLAMA, "replica 0"), tmp_path / "want")
    assert whole(tmp_path / "one") == whole(tmp_path / "want")


DEEP = GPT2.changed(layers=6, inner=80)


class Counted(bytearray):
    """A buffer that says how many bytes of its kind are held at a time."""

    live = most = 0

    def __init__(self, size):
        super().__init__(size)
        Counted.live += size
        Counted.most = max(Counted.most, Counted.live)

    def __del__(self):
        Counted.live -= len(self)


def measured(me, folder):
    """The most that this rank holds in buffers, and the longest message that it takes in."""
    mesh = ranks.mesh(me, dp=1, tp=me.world)
    model = parallelize(model_of(DEEP), mesh)
    longest, gather = [0], collectives.gather

    def watched(x, group, *args, **options):
        got = gather(x, group, *args, **options)
        longest.append(0 if got is None else got.numel() * 8)
        return got

    module = importlib.import_module("course_lib.pretrained.save")
    collectives.gather, module.bytearray = watched, Counted
    Counted.live = Counted.most = 0
    try:
        save(model, folder, mesh)
    finally:
        collectives.gather = gather
        del module.bytearray
    return Counted.most, Counted.live, max(longest)


def test_no_rank_holds_more_than_a_tensor(pool, tmp_path):
    sizes = [p.numel() * 8 for p in GPT(DEEP).parameters()]
    first, *others = pool.run(3, measured, str(tmp_path / "one"))
    assert sum(sizes) > 15 * max(sizes)
    assert first == (max(sizes), 0, max(sizes))
    assert others == 2 * [(0, 0, 0)]
    assert sum(len(data) for _, _, data in bits(tmp_path / "one").values()) == sum(sizes)


def full_disk(me, folder):
    """Rank 0 may write no file beyond 20 kB, which is as good as a full disk; then it may again."""
    mesh = ranks.mesh(me, dp=1, tp=me.world)
    model = parallelize(model_of(GPT2, "later"), mesh)
    found = []
    for options in ({}, {"shard_bytes": 30_000}):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        if me.rank == 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
        try:
            found.append(said((OSError, CheckpointError), save, model, folder, mesh, **options))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    together = collectives.all_reduce(torch.ones(1), dist.group.WORLD)  # nobody is left behind
    return found, together.item(), whole(Path(folder)) if me.rank == 0 else None


def test_a_full_disk_leaves_the_old_checkpoint_and_every_rank_hears_of_it(pool, tmp_path):
    folder = written(GPT2, tmp_path / "one")
    before = whole(folder)
    for rank, (found, together, files) in enumerate(pool.run(3, full_disk, str(folder))):
        assert together == 3 and len(found) == 2
        for text in found:
            assert "File too large" in text
            assert (f"saving to {folder} failed on rank 0, so it" in text) == (rank > 0)
        assert files is None or files == before
    assert os.listdir(tmp_path) == ["one"]  # nothing half written beside it


def test_a_new_checkpoint_takes_the_old_ones_place_and_other_files_stay(tmp_path):
    folder = written(GPT2, tmp_path / "one", shard_bytes=2000)
    (folder / "tokenizer.json").write_text("words")
    (folder / "notes").mkdir()
    (folder / "notes" / "why.txt").write_text("because")
    (folder / "words").symlink_to("tokenizer.json")
    number = (folder / "tokenizer.json").stat().st_ino
    folder.chmod(0o750)
    (tmp_path / "link").symlink_to(folder)
    save(model_of(LLAMA), tmp_path / "link", config={"eos_token_id": 3})
    assert sorted(os.listdir(tmp_path)) == ["link", "one"] and (tmp_path / "link").is_symlink()
    assert set(whole(folder)) == {
        "config.json", "model.safetensors", "notes/why.txt", "tokenizer.json", "words"
    }  # fmt: skip
    assert (folder / "words").is_symlink() and (folder / "words").read_text() == "words"
    assert (folder / "tokenizer.json").stat().st_ino == number  # the same file, not a copy of it
    assert folder.stat().st_mode & 0o777 == 0o750
    assert json.loads((folder / "config.json").read_text())["eos_token_id"] == 3
    want = dict(model_of(LLAMA).named_parameters())
    assert all(torch.equal(p, want[n]) for n, p in from_pretrained(folder).named_parameters())


def test_a_change_of_folders_that_fails_is_taken_back(tmp_path, monkeypatch):
    folder = written(GPT2, tmp_path / "one")
    before, rename = whole(folder), Path.rename

    def failing(self, target):
        if ".new-" in self.name:
            raise OSError("the disk has gone")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="the disk has gone"):
        save(model_of(LLAMA), folder)
    assert whole(folder) == before and os.listdir(tmp_path) == ["one"]


def test_places_that_are_no_checkpoints_are_left_alone(tmp_path, monkeypatch):
    model = model_of(GPT2)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").write_text("mine")
    here = written(GPT2, tmp_path / "here")
    (here / "inner").mkdir()
    monkeypatch.chdir(here / "inner")
    before = whole(tmp_path)
    for name, match in [
        ("file", "is a file, but a checkpoint is a folder"),
        ("home", "holds 1 files or folders but no checkpoint"),
        ("here", "is where this program runs"),
    ]:
        with pytest.raises(CheckpointError, match=match):
            save(model, tmp_path / name)
    assert whole(tmp_path) == before
    (tmp_path / "empty").mkdir()
    save(model, tmp_path / "empty")
    save(model, tmp_path / "new" / "inside")
    assert whole(tmp_path / "empty") == whole(tmp_path / "new" / "inside")


def test_models_that_cannot_be_saved(tmp_path):
    untied = GPT(GPT2)
    untied.head.weight = nn.Parameter(untied.head.weight.detach().clone())
    for model, match in [
        (untied, "but its head and table are two parameters"),
        (without_numbers(GPT2), "tokens.weight has no elements yet"),
        (GPT(LLAMA.changed(norm="layer")), "neither GPT-2's nor Llama's"),
        (nn.Linear(2, 3), "but this is a Linear"),
    ]:
        with pytest.raises(CheckpointError, match=match):
            save(model, tmp_path / "one")
    with pytest.raises(CheckpointError, match="these keys are a llama's"):
        save(GPT(GPT2), tmp_path / "one", config={"model_type": "llama"})
    assert not os.listdir(tmp_path)


def wrongly_cut(me, folder):
    """A plan that leaves rows on no rank is noticed before a file is made."""
    mesh = ranks.mesh(me, dp=1, tp=me.world)
    model = parallelize(model_of(GPT2), mesh)
    layer = model.blocks[1].mlp.up
    if me.rank == 1:
        layer.spans = [(start, stop - 1) for start, stop in layer.spans]
    return said(CheckpointError, save, model, folder, mesh)


def test_numbers_that_no_rank_holds(pool, tmp_path):
    found = pool.run(3, wrongly_cut, str(tmp_path / "one"))
    assert all("blocks.1.mlp.up.weight: the ranks hold 9 of 13 along dim 0" in one for one in found)
    assert not os.listdir(tmp_path)
