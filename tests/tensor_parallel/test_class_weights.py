"""A weight for each word in the loss of cut logits, against torch's: every label and every option.

The weights are 0 and below 1 and far above; the messages are those of a loss without any.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib.ledger import ledger
from course_lib.tensor_parallel.cross_entropy import cross_entropy
from course_lib.tensor_parallel.fused_cross_entropy import head_cross_entropy
from tests.tensor_parallel.parts import WORLDS, close, made, own, said

HIDDEN = 5


def weighted(me):
    """Loss and gradients, of the logits and of head and states, for each label once and more."""
    group = dist.group.WORLD
    for vocabulary, padded in ((11, 11), (9, 9), (3, 3), (10, 20), (7, 8), (1, 8)):
        weight = made("weight", vocabulary).exp()
        weight[vocabulary // 2] = 0.0 if vocabulary > 1 else 2.0
        states, head = made("states", vocabulary + 3, HIDDEN), made("head", padded, HIDDEN)
        targets = torch.arange(vocabulary + 3) % vocabulary
        some = targets.clone()
        some[0], some[-1] = -100, -100
        for ids in (targets, some):
            for smoothing in (0.0, 0.1, 1.0):
                for reduction in ("mean", "sum", "none"):
                    how = {"label_smoothing": smoothing, "reduction": reduction}
                    label = f"{vocabulary} in {padded}, {how}"
                    same(label, states, head, ids, weight, group, vocabulary, how)
        nothing = torch.full_like(targets, -100)
        how = {"vocabulary": vocabulary, "padded": padded, "label_smoothing": 0.1}
        mine = own(states @ head.t(), group)
        assert cross_entropy(mine, nothing, group, weight=weight, **how).item() == 0.0
    ids = torch.tensor([0, 1, 1])
    flat = own(torch.zeros(3, 4), group)
    found = cross_entropy(flat, ids, group, vocabulary=4, weight=torch.tensor([1.0, 0, 1, 1]))
    want = F.cross_entropy(torch.zeros(3, 4), ids, torch.tensor([1.0, 0, 1, 1]))
    close("float32", found, want, 1e-6)
    narrow = own(made("bf16", 3, 4).bfloat16(), group)
    found = cross_entropy(narrow, ids, group, vocabulary=4, weight=torch.ones(4).bfloat16() * 3)
    close("bfloat16", found, F.cross_entropy(made("bf16", 3, 4).bfloat16().float(), ids), 1e-6)


def same(label, states, head, ids, weight, group, vocabulary, how):
    """The dense loss against the cut one and the fused one; padding's rows have no gradient."""
    dense = head[:vocabulary].clone().requires_grad_()
    x = states.clone().requires_grad_()
    logits = x @ dense.t()
    logits.retain_grad()
    want = F.cross_entropy(logits, ids, weight, **how)
    owed = made("owed", *want.shape)
    want.backward(owed)
    more = {"vocabulary": vocabulary, "padded": len(head), **how}
    mine = own((states @ head.t()), group).clone().requires_grad_()
    got = cross_entropy(mine, ids, group, weight=weight, **more)
    got.backward(owed)
    close(f"loss, {label}", got, want)
    lost = len(head) - vocabulary
    close(f"logits, {label}", mine.grad, own(F.pad(logits.grad, (0, lost)), group))
    y, w = states.clone().requires_grad_(), own(head, group, 0).clone().requires_grad_()
    got = head_cross_entropy(y, w, ids, group, class_weight=weight, tokens_at_once=2, **more)
    got.backward(owed)
    close(f"fused loss, {label}", got, want)
    close(f"states, {label}", y.grad, x.grad)
    close(f"head, {label}", w.grad, own(F.pad(dense.grad, (0, 0, 0, lost)), group, 0))


@pytest.mark.parametrize("world", WORLDS)
def test_weighted_losses_are_torchs(pool, world):
    pool.run(world, weighted)


def counted(me):
    group, targets = dist.group.WORLD, torch.arange(8) % 6
    mine = own(made("counted", 8, 6), group).clone().requires_grad_()
    found = []
    for weight in (None, made("weight", 6).exp()):
        with ledger() as book:
            cross_entropy(mine, targets, group, vocabulary=6, weight=weight).backward()
        found.append([(r.op, r.phase, r.elements) for r in book.records])
    bad = [torch.ones(3), torch.ones(8), torch.ones(6, 1), torch.ones(6, requires_grad=True)]
    words = [
        said(ValueError, cross_entropy, mine, targets, group, vocabulary=6, weight=each)
        for each in bad
    ]
    states, head = torch.ones(8, 2), own(torch.ones(6, 2), group, 0)
    how = {"vocabulary": 6, "class_weight": bad[0]}
    return found, [
        *words,
        said(ValueError, head_cross_entropy, states, head, targets, group, **how),
    ]


def test_weights_send_nothing_and_what_is_none_is_refused(pool):
    for (plain, weighted_records), words in pool.run(2, counted):
        assert plain == weighted_records and len(plain) == 2
        assert "weight has to hold a weight for each of 6 words, and has the shape (3,)" in words[0]
        assert "(8,)" in words[1] and "(6, 1)" in words[2] and "weight.detach()" in words[3]
        assert words[4].startswith("class_weight has to hold")
