"""Text from weights at stage 3: every rank has its own prompts, and all ranks raise together.

A forward pass gathers every unit from all ranks, so all must run equally many. With `synced`
(synced_gpus elsewhere), a finished rank takes part until the last rank has finished. Lesson 14.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from course_lib.collectives.agreement import all_or_none, same_everywhere
from course_lib.generate import check_text
from course_lib.generate import generate as write
from course_lib.gpt import GPT
from course_lib.gpt.padding import left_padded
from course_lib.zero import Engine, Inference
from course_lib.zero.stage3.branch_guard import NotAllCame

WHAT = "generate"


def generate(
    engine: Inference | Engine,
    prompts: Tensor | Sequence[Tensor | Sequence[int]],
    count: int,
    *,
    synced: bool = True,
    temperature: float = 0.0,
    top: int | None = None,
    seed: int = 0,
    stop: int | None = None,
) -> Tensor | list[Tensor]:
    """Continue this rank's prompts by up to `count` tokens; every dp rank must call it.

    `engine` is a `zero.inference`, or a training engine at stage 3 between two steps. Prompts are a
    (b, s) tensor, or a list of the ids of each prompt. With `synced`, ranks may have different
    counts or no row, because before every token one byte from each rank shows if any rank
    continues. Without it, all ranks must run equally many forward passes. With `stop` this is not
    guaranteed, and ranks that continue would wait for a rank that has finished.
    """
    check_streams(engine)
    more = {"temperature": temperature, "top": top, "seed": seed, "stop": stop}
    if synced:
        return write(engine.model, prompts, count, synced=engine.group, **more)
    config = engine.model.config
    with all_or_none([engine.group], WHAT, error=ValueError):
        rows, _ = left_padded(prompts, next(engine.model.parameters()).device)
        check_text(config, rows, count, temperature, top, stop)
    same_everywhere(
        count,
        [engine.group],
        "{ranks} would write a different number of tokens than {first}, and one of them would wait "
        "for the other's shards forever",
        f"here count={count}. Pass the same on every rank, or synced=True, with which a rank that "
        "has finished takes part until all have",
        error=ValueError,
    )
    try:
        return write(engine.model, prompts, count, **more)
    except NotAllCame as error:
        raise NotAllCame(
            f"{error}. These texts were written with synced=False, so a rank whose rows have all "
            "produced the token `stop` makes no more forward passes. Pass synced=True, with which "
            "it takes part until all ranks have finished"
        ) from error


def check_streams(engine: object) -> None:
    """Raise if the engine does not shard weights, or if `generate` cannot call its model."""
    if not isinstance(engine, (Engine, Inference)):
        raise TypeError(
            f"generate takes an engine, but got a {type(engine).__name__}. Shard a model that you "
            "do not train with zero.inference(model, mesh=mesh). For an unsharded model, or a "
            "model sharded over tp, use course_lib.generate.generate"
        )
    if engine.stage != 3:
        raise ValueError(
            f"this engine is at stage {engine.stage}, where every rank has the full model: call "
            "course_lib.generate.generate(engine.model, …) on each rank separately. Only stage 3 "
            "shards the weights that inference needs"
        )
    if not isinstance(engine.model, GPT):
        raise TypeError(
            f"generate needs a course_lib GPT, whose caches it knows, but this is a "
            f"{type(engine.model).__name__}. Call engine(batch) in your own loop, equally often on "
            "every rank"
        )
