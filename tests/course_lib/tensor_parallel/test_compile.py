"""torch.compile of a cut model: the numbers of the plain one, step after step, and its messages.

A graph ends where ranks talk. So fullgraph=True is refused, with that reason.
"""

from __future__ import annotations

import copy
import shutil

import pytest
import torch
import torch.distributed as dist

from course_lib import ranks
from course_lib.gpt import GPT, Config
from course_lib.ledger import ledger
from course_lib.tensor_parallel import parallelize
from course_lib.tensor_parallel.cross_entropy import cross_entropy
from course_lib.tensor_parallel.fused_cross_entropy import head_cross_entropy
from tests.course_lib.tensor_parallel.parts import Momentum, close, made, own, randomized, said

CONFIG = {"vocabulary": 13, "hidden": 12, "layers": 2, "heads": 6, "length": 7}


def compiled(me, backend, plan, steps):
    """Three steps compiled and plain: parameters, losses and messages, then fullgraph's refusal."""
    group, mesh = dist.group.WORLD, ranks.mesh(me, dp=1, tp=me.world)
    config = Config(**CONFIG, kv_heads=1, dropout=0.1, attention_dropout=0.1)
    plain = parallelize(randomized(GPT(config), "compiled"), mesh, **plan)
    other = copy.deepcopy(plain)
    fast = torch.compile(other, backend=backend)
    ids, targets = (made(name, 2, 5).abs().mul(1e4).long() % 13 for name in ("ids", "targets"))
    sent, losses = [], []
    for model, call in ((plain, plain), (other, fast)):
        steps_of, seen = Momentum(model), []
        torch.manual_seed(3)
        for _ in range(steps):
            with ledger() as book:
                loss = cross_entropy(call(ids), targets, group, vocabulary=13)
                loss.backward()
            steps_of.step()
            seen.append(loss.detach())
        losses.append(torch.stack(seen))
        sent.append([(r.op, r.phase, r.elements) for r in book.records])
    close("losses", losses[1], losses[0])
    for (name, mine), want in zip(other.named_parameters(), plain.parameters(), strict=True):
        close(name, mine, want)
    assert sent[0] == sent[1] and losses[0][0] != losses[0][-1]
    torch._dynamo.reset()  # it remembers where graphs of this code have ended
    whole = torch.compile(copy.deepcopy(plain), backend=backend, fullgraph=True)
    return said(torch._dynamo.exc.Unsupported, whole, ids)


@pytest.mark.parametrize("sequence", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_compiled_model_is_the_plain_one(pool, sequence):
    for text in pool.run(2, compiled, "eager", {"sequence": sequence}, 3, timeout=90, alone=True):
        assert "it exchanges messages with other ranks" in text
        assert "without fullgraph=True" in text


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor compiles with a C++ compiler")
@pytest.mark.parametrize("sequence", [False, True])
def test_and_so_is_one_in_inductors_code(pool, sequence):
    pool.run(2, compiled, "inductor", {"sequence": sequence}, 3, timeout=240, alone=True)


def compiled_losses(me):
    """The loss inside of what is compiled: its gradient and its value are the plain ones."""
    group, targets = dist.group.WORLD, torch.tensor([0, 5, 6, -100])
    whole, head = made("logits", 4, 7), made("head", 7, 3)
    states = made("states", 4, 3)

    def plain(z):
        return cross_entropy(2 * z, targets, group, vocabulary=7).square()

    def fused(x, w):
        return head_cross_entropy(2 * x, w, targets, group, vocabulary=7).square()

    for function, inputs in ((plain, [own(whole, group)]), (fused, [states, own(head, group, 0)])):
        results = []
        for call in (function, torch.compile(function, backend="eager")):
            leaves = [t.detach().clone().requires_grad_() for t in inputs]
            loss = call(*leaves)
            results.append([loss, *torch.autograd.grad(loss, leaves)])
        for got, want in zip(*results, strict=True):
            close(function.__name__, got, want)
    torch._dynamo.reset()
    text = said(
        torch._dynamo.exc.Unsupported,
        torch.compile(plain, backend="eager", fullgraph=True),
        own(whole, group),
    )
    assert "it exchanges messages with other ranks" in text


def test_a_loss_inside_of_a_compiled_function_is_the_plain_one(pool):
    pool.run(3, compiled_losses, timeout=90, alone=True)
