"""The error of a run without enough memory: the bytes of its states, and how to reduce them.

It uses lesson 12's closed forms for the requested model; activations are not counted.
"""

from __future__ import annotations

import re

import torch

from course_lib.estimate.fit import params_of_rank
from course_lib.estimate.memory import of_number
from course_lib.train.options import Options

GIB = 1 << 30
SHORT = ("can't allocate memory", "out of memory", "cannot allocate memory")


def is_short(error: BaseException) -> bool:
    """Return True for a failed allocation; torch's own error is a RuntimeError."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(x in str(error).lower() for x in SHORT)


def needs(error: BaseException, options: Options, rank: int, world: int) -> str:
    """Describe the failed allocation, the bytes of this rank's states, and remedies."""
    size = re.search(r"tried to allocate ([\d.]+ ?[A-Za-z]+)", str(error), re.IGNORECASE)
    more = f" for {size[1]} more" if size else ""
    return f"there is no memory{more}. {_states(options, rank, world)}"


def _states(options: Options, rank: int, world: int) -> str:
    lower = ["--stage 3" * (options.stage < 3), "more ranks with --tp"]
    lower += ["--offload nvme" * (options.offload != "nvme")]
    remedies = f"{', '.join(filter(None, lower))} or fewer --rows"
    if options.from_ or options.checkpoint:
        return f"Use {remedies}"
    config = options.config()
    params = params_of_rank(config, options.tp, rank % options.tp)
    dtype = getattr(torch, options.precision)
    held = of_number(
        params, options.stage, world // options.tp, width=dtype.itemsize,
        master=options.precision != "float32", alive=True,
    )  # fmt: skip
    where = "" if options.offload == "none" else ", offload included"
    return (
        f"The states of its {params:,} parameters need {held / GIB:,.1f} GiB on each rank{where}, "
        f"before any activation. Use a smaller model, {remedies}"
    )
