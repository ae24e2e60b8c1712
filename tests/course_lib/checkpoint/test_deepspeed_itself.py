"""The reader against DeepSpeed's own files and its own tools: masters, moments, zero_to_fp32."""

from __future__ import annotations

import pytest
import torch

from course_lib.checkpoint.deepspeed_files import STAND_INS, DeepSpeedFiles
from tests.course_lib.checkpoint.deepspeed_parts import trained
from tests.course_lib.peers.then_and_now import parts
from tests.course_lib.peers.then_and_now.parts import meet, needs_deepspeed

pytestmark = needs_deepspeed
BF16 = {"bf16": {"enabled": True}}
ALIGNED, ELASTIC = {"parameter_alignment": True}, {"elastic_checkpoint": True}
HOST = {"offload_optimizer": {"device": "cpu"}}
# Name of the run: stage and what else its config has.
FEW = {
    "1": {"stage": 1},
    "2": {"stage": 2, "zero": {"round_robin_gradients": True, **ALIGNED}, "groups": True, **BF16},
    "3": {"stage": 3, "zero": {"sub_group_size": 40}, "groups": True},
}
MANY = {
    "1": {"stage": 1}, "1 bf16": {"stage": 1, "zero": ALIGNED, **BF16},
    "1 float32 sums": {"stage": 1, "data_types": {"grad_accum_dtype": "fp32"}, **BF16},
    "2": {"stage": 2}, "2 bf16": {"stage": 2, **BF16},
    "2 elastic": {"stage": 2, "zero": ELASTIC, "groups": True, **BF16},
    "1 elastic": {"stage": 1, "zero": ELASTIC},
    "3": {"stage": 3}, "3 bf16": {"stage": 3, **BF16},
    "2 host": {"stage": 2, "zero": HOST, "zero_force_ds_cpu_optimizer": False},
    "3 host": {"stage": 3, "zero": HOST, "zero_force_ds_cpu_optimizer": False},
    "3 kept whole": {"stage": 3, "zero": {"stage3_param_persistence_threshold": 100_000}},
}  # fmt: skip


def runs(me, folder, jobs):
    """Train and save each; what DeepSpeed's own tools say of the files, and what they name."""
    deepspeed = meet(me)
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    named = set()
    for name, options in jobs.items():
        want = trained(deepspeed, me, f"{folder}/{name}", **options)
        torch.distributed.barrier()
        if me.rank == 0:
            torch.save(want, f"{folder}/{name}.want")
            for file in _files(folder, name):
                named |= set(torch.serialization.get_unsafe_globals_in_checkpoint(str(file)))
            if name != "1 float32 sums":  # which their tool takes for no checkpoint of ZeRO
                whole = get_fp32_state_dict_from_zero_checkpoint(f"{folder}/{name}")
                torch.save(whole, f"{folder}/{name}.fp32")
    if me.rank == 0:  # fp16 does not run on a CPU: their scaler into a file that is theirs
        scaler = DynamicLossScaler(2.0**12, 1000, 1, 2, False)
        for file in _files(folder, "2", "*optim_states.pt"):
            told = torch.load(file, weights_only=False)
            told["optimizer_state_dict"]["loss_scaler"] = scaler
            torch.save(told, file)
            named |= set(torch.serialization.get_unsafe_globals_in_checkpoint(str(file)))
    torch.distributed.barrier()
    return sorted(named)


def _files(folder, name, pattern="*.pt"):
    from pathlib import Path

    return sorted(Path(folder, name).glob(f"*/{pattern}"))


def check(folder, name, options):
    want = torch.load(folder / f"{name}.want", weights_only=True)
    with DeepSpeedFiles(folder / name) as files:
        assert (files.stage, files.world) == (options["stage"], 2)
        trained = [n for n, one in files.tensors.items() if one.kind == "trained"]
        assert set(trained) == want["exp_avg"].keys()
        for quantity, tensors in want.items():
            assert len(tensors) >= 7
            for key, x in tensors.items():
                got = files.read(key, quantity).float()
                assert got.shape == x.shape and torch.equal(got, x), (name, quantity, key)
        assert all(files.scalars(n) == {"step": 2.0} for n in trained)
        assert files.tied == {"head.weight": "table.weight"}
        if not (folder / f"{name}.fp32").exists():
            return
        theirs = torch.load(folder / f"{name}.fp32", weights_only=True)
        ours = {key: files.read(key) for key in files.tensors}
    ours |= {key: ours[of] for key, of in files.tied.items()}
    # Stage 1 keeps frozen weights in the module alone, and their tool leaves them out.
    more = {"frozen.weight", "frozen.bias"} if options["stage"] == 1 else set()
    assert ours.keys() - theirs.keys() == more and theirs.keys() <= ours.keys()
    for key, x in theirs.items():
        got = ours[key].float() if x.is_floating_point() else ours[key]
        assert torch.equal(got, x), (name, key)


def test_each_stage_as_deepspeed_has_it(pool, tmp_path):
    """Masters and moments are what the engine holds, and the weights what zero_to_fp32 makes."""
    named = parts.run(pool, 2, runs, str(tmp_path), FEW)[0]
    assert named == sorted(STAND_INS)  # all that the installed release names, and no more
    for name, options in FEW.items():
        check(tmp_path, name, options)
    with DeepSpeedFiles(tmp_path / "2") as files:
        assert files.steps == 2


@pytest.mark.slow
def test_every_setting_that_lays_them_out_otherwise(pool, tmp_path):
    named = parts.run(pool, 2, runs, str(tmp_path), MANY)[0]
    assert named == sorted(STAND_INS)
    for name, options in MANY.items():
        check(tmp_path, name, options)
