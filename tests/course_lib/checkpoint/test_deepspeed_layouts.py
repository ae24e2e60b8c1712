"""DeepSpeed's files as logical tensors: stages, worlds, groups, paddings; bytes and memory."""

from __future__ import annotations

import os

import pytest
import torch

from course_lib.checkpoint.deepspeed_files import DeepSpeedFiles, archive
from tests.course_lib.checkpoint.deepspeed_parts import SHAPES, made, moment, write

pytestmark = pytest.mark.cpu("files that are read without a rank")

FROZEN = {"frozen": (3, 4), "bias": (1,)}
BUFFERS = {"count": torch.tensor([3]), "mean": torch.arange(5.0), "on": torch.tensor(True)}


def same(files, tensors, moments=2):
    """Every element of every quantity, whole and in rows."""
    for name, x in tensors.items():
        for number, quantity in enumerate(("master", "exp_avg", "exp_avg_sq")[: 1 + moments]):
            want = x if number == 0 else moment(x, number - 1)
            got = files.read(name, quantity)
            assert got.dtype == torch.float32 and got.shape == x.shape
            assert torch.equal(got, want), (name, quantity)
            for start in range(len(x) if x.ndim else 0):
                rows = files.rows(name, start, min(start + 2, len(x)), quantity)
                assert torch.equal(rows, want[start : start + 2]), (name, quantity, start)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_every_stage_at_every_world(tmp_path, stage, world):
    tensors, frozen = made(SHAPES), made(FROZEN, 1)
    write(
        tmp_path, stage, world, tensors, frozen=frozen, buffers=BUFFERS,
        tied={"head.weight": "table"},
    )  # fmt: skip
    with DeepSpeedFiles(tmp_path) as files:
        assert (files.stage, files.world, files.release) == (stage, world, "0.19.8")
        assert files.path == tmp_path / "step"
        assert files.quantities == ("master", "exp_avg", "exp_avg_sq")
        assert list(files.tensors) == [*BUFFERS, *tensors, *frozen]  # the model's order
        assert files.tied == {"head.weight": "table"}
        same(files, tensors)
        kinds = {name: one.kind for name, one in files.tensors.items()}
        for name, want in {**frozen, **BUFFERS}.items():
            assert torch.equal(files.read(name), want)
            assert kinds[name] == ("buffer" if name in BUFFERS else "frozen")
            assert files.scalars(name) == {}
        assert files.scalars("norm") == {"step": 2.0} and files.steps == 2
    with DeepSpeedFiles(tmp_path / "step") as files:  # the folder of the step itself
        same(files, tensors)


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("gap", [1, 8])
def test_groups_sixteen_bits_and_what_pads_them(tmp_path, stage, gap):
    tensors, frozen = made(SHAPES), made(FROZEN, 1)
    groups = [["norm", "table", "scale"], ["up.weight", "up.bias"]]  # another order, too
    write(
        tmp_path, stage, 3, tensors, groups=groups, frozen=frozen, half=torch.bfloat16, gap=gap,
        elastic=stage == 1, scaler="DynamicLossScaler",
    )  # fmt: skip
    with DeepSpeedFiles(tmp_path) as files:
        same(files, tensors)
        assert list(files.tensors) == [*tensors, *frozen]
        assert files.dtype("table") == torch.float32
        assert torch.equal(files.read("frozen"), frozen["frozen"].bfloat16())


def test_before_the_first_step_there_are_masters_alone(tmp_path):
    tensors = made(SHAPES)
    write(tmp_path, 2, 2, tensors, moments=())
    with DeepSpeedFiles(tmp_path) as files:
        assert files.quantities == ("master",) and files.scalars("table") == {}
        same(files, tensors, moments=0)
        with pytest.raises(ValueError, match="table is trained and has no exp_avg, only master"):
            files.read("table", "exp_avg")
        with pytest.raises(ValueError, match="has no tensor 'tables'"):
            files.read("tables")


def test_each_record_is_checked_once_and_then_read_by_ranges(tmp_path, monkeypatch):
    tensors = made({f"w{i}": (300, 100) for i in range(8)})
    write(tmp_path, 2, 2, tensors)
    asked, some = [0], archive.Archive._some

    def counted(self, at, most):
        piece = some(self, at, most)
        asked[0] += len(piece)
        return piece

    with DeepSpeedFiles(tmp_path) as files:
        monkeypatch.setattr(archive.Archive, "_some", counted)
        files.read("w0")
        own, share = 4 * 300 * 100, 4 * 4 * 300 * 100  # rank 0's share of the masters is checked
        assert asked[0] == share + own
        files.read("w1")
        assert asked[0] == share + 2 * own
        files.rows("w7", 0, 3)
        assert asked[0] == 2 * share + 2 * own + 4 * 300  # rank 1's, once


def descriptors():
    return len(os.listdir("/dev/fd"))


def test_nothing_stays_allowed_and_nothing_stays_open(tmp_path):
    write(tmp_path, 3, 2, made(SHAPES))
    before, files_before = set(torch.serialization.get_safe_globals()), descriptors()
    with DeepSpeedFiles(tmp_path):
        assert set(torch.serialization.get_safe_globals()) == before
        assert descriptors() == files_before + 4
    assert descriptors() == files_before
    (tmp_path / "step" / "zero_pp_rank_1_mp_rank_00_optim_states.pt").write_bytes(b"")
    with pytest.raises(ValueError, match="zero_pp_rank_1"):
        DeepSpeedFiles(tmp_path)
    assert set(torch.serialization.get_safe_globals()) == before
    assert descriptors() == files_before


def test_of_many_ranks_few_files_are_open(tmp_path):
    tensors = made({**SHAPES, "table": (48, 3)})
    step = write(tmp_path, 3, 48, tensors)
    before = descriptors()
    with DeepSpeedFiles(tmp_path) as files:
        same(files, tensors)
        files.read("table")  # from the first rank to the last one
        assert before < descriptors() <= before + 32
        first = step / "zero_pp_rank_0_mp_rank_00_optim_states.pt"
        raw = first.read_bytes()
        first.unlink()
        first.write_bytes(raw)
        with pytest.raises(ValueError, match=rf"{first.name} was replaced while it was being read"):
            files.read("table")
