"""The harnesses of lessons 06 to 08: what a lesson asserts with them can fail."""

from __future__ import annotations

import importlib.util
import json

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib import ranks
from course_lib.classroom.harness import lesson_06, lesson_07, lesson_08
from course_lib.data import prepare
from course_lib.gpt import GPT, Config
from course_lib.tensor_parallel import parallelize
from course_lib.tensor_parallel.sequence import Tokens
from course_lib.tensor_parallel.sequence_plan import scatter_block

SMALL = Config.gpt2(hidden=12, heads=3, inner=10)
needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)


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


def counted_06(me):
    config = Config.gpt2(hidden=12, heads=3, dropout=0.1)
    return [
        lesson_06.sent_and_kept(config, plan, (2, 6), dist.group.WORLD, me.device)
        for plan in lesson_06.PLANS
    ]


def test_moves_of_tokens_are_counted_apart_from_the_sums_of_parameters(pool):
    move = 2 * 6 * 12 * 4 * 2 / 3
    for replicated, kept, again in pool.run(3, counted_06):
        assert (replicated.moves, kept.moves, again.moves) == (8 * move, 8 * move, 10 * move)
        assert replicated.sums == 0
        assert kept.sums == again.sums == 2 * 2 * 12 * 4 * 4 / 3  # two norms, 2h each
        assert replicated.kept > kept.kept > again.kept


def tied(me):
    dense = lesson_07.dense_model(me.device)
    model = lesson_07.Sharded(dense, dist.group.WORLD, multiple_of=8)
    both = [lesson_07.train(one, one.loss, 3, me.device) for one in (dense, model)]
    return both, tuple(lesson_07.sent_and_held(12, 23, dist.group.WORLD, me.device))


def test_the_sharded_model_takes_the_steps_of_the_dense_one_and_its_loss_is_counted(pool):
    for (dense, sharded), (collectives, sent, most, shard) in pool.run(3, tied):
        torch.testing.assert_close(sharded, dense, rtol=0, atol=1e-10)
        assert dense[-1] < dense[0]
        assert (collectives, sent) == (2, 6 * 12 * 4 * 2 / 3)
        assert shard in (12 * 8 * 4, 12 * 7 * 4) and shard <= most


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


DOCUMENTS = [f"{a} and {a + 1} make {2 * a + 1}." for a in range(60)]


def one_process_and_a_mesh(me, home):
    on_mesh = lesson_08.on_a_mesh(me, home, dp=2, tp=1)
    corpus = prepare(None, documents=DOCUMENTS, vocabulary=lesson_08.VOCABULARY)
    with lesson_08.reads() as came:
        alone = lesson_08.train(
            f"{home}/gpt2", None, lesson_08.batches(corpus, (0, 1)), me.device, steps=20
        )
    return on_mesh, alone.results, sum(came), lesson_08.bytes_held(alone)


@needs_transformers
def test_a_mesh_takes_the_steps_of_one_process_and_reports_what_it_sent_and_holds(pool, tmp_path):
    lesson_08.save_two_models(str(tmp_path))
    (tmp_path / "documents.json").write_text(json.dumps(DOCUMENTS))
    rows = []
    for (seen, results, sent, held), alone, came, held_alone in pool.run(
        2, one_process_and_a_mesh, str(tmp_path), timeout=120
    ):
        rows += seen
        for mine, right in zip(results["gpt2"], alone, strict=True):
            assert mine.tokens == right.tokens and abs(mine.loss - right.loss) < 1e-9
        assert sent["gpt2"][0] == 0 and sent["gpt2"][1] == 8 * (73_008 + 5)
        assert held["gpt2"] == held_alone == 4 * 8 * 73_008  # dp divides nothing
        assert came >= 4 * 73_008
    assert len(set(rows)) == lesson_08.ROWS


@needs_transformers
def test_the_llama_for_torch_s_plans_is_the_same_each_time():
    first, again = (lesson_08.llama_of_twelve_heads() for _ in range(2))
    ids = torch.arange(10)[None]
    with torch.no_grad():
        assert torch.equal(first(ids).logits, again(ids).logits)
    assert F.softmax(first(ids).logits, -1).shape == (1, 10, lesson_08.VOCABULARY)
