"""Common parts of lesson 08's trials: a small, fully random GPT, and the examination of steps.

No bias is zero and no norm weight is one, so that no result is right by accident. The five heads
and other sizes are divisible by neither two nor three ranks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from course_classroom.judge.answer import Answer
from course_classroom.judge.judge import Judge, on
from course_classroom.judge.looking import fresh_seed
from course_lib.gpt import GPT, Config
from course_lib.tensor_parallel import shard_attention, shard_mlp
from course_lib.tensor_parallel.parallelize import shard_vocabulary

# With four ranks `cut` gives the last one no row of 6 or of 9, a balanced cut gives it one, and
# torch.chunk makes three pieces. 5 heads, and 4 over three ranks, are spread evenly.
GPT2 = Config.gpt2(vocabulary=9, length=6, hidden=10, layers=2, heads=5, inner=6)
LLAMA = Config.llama(vocabulary=13, length=6, hidden=16, layers=1, heads=8, kv_heads=4, inner=9)


def dense(config: Config, seed: int) -> GPT:
    """Return the full model in float64, equal on all ranks."""
    with torch.random.fork_rng(devices=()), torch.no_grad():
        torch.manual_seed(seed)
        model = GPT(config).double()
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def cut_over(model: GPT, group: dist.ProcessGroup) -> GPT:
    """Shard the same model over a group, in place, as `parallelize` would."""
    for block in model.blocks:
        shard_attention(block.attention, group)
        shard_mlp(block.mlp, group)
    shard_vocabulary(model, group)
    return model


def tokens(config: Config, seed: int) -> tuple[Tensor, Tensor]:
    """Return (3, 5) ids and targets."""
    made = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(config.vocabulary, (2, 3, 5), generator=made).unbind())


def judged(
    look: Callable[[list[dict], str, int], None], *trials: tuple[Callable, list, list, str]
) -> Callable[[Answer, Judge], None]:
    """Return a judge that looks at each step of `function(answer, group, seed)` on some ranks.

    A trial is (the function, the ranks, the ranks without data, further words).
    """

    def judge_it(answer: Answer, judge: Judge) -> None:
        judge.take(answer, trials[0][0].__module__)
        seed = fresh_seed()
        for function, members, empty, also in trials:
            when = f"{on(members)}{also}"
            every = judge.trial(answer, function, seed, members=members, when=when, empty=empty)
            for step, reports in enumerate(zip(*every, strict=True)):
                look(list(reports), f"{when}, in step {step + 1}", step)

    return judge_it
