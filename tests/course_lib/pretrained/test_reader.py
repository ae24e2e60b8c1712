"""Files against the safetensors library: every span, the reads that it takes, every lie refused."""

from __future__ import annotations

import json
import os

import pytest
import torch
from safetensors.torch import save, save_file

from course_lib.pretrained import Checkpoint, CheckpointError
from course_lib.pretrained import reader as reader_module
from tests.course_lib.pretrained.parts import raw
from tests.course_lib.tensor_parallel.parts import made

F32 = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def tensors():
    shapes = {"vector": (7,), "matrix": (5, 3), "long": (2, 6), "cube": (3, 4, 2), "one": (1, 1)}
    kinds = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float32]
    found = {
        name: made(name, *shape, dtype=kind)
        for (name, shape), kind in zip(shapes.items(), kinds, strict=True)
    }
    return found | {"mask": torch.ones(3, 3, dtype=torch.uint8), "flag": torch.tensor(True)}


@pytest.fixture
def counted(monkeypatch):
    """(how many bytes, from where) of every read."""
    calls, read = [], os.pread

    def pread(file, count, at):
        calls.append((count, at))
        return read(file, count, at)

    monkeypatch.setattr(os, "pread", pread)
    return calls


def every_span(checkpoint, want):
    for name, x in want.items():
        if not x.is_floating_point():
            continue
        for dim in range(x.dim()):
            for start in range(x.shape[dim]):
                for stop in range(start + 1, x.shape[dim] + 1):
                    got = checkpoint.read(name, dim, start, stop)
                    part = x.narrow(dim, start, stop - start)
                    assert got.dtype == x.dtype and got.shape == part.shape
                    assert torch.equal(got, part), (name, dim, start, stop)


def test_every_span_of_one_file_and_of_two(tmp_path, monkeypatch):
    want = tensors()
    save_file(want, tmp_path / "model.safetensors")
    for path in (tmp_path, tmp_path / "model.safetensors"):
        with Checkpoint(path) as checkpoint:
            assert checkpoint.slots.keys() == want.keys()
            every_span(checkpoint, want)
    names = list(want)
    split = tmp_path / "split"
    split.mkdir()
    index = {}
    for file, part in (("a.safetensors", names[:3]), ("b.safetensors", names[3:])):
        save_file({name: want[name] for name in part}, split / file)
        index |= dict.fromkeys(part, file)
    (split / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    monkeypatch.setattr(reader_module, "AT_ONCE", 5)  # no number of any dtype fits in evenly
    for path in (split, split / "model.safetensors.index.json"):
        with Checkpoint(path) as checkpoint:
            every_span(checkpoint, want)


def test_what_a_read_costs(tmp_path, counted):
    x = made("x", 6, 10, dtype=torch.float32)
    save_file({"x": x, "y": x + 1}, tmp_path / "model.safetensors")
    with Checkpoint(tmp_path) as checkpoint:
        header = sum(count for count, _ in counted)
        assert header == (tmp_path / "model.safetensors").stat().st_size - 2 * 240
        start = checkpoint.slots["x"].start

        def cost(*span):
            counted.clear()
            checkpoint.read("x", *span)
            return list(counted)

        assert cost(0, 2, 5) == [(120, start + 80)]  # rows: one read of what was asked for
        assert cost() == [(240, start)] == cost(1, 0, 10)  # all columns are all rows
        assert cost(1, 3, 7) == [(16, start + 40 * row + 12) for row in range(6)]


LIES = {
    "no header": (b"abc", "has 3 bytes, too few"),
    "a pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
    "a header beyond the file": (raw({"x": F32})[:40], "be 6[0-9] bytes long in a file of 40"),
    "a header without end": (b"\xff" * 8 + b"{}", r"at most \d+ are allowed"),
    "no JSON": (raw(b"{'x': 1}"), "cannot be read as JSON"),
    "a deep header": (raw(b'{"x":' + b"[" * 100_000), "cannot be read as JSON"),
    "a number without end": (raw(b'{"x":' + b"9" * 9999 + b"}"), "cannot be read as JSON"),
    "a list": (raw([1, 2]), "holds a JSON list"),
    "a name twice": (raw(b'{"x": 1, "x": 2}'), "contains 'x' twice"),
    "an entry that is none": (raw({"x": 3}), "x lacks dtype, shape or data_offsets"),
    "below zero": (raw({"x": F32 | {"shape": [-2, -3]}}, b"0" * 24), "must be integers"),
    "true": (raw({"x": F32 | {"shape": [True, 6]}}, b"0" * 24), "integers"),
    "a dtype unheard of": (raw({"x": F32 | {"dtype": "F5"}}, b"0" * 24), "has dtype='F5'"),
    "another size": (raw({"x": F32 | {"shape": [2, 4]}}, b"0" * 24), r"\(2, 4\), which takes 32"),
    "cut off": (raw({"x": F32, "y": F32 | {"data_offsets": [24, 48]}}, b"0" * 40),
                "but has [0-9]+. So 1 of its 2 tensors are incomplete, such as y"),
    "too long": (raw({"x": F32}, b"0" * 27), "3 bytes after its last tensor"),
    "an overlap": (raw({"x": F32, "y": F32 | {"data_offsets": [20, 44]}}, b"0" * 44),
                   "y begins at byte [0-9]+ and overlaps x"),
    "a gap": (raw({"x": F32, "y": F32 | {"data_offsets": [28, 52]}}, b"0" * 52),
              "leaves a gap after x"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_file_that_lies_is_refused(tmp_path, name):
    content, said = LIES[name]
    (tmp_path / "model.safetensors").write_bytes(content)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    with pytest.raises(CheckpointError, match=said):
        Checkpoint(tmp_path)
    if before:
        assert len(os.listdir("/proc/self/fd")) == before, "the file is still open"


def test_a_file_that_shrinks_while_it_is_read(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"x": torch.zeros(100)}, path)
    with Checkpoint(path) as checkpoint:
        os.truncate(path, path.stat().st_size - 4)
        with pytest.raises(CheckpointError, match="in the middle of x"):
            checkpoint.read("x")


INDEXES = {
    "nothing": ({}, "has no weight_map"),
    "no file's name": ({"weight_map": {"x": "../model.safetensors"}}, "is not a file name"),
    "a number": ({"weight_map": {"x": 3}}, "is not a file name"),
    "a file that is not there": (
        {"weight_map": {"x": "a", "y": "b", "z": "b"}},
        r"b \(in the index for 2 tensors, such as y\) cannot be opened: No such file",
    ),
    "a tensor that is not there": ({"weight_map": {"x": "a", "y": "a"}}, "1 tensors .* y, and 0"),
    "a tensor left out": ({"weight_map": {"v": "c"}}, "and 1 of the file are .* such as w"),
}  # fmt: skip


@pytest.mark.parametrize("name", INDEXES)
def test_an_index_that_points_nowhere(tmp_path, name):
    told, said = INDEXES[name]
    (tmp_path / "a").write_bytes(save({"x": torch.ones(2)}))
    (tmp_path / "c").write_bytes(save({"v": torch.ones(2), "w": torch.ones(2)}))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(told))
    with pytest.raises((CheckpointError, FileNotFoundError), match=said):
        Checkpoint(tmp_path)


def test_a_folder_without_weights(tmp_path):
    with pytest.raises(CheckpointError, match=r"holds neither model.safetensors nor"):
        Checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"pytorch_model.bin is a pickle, which can run any"):
        Checkpoint(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no checkpoint at"):
        Checkpoint(tmp_path / "gone")
