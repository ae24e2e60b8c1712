"""`course weights`: what it prints, its exit codes, what it never imports."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from course_lib.pretrained.reader import Checkpoint
from tests.course_lib.checkpoint.deepspeed_parts import SHAPES, made, write
from tests.support.commands import called

pytestmark = pytest.mark.cpu("files that are read without a rank")


def test_one_document_or_a_few_lines(tmp_path, capsys):
    write(tmp_path / "run", 3, 2, made(SHAPES), tied={"head": "table"})
    code, out, err = called(
        capsys, "weights", tmp_path / "run", tmp_path / "json", "--shard-size", "200B", "--json"
    )
    told = json.loads(out)
    assert (code, err) == (0, "")
    files = sorted(path.name for path in (tmp_path / "json").iterdir())
    assert told == {
        "source": {
            "kind": "deepspeed", "path": str(tmp_path / "run" / "step"), "stage": 3, "ranks": 2,
            "release": "0.19.8", "step": 2, "notes": [],
        },
        "folder": str(tmp_path / "json"), "dtypes": ["float32"], "tensors": 5, "bytes": 424,
        "files": files, "tied": {"head": "table"},
    }  # fmt: skip
    assert len(files) == 4 and "model.safetensors.index.json" in files
    code, out, err = called(
        capsys, "weights", tmp_path / "run", tmp_path / "text", "--dtype", "bfloat16"
    )
    assert (code, err) == (0, "")
    assert "from DeepSpeed 0.19.8, stage 3, 2 ranks, step 2" in out
    assert "5 tensors, 212 bytes, bfloat16, in 1 file\n" in out
    assert "head is the same tensor as table, which is written once" in out
    assert "without a config.json" in out
    with Checkpoint(tmp_path / "text") as got:
        assert torch.equal(got.read("norm"), made(SHAPES)["norm"].bfloat16())


def test_what_is_wrong_is_one_line(tmp_path, capsys):
    step = write(tmp_path / "run", 3, 2, made(SHAPES))
    for code, words, match in [
        (2, ("run", "out", "--dtype", "float64"), "--dtype float64 is none of float32, bfloat16"),
        (2, ("run", "out", "--shard-size", "big"), "--shard-size 'big' is not a size. Write"),
        (2, ("nothing", "out"), "there is no checkpoint at"),
        (1, ("run", "out", "--config", "none"), "there is no file none, which was named as the"),
        (1, ("run", "run/step"), "the weights are read from"),
    ]:
        paths = [tmp_path / word if i < 2 else word for i, word in enumerate(words)]
        got, out, err = called(capsys, "weights", *paths)
        assert (got, out) == (code, "") and err.startswith("course weights: ") and match in err
        assert err.count("\n") == 1
    file = step / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    file.write_bytes(file.read_bytes()[:500])
    got, _, err = called(capsys, "weights", tmp_path / "run", tmp_path / "out")
    assert got == 1 and str(file) in err and not (tmp_path / "out").exists()


SCRIPT = """
import sys
for name in ("deepspeed", "transformers", "safetensors"):
    sys.modules[name] = None  # an import of it would raise
from course_classroom.cli import main
main()
"""


def test_neither_deepspeed_nor_transformers_is_needed(tmp_path):
    write(tmp_path / "run", 1, 2, made(SHAPES))
    words = ["weights", str(tmp_path / "run"), str(tmp_path / "out"), "--json"]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True, timeout=120,
        check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["tensors"] == len(SHAPES)
