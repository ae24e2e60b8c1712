"""Text from weights at stage 3: every rank its own prompts, and what one refuses all refuse.

A forward gathers every unit from all ranks, so all of them make equally many. `synced`, elsewhere
called synced_gpus, lets a rank that is done take part until the last one is. Lesson 14.
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
    """This rank's prompts go on by up to `count` words; every rank of dp calls it, with its own.

    `engine` is a `zero.inference`, or a training engine at stage 3 between two steps. Prompts are a
    (b, s) tensor, or a list of ids for each, of any lengths. With `synced` a rank may have other
    counts than the others, or no row: a byte of each rank, before every word, says whether anybody
    writes on. Without it that byte is saved, and all have to make equally many forwards: with
    `stop` nobody can promise that, and the ranks that go on wait for one that has ended.
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
        "{ranks} would write another number of words than {first}, and one of them would wait for "
        "the other's shards for ever",
        f"here count={count}. Pass the same on every rank, or synced=True, with which a rank that "
        "is done takes part until all are",
        error=ValueError,
    )
    try:
        return write(engine.model, prompts, count, **more)
    except NotAllCame as error:
        raise NotAllCame(
            f"{error}. These texts were written with synced=False: a rank whose rows have all met "
            "the word `stop` makes no more forwards. With synced=True it takes part until all are "
            "done"
        ) from error


def check_streams(engine: object) -> None:
    """Refuse what shards no weights, and a model that `generate` cannot call."""
    if not isinstance(engine, (Engine, Inference)):
        raise TypeError(
            f"generate takes an engine, and got a {type(engine).__name__}: shard a model that is "
            "not trained with zero.inference(model, mesh=mesh). A whole one, or one that is cut "
            "over tp, goes to course_lib.generate.generate"
        )
    if engine.stage != 3:
        raise ValueError(
            f"this engine is at stage {engine.stage}, where every rank has the whole model: call "
            "course_lib.generate.generate(engine.model, …), each rank for itself. Stage 3 alone "
            "shards what inference needs"
        )
    if not isinstance(engine.model, GPT):
        raise TypeError(
            f"generate calls a course_lib GPT, whose caches it knows; this is a "
            f"{type(engine.model).__name__}. Call engine(batch) in a loop of your own, on every "
            "rank equally often"
        )
