"""A new model is drawn parameter by parameter: the same on any mesh, whole on no rank of stage 3;
and a save has one unit of it at a time."""

from __future__ import annotations

from pathlib import Path

import torch

from course_lib import pretrained, ranks
from course_lib.memory import budget
from course_lib.train import program
from course_lib.train.checks import resolve
from course_lib.train.model import make_model
from course_lib.train.options import parse
from tests.course_lib.train.test_layouts import SMALL, trained


def weights(me, tp: int, folder: str) -> dict:
    mesh = ranks.mesh(me, dp=me.world // tp, tp=tp)
    model, _ = make_model(resolve(parse([*SMALL, "--tp", str(tp)]), me.world), me, mesh)
    pretrained.save(model, folder, mesh)
    with pretrained.Checkpoint(Path(folder)) as stored:
        return {name: stored.read(name) for name in stored.slots}


def test_a_new_model_is_the_same_on_any_mesh(pool, tmp_path):
    runs = {n: pool.run(n, weights, n, str(tmp_path / str(n)))[0] for n in (1, 2, 3)}
    for n in (2, 3):
        assert runs[n].keys() == runs[1].keys()
        assert all(torch.equal(runs[n][name], x) for name, x in runs[1].items())
    wide = [x for x in runs[1].values() if x.dim() > 1]
    assert all(0.002 < float(x.std()) < 0.03 for x in wide)
    begins = {tuple(x.flatten()[:8].tolist()) for x in wide}
    assert len(begins) == len(wide)  # no parameter repeats another's numbers


def built(me, folder: str) -> tuple[int, int]:
    """The most that making model and engine took on this rank; the model's bytes."""
    argv = [*SMALL, "--stage", "3", "--hidden", "96", "--inner", "384", "--layers", "6"]
    options = resolve(parse([*argv, "--tp", "1"]), me.world)
    mesh = ranks.mesh(me, dp=me.world, tp=1)
    with budget(from_now=True) as watched:
        model, fill = make_model(options, me, mesh)
        optimizer = torch.optim.AdamW(model.parameters())
        engine = program.make_engine(options, mesh, model, fill, optimizer, Path(folder))
        most = watched.most()
    whole = 4 * sum(slot.numel for slot in engine.partition.slots())
    engine.close()
    return most, whole


def test_a_new_model_is_whole_on_no_rank(pool, tmp_path):
    for most, whole in pool.run(4, built, str(tmp_path)):
        assert most < whole / 2, (most, whole)


def found_again(me, folder: str) -> list:
    """Bytes on this rank's device after the model was made, resumed and begun from, at stage 3."""
    argv = [*SMALL, "--stage", "3", "--steps", "1", "--validate-every", "0"]
    out = Path(folder) / "run"
    trained(me, argv, str(out))
    saved = str(out / "checkpoints" / "step-000001")
    ways = [["--resume", "--out", str(out), "--steps", "2"]]
    ways += [["--from", saved, "--tp", "2", "--stage", "3", "--length", "19"]]
    most = []
    for way in ways:
        options = resolve(parse(way), me.world)
        mesh = ranks.mesh(me, dp=me.world // 2, tp=2)
        with budget(from_now=True) as watched:
            _, fill = make_model(options, me, mesh)
            most.append(watched.most())
        fill.close()
    return most


def test_a_model_that_is_found_again_is_whole_on_no_rank_either(pool, tmp_path):
    for most in pool.run(4, found_again, str(tmp_path)):
        assert max(most) < 4000, most  # tables and scalars of the files, and no weight
