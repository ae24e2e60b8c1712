"""Whole models cut over the mesh: padding, ties, copies, meta.

That a plain plan trains as the dense model is shown in tests/course_lib/step/test_matrix.py, and in
test_sequence.py with the tokens cut; here stands what concerns the vocabulary and the model as one.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib import ranks
from course_lib.gpt import GPT, Config
from course_lib.tensor_parallel import check_replicas, parallelize
from course_lib.tensor_parallel.cross_entropy import cross_entropy
from course_lib.tensor_parallel.fused_cross_entropy import head_cross_entropy
from tests.course_lib.tensor_parallel.parts import (
    Momentum,
    close,
    held,
    made,
    own,
    part,
    randomized,
    said,
)

SIZES = {"vocabulary": 10, "length": 9, "layers": 2}
GPT2 = Config.gpt2(**SIZES, hidden=20, heads=5, inner=13)  # tied
LLAMA = Config.llama(**SIZES, hidden=24, heads=6, kv_heads=3, inner=10)  # untied
FEW = Config.llama(**SIZES, hidden=24, heads=6, kv_heads=2, inner=9)


def batch(label, config, device, s=5):
    ids, targets = ((made((label, k), 2, s) * 999).long().abs() for k in ("ids", "to"))
    return (ids % config.vocabulary).to(device), (targets % config.vocabulary).to(device)


def padded(whole, length):
    return torch.cat((whole, whole.new_zeros((length - len(whole), *whole.shape[1:]))))


def compared(label, cut, dense, where, group, pick):
    """Parameters, or their gradients: the vocabulary's with its padding, the others by `held`."""
    whole = dict(dense.named_parameters())
    for name, p in cut.named_parameters():
        got, want = pick(p), pick(whole[name]).detach()
        if name in ("tokens.weight", "head.weight"):
            close(f"{label}: {name}", got, own(padded(want, cut.tokens.padded), group, 0))
        else:
            close(f"{label}: {name}", got, part(want, where[name]))


def trained(me, config, sequence, multiple_of, fused):
    """Three steps with a padded vocabulary, loss and head apart or in one; ends in what it holds.

    With the head in one with the loss, the states of cut tokens have to be joined first: that is
    left to plans that keep all tokens.
    """
    mesh, group = ranks.mesh(me, dp=1, tp=me.world), dist.group.WORLD
    dense = randomized(GPT(config).to(me.device), "padded")
    lay = {"sequence": sequence}
    cut = parallelize(copy.deepcopy(dense), mesh, multiple_of=multiple_of, **lay)
    where = held(dense, lambda twin: parallelize(twin, mesh, **lay))
    v, total = config.vocabulary, cut.tokens.padded
    assert total == -(-v // multiple_of) * multiple_of
    descents = Momentum(dense, lr=0.05), Momentum(cut, lr=0.05)
    real = max(0, min(cut.tokens.stop, v) - cut.tokens.start)
    for step in range(3):
        ids, targets = batch(step, config, me.device)
        targets[0, step] = -100
        logits = dense(ids)
        want = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), label_smoothing=0.1)
        how = {"vocabulary": v, "padded": total, "label_smoothing": 0.1}
        if fused:
            got = head_cross_entropy(cut.states(ids), cut.head.weight, targets, group, **how)
        else:
            mine = cut(ids)
            shape = (*logits.shape[:2], total - v)
            close("logits", mine, own(torch.cat((logits, logits.new_zeros(shape)), -1), group))
            got = cross_entropy(mine, targets, group, **how)
        close(f"loss at step {step}", got, want)
        got.backward()
        want.backward()
        compared(f"gradients at step {step}", cut, dense, where, group, lambda p: p.grad)
        for descent in descents:
            descent.step()
        compared(f"after step {step}", cut, dense, where, group, lambda p: p)
        check_replicas(cut, group)
        assert not cut.tokens.weight[real:].any() and not cut.head.weight[real:].any()
        assert (cut.head.weight is cut.tokens.weight) == config.tied
    return [cut.tokens.start, cut.tokens.stop, sum(p.numel() for p in cut.parameters())]


@pytest.mark.parametrize(
    ("world", "config", "sequence", "multiple_of", "fused"),
    [
        (1, GPT2, False, 8, False),
        (2, GPT2, True, 16, False),  # the second rank: two words, six rows of padding
        (3, LLAMA, False, 12, True),
        (3, GPT2, False, 1, True),
        (4, FEW, True, 16, False),  # the last rank has nothing but padding
        (4, GPT2, False, 1, False),  # 3, 3, 3, 1
    ],
)
def test_a_padded_model_trains_as_the_dense_one(pool, world, config, sequence, multiple_of, fused):
    spans = pool.run(world, trained, config, sequence, multiple_of, fused)
    total = -(-config.vocabulary // multiple_of) * multiple_of
    assert [one[0] for one in spans] + [total] == [0] + [one[1] for one in spans]


def carried(me, config, sequence):
    """Copied, saved, loaded, made without numbers: the same logits, and a tie stays a tie."""
    mesh = ranks.mesh(me, dp=1, tp=me.world)
    lay = {"sequence": sequence, "multiple_of": 4}
    cut = parallelize(randomized(GPT(config).to(me.device), "carried"), mesh, **lay)
    ids, _ = batch("carried", config, me.device)
    want = cut(ids).detach()
    state = {name: t.detach().clone() for name, t in cut.state_dict().items()}
    assert set(state) == set(GPT(config).state_dict())  # a plan renames nothing

    twin = copy.deepcopy(cut)
    tie = (twin.head.weight is twin.tokens.weight, cut.head.weight is cut.tokens.weight)
    assert tie == (config.tied, config.tied)
    assert not {id(p) for p in twin.parameters()} & {id(p) for p in cut.parameters()}
    assert torch.equal(twin(ids), want)

    other = parallelize(randomized(GPT(config).to(me.device), "other"), mesh, **lay)
    assert not torch.equal(other(ids), want)
    other.load_state_dict(state)
    assert torch.equal(other(ids), want)
    assert (other.head.weight is other.tokens.weight) == config.tied

    with torch.device("meta"):
        empty = GPT(config).double()
    parallelize(empty, mesh, **lay)  # no numbers, nothing to compare
    assert all(p.is_meta for p in empty.parameters())
    assert (empty.head.weight is empty.tokens.weight) == config.tied
    shapes = {name: t.shape for name, t in empty.state_dict().items()}
    assert shapes == {name: t.shape for name, t in state.items()}
    assert "model.to_empty(device=…)" in said(RuntimeError, empty, ids.to("meta"))
    empty.to_empty(device=me.device).load_state_dict(state)
    assert torch.equal(empty(ids), want)
    count = len({id(p) for p in cut.parameters()})
    assert len(list(GPT(config).parameters())) == count

    twin.eval()
    assert not any(module.training for module in twin.modules())
    double = copy.deepcopy(cut).float()
    assert {p.dtype for p in double.parameters()} == {torch.float32}
    assert double(ids).dtype == torch.float32


@pytest.mark.parametrize(
    ("world", "config", "sequence"), [(2, GPT2, True), (3, GPT2, False), (3, LLAMA, True)]
)
def test_a_cut_model_can_be_copied_saved_and_made_without_numbers(pool, world, config, sequence):
    pool.run(world, carried, config, sequence)
