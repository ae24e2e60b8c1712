"""A loss that one rank alone sees to be wrong is refused on all of them, and nobody waits.

Forgotten padding, another rule of cutting, tokens that are a rank's own: each fits some ranks.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from course_lib.ledger import ledger
from course_lib.tensor_parallel.cross_entropy import cross_entropy
from course_lib.tensor_parallel.fused_cross_entropy import head_cross_entropy
from tests.course_lib.tensor_parallel.parts import chunks, made, own, said


def refused_by_some(me):
    """Each call fits one rank at least; every rank raises, and then all compute a loss together."""
    group, n = dist.group.WORLD, me.world
    ids = torch.tensor([[0], [4]])
    states = made("states", 2, 1, 3)
    head, padded = made("head", 5, 3), made("padded", 6, 3)
    mine = states.split(chunks(1, n), 1)[me.rank]  # of one token: all of it, or nothing
    even = own(padded, group, 0)  # rows of 6, where the loss expects those of 5
    evenly = head[sum(_even(5, n)[: me.rank]) :][: _even(5, n)[me.rank]]
    found = {
        "tokens": said(
            ValueError, head_cross_entropy, mine, own(head, group, 0), ids, group, vocabulary=5
        ),
        "logits' tokens": said(
            ValueError, cross_entropy, own(mine @ head.t(), group), ids, group, vocabulary=5
        ),
        "padding": said(ValueError, cross_entropy, states @ even.t(), ids, group, vocabulary=5),
        "head": said(ValueError, head_cross_entropy, states, even, ids, group, vocabulary=5),
    }
    if _even(5, n) != chunks(5, n):
        found["rule"] = said(
            ValueError, head_cross_entropy, states, evenly, ids, group, vocabulary=5
        )
    how = {"vocabulary": 6}
    right = head_cross_entropy(states, even, ids, group, **how)
    infinite = torch.full((2, 1, even.shape[0]), torch.inf)
    with ledger() as book:
        cross_entropy(states @ even.t(), ids, group, **how)
        sent = len(book.records)
    assert cross_entropy(infinite, ids, group, **how).isnan() and sent == 2
    return found, right.item()


def _even(total, n):
    return [total // n + (r < total % n) for r in range(n)]


@pytest.mark.parametrize("world", [2, 3, 4])
def test_what_one_rank_refuses_is_refused_on_all(pool, world):
    answers = pool.run(world, refused_by_some, timeout=20)
    assert len({loss for _, loss in answers}) == 1
    for name in answers[0][0]:
        alone = [found[name] for found, _ in answers if "no loss here either" not in found[name]]
        others = [found[name] for found, _ in answers if "no loss here either" in found[name]]
        assert alone and others, name
        assert all(any(reason in text for reason in alone) for text in others), name
    first = answers[0][0]
    assert "conjugates.gather(…, after='replicated')" in first["tokens"]
    assert "conjugates.gather" in first["logits' tokens"]
    assert "padded to a different length (padded=)?" in first["padding"]
    assert "padded to a different length (padded=)?" in first["head"]


def kinds(me):
    group, ids = dist.group.WORLD, torch.zeros(3, dtype=torch.int64)
    logits, how = torch.ones(3, 2), {"vocabulary": 4}
    return [
        said(TypeError, cross_entropy, logits, ids.float(), group, **how),
        said(TypeError, cross_entropy, logits, ids.to(torch.int8), group, **how),
        said(TypeError, cross_entropy, logits.long(), ids, group, **how),
        said(TypeError, head_cross_entropy, logits, logits[:2], ids.bool(), group, **how),
    ]


def test_targets_that_are_no_ids_and_logits_that_are_are_refused(pool):
    for found in pool.run(2, kinds):
        assert "int64 (or int32), but these are torch.float32; targets with" in found[0]
        assert "these are torch.int8" in found[1] and "these are torch.bool" in found[3]
        assert "takes logits of a floating-point dtype, but these are torch.int64" in found[2]
