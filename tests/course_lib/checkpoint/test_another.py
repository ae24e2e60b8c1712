"""Another model, another optimizer, other groups: refused on all ranks before anything changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from course_lib import checkpoint, ranks, zero
from course_lib.gpt import GPT
from course_lib.step import groups as parameter_groups
from tests.course_lib.checkpoint.parts import FAMILIES, Layout, engine_of, losses
from tests.course_lib.checkpoint.test_damage import LAYOUT, refusal
from tests.course_lib.tensor_parallel.parts import randomized

SAVED = FAMILIES["gpt2"]
OTHERS = {
    "wider": (
        SAVED.changed(hidden=32),
        "wte.weight has shape (23, 24) there and (23, 32) here. Create the engine with the saved",
    ),
    "deeper": (
        SAVED.changed(layers=3),
        "h.2.ln_1.weight of shape (32,) is missing there".replace("32", "24"),
    ),
    "shallower": (
        SAVED.changed(layers=1),
        "h.1.ln_1.weight of shape (24,) is there, but the model here has no such tensor",
    ),
    "another family": (
        FAMILIES["llama"],
        "model.embed_tokens.weight of shape (23, 24) is missing there",
    ),
    "another vocabulary": (
        SAVED.changed(vocabulary=24),
        "wte.weight has shape (23, 24) there and (24, 24) here (is the vocabulary padded to a "
        "multiple of a different number?)",
    ),
    "padded for fewer ranks": (SAVED.changed(vocabulary=64), "(is the vocabulary padded to a"),
}


def other_models(me, folder: str) -> dict[str, str]:
    top, found = Path(folder), {}
    with engine_of(me, LAYOUT, folder) as (engine, mesh):
        losses(engine, mesh, 0, 1)
        path = str(checkpoint.save(top / "run", 1, engine, mesh))
    mesh = ranks.mesh(me, dp=2, tp=1)
    for name, (config, _) in OTHERS.items():
        model = randomized(GPT(config), "other").double()
        optimizer = torch.optim.AdamW(parameter_groups(model, 0.1))
        with zero.engine(model, optimizer, stage=2, mesh=mesh) as engine:
            before = [p.detach().clone() for p in model.parameters()]
            found[name] = refusal(path, engine, mesh)
            assert all(map(torch.equal, before, model.parameters())), name
            assert not optimizer.state, name
    return found


def test_the_first_tensor_of_another_model_is_named(pool, tmp_path):
    found = pool.run(2, other_models, str(tmp_path))[0]
    for name, (_, text) in OTHERS.items():
        assert found[name].startswith(f"{tmp_path}/run/step-000001 is of a different model: "), name
        assert text in found[name], (name, found[name])


def swapped(groups: list[dict]) -> list[dict]:
    """One parameter is in the other group."""
    one, other = (dict(group) for group in groups)
    one["params"], other["params"] = one["params"][1:], [*other["params"], one["params"][0]]
    return [one, other]


def frozen(groups: list[dict]) -> list[dict]:
    """The first parameter, the table of embeddings, is trained no longer."""
    groups[0]["params"].pop(0).requires_grad_(False)
    return groups


OPTIMIZERS = {
    "SGD": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    "Adam": lambda groups: torch.optim.Adam(groups),
    "one group": lambda groups: torch.optim.AdamW([p for g in groups for p in g["params"]]),
    "swapped": lambda groups: torch.optim.AdamW(swapped(groups)),
    "frozen": lambda groups: torch.optim.AdamW(frozen(groups)),
    "amsgrad": lambda groups: torch.optim.AdamW(groups, amsgrad=True),
}


def other_optimizers(me, folder: str, stage: int) -> dict[str, str]:
    top, found = Path(folder), {}
    with engine_of(me, Layout("2x1", stage), folder) as (engine, mesh):
        losses(engine, mesh, 0, 1)
        path = str(checkpoint.save(top / "run", 1, engine, mesh))
    mesh = ranks.mesh(me, dp=2, tp=1)
    for name, make in OPTIMIZERS.items():
        model = randomized(GPT(SAVED), "other").double()
        optimizer = make(parameter_groups(model, 0.1))
        with zero.engine(model, optimizer, stage=stage, mesh=mesh) as engine:
            before = {key: x.clone() for key, x in engine.own_tensors()}
            found[name] = refusal(path, engine, mesh)
            after = dict(engine.own_tensors())
            assert all(torch.equal(x, after[key]) for key, x in before.items()), name
            assert before.keys() == after.keys() and not optimizer.state, name
    return found


@pytest.mark.parametrize("stage", [0, 3])
def test_another_optimizer_is_refused_before_anything_changes(pool, tmp_path, stage):
    found = pool.run(2, other_optimizers, str(tmp_path), stage)[0]
    path = f"{tmp_path}/run/step-000001"
    weights = "; continue with that, or load only the weights (course train --from, pretrained."
    for kind in ("SGD", "Adam"):
        text = f"{path} was trained with AdamW, but this engine has {kind}{weights}"
        assert found[kind].startswith(text)
    groups = ": its AdamW had 2 group(s) of parameters, but this engine's has 1. Use the same gro"
    assert groups in found["one group"]
    was = " was in the optimizer's group 0, but is in group 1 here. Use the same groups, because"
    assert was in found["swapped"] and f"{path}: " in found["swapped"]
    assert f"in {path}, tokens.weight was trained, now it is frozen{weights}" in found["frozen"]
    assert "max_exp_avg_sq is missing, but this AdamW keeps" in found["amsgrad"]
    record = json.loads((tmp_path / "run/step-000001/training.json").read_text())
    model = GPT(SAVED)
    names = {p: name for name, p in model.named_parameters()}
    want = {names[p]: i for i, g in enumerate(parameter_groups(model, 0.1)) for p in g["params"]}
    assert record["groups"] == want  # all of them, whatever the layout
