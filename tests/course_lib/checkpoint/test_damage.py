"""A checkpoint that is damaged, of something else, or no checkpoint: all ranks say the same, with
the file and what to do, nothing has changed, and nothing is executed."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from course_lib import checkpoint
from course_lib.checkpoint import checksums
from course_lib.pretrained.header import CheckpointError
from tests.course_lib.checkpoint.parts import Layout, engine_of, losses

LAYOUT = Layout("2x1", 2)
NONE_BEFORE = "; there is no earlier checkpoint, so start again in a different folder"


class Marked:
    """A pickle that makes a file when it is opened."""

    def __init__(self, marker: str):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def flipped(at: float):
    def harm(path: Path) -> None:
        raw = bytearray(path.read_bytes())
        raw[int(at * (len(raw) - 1))] ^= 4
        path.write_bytes(raw)

    return harm


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps(Marked(f"{path.parent.parent / 'executed'}")))


def saved_by_torch(path: Path) -> None:
    torch.save({"model": Marked(f"{path.parent.parent / 'executed'}")}, path)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def newer(path: Path) -> None:
    path.write_text(path.read_text().replace('"form": 3', '"form": 4'))


def again(path: Path) -> None:
    """Another form, and the sums are those of it."""
    newer(path)
    text = path.parent / checksums.SUMS
    lines = [line for line in text.read_text().splitlines() if not line.endswith(path.name)]
    text.write_text(
        "\n".join([*lines, f"{checksums.of_bytes(path.read_bytes())}  {path.name}"]) + "\n"
    )


SMALL = ("config.json", "tensors.json", "training.json", "SHA256SUMS")
SMALL += ("model.safetensors.index.json", "optimizer.safetensors.index.json")
SHARDS = ("model-00001-of-", "model-00003-of-", "optimizer-00002-of-")
HARMS = {
    **{f"{name} is missing": (name, Path.unlink) for name in (*SMALL, *SHARDS)},
    **{f"{name} is flipped": (name, flipped(0.3)) for name in SMALL},
    **{f"{name} is a pickle": (name, pickled) for name in (*SMALL, *SHARDS)},
    **{f"{name} is of torch.save": (name, saved_by_torch) for name in (*SMALL[1:4], *SHARDS)},
    **{f"{name} is cut off": (name, cut) for name in (*SMALL, *SHARDS)},
    **{f"{name} is empty": (name, empty) for name in SHARDS[:2]},
    **{f"{name} is flipped in its header": (name, flipped(0.01)) for name in SHARDS},
    "newer": ("training.json", newer),
    "newer tensors": ("tensors.json", again),
}
LATE = {f"{name} is flipped in a tensor": (name, flipped(0.9)) for name in SHARDS}


def refusal(path: str, engine, mesh) -> str:
    """The one message of all ranks."""
    message = None
    try:
        checkpoint.load(path, engine, mesh)
    except CheckpointError as error:
        message = str(error)
    messages: list = [None] * dist.get_world_size()
    dist.all_gather_object(messages, message)
    assert len(set(messages)) == 1 and message is not None, (path, messages)
    return message


def harmed(me, folder: str) -> dict[str, str]:
    """What is said of each harm done to a copy of one checkpoint; the engine is what it was."""
    found, top = {}, Path(folder)
    with engine_of(me, LAYOUT, folder) as (engine, mesh):
        losses(engine, mesh, 0, 1)
        good = checkpoint.save(top / "good", 1, engine, mesh, shard_bytes=9000)
        want = losses(engine, mesh, 1, 1)
    with engine_of(me, LAYOUT, folder, seed="another") as (engine, mesh):
        before = {name: x.clone() for name, x in engine.own_tensors()}
        for name, (file, harm) in (HARMS | LATE).items():
            path = top / name.replace(" ", "-") / "step-000001"
            if me.rank == 0:
                shutil.copytree(good, path)
                (place,) = [one for one in path.iterdir() if one.name.startswith(file)]
                harm(place)
            dist.barrier()
            found[name] = refusal(str(path), engine, mesh)
            after = dict(engine.own_tensors())
            if name in HARMS:
                assert before.keys() == after.keys(), name
                assert all(torch.equal(x, after[key]) for key, x in before.items()), name
        checkpoint.load(good, engine, mesh)
        assert losses(engine, mesh, 1, 1) == want
    return found


def test_whatever_is_damaged_is_named_on_all_ranks(pool, tmp_path):
    found = pool.run(2, harmed, str(tmp_path), timeout=120)[0]
    assert not list(tmp_path.rglob("executed"))  # no pickle was opened
    for name, (file, _) in (HARMS | LATE).items():
        path, message = tmp_path / name.replace(" ", "-") / "step-000001", found[name]
        if not name.startswith("newer") and name != "training.json is missing":
            assert message.endswith(NONE_BEFORE), message
        if file in ("config.json", *SMALL[4:]) or "safetensors" in file or file in SHARDS:
            assert f"{path}/{file}" in message, message
        with pytest.raises(CheckpointError):
            checkpoint.check(path)
    for name in LATE:
        assert " is damaged in " in found[name] and "the CRC-32 of its bytes is" in found[name]
        assert "weights of this engine may be partly replaced, so create it again" in found[name]
    for shard in SHARDS:
        assert "cannot be read (No such file" in found[f"{shard} is missing"]
        assert " bytes, but " in found[f"{shard} is cut off"]
        assert "is damaged in its header" in found[f"{shard} is flipped in its header"]
    assert "has no line for training.json" in found["SHA256SUMS is cut off"]
    assert "SHA256SUMS, line 1, is not" in found["SHA256SUMS is a pickle"]
    assert "which has the checksums of" in found["SHA256SUMS is missing"]
    for file in SMALL[4:]:
        assert f"{file} cannot be read (No such file" in found[f"{file} is missing"]
    form = "has format 4, but this course_lib reads format 3; use the newer course_lib"
    assert form in found["newer"] and form[:46] in found["newer tensors"]


def no_checkpoints(me, folder: str) -> dict[str, str]:
    """What is said of what is no checkpoint at all."""
    top = Path(folder)
    with engine_of(me, LAYOUT, folder) as (engine, mesh):
        path = checkpoint.save(top / "run", 1, engine, mesh)
        if me.rank == 0:
            (top / "weights").mkdir()
            for name in ("config.json", "model.safetensors"):
                shutil.copy(path / name, top / "weights")
            (top / "pickles").mkdir()
            saved_by_torch(top / "pickles" / "mp_rank_00_model_states.pt")
            (top / "nothing").mkdir()
        dist.barrier()
        places = {
            "hub": "openai-community/gpt2",
            "file": str(top / "pickles" / "mp_rank_00_model_states.pt"),
            **{name: str(top / name) for name in ("run", "weights", "pickles", "nothing")},
        }
        return {name: refusal(place, engine, mesh) for name, place in places.items()}


def test_what_is_no_checkpoint_is_told_apart(pool, tmp_path):
    found = pool.run(2, no_checkpoints, str(tmp_path))[0]
    want = {
        "hub": "openai-community/gpt2 is not a folder on this disk, and nothing is downloaded from "
        "a hub; name a checkpoint's folder, or start from weights of a hub with ",
        "file": "model_states.pt is a file, but a checkpoint is a folder; a file of torch.save is ",
        "run": f"{tmp_path}/run is a folder of checkpoints. Name one of them: step-000001",
        "weights": f"{tmp_path}/weights has weights but no training.json, so no training can ",
        "pickles": "has no training.json. mp_rank_00_model_states.pt is a pickle that can run ",
        "nothing": f"{tmp_path}/nothing has no training.json, so it is not a checkpoint; ",
    }
    for name, text in want.items():
        assert text in found[name], name
    assert not list(tmp_path.rglob("executed"))
