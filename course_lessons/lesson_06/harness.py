"""Blocks with sharded tokens beside one process, forty steps of a loss, groups of other sizes.

The lesson makes the two variants; this file holds them against a dense block, step by step, and
runs them on a group that the lesson's own ranks do not form. Lesson 06.
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
    """The parts of a block in the order in which they first run, named for `schedule`."""
    return lesson_05.parts_of(block, "dropout")


def hold_against_dense(lay: Lay, config: Config, plan: str, length: int, mesh: DeviceMesh) -> int:
    """Three steps of a sharded block beside the dense one: outputs, dX, every gradient, and the
    weights at the end. Returns how many gradients were compared."""
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
    """The losses of this rank's tokens, each in the size of a mean over all tokens."""
    return lesson_05.steps_of_adam(block, length=length, group=group)


class Counted(NamedTuple):
    """Of one forward and backward: bytes for tokens, bytes for parameters' sums, bytes kept."""

    moves: float
    sums: float
    kept: int


def sent_and_kept(
    config: Config, plan: str, shape: tuple[int, int], group: Group, device: torch.device
) -> Counted:
    """A block on this group, once forward and backward, under ledger and meter."""
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
