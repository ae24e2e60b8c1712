"""From one precision to another and back: masters and moments stay bit for bit, the 16-bit weights
are their rounding; at the same layout all is, and a loss scale goes along where there is one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from course_lib import checkpoint
from course_lib.gpt import GPT
from course_lib.pretrained.reader import Checkpoint
from tests.course_lib.checkpoint.parts import FAMILIES, Layout, engine_of, losses

SHORT = {"as is": "float32", "bfloat16": "bfloat16", "float16": "float16"}
ROADS = {  # precisions one after another, each at a layout of its own; the dtype of the model
    "bfloat16": (["as is", "bfloat16", "as is"], torch.float32),
    "float16": (["as is", "float16", "bfloat16", "as is"], torch.float32),
    "from 16 bits": (["bfloat16", "as is", "float16"], torch.float32),
    "float64": (["as is", "as is"], torch.float64),
}
LAYOUTS = [("2x1", 2, None), ("1x2", 1, "cpu"), ("2x1", 3, None), ("2x1", 0, None)]


def road(me, folder: str, name: str) -> list[float]:
    """Save and load along the road without a step between; the loss after each load."""
    precisions, dtype = ROADS[name]
    after, before = [], None
    for number, precision in enumerate(precisions):
        layout = Layout(*LAYOUTS[number], precision)
        seed = "start" if number == 0 else "another"
        with engine_of(me, layout, folder, "gpt2", dtype, seed) as (engine, mesh):
            if before is None:
                steps = 0
                while steps - engine.skipped < 2:
                    losses(engine, mesh, steps, 1)
                    steps += 1
            else:
                checkpoint.load(before, engine, mesh)
            before = checkpoint.save(f"{folder}/{number}", 9, engine, mesh)
            after.append(losses(engine, mesh, 20, 1)[0])
    return after


def updated(path: Path) -> dict[str, torch.Tensor]:
    """What the optimizer works on: masters where there are some, and the states."""
    found = {}
    with Checkpoint(path / "optimizer.safetensors") as states:
        found = {name: states.read(name) for name in states.slots}
    with Checkpoint(path / "model.safetensors") as model:
        weights = {name: model.read(name) for name in model.slots}
    return {**{f"weights {name}": x for name, x in weights.items()}, **found}


OURS = {  # name of Hugging Face's: ours, and whether it is the transposed one
    "transformer.wte.weight": ("tokens.weight", False),
    "transformer.h.1.mlp.c_fc.weight": ("blocks.1.mlp.up.weight", True),
    "transformer.h.0.ln_1.bias": ("blocks.0.norm_1.bias", False),
}


def full(tensors: dict, name: str) -> torch.Tensor:
    """A weight in all the bits that the training has of it, as Hugging Face has it."""
    ours, turned = OURS[name]
    master = tensors.get(f"{ours}:master")
    if master is None:
        return tensors[f"weights {name}"]
    return master.t() if turned else master


@pytest.mark.parametrize("name", ROADS)
def test_another_precision_keeps_masters_and_moments_to_the_bit(pool, tmp_path, name):
    after = pool.run(2, road, str(tmp_path), name)[0]
    precisions, dtype = ROADS[name]
    saved = [updated(tmp_path / f"{n}/step-000009") for n in range(len(precisions))]
    moments = {key for key in saved[0] if key.endswith((":exp_avg", ":exp_avg_sq"))}
    assert len(moments) == 2 * sum(1 for p in GPT(FAMILIES["gpt2"]).parameters())
    for tensors, precision in zip(saved, precisions, strict=True):
        half = precision != "as is"
        for key in moments:
            assert tensors[key].dtype == dtype and torch.equal(tensors[key], saved[0][key]), key
        for weight in OURS:
            assert torch.equal(full(tensors, weight), full(saved[0], weight)), weight
            stored = tensors[f"weights {weight}"]
            want = getattr(torch, SHORT[precision]) if half else dtype
            assert stored.dtype == want
            assert torch.equal(stored, full(saved[0], weight).to(want)), weight
        assert any(key.endswith(":master") for key in tensors) == half
    bound = 1e-9 if dtype == torch.float64 else 2e-2
    assert after == pytest.approx([after[0]] * len(after), abs=bound)


def again(me, folder: str, precision: str, stage: int) -> list:
    layout, found = Layout("2x1", stage, None, precision), []
    for number in (0, 1):
        seed = "start" if number == 0 else "another"
        with engine_of(me, layout, folder, "llama", torch.float32, seed) as (engine, mesh):
            if number == 0:
                losses(engine, mesh, 0, 5)
                checkpoint.save(folder, 5, engine, mesh)
            else:
                checkpoint.load(f"{folder}/step-000005", engine, mesh)
            counters = json.dumps(engine.counters(), sort_keys=True)
            own = {text: x.clone() for text, x in engine.own_tensors()}
            found.append([own, counters, losses(engine, mesh, 5, 3)])
    return found


@pytest.mark.parametrize(("precision", "stage"), [("float16", 3), ("bfloat16", 1), ("as is", 0)])
def test_at_the_same_layout_all_goes_on_to_the_last_bit(pool, tmp_path, precision, stage):
    for (before, counters, want), (after, same, values) in pool.run(
        2, again, str(tmp_path), precision, stage
    ):
        assert before.keys() == after.keys() and counters == same and values == want
        assert all(torch.equal(x, after[text]) for text, x in before.items())
        scale = json.loads(counters)["scale"]
        assert (scale is not None) == (precision == "float16")
        if scale:
            assert scale["value"] < 2**16  # it had to be found, and need not be found again


def scales(me, folder: str) -> dict[str, float | None]:
    """The loss scale after a load of a training with another one, or none."""
    found, paths = {}, {}
    for name in ("float16", "bfloat16"):
        with engine_of(me, Layout("2x1", 2, None, name), folder, dtype=torch.float32) as (
            engine,
            mesh,
        ):
            if engine.precision.scale is not None:
                engine.precision.scale.value = 64.0
            losses(engine, mesh, 0, 2)
            paths[name] = checkpoint.save(f"{folder}/{name}", 2, engine, mesh)
    for name, path in paths.items():
        for other in ("float16", "bfloat16", "as is"):
            layout = Layout("2x1", 1, None, other)
            with engine_of(me, layout, folder, dtype=torch.float32) as (engine, mesh):
                checkpoint.load(path, engine, mesh)
                scale = engine.precision.scale
                found[f"{name} to {other}"] = scale and scale.value
    return found


def test_a_loss_scale_goes_along_where_both_have_one(pool, tmp_path):
    none = dict.fromkeys(
        [f"{a} to {b}" for a in ("float16", "bfloat16") for b in ("bfloat16", "as is")]
    )
    want = {**none, "float16 to float16": 64.0, "bfloat16 to float16": 2.0**16}
    assert pool.run(2, scales, str(tmp_path))[0] == want


def with_damaged_weights(me, folder: str) -> list[bool]:
    """Whether each weight is what it was, after a load beside damaged 16-bit weights."""
    layout = Layout("2x1", 2, None, "bfloat16")
    with engine_of(me, layout, folder, dtype=torch.float32) as (engine, mesh):
        losses(engine, mesh, 0, 1)
        path = checkpoint.save(folder, 1, engine, mesh)
        want = {name: p.detach().clone() for name, p in engine.module.named_parameters()}
    if me.rank == 0:
        weights = path / "model.safetensors"
        raw = bytearray(weights.read_bytes())
        for at in range(len(raw) // 2, len(raw), 2):  # the sign or the exponent of each
            raw[at + 1 - len(raw) % 2] ^= 64
        weights.write_bytes(raw)
    torch.distributed.barrier()
    with engine_of(me, layout, folder, dtype=torch.float32, seed="another") as (engine, mesh):
        checkpoint.load(path, engine, mesh)
        return [torch.equal(p, want[name]) for name, p in engine.module.named_parameters()]


def test_sixteen_bits_that_nobody_vouches_for_are_not_computed_with(pool, tmp_path):
    """Where there are masters, the weights are rounded from those, which are summed."""
    for equal in pool.run(2, with_damaged_weights, str(tmp_path)):
        assert all(equal)
