"""What is no GPT goes on alike too: buffers, tied, frozen and unused parameters, every optimizer,
schedules; each tensor is in the files once, and its size is the closed form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from course_lib import checkpoint
from course_lib.pretrained.reader import Checkpoint
from tests.course_lib.checkpoint.odd import OPTIMIZERS, Odd, odd_engine, odd_losses

KINDS = {"1-0": (1, 0), "2-0": (2, 0), "2-2": (2, 2), "3-1": (3, 1), "3-3": (3, 3)}
NUMBERS = 5 * 7 + 5 + 5 + 5 + 5 * 7 + 7 + 5 + 3 * 11 + 1  # trained; the frozen layer has 18 more
USED = NUMBERS - 3 * 11
STATES = {"AdamW": 2, "amsgrad": 3, "momentum": 1, "SGD": 0}


def scheduled(engine):
    return torch.optim.lr_scheduler.LambdaLR(engine.optimizer, lambda step: 0.5**step)


def saved_odd(me, stage: int, folder: str, optimizers: list[str]) -> dict[str, list[float]]:
    after = {}
    for kind in optimizers:
        with odd_engine(me, stage, kind) as (engine, mesh):
            schedule = scheduled(engine)
            odd_losses(engine, 0, 2)
            schedule.step()
            state = {k: v for k, v in schedule.state_dict().items() if k != "lr_lambdas"}
            record, name = {"schedule": state}, f"{folder}/{kind}"
            checkpoint.save(name, 2, engine, mesh, record=record, shard_bytes=400)
            after[kind] = odd_losses(engine, 2, 2)
    return after


def gone_on_odd(me, stage: int, folders: list[str], optimizers: list[str]) -> dict:
    after = {}
    for folder in folders:
        for kind in optimizers:
            with odd_engine(me, stage, kind, seed="another one") as (engine, mesh):
                schedule = scheduled(engine)  # which sets the rates: so before they are read
                record = checkpoint.load(f"{folder}/{kind}/step-000002", engine, mesh)
                schedule.load_state_dict({**record["schedule"], "lr_lambdas": [None] * 2})
                assert schedule.last_epoch == 1
                rates = [group["lr"] for group in engine.optimizer.param_groups]
                module = engine.module
                buffers = [module.mask.tolist(), module.counts.tolist(), module.own.tolist()]
                buffers.append(module.norm.running_mean.tolist())
                after[folder, kind] = odd_losses(engine, 2, 2), rates, buffers
    return after


@pytest.mark.parametrize(
    ("layouts", "optimizers"),
    [
        pytest.param(["1-0", "2-2", "3-3"], ["AdamW", "momentum"], id="some"),
        pytest.param(list(KINDS), list(OPTIMIZERS), id="all", marks=pytest.mark.slow),
    ],
)
def test_any_model_goes_on_at_any_layout(pool, tmp_path, layouts, optimizers):
    want, some = {}, {name: KINDS[name] for name in layouts}
    for name, (world, stage) in some.items():
        saved = pool.run(world, saved_odd, stage, str(tmp_path / name), optimizers)[0]
        for kind, values in saved.items():
            want[name, kind] = values
    for (name, kind), values in want.items():
        assert values == pytest.approx(want["1-0", kind], abs=1e-9), (name, kind)
    folders = [str(tmp_path / name) for name in some]
    for name, (world, stage) in some.items():
        for every in pool.run(world, gone_on_odd, stage, folders, optimizers, timeout=60):
            for (folder, kind), (values, rates, buffers) in every.items():
                where = (name, Path(folder).name, kind)
                assert values == pytest.approx(want["1-0", kind], abs=1e-9), where
                if Path(folder).name == name:  # the same layout, bit for bit
                    assert values == want[name, kind], where
                lr = OPTIMIZERS[kind]([torch.zeros(1)]).param_groups[0]["lr"]
                assert rates == [lr / 2, lr / 2], where
                mask = [n != 0 for n in range(5)]  # of the seed "start": 5 letters
                assert buffers[:3] == [mask, [5, 6, 7, 8], [1.0, 1.0]], where
    for name, kind in want:
        held_in_files(tmp_path / name / kind / "step-000002", kind, KINDS[name][1])


def held_in_files(path: Path, kind: str, stage: int) -> None:
    """All that there is, once: the tied weight under one name, no state of what has none."""
    assert len(list(path.glob("model-*.safetensors"))) > 1
    with Checkpoint(path / "model.safetensors.index.json") as model:
        buffers = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
        buffers |= {"mask", "counts"}
        names = {name for name, _ in Odd().named_parameters()}
        extra = set(model.slots) - names - buffers
        assert names | buffers <= set(model.slots) and extra <= {"again.weight"}
        total = sum(slot.stop - slot.start for slot in model.slots.values())
        tied = 8 * 35 if extra else 0
        assert total - tied == 8 * (NUMBERS + 18 + 10) + 5 + 4 * 8 + 8
    states = 0
    for file in path.glob("optimizer*.safetensors"):
        with Checkpoint(file) as one:
            states += sum(slot.stop - slot.start for slot in one.slots.values())
            assert not any(name.startswith("frozen") for name in one.slots)
    # A parameter without a gradient has no state at stage 0; where a bucket is cut, zeros are one.
    assert states in (8 * STATES[kind] * USED, 8 * STATES[kind] * NUMBERS), (states, stage)
    record = json.loads((path / "training.json").read_text())
    assert record["optimizer"] in ("AdamW", "SGD")
    if kind in ("AdamW", "amsgrad"):
        assert record["scalars"]["factor"] == {"step": [2.0, "float32"]}
