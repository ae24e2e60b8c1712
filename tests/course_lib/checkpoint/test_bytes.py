"""Each byte is written once and read at most once by a rank that needs it, files are as large as
the closed form, and no rank holds more than a tensor of its own beside what it has."""

from __future__ import annotations

import gc
import os
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from course_lib import checkpoint
from course_lib.checkpoint import loading, saving
from course_lib.checkpoint.contents import Label
from course_lib.checkpoint.logical import tensors_of
from course_lib.collectives.agreement import checksum
from course_lib.memory import peak
from course_lib.pretrained.header import DTYPES, read_header
from tests.course_lib.checkpoint.parts import FAMILIES, SIZES, Layout, engine_of, losses

CASES = {  # layout, family, dtype of the model, bytes of a file
    "dense": (Layout("1x1", 0), "gpt2", torch.float64, 5e9),
    "replicas": (Layout("2x1", 0), "llama", torch.float64, 5e9),
    "shared kv heads": (Layout("1x2", 1), "one-kv", torch.float32, 5e9),
    "sharded by three": (Layout("3x1", 3), "gpt2", torch.float32, 20_000),
    "masters": (Layout("2x2", 2, None, "bfloat16"), "one-kv", torch.float32, 9_000),
    "half": (Layout("2x2", 3, "cpu", "float16"), "gpt2", torch.float32, 5e9),
}


class Ranges:
    """Every (file, start, stop) of these calls of os while it is open, by their own count."""

    def __init__(self, *names: str):
        self.names, self.seen = [name for name in names if hasattr(os, name)], []

    def __enter__(self) -> Ranges:
        self.functions = {name: getattr(os, name) for name in self.names}
        for name in self.names:
            setattr(os, name, self._counted(self.functions[name]))
        return self

    def __exit__(self, *error: object) -> None:
        for name, function in self.functions.items():
            setattr(os, name, function)

    def _counted(self, function):
        def counted(file: int, what, at: int):
            done = function(file, what, at)
            length = done if isinstance(done, int) else len(done)
            self.seen.append((os.fstat(file).st_ino, at, at + length))
            return done

        return counted


def once(ranges: list[tuple]) -> int:
    """The bytes of ranges of which no two have one in common."""
    end: dict[int, int] = {}
    for file, start, stop in sorted(ranges):
        assert start >= end.get(file, 0), "a byte twice"
        end[file] = stop
    return sum(stop - start for _, start, stop in ranges)


def tensors_in(path: Path) -> dict[str, tuple]:
    """(inode of the file, slot) of every tensor."""
    found = {}
    for file in path.glob("*.safetensors"):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            for name, slot in read_header(descriptor, file).items():
                found[name] = os.fstat(descriptor).st_ino, slot
        finally:
            os.close(descriptor)
    return found


def needed(engine, mesh, path: Path) -> int:
    """The bytes of a checkpoint that this rank's own parts consist of, and, where the model is
    whole on every rank, the states are not and no master is there, the others' weights."""
    tensors, total = tensors_of(engine, mesh), 0
    inside, own = tensors_in(path), Counter()
    for text in engine.own_slots():
        label = Label.of(text)
        if label.key != "value":
            continue
        tensor = tensors[label.name]
        count = sum(box.numel for box, _, _ in tensor.boxes(label.start, label.stop))
        per = 0
        for key in ("exp_avg", "exp_avg_sq"):
            per += DTYPES[inside[f"{label.name}:{key}"][1].dtype].itemsize
        master = inside.get(f"{label.name}:master")
        stored = tensor.weight.parts[0].name
        per += DTYPES[(master or inside[stored])[1].dtype].itemsize
        total += per * count
        own[label.name] += count
    reads_others = engine.stage in (1, 2) and not any(n.endswith(":master") for n in inside)
    for slot in engine.partition.slots() if reads_others else ():
        tensor = tensors[slot.name]
        whole = sum(box.numel for box, _, _ in tensor.boxes(0, slot.numel))
        item = DTYPES[inside[tensor.weight.parts[0].name][1].dtype].itemsize
        total += (whole - own[slot.name]) * item
    return total


def counted(me, folder: str, names: list[str]) -> dict:
    """What each case wrote and read on this rank, by the calls and by our own count."""
    found = {}
    for name in names:
        layout, family, dtype, most = CASES[name]
        top = f"{folder}/{name.replace(' ', '-')}"
        with engine_of(me, layout, folder, family, dtype) as (engine, mesh):
            steps = 0
            while steps == engine.skipped:  # float16 finds its scale first
                losses(engine, mesh, steps, 1)
                steps += 1
            pens, parts = [], []
            real_pen, real_saved = saving.BoxWriter, loading.OpenCheckpoint

            def pen(*arguments, real=real_pen, pens=pens):
                pens.append(real(*arguments))
                return pens[-1]

            def saved(path, real=real_saved, parts=parts, **more):
                reader = real(path, **more)
                parts.extend((reader.model, reader.optimizer))
                return reader

            saving.BoxWriter, loading.OpenCheckpoint = pen, saved
            try:
                with Ranges("pwrite") as written:
                    path = checkpoint.save(top, 1, engine, mesh, shard_bytes=most)
                with Ranges("pread", "preadv") as read:
                    checkpoint.load(path, engine, mesh)
            finally:
                saving.BoxWriter, loading.OpenCheckpoint = real_pen, real_saved
            headers = {file: slot.start for file, slot in first_slots(path).values()}
            inside = [r for r in read.seen if r[1] >= headers[r[0]]]
            found[name] = {
                "written": written.seen, "pens": sum(one.bytes for one in pens),
                "read": once(inside), "parts": sum(one.bytes for one in parts),
                "needed": needed(engine, mesh, path),
            }  # fmt: skip
            dist.barrier()
    return found


def first_slots(path: Path) -> dict[int, tuple]:
    """The first tensor of each file."""
    first: dict[int, tuple] = {}
    for file, slot in tensors_in(path).values():
        if file not in first or slot.start < first[file][1].start:
            first[file] = file, slot
    return first


def elements(family: str) -> int:
    """The parameters of the dense model: gpt2 has biases and positions, llama a gated MLP."""
    v, n, h, layers, heads, inner = SIZES.values()
    config = FAMILIES[family]
    if family == "gpt2":
        block = 4 * h * h + 4 * h + 2 * h * inner + inner + h + 4 * h
        return v * h + n * h + layers * block + 2 * h
    kv = config.kv_heads * h // heads
    block = 2 * h * h + 2 * h * kv + 3 * h * inner + 2 * h
    return v * h * (1 if config.tied else 2) + layers * block + h


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_each_byte_is_written_once_and_read_once_where_it_is_needed(pool, tmp_path, world):
    names = [name for name, case in CASES.items() if case[0].world == world]
    answers = pool.run(world, counted, str(tmp_path), names)
    for name in names:
        layout, family, dtype, most = CASES[name]
        path = tmp_path / name.replace(" ", "-") / "step-000001"
        inside = tensors_in(path)
        total = sum(slot.stop - slot.start for _, slot in inside.values())
        half = layout.precision != "as is"
        width = dtype.itemsize
        numbers = elements(family)
        assert total == numbers * ((2 if half else width) + (width if half else 0) + 2 * width), (
            name
        )
        headers = {file: slot.start for file, slot in first_slots(path).values()}
        sizes = sum(file.stat().st_size for file in path.glob("*.safetensors"))
        assert sizes == total + sum(headers.values())
        assert (len(headers) > 2) == (most < 1e9)
        some = [answer[name] for answer in answers]
        written = [span for one in some for span in one["written"]]
        assert once(written) == total == sum(one["pens"] for one in some), name
        assert all(start >= headers[file] for file, start, _ in written)
        for one in some:
            assert one["read"] == one["needed"] == one["parts"] <= total, name
        assert max(one["pens"] for one in some) < 1.6 * total / world, name


BIG = {"vocabulary": 64, "length": 16, "hidden": 256, "layers": 3, "heads": 4, "inner": 1024}


def peaks(me, folder: str, precision: str, mesh_name: str, stage: int) -> dict[str, int]:
    """The most that a save and a load took above what was held."""
    FAMILIES["big"] = FAMILIES["gpt2"].changed(**BIG)
    found: dict[str, int] = {}
    try:
        layout = Layout(mesh_name, stage, None, precision)
        with engine_of(me, layout, folder, "big", torch.float32) as (engine, mesh):
            losses(engine, mesh, 0, 1)
            sizes = [x.nbytes for _, x in engine.own_tensors()]
            found = {"largest": max(sizes), "shard": sum(sizes)}
            path = checkpoint.save(f"{folder}/warm", 1, engine, mesh)
            gc.collect()

            def save() -> None:
                checkpoint.save(f"{folder}/run", 1, engine, mesh)

            def load() -> None:
                checkpoint.load(path, engine, mesh)

            for name, work in {"save": save, "load": load}.items():
                with peak() as top:
                    work()
                found[name] = top.bytes
    finally:
        del FAMILIES["big"]
    return found


@pytest.mark.parametrize(
    ("precision", "mesh", "stage"),
    [("as is", "2x1", 2), ("bfloat16", "2x1", 3), ("as is", "1x2", 0)],
)
def test_beside_what_it_holds_a_rank_needs_a_tensor_and_a_buffer(
    pool, tmp_path, precision, mesh, stage
):
    for found in pool.run(2, peaks, str(tmp_path), precision, mesh, stage):
        assert found["shard"] > 12 * found["largest"] >= 12 * 2**19, found
        for what in ("save", "load"):
            # What is turned, since GPT-2 stores (inputs, outputs), is there twice.
            assert found[what] < 2.1 * found["largest"], f"{what} {found}"


def test_comparing_copies_takes_pieces_of_them():
    """A save compares what all ranks over tp have alike: tables of positions, heads, norms."""
    x = torch.rand(1 << 20)
    with peak() as needed:
        whole = checksum(x)
    assert needed.bytes < x.nbytes / 2
    moved = torch.cat((x[-1:], x[1:-1], x[:1]))  # two elements in other pieces than before
    assert checksum(moved)[0] == whole[0] and checksum(moved)[1] != whole[1]
