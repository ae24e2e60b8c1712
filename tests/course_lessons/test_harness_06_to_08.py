"""The harnesses of lessons 06 to 08: what a lesson asserts with them can fail."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from course_lessons.lesson_06 import harness as lesson_06
from course_lessons.lesson_07 import harness as lesson_07
from course_lessons.lesson_08 import harness as lesson_08
from course_lib import ranks
from course_lib.gpt import GPT, Config
from course_lib.tensor_parallel import parallelize
from course_lib.tensor_parallel.sequence import Tokens
from course_lib.tensor_parallel.sequence_plan import scatter_block

SMALL = Config.gpt2(hidden=12, heads=3, inner=10)


def laid_over(mesh, spoil=lambda block: None):
    """What lesson 06 makes of a dense block, with a mistake in it, maybe."""

    def lay(dense, plan, length):
        block = parallelize(dense, mesh)
        tokens = Tokens(mesh.get_group("tp"))
        tokens.length = length
        scatter_block(block, tokens, keep=plan == "X kept")
        spoil(block)
        return block

    return lay


def held_to_the_dense_block(me):
    mesh = ranks.mesh(me, dp=1, tp=me.world)
    said = []

    def norms_alone(block):
        block.norm_1 = block.norm_1.norm[0]

    def moved_at_the_end(block):  # right in every gradient, wrong in a weight of the last step
        done = []

        def late(p):  # in the third step the weight, after its gradient was taken
            done.append(1)
            if len(done) == 3:
                p.data.add_(1e-6)

        block.mlp.down.bias.register_post_accumulate_grad_hook(late)

    for spoil in (norms_alone, moved_at_the_end):
        try:
            lesson_06.hold_against_dense(laid_over(mesh, spoil), SMALL, "X kept", 7, mesh)
        except AssertionError as error:
            said.append(str(error))
    right = [
        lesson_06.hold_against_dense(laid_over(mesh), SMALL, plan, length, mesh)
        for plan, length in (("X kept", 7), ("X gathered again", 2))
    ]
    return right, said


def test_a_block_with_sharded_tokens_is_held_to_every_gradient_and_to_its_last_weights(pool):
    for right, said in pool.run(3, held_to_the_dense_block):
        assert right == [36, 36]
        assert said[0].startswith("norm_1.weight's gradient is off by")
        assert said[1].startswith("mlp.down.bias is off by 1e-06")


def forty(me):
    mesh = ranks.mesh(me, dp=1, tp=me.world)
    block = laid_over(mesh)(lesson_06.random_block(SMALL, 10), "X kept", 8)
    return lesson_06.forty_steps(block, dist.group.WORLD)


def test_the_losses_of_all_ranks_average_to_one_that_falls(pool):
    losses = torch.tensor(pool.run(3, forty), dtype=torch.float64).mean(0)
    dense = lesson_06.random_block(SMALL, 10)
    data = torch.Generator().manual_seed(14)
    x, y = torch.randn(2, 8, 8, 12, generator=data).double()
    assert losses[0].item() == pytest.approx((dense(x) - y).square().mean().item(), rel=1e-9)
    assert len(losses) == 40 and losses[-1] < 0.8 * losses[0]


def test_a_batch_has_ignored_tokens_and_something_to_learn():
    ids, targets = lesson_07.batch(3, torch.device("cpu"))
    again = lesson_07.batch(4, torch.device("cpu"))
    follows = dict(zip(ids[:2].flatten().tolist(), targets[:2].flatten().tolist(), strict=True))
    assert (targets[2:, 6:] == -100).all() and (targets[:2] >= 0).all()
    for entry, after in zip(*(t[:2].flatten().tolist() for t in again), strict=True):
        assert follows.get(entry, after) == after


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("tp", [1, 2, 3, 4])
def test_the_formula_of_what_a_rank_holds_is_that_of_the_model(family, tp):
    sizes = {"vocabulary": 29, "length": 7, "hidden": 24, "layers": 2, "heads": 12, "inner": 13}
    if family == "llama":
        sizes["kv_heads"] = 4 if tp != 3 else 6
    model = GPT(getattr(Config, family)(**sizes))
    dense = sum(p.numel() for p in model.parameters())
    shards, replicated = zip(
        *(lesson_08.parameters_of(model, rank, tp) for rank in range(tp)), strict=True
    )
    assert len(set(replicated)) == 1
    assert sum(shards) + replicated[0] == dense
