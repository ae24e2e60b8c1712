"""Twenty optimizer steps on a mesh are twenty steps of one process: losses, norms and weights.

Both families, each mesh, tokens cut or not, recomputed or not, clipped or not; uneven rows, ignored
targets, a replica without any at one step, micro-batches, dropout by the test masks.
"""

from __future__ import annotations

import copy

import pytest
import torch

from course_lib import ranks
from course_lib.gpt import GPT
from course_lib.step import groups, step
from course_lib.tensor_parallel import check_replicas, parallelize
from course_lib.tensor_parallel.randomness import seed_all
from tests.course_lib.step.parts import GPT2, LLAMA, batch, fits, masks, reference, share
from tests.course_lib.tensor_parallel.parts import Momentum, held, randomized, same_parameters

STEPS, EMPTY = 20, 4  # at step 4 the first replica has no target that counts
CLIP = 0.3
# float64 leaves 1e-10 with room. In float32 a sum taken in another order is off by a few 2**-24 of
# its largest terms; twenty steps with momentum carry that on, and let it grow tenfold or so.
BOUNDS = {torch.float64: 1e-10, torch.float32: 2e-5}
# (sequence, recompute, clipped): of any two, both families together have every pair of values.
PLAIN, RECOMPUTED = (False, False, False), (False, True, True)
SEQUENCE, BOTH = (True, False, True), (True, True, False)


def trained(me, config, dp, combinations, more):
    for sequence, recompute, clipped in combinations:
        for dtype, bound in BOUNDS.items():
            one_run(me, config.changed(recompute=recompute, **more.get("config", {})), dp, dtype,
                    bound, sequence, CLIP if clipped else None, more)  # fmt: skip


def one_run(me, config, dp, dtype, bound, sequence, clip, more):
    mesh = ranks.mesh(me, dp=dp, tp=me.world // dp)
    replicas, accumulate = mesh.get_group("dp"), more.get("accumulate", 1)
    rows, s = 3, 7
    start, stop = share(rows, dp, replicas.rank())
    dense = randomized(GPT(config), "matrix").to(me.device, dtype)

    def lay(model):
        return parallelize(model, mesh, sequence=sequence)

    cut, where = lay(copy.deepcopy(dense)), held(dense, lay)
    descents = Momentum(dense, lr=0.05), Momentum(cut, lr=0.05)
    clips = 0
    for number in range(STEPS):
        lost = share(rows, dp, 0) if number == EMPTY and dp > 1 else None
        whole = [batch((number, k), config, rows, s, lost) for k in range(accumulate)]
        whole = [(ids.to(me.device), targets.to(me.device)) for ids, targets in whole]
        own = [(ids[start:stop], targets[start:stop]) for ids, targets in whole]
        seed_all(number)
        with masks(config):
            want, tokens, size = reference(dense, descents[0], whole, clip)
        seed_all(number)
        with masks(config, replicas, start, rows):
            got = step(cut, descents[1], own, mesh, clip=clip, fused=more.get("fused", False))
        assert got.tokens == tokens
        assert got.loss == pytest.approx(want, rel=bound), (number, dtype, sequence)
        assert got.norm == pytest.approx(size, rel=bound * 10), (number, dtype, sequence)
        clips += clip is not None and size > clip
    assert clip is None or clips > STEPS // 2  # there was something to clip
    # A weight's error is that of its gradients, divided by nothing: it is held to the same bound
    # times what momentum adds up, 1 / (1 - 0.9).
    same_parameters(f"{dtype} {sequence}", cut, dense, where, bound * 10)
    check_replicas(cut, mesh.get_group("tp"))


def meshes():
    """Every mesh with both families. On most meshes a normal run has one alone; on three ranks in a
    row it has neither, since the fused run below is there."""
    for name, config, combinations, late in (
        ("gpt2", GPT2, [RECOMPUTED, BOTH], [(1, 2), (1, 3), (1, 4)]),
        ("llama", LLAMA, [SEQUENCE, PLAIN], [(1, 1), (1, 3), (2, 1), (2, 2)]),
    ):
        for dp, tp in ((1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2)):
            marks = [pytest.mark.slow] if (dp, tp) in late else []
            yield pytest.param(dp, tp, config, combinations, id=f"{dp}-{tp}-{name}", marks=marks)


@pytest.mark.parametrize(("dp", "tp", "config", "combinations"), list(meshes()))
def test_twenty_steps_are_those_of_one_process(pool, dp, tp, config, combinations):
    pool.run(dp * tp, trained, fits(config, tp), dp, combinations, {}, timeout=150)


DROPPED = {"config": {"dropout": 0.2, "attention_dropout": 0.1}}


@pytest.mark.parametrize(
    ("dp", "tp", "config", "combinations", "more"),
    [
        (1, 2, GPT2, [RECOMPUTED], DROPPED),
        pytest.param(2, 2, LLAMA, [BOTH], DROPPED | {"accumulate": 2}, marks=pytest.mark.slow),
        (2, 1, GPT2, [PLAIN], {"accumulate": 3}),
        (1, 3, LLAMA, [SEQUENCE], {"fused": True}),
        pytest.param(2, 2, GPT2, [BOTH], {"fused": True, "accumulate": 2}, marks=pytest.mark.slow),
    ],
    ids=["dropout", "dropout-mesh", "micro-batches", "fused", "fused-mesh"],
)
def test_so_they_are_with_what_else_there_is(pool, dp, tp, config, combinations, more):
    pool.run(dp * tp, trained, fits(config, tp), dp, combinations, more, timeout=150)


def adam(me, config, dp):
    """AdamW divides a gradient by its own size, so where that is a rounding error (a key's bias has
    none, whatever the inputs) any direction is as good: the losses are held, not those weights."""
    mesh = ranks.mesh(me, dp=dp, tp=me.world // dp)
    replicas = mesh.get_group("dp")
    start, stop = share(3, dp, replicas.rank())
    dense = randomized(GPT(config), "adam", scale=0.1).to(me.device, torch.float32)
    cut = parallelize(copy.deepcopy(dense), mesh, sequence=True)
    one, other = (
        torch.optim.AdamW(groups(model, 0.1), lr=3e-3, betas=(0.9, 0.95)) for model in (dense, cut)
    )
    first = None
    for number in range(STEPS):
        ids, targets = (x.to(me.device) for x in batch(number % 2, config, 3, 7))
        want, _, _size = reference(dense, one, [(ids, targets)], 1.0)
        dense.zero_grad()
        got = step(cut, other, [(ids[start:stop], targets[start:stop])], mesh, clip=1.0)
        # A step of at most lr in a direction that rounding chose moves a loss by less than this.
        assert got.loss == pytest.approx(want, abs=1e-3), number
        first = got.loss if first is None else first
    assert got.loss < 0.8 * first
    check_replicas(cut, mesh.get_group("tp"))


@pytest.mark.parametrize(("dp", "tp", "config"), [(1, 3, GPT2), (2, 2, LLAMA)])
def test_adamw_learns_alike(pool, dp, tp, config):
    pool.run(dp * tp, adam, fits(config, tp), dp, timeout=60)
