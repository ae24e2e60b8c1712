"""The model of a run: new from one seed, from any checkpoint, or from the run's own checkpoint.

A new model is the same for any layout, because each parameter has its own seed. At stage 3 no rank
ever holds its full tp shard: the engine requests one parameter at a time. Lesson 08.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib import ranks
from course_lib.gpt import GPT, Heads
from course_lib.meta import host_of
from course_lib.pretrained.load import Filler, materialize, outline_of, together
from course_lib.pretrained.names import held, weights_of
from course_lib.pretrained.sketch import Sketching, without_numbers
from course_lib.tensor_parallel import parallelize
from course_lib.tensor_parallel.randomness import mix
from course_lib.train.options import Options, Refused
from course_lib.train.record import Failed, config_of, read


class Start:
    """A callable that fills a new model's parameters by name, as a stage 3 engine requests."""

    def __init__(self, model: GPT, seed: int):
        self.model, self.seed = model, seed
        self.weights = {weight.name: weight for weight in weights_of(model.config)}
        self.pieces = {name: held(model, weight) for name, weight in self.weights.items()}

    @torch.no_grad()
    def __call__(self, name: str, part: Tensor) -> None:
        """Write this rank's tp shard of the initial elements into `part`."""
        digest = hashlib.sha256(name.encode()).digest()
        dense = torch.empty(self.weights[name].shape, device=host_of(part.device))
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(mix(self.seed, int.from_bytes(digest[:4], "big")))
            self.model.start_one(name, dense)
        piece, at = self.pieces[name], 0
        part.zero_()  # padding: rows without a vocabulary entry
        for start, stop in piece.spans:
            source = dense.narrow(piece.dim, start, stop - start)
            part.narrow(piece.dim, at, stop - start).copy_(source)
            at += stop - start

    def close(self) -> None:
        """Do nothing, because nothing is open."""


class Later:
    """A callable that fills a model with zeros, because a checkpoint is loaded into it later."""

    def __call__(self, name: str, part: Tensor) -> None:
        part.zero_()

    def close(self) -> None:
        """Do nothing, because nothing is open."""


Fill = Start | Later | Filler


def make_model(options: Options, me: ranks.Me, mesh: DeviceMesh) -> tuple[GPT, Fill | None]:
    """Create the model, sharded over tp, on this rank's device and in training mode; all ranks call
    this. At stage 3 the model has no elements yet, and a filler is returned with it."""
    if options.checkpoint:
        model, fill = _saved(options, mesh)
    elif options.from_:
        model, fill = _from(options, mesh)
    else:
        with Sketching():
            dense = without_numbers(options.config())
            model = parallelize(dense, mesh, sequence=options.sequence)
        fill = Start(model, options.seed)
    if options.stage < 3:
        materialize(model, me.device)
        with together([dist.group.WORLD], "filling the model"), contextlib.closing(fill):
            for name, parameter in model.named_parameters():
                fill(name, parameter.detach())
        fill = None
    if options.length > model.config.length:
        raise Refused(
            f"--length {options.length} is longer than the {model.config.length} tokens of the "
            f"model of {options.from_ or options.checkpoint}; use --length {model.config.length} "
            "or less"
        )
    return model.train(), fill


@contextlib.contextmanager
def going_on(path: Path | str) -> Iterator[None]:
    """Turn a checkpoint's errors into an error that all ranks know."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise Failed(f"--resume from {path}: {error}") from error


def _saved(options: Options, mesh: DeviceMesh) -> tuple[GPT, Fill]:
    path = Path(options.checkpoint)
    with going_on(path):
        config = config_of(path, read(path)).changed(recompute=options.recompute)
        with Sketching():
            model = parallelize(without_numbers(config), mesh, sequence=options.sequence)
        return model, Later()


def _from(options: Options, mesh: DeviceMesh) -> tuple[GPT, Fill]:
    try:
        dtype = torch.float32
        model = outline_of(options.from_, mesh, dtype=dtype, sequence=options.sequence)
        fill = Filler(model, options.from_, mesh)
    except (OSError, ValueError) as error:
        raise Refused(f"--from {options.from_}: {error}") from error
    p = options.dropout
    model.config = model.config.changed(recompute=options.recompute, dropout=p, attention_dropout=p)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = p
        elif isinstance(module, Heads):
            module.dropout = p
    return model, fill
