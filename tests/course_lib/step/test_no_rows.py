"""A rank without a row, or with rows of no token: it takes part in all that is sent, and the step
is that of one process on the rows that there are."""

from __future__ import annotations

import copy

import pytest
import torch

from course_lib import ranks
from course_lib.gpt import GPT
from course_lib.step import step
from course_lib.step.losses import loss_sum
from course_lib.tensor_parallel import check_replicas, parallelize
from tests.course_lib.step.parts import FEW, GPT2, LLAMA, batch, fits, reference
from tests.course_lib.tensor_parallel.parts import Momentum, held, randomized, same_parameters

CASES = [
    (GPT2, {}, False),
    (GPT2, {"sequence": True}, True),
    (LLAMA, {"sequence": True}, False),
    (LLAMA.changed(recompute=True), {}, True),
    (LLAMA.changed(kv_heads=1, heads=4), {"sequence": True}, False),
]


def trained(me, dp):
    """The first replica has a row at every step, each other one only at the last."""
    mesh = ranks.mesh(me, dp=dp, tp=me.world // dp)
    replica, tp = mesh.get_group("dp").rank(), me.world // dp
    for config, lay, fused in CASES:
        config = fits(config, tp) if config is LLAMA else config
        dense = randomized(GPT(config), "no rows").to(me.device)

        def cut_by(model, lay=lay):
            return parallelize(model, mesh, **lay)

        cut, where = cut_by(copy.deepcopy(dense)), held(dense, cut_by)
        descents = Momentum(dense, lr=0.05), Momentum(cut, lr=0.05)
        for number, shape in enumerate([(0, 7), (0, 0), (2, 0), (1, 7)]):
            ids, targets = (x.to(me.device) for x in batch(number, config, dp, 7))
            some = slice(0, dp if shape == (1, 7) else 1)
            # Two micro-batches, the second one of no row on any rank.
            whole = [(ids[some], targets[some])]
            want, tokens, size = reference(dense, descents[0], whole, 0.3)
            own = [(x[replica : replica + 1]) for x in (ids, targets)]
            if replica and shape != (1, 7):
                own = [x.new_zeros(shape) for x in (ids, targets)]
            rows = [own, [ids[:0], targets[:0]]]
            got = step(cut, descents[1], rows, mesh, clip=0.3, fused=fused)
            assert got.tokens == tokens
            assert got.loss == pytest.approx(want, rel=1e-10), (number, lay)
            assert got.norm == pytest.approx(size, rel=1e-9), (number, lay)
        same_parameters(f"{config} {lay}", cut, dense, where, 1e-9)
        check_replicas(cut, mesh.get_group("tp"))


@pytest.mark.parametrize(
    ("dp", "tp"),
    [(2, 2), *(pytest.param(*one, marks=pytest.mark.slow) for one in [(1, 2), (2, 1), (3, 1)])],
)
def test_a_replica_without_rows_joins_in_the_step_of_one_process(pool, dp, tp):
    pool.run(dp * tp, trained, dp, timeout=90)


@pytest.mark.parametrize("shape", [(0, 7), (0, 0), (2, 0)])
def test_no_layer_meets_an_empty_batch(shape):
    model = randomized(GPT(FEW), "alone")
    met = []
    model.tokens.register_forward_pre_hook(lambda module, inputs: met.append(inputs[0].numel()))
    none = torch.zeros(shape, dtype=torch.long)
    loss = loss_sum(model, none, none)
    loss.backward()
    assert met and min(met) > 0 and loss.item() == 0
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())
