"""The input of a dry run: the options of `course train`, and a model's config.json or sizes.

A dry run reads no weights, text or tokenizer, because the vocabulary size is enough. Lesson 15.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch.distributed.device_mesh import DeviceMesh

from course_lib.data import Batch
from course_lib.estimate.fit import check_gpus
from course_lib.estimate.model import keys_of, our_config
from course_lib.gpt import Config
from course_lib.layout import heads as evenly
from course_lib.pretrained.config import TRAITS
from course_lib.train import checks
from course_lib.train.options import OF_A_NEW_MODEL, Options, Refused, flag
from course_lib.train.options import parse as parse_train

OF_A_RUN = ("from_", "resume", "ranks", "plot")  # options without meaning for shapes


@dataclass(frozen=True)
class Sized(Options):
    """The options of a run, with the model's config if it was read from a config.json."""

    model: Config | None = None

    def config(self) -> Config:
        if self.model is None:
            return super().config()
        return self.model.changed(
            recompute=self.recompute, dropout=self.dropout, attention_dropout=self.dropout
        )


def parse(argv: Sequence[str], prog: str) -> tuple[Sized, int, int]:
    """Parse a command line into (options, world, rank).

    `--config` names a model's config.json, or a file of `course train`'s options."""
    reader = argparse.ArgumentParser(prog=prog, add_help=False, allow_abbrev=False)
    reader.error = _refuse
    reader.add_argument("--world", type=int)
    reader.add_argument("--rank", type=int, default=0)
    reader.add_argument("--config")
    own, rest = reader.parse_known_args(list(argv))
    if own.world is None:
        raise Refused("--world is missing: pass the number of ranks of the run")
    config, rest = _model_of(own.config, rest)
    options = parse_train(rest, prog)
    return sized(options, own.world, config=config), own.world, own.rank


def sized(options: Options, world: int, *, config: Config | None = None) -> Sized:
    """Complete the options for a dry run. By default, sequences are as long as the model allows,
    and there is one for each replica and micro-batch."""
    strange = [name for name in OF_A_RUN if name in options.typed and getattr(options, name)]
    if strange:
        raise Refused(
            f"{flag(strange[0])} is for a run with values, but a dry run has only shapes: name the "
            "model with --config or by its sizes, and give the number of ranks with --world"
        )
    sizes = [name for name in options.typed if config is not None and name in OF_A_NEW_MODEL]
    if sizes:
        raise Refused(f"{flag(sizes[0])} is a size, but --config sets all sizes: leave one out")
    if config is not None and "length" not in options.typed:
        options = replace(options, length=config.length)
    if "rows" not in options.typed and options.tp >= 1:
        rows = max(1, world // options.tp) * max(1, options.accumulate)
        options = replace(options, rows=rows)
    values = {name: getattr(options, name) for name in Options.__dataclass_fields__}
    return Sized(**values, model=config)


def check(options: Sized, world: int, rank: int) -> None:
    """Raise Refused for an impossible run, with the same messages as `course train`."""
    if world < 1:
        raise Refused(f"--world {world} must be 1 or more")
    try:
        check_gpus(world, "--world")
    except ValueError as error:
        raise Refused(str(error)) from None
    if not 0 <= rank < world:
        raise Refused(f"--rank {rank}: the ranks of a world of {world} are 0 to {world - 1}")
    checks.check(options, world, tokenizer=False)
    longest = options.config().length
    if options.length > longest:
        raise Refused(
            f"--length {options.length} is longer than the {longest} tokens of --config's model; "
            f"take --length {longest} or less"
        )


class ShapeBatches:
    """Micro-batches without values, for this rank's share of the rows."""

    def __init__(self, options: Options, mesh: DeviceMesh):
        dp = mesh.get_group("dp")
        self.shape = evenly(options.micro_rows, dp.size())[dp.rank()], options.length
        self.tokens = options.micro_rows * options.length

    def next_batch(self) -> Batch:
        """Return (b, s) ids and targets, all of which count."""
        ids, targets = (torch.empty(self.shape, dtype=torch.long, device="meta") for _ in range(2))
        return Batch(ids, targets, ids.numel(), self.tokens, ())


def _model_of(path: str | None, rest: list[str]) -> tuple[Config | None, list[str]]:
    """Return (the model's config, remaining options); a file of options stays among the latter."""
    if path is None:
        return None, rest
    try:
        keys = keys_of(path)
        if "model_type" not in keys:
            return None, [*rest, "--config", path]
        config = our_config(keys, path)
    except ValueError as error:
        raise Refused(f"--config {error}") from error
    if config is None:
        raise Refused(
            f"--config {path}: model_type={keys['model_type']!r} is none of {', '.join(TRAITS)}, "
            "which this course can run. Give sizes: --hidden, --layers, --heads, --vocabulary. "
            f"`course estimate --config {path}` shows the memory of this model's states"
        )
    return config, rest


def _refuse(message: str):
    raise Refused(f"{message} (--help shows all options)")
