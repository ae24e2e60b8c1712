"""Comparisons of sharded-token blocks with one process, forty training steps, and other groups.

The lesson builds the two variants. This file compares them with a dense block, step by step, and
runs them on groups of sizes that the lesson's ranks do not form. Lesson 06.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from course_lessons.lesson_05 import harness as lesson_05
from course_lessons.lesson_05.harness import Step, compare, places, random_block, train
from course_lib.collectives.call import Group
from course_lib.gpt import Block, Config
from course_lib.layout import cut
from course_lib.ledger import ledger
from course_lib.memory import peak
from course_lib.tensor_parallel import shard_attention, shard_mlp
from course_lib.tensor_parallel.sequence import Tokens
from course_lib.tensor_parallel.sequence_plan import scatter_block

PLANS = ("tokens replicated", "X kept", "X gathered again")
Lay = Callable[[Block, str, int], Block]  # shards a dense block by a plan, for a sequence length


def parts_of(block: Block) -> dict[str, nn.Module]:
    """Return the parts of a block in the order of their first run, named for `schedule`."""
    return lesson_05.parts_of(block, "dropout")


def hold_against_dense(lay: Lay, config: Config, plan: str, length: int, mesh: DeviceMesh) -> int:
    """Train a sharded block and the dense block for three steps; compare outputs, dX, every
    gradient and the final weights. Return the number of gradients compared."""
    group = mesh.get_group("tp")
    sizes, rank = cut(length, group.size()), group.rank()
    dense = random_block(config, 7, mesh.device_type)
    where, own = places(dense, mesh), lay(deepcopy(dense), plan, length)
    expected = [
        Step(*(t.split(sizes, 1)[rank] for t in (step.out, step.dx)), step.gradients)
        for step in train(dense, length)
    ]
    return compare(own, train(own, length, sizes, rank), dense, expected, where)


def forty_steps(block: Block, group: Group, length: int = 8) -> list[float]:
    """Return the losses of this rank's tokens, each scaled as a mean over all tokens."""
    return lesson_05.steps_of_adam(block, length=length, group=group)


class Counted(NamedTuple):
    """A forward and backward pass's bytes: sent for tokens, sent for parameter sums, and kept."""

    moves: float
    sums: float
    kept: int


def sent_and_kept(
    config: Config, plan: str, shape: tuple[int, int], group: Group, device: torch.device
) -> Counted:
    """Run one forward and backward pass of a block on this group, under ledger and meter."""
    torch.manual_seed(6)
    block = Block(config).to(device)
    shard_attention(block.attention, group)
    shard_mlp(block.mlp, group)
    x = torch.randn(*shape, config.hidden)
    if plan != PLANS[0]:
        tokens = Tokens(group)
        tokens.length = shape[1]
        scatter_block(block, tokens, keep=plan == PLANS[1])
        x = x.split(cut(shape[1], group.size()), 1)[group.rank()].clone()
    x = x.to(device).requires_grad_()
    with ledger() as book:
        with peak() as memory:
            out = block(x)
        out.sum().backward()
    sums = book.bytes("all_reduce") if plan != PLANS[0] else 0
    return Counted(book.bytes() - sums, sums, memory.held_after)
