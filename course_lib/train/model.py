"""The model of a run: new from one seed, from a checkpoint of anybody's, or the one it had.

A new model is the same on every rank for any mesh. Lesson 08.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib import pretrained, ranks
from course_lib.gpt import GPT, Heads
from course_lib.pretrained.sketch import Sketching, without_numbers
from course_lib.tensor_parallel import parallelize
from course_lib.tensor_parallel.randomness import seed_all
from course_lib.train.checkpoints import check_bytes
from course_lib.train.options import Options, Refused
from course_lib.train.record import Failed, config_of, read


def make_model(options: Options, me: ranks.Me, mesh: DeviceMesh) -> GPT:
    """The model, sharded over tp, on this rank's device and in training mode; all ranks call it."""
    if options.checkpoint:
        model = _saved(options, me, mesh)
    elif options.from_:
        model = _from(options, me, mesh)
    else:
        seed_all(options.seed)
        model = parallelize(GPT(options.config()).to(me.device), mesh, sequence=options.sequence)
    if options.length > model.config.length:
        raise Refused(
            f"--length {options.length} is longer than the {model.config.length} tokens that the "
            f"model of {options.from_ or options.checkpoint} was made for; take --length "
            f"{model.config.length} or less"
        )
    return model.train()


@contextlib.contextmanager
def going_on(path: Path | str) -> Iterator[None]:
    """What is wrong with a checkpoint is known to all ranks."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise Failed(f"--resume from {path}: {error}") from error


def _saved(options: Options, me: ranks.Me, mesh: DeviceMesh) -> GPT:
    path = Path(options.checkpoint)
    with going_on(path):
        record = read(path)
        check_bytes(path, record, mesh, options.stage)
        config = config_of(path, record).changed(recompute=options.recompute)
        with Sketching():
            model = parallelize(without_numbers(config), mesh, sequence=options.sequence)
        return pretrained.load(model, path, mesh, device=me.device)


def _from(options: Options, me: ranks.Me, mesh: DeviceMesh) -> GPT:
    try:
        model = pretrained.from_pretrained(
            options.from_, mesh, device=me.device, dtype=torch.float32, sequence=options.sequence
        )
    except (OSError, ValueError) as error:
        raise Refused(f"--from {options.from_}: {error}") from error
    p = options.dropout
    model.config = model.config.changed(recompute=options.recompute, dropout=p, attention_dropout=p)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = p
        elif isinstance(module, Heads):
            module.dropout = p
    return model
