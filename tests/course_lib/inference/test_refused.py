"""Ranks that make different numbers of forwards, and what cannot be written: said on all ranks."""

from __future__ import annotations

import pytest
import torch

from course_lib import inference, ranks, zero
from tests.course_lib.inference.parts import alone, lists, model_of, prompts_of, said, streamed


def ends_early(me):
    """Without synced: rank 0's row has met the word `stop`, and rank 1 goes on."""
    dense, engine = model_of("llama"), streamed(me, "llama")
    stop = alone(dense, [[1]], 1)[0][1]
    other = next([p] for p in range(37) if stop not in alone(dense, [[p]], 6)[0][1:])
    prompts = [[1]] if me.rank == 0 else [other]
    inference.generate(engine, prompts, 6, synced=False, stop=stop)


def test_without_synced_a_rank_waits_for_one_that_is_done_and_says_so(pool):
    said = pool.raises(2, ends_early, timeout=15)
    words = next(one for one in said if one and "waited in gather" in one)
    assert "rank 1 waited in gather" in words and "of 'tokens'" in words
    assert "rank 0 never came, and waits in no gather" in words
    assert (
        "written with synced=False" in words
        and "Pass synced=True, with which it takes part" in words
    )


def refused(me):
    engine, found = streamed(me, "llama"), {}
    fine = [[1, 2]]

    def tried(name, prompts, count=2, error=ValueError, **options):
        found[name] = said(error, inference.generate, engine, prompts, count, **options)

    for synced in (True, False):
        last = me.rank == me.world - 1
        tried(("empty", synced), [[1], []] if last else fine, synced=synced)
        tried(("long", synced), [[3] * 16] if last else fine, synced=synced)
        tried(("id", synced), [[37]] if last else fine, synced=synced)
        tried(("stop", synced), fine, synced=synced, stop=99 if last else 3)
    tried("no row", fine if me.rank else [], synced=False)
    tried("counts", fine, 2 + me.rank, synced=False)
    with torch.no_grad(), engine.gathered(engine.model):
        for p in engine.model.parameters():
            p.fill_(torch.nan)
    tried("nan", fine)
    # and the group still carries what is right
    with engine.gathered(engine.model), torch.no_grad():
        for name, p in model_of("llama").named_parameters():
            dict(engine.model.named_parameters())[name].copy_(p)
    text = inference.generate(engine, prompts_of(me.rank), 3)
    assert lists(text) == alone(model_of("llama"), prompts_of(me.rank), 3)
    return found


def test_what_one_rank_cannot_write_no_rank_begins(pool):
    for rank, found in enumerate(pool.run(3, refused)):
        for synced in (True, False):
            said_where = {
                "empty": "prompt 1 of 2 is without a token",
                "long": "a prompt of 16 tokens and count=2",
                "id": "the prompts hold ids from 37 to 37",
                "stop": "stop=99 is not a token",
            }
            for name, words in said_where.items():
                text = found[name, synced]
                assert words in text and ("on rank 2" in text) == (rank != 2), text
        assert "this rank has no row" in found["no row"] and "synced=" in found["no row"]
        assert ("on rank 0" in found["no row"]) == (rank != 0)
        assert (
            "rank 1 and 2 would write a different number of tokens than rank 0" in found["counts"]
        )
        assert f"here count={2 + rank}" in found["counts"] and "synced=True" in found["counts"]
        assert "NaN" in found["nan"]


def one_breaks(me):
    """A rank whose words cannot be chosen ends all of them, in the same word."""
    engine = streamed(me, "gpt2")
    if me.rank == 1:
        engine.model.norm.register_forward_hook(lambda _, __, y: y * torch.nan)
    return said(ValueError, inference.generate, engine, prompts_of(me.rank), 4)


def test_a_rank_that_breaks_off_ends_all_of_them(pool):
    found = pool.run(2, one_breaks)
    assert found[0].startswith("rank 0: no rank writes on: on rank 1 the model's logits are NaN")
    assert found[1].startswith("the model's logits are NaN")


def wrong(me, tmp):
    mesh, found = ranks.mesh(me, dp=me.world, tp=1), {}

    def tried(name, call, *args, error=ValueError, **options):
        found[name] = said(error, call, *args, **options)

    model = model_of("gpt2")
    adam = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = zero.engine(model, adam, stage=2, mesh=mesh)
    tried("stage", inference.generate, engine, [[1]], 2)
    tried("taken", zero.inference, model, mesh=mesh)
    tried("whole", inference.generate, model_of("gpt2"), [[1]], 2, error=TypeError)
    linear = zero.inference(torch.nn.Linear(3, 2), mesh=mesh)
    tried("no gpt", inference.generate, linear, [[1]], 2, error=TypeError)
    model = model_of("gpt2")
    for name, offload in {
        "disk": "disk",
        "optimizer": {"optimizer": "cpu", "parameters": "cpu"},
        "states": {"optimizer": "cpu"},
    }.items():
        tried(name, zero.inference, model, mesh=mesh, offload=offload)
    tried("keep", zero.inference, model, mesh=mesh, keep=-1)
    tried("empty", zero.inference, torch.nn.Identity(), mesh=mesh)
    tried("missing", zero.inference, model, mesh=mesh, error=OSError,
          offload={"parameters": "nvme", "folder": f"{tmp}/none"})  # fmt: skip
    with torch.inference_mode():
        tried("mode", zero.inference, model, mesh=mesh)
        made = model_of("gpt2")
    tried("made", zero.inference, made, mesh=mesh)
    assert model.training and all(p.requires_grad for p in model.parameters())
    engine = zero.inference(model, mesh=mesh)  # nothing of all this is left on it
    text = inference.generate(engine, prompts_of(0), 2)
    assert lists(text) == alone(model_of("gpt2"), prompts_of(0), 2)
    return found


WORDS = {
    "stage": "this engine is at stage 2, where every rank has the full model",
    "taken": "are already trained by an engine",
    "whole": "zero.inference(model, mesh=mesh)",
    "no gpt": "this is a Linear",
    "disk": "offload='disk'",
    "optimizer": "optimizer= is only for training",
    "states": "only weights can be offloaded",
    "keep": "keep=-1, the bytes",
    "empty": "no parameters",
    "missing": "is missing",
    "mode": "this is called under torch.inference_mode()",
    "made": "was made under torch.inference_mode()",
}


@pytest.mark.parametrize("world", [2])
def test_what_is_no_inference_is_refused_with_the_remedy(pool, world, tmp_path):
    for found in pool.run(world, wrong, str(tmp_path)):
        assert set(found) == set(WORDS)
        for name, words in WORDS.items():
            assert words in found[name], (name, found[name])
