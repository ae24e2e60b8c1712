"""Files that are damaged, foreign or malicious: each is refused by its name, and nothing is run."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import zipfile
from pathlib import Path

import pytest
import torch

from course_lib.checkpoint.deepspeed_files import DeepSpeedFiles
from course_lib.checkpoint.deepspeed_files.archive import Archive
from course_lib.pretrained.header import CheckpointError
from tests.course_lib.checkpoint.deepspeed_parts import SHAPES, made, write

pytestmark = pytest.mark.cpu("files that are read without a rank")

OPTIMIZER, MODEL = "zero_pp_rank_{}_mp_rank_00_optim_states.pt", "mp_rank_00_model_states.pt"


def all_of(path):
    """Everything in a checkpoint, read."""
    with DeepSpeedFiles(path) as files:
        return {
            (name, quantity): files.read(name, quantity)
            for name in files.tensors
            for quantity in files.quantities
        }


def swapped(file, old, new, where="data.pkl"):
    """Other bytes in a file's pickle, or another record, in a zip whose sums are right again."""
    beside = file.with_suffix(".new")
    with zipfile.ZipFile(file) as archive, zipfile.ZipFile(beside, "w") as changed:
        for record in archive.infolist():
            raw = archive.read(record)
            if record.filename.endswith(where):
                assert old in raw
                raw = raw.replace(old, new)
            changed.writestr(record.filename, raw)
    os.replace(beside, file)


def again(file, edit):
    """The object of a file, changed and saved once more, under DeepSpeed's names."""
    from tests.course_lib.checkpoint.deepspeed_parts import deepspeeds_names

    with deepspeeds_names():
        told = torch.load(file, weights_only=False)
        told = edit(told) or told
        torch.save(told, file)


class Calls:
    """A pickle of it calls `what` when it is read."""

    def __init__(self, what, *args):
        self.call = what, args

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("stage", [2, 3])
def test_a_pickle_that_calls_something_is_refused_and_does_not(tmp_path, stage):
    step = write(tmp_path / "c", stage, 2, made(SHAPES))
    proof = tmp_path / "called"
    for number, what in enumerate([
        Calls(os.system, f"touch {proof}"),
        Calls(exec, f"open({str(proof)!r}, 'w')"),
        Calls(Path.touch, proof),
    ]):  # fmt: skip
        for file in sorted(step.iterdir()):
            shutil.copy(file, tmp_path / "kept")
            again(file, lambda told, what=what: told.update(client=what))
            with pytest.raises(CheckpointError) as caught:
                all_of(tmp_path / "c")
            text = str(caught.value)
            assert str(file) in text and "no code that a file names is run" in text
            assert ("posix.system", "exec", "pathlib.")[number] in text
            assert "weights_only=False" not in text and "\x1b" not in text
            shutil.copy(tmp_path / "kept", file)
    raw = pickle.dumps(Calls(os.system, f"touch {proof}"))
    (step / OPTIMIZER.format(1)).write_bytes(raw)  # no zip at all
    with pytest.raises(
        CheckpointError, match=r"rank_1_mp_rank_00_optim_states.pt \(\d+ bytes\) is not a zip"
    ):
        all_of(tmp_path / "c")
    assert not proof.exists()


def test_another_name_of_deepspeeds_is_refused_by_it(tmp_path):
    step = write(tmp_path, 2, 2, made(SHAPES))
    swapped(step / OPTIMIZER.format(0), b"fragment_address", b"fragment_whatever")
    with pytest.raises(CheckpointError, match=r"tensor_fragment\.fragment_whatever, but no code"):
        all_of(tmp_path)
    # The stand-ins are for these full names, not for whatever is called so elsewhere.
    swapped(step / OPTIMIZER.format(0), b"fragment_whatever", b"LossScaler")
    with pytest.raises(CheckpointError, match=r"deepspeed\.utils\.tensor_fragment\.LossScaler"):
        all_of(tmp_path)


def test_a_changed_bit_is_refused_or_changes_nothing(tmp_path):
    """Some bytes of a zip say nothing, such as what fills it up; no other may change unseen."""
    step = write(tmp_path, 2, 2, made(SHAPES), half=torch.bfloat16)
    want, chance, refused = all_of(tmp_path), random.Random(3), 0
    files = sorted(step.iterdir())
    for number in range(150):
        file = files[number % len(files)]
        raw = bytearray(file.read_bytes())
        raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        shutil.copy(file, tmp_path / "kept")
        file.write_bytes(raw)
        try:
            got = all_of(tmp_path)
        except CheckpointError as error:
            refused += file.name in str(error) or str(step) in str(error)
        else:
            assert got.keys() == want.keys()
            assert all(torch.equal(got[key], want[key]) for key in want), number
        shutil.copy(tmp_path / "kept", file)
    assert refused > 50


def test_a_zip_that_was_packed_again(tmp_path):
    """A zip tool presses; torch cannot read that by ranges, and neither can this."""
    step = write(tmp_path, 2, 1, made(SHAPES))
    file = step / OPTIMIZER.format(0)
    with zipfile.ZipFile(file) as plain:
        records = {record.filename: plain.read(record) for record in plain.infolist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, raw in records.items():
            packed.writestr(name, raw)
    with pytest.raises(CheckpointError, match=f"{file.name}: .* was packed by a different program"):
        all_of(tmp_path)


def test_a_file_without_sums_is_taken_as_it_is(tmp_path):
    from torch.utils.serialization import config

    with config.patch("save.compute_crc32", False):
        write(tmp_path, 3, 2, made(SHAPES))
    with DeepSpeedFiles(tmp_path) as files:
        assert torch.equal(files.read("table"), made(SHAPES)["table"])


def test_files_that_do_not_belong_together(tmp_path):
    tensors = made(SHAPES)
    two, three = write(tmp_path / "2", 2, 2, tensors), write(tmp_path / "3", 2, 3, tensors)
    third = write(tmp_path / "s", 3, 2, tensors)
    cases = [
        # what is copied where, what is taken away, what is said
        (two, [], [OPTIMIZER.format(0)], rf"{OPTIMIZER.format(0)} is missing, but rank 1's"),
        (three, [], [OPTIMIZER.format(1)], rf"{OPTIMIZER.format(1)} is missing"),
        (three, [], [OPTIMIZER.format(2)], "is one of 3 ranks' files, but .* has 2; the files are"),
        (two, [(three, OPTIMIZER.format(1))], [], r"rank_1.*is of stage 2 on 3 ranks.*on 2, with"),
        (two, [(third, OPTIMIZER.format(1))], [], "rank_1.*is of stage 3 on 2 ranks"),
        (two, [(three, OPTIMIZER.format(2))], [], "is one of 2 ranks' files, but .* has 3"),
        (two, [], [MODEL], "has no mp_rank_00_model_states.pt, nor zero_pp_rank_0_mp_rank_00"),
        (
            two,
            [],
            [OPTIMIZER.format(0), OPTIMIZER.format(1)],
            r"stage 0, .*\['module'\].*ds_to_universal",
        ),
        (third, [], [f"zero_pp_rank_0_{MODEL}"], f"zero_pp_rank_0_{MODEL} is missing"),
        (third, [], [f"zero_pp_rank_1_{MODEL}"], "2 ranks saved at stage 3, but only 1 model"),
    ]
    for number, (step, copied, gone, match) in enumerate(cases):
        folder = tmp_path / f"case {number}"
        shutil.copytree(step, folder)
        for other, name in copied:
            shutil.copy(other / name, folder / name)
        for name in gone:
            (folder / name).unlink()
        with pytest.raises(CheckpointError, match=match):
            all_of(folder)
    smaller = write(tmp_path / "smaller", 2, 2, made({**SHAPES, "table": (9, 5)}))
    shutil.copy(smaller / MODEL, two / MODEL)
    with pytest.raises(
        CheckpointError, match="need 96 elements of master in group 0, but there are 106"
    ):
        all_of(tmp_path / "2")
    shutil.copy(two / OPTIMIZER.format(0), two / f"bf16_{OPTIMIZER.format(0)}")
    with pytest.raises(CheckpointError, match="both of rank 0, because two runs saved into one"):
        all_of(tmp_path / "2")


def test_kinds_of_checkpoint_that_are_not_read(tmp_path):
    step = write(tmp_path / "c", 2, 2, made(SHAPES))
    top = tmp_path / "c"
    for name, match in [
        ("mp_rank_01_model_states.pt", "mp_rank_01.*tensor, pipeline or expert parallelism"),
        ("layer_00-model_00-model_states.pt", "layer_00.*tensor, pipeline or expert parallelism"),
        ("layer_0_expert_0_mp_rank_00_model_states.pt", "layer_0_expert.*expert parallelism"),
        ("zero_pp_rank_0_mp_rank_01_optim_states.pt", "mp_rank_01.*tensor, pipeline"),
    ]:
        (step / name).write_bytes(b"")
        with pytest.raises(CheckpointError, match=match):
            all_of(top)
        (step / name).unlink()
    (step / "offloaded_tensors").mkdir()
    with pytest.raises(
        CheckpointError, match="offloaded_tensors shows that this run kept its optimizer on NVMe"
    ):
        all_of(top)


def test_latest_names_a_folder_beside_it(tmp_path):
    write(tmp_path / "c", 2, 1, made(SHAPES))
    outside = write(tmp_path / "other", 2, 1, made(SHAPES, 1), tag="elsewhere")
    latest = tmp_path / "c" / "latest"
    for name in ("gone", "", ".", "..", f"../other/{outside.name}", str(outside), "a\0b"):
        latest.write_text(name)
        with pytest.raises(CheckpointError, match=r"no file `latest` that names.*there is step"):
            all_of(tmp_path / "c")
    latest.unlink()
    with pytest.raises(CheckpointError, match=r"no file `latest` that names.*there is step"):
        all_of(tmp_path / "c")
    with pytest.raises(CheckpointError, match="nothing does not exist"):
        all_of(tmp_path / "nothing")


@pytest.mark.parametrize(("edit", "match"), [
    (lambda told: [1], "is not a DeepSpeed optimizer file"),
    (lambda told: told["optimizer_state_dict"].pop("partition_count") and None, "KeyError: 'part"),
    (lambda told: told["optimizer_state_dict"].update(partition_count=[1, 2]), r"over \[1, 2\]"),
    (lambda told: told["optimizer_state_dict"].update(single_partition_of_fp32_groups=[3]),
     "a master copy is int instead of a dense tensor"),
    (lambda told: told["optimizer_state_dict"]["base_optimizer_state"]["state"][0].update(
        exp_avg=torch.zeros(3)), "exp_avg of group 0 has 3 elements, but its master copy has 106"),
    (lambda told: told["optimizer_state_dict"]["base_optimizer_state"]["state"][0].update(
        exp_avg=torch.zeros(106, 2)[:, 0]), "exp_avg of group 0 is not stored as one piece"),
    (lambda told: told["optimizer_state_dict"].update(base_optimizer_state={}),
     "KeyError: 'param_groups'"),
])  # fmt: skip
def test_an_optimizer_file_of_another_build(tmp_path, edit, match):
    step = write(tmp_path, 2, 1, made(SHAPES))
    again(step / OPTIMIZER.format(0), edit)
    with pytest.raises(CheckpointError, match=match) as caught:
        all_of(tmp_path)
    assert OPTIMIZER.format(0) in str(caught.value)


def test_a_model_file_of_another_build(tmp_path):
    step = write(tmp_path, 2, 1, made(SHAPES))
    again(step / MODEL, lambda told: told.pop("shared_params") and None)
    with pytest.raises(CheckpointError, match=f"{MODEL} is not a model.*without shared_params"):
        all_of(tmp_path)
    for change in ({"shared_params": {}, "param_shapes": [3]}, {"param_shapes": [{"table": 3}]}):
        again(step / MODEL, lambda told, change=change: told.update(change))
        with pytest.raises(CheckpointError, match=rf"{MODEL} does not have the.*zero_to_fp32\.py"):
            all_of(tmp_path)


def test_another_byte_order(tmp_path, monkeypatch):
    """torch would turn the bytes of tensors that have none here, and end the process."""
    step = write(tmp_path, 2, 1, made(SHAPES))
    swapped(step / MODEL, b"little", b"big", "byteorder")
    monkeypatch.setattr(torch, "load", lambda *a, **k: pytest.fail("torch reads it"))
    with pytest.raises(CheckpointError, match=rf"{MODEL} was written in byte order 'big'"):
        Archive(step / MODEL)


def test_a_view_that_leaves_its_record(tmp_path):
    """torch itself refuses a view beyond its storage; so does the reader, if torch did not."""
    torch.save({"x": torch.arange(6.0), "y": torch.arange(9.0)}, tmp_path / "x.pt")
    archive = Archive(tmp_path / "x.pt")
    x, y = archive.content["x"], archive.content["y"]
    assert archive.flat(x, "x").count == 6
    storage = x.untyped_storage()
    for offset in (storage._checkpoint_offset + 64, y.untyped_storage()._checkpoint_offset):
        storage._checkpoint_offset = offset
        with pytest.raises(CheckpointError, match="x is not stored as one piece in a record"):
            archive.flat(x, "x")
    del storage._checkpoint_offset
    with pytest.raises(CheckpointError, match="does not report the position of a tensor in a file"):
        archive.flat(x, "x")
    archive.close()
