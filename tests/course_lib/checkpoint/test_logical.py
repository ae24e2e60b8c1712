"""Over all ranks every element of every tensor is answered for once, however the model is cut."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch import nn

from course_lib import checkpoint, ranks, zero
from course_lib.checkpoint.logical import stored_as, tensors_of
from course_lib.gpt import GPT
from course_lib.pretrained.header import CheckpointError
from course_lib.pretrained.names import weights_of
from course_lib.tensor_parallel import parallelize
from tests.course_lib.checkpoint.parts import FAMILIES, MESHES, Layout, engine_of
from tests.course_lib.tensor_parallel.parts import randomized


def boxes(me, layouts, folder: str) -> list[dict]:
    """By layout and name: the boxes that this rank answers for, and those that it holds; and as
    Hugging Face's tensors have the former."""
    found = []
    for layout, family in layouts:
        with engine_of(me, layout, folder, family) as (engine, mesh):
            tensors = tensors_of(engine, mesh)
            own = {piece.slot.name: ([], [], []) for piece, _ in engine.shards.parts()}
            for piece, _ in engine.shards.parts():
                written, held, stored = own[piece.slot.name]
                tensor = tensors[piece.slot.name]
                for box, _, counts in tensor.boxes(piece.start, piece.stop):
                    held.append(box)
                    if counts:
                        written.append(box)
                        stored += [(name, inner) for name, inner, _, _ in stored_as(tensor, box)]
            found.append(own)
    return found


def count(shape: tuple, some) -> torch.Tensor:
    times = torch.zeros(shape, dtype=torch.int64)
    for box in some:
        times[box.slices] += 1
    return times


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_every_element_is_answered_for_once(pool, tmp_path, world):
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed={seed}")  # shown where it fails
    meshes = [name for name, (dp, tp) in MESHES.items() if dp * tp == world]
    every = [
        (Layout(mesh, stage), family)
        for mesh, stage, family in itertools.product(meshes, range(4), FAMILIES)
    ]
    alike = [one for one in every if one[0].stage == 0]  # in each run one of these is looked at
    layouts = [random.Random(seed).choice(alike), *random.Random(seed).sample(every, 5)]
    answers = pool.run(world, boxes, layouts, str(tmp_path))
    for number, (layout, family) in enumerate(layouts):
        weights = {weight.name: weight for weight in weights_of(FAMILIES[family])}
        for name, weight in weights.items():
            own = [answer[number].get(name, ([], [], [])) for answer in answers]
            counted = count(weight.shape, (box for one in own for box in one[0]))
            assert (counted == 1).all(), (layout, family, name)
            held = count(weight.shape, (box for one in own for box in one[1]))
            assert (held >= 1).all(), (layout, family, name)
            for part in weight.parts:
                inside = part.shape(weight)
                some = (box for one in own for stored, box in one[2] if stored == part.name)
                assert (count(inside, some) == 1).all(), (layout, family, part.name)
        if layout.stage == 0 and world > 1:  # what all hold alike is shared out
            shares = [
                sum(box.numel for one in a[number].values() for box in one[0]) for a in answers
            ]
            assert max(shares) < 1.1 * sum(shares) / world, (layout, shares)


class Odd(nn.Module):
    """A model of somebody's, cut over tp in a way that only its layers know."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer


def cut_by_others(me, folder: str) -> str:
    mesh = ranks.mesh(me, dp=1, tp=2)
    model = Odd(parallelize(randomized(GPT(FAMILIES["gpt2"]), "odd"), mesh).blocks[0])
    with (
        zero.engine(
            model, torch.optim.SGD(model.parameters(), lr=0.1), stage=2, mesh=mesh
        ) as engine,
        pytest.raises(CheckpointError) as caught,
    ):
        checkpoint.save(folder, 1, engine, mesh)
    return str(caught.value)


def test_what_only_its_layers_know_is_not_guessed(pool, tmp_path):
    for message in pool.run(2, cut_by_others, str(tmp_path / "run")):
        assert message.startswith("a Odd is sharded over tp, but course_lib knows how shards form")
    assert not (tmp_path / "run").exists()
