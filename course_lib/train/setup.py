"""What a run consists of, made or found again: model, optimizer, rows, and the step it stands at.

A new model starts from one seed, the same on every rank for any mesh; one that goes on has its
weights, its optimizer's states and its place in the data back to the last bit. Lesson 08.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib import pretrained, ranks
from course_lib.data import Batches, prepare
from course_lib.gpt import GPT, Heads
from course_lib.pretrained.header import CheckpointError
from course_lib.pretrained.sketch import Sketching, without_numbers
from course_lib.pretrained.together import together
from course_lib.step.groups import groups
from course_lib.tensor_parallel import parallelize
from course_lib.tensor_parallel.randomness import mix, seed_all
from course_lib.train import checkpoints
from course_lib.train.options import FREE, Options, Refused, as_dict, checked
from course_lib.train.record import FOLDER, LATEST, check_mesh, config_of, last, whole

BETAS = (0.9, 0.95)


class Failed(RuntimeError):
    """Something went wrong that every rank knows of; one of them says it."""


@dataclass
class Run:
    """All that a step needs, on this rank."""

    options: Options
    me: ranks.Me
    mesh: DeviceMesh
    model: GPT
    optimizer: torch.optim.Optimizer
    batches: Batches
    out: Path
    tokenizer_json: str
    done: int = 0  # steps
    summed: bool = True  # whether the checkpoint that it goes on from had sums

    @property
    def dp(self) -> int:
        return self.mesh.get_group("dp").size()

    def lr(self, step: int) -> float:
        """The rate of a step, counted from 0: up to --lr over the warmup, and then level, so that
        a run may go on for longer than it was first told."""
        return self.options.lr * min(1.0, (step + 1) / max(1, self.options.warmup))

    def seed(self, step: int) -> None:
        """Masks follow from the seed and the step: nothing of the past has to be kept."""
        replica = self.mesh.get_group("dp").rank()
        seed_all(mix(self.options.seed, step), replica=replica)

    def save(self, curve: str | None = None) -> Path:
        """`curve` is the digest of the losses so far, on rank 0."""
        record = {
            "options": as_dict(self.options),
            "config": self.model.config.as_dict(),
            "data": self.batches.state(),
            "torch": torch.__version__,
            "curve": curve,
        }
        files = {"tokenizer.json": self.tokenizer_json}
        try:
            return checkpoints.save(
                self.out, self.done, self.model, self.optimizer, self.mesh, record,
                files=files, keep=self.options.keep,
            )  # fmt: skip
        except (OSError, CheckpointError) as error:
            raise Failed(
                f"step {self.done} could not be saved: {error}; the checkpoint before it, if there "
                "is one, stays: make room, or name another --out, and go on with --resume"
            ) from error


def settled(told: Mapping, world: int) -> tuple[Options, tuple[Path, dict] | None]:
    """The options of this run and, where it goes on, the checkpoint and its record.

    What was not typed is as it was; what was typed and would give another curve is refused.
    """
    if not (told.get("resume") and told.get("out")):
        options = checked(told, world)
        top = Path(options.out) / FOLDER
        if options.out and ((top / LATEST).exists() or whole(top)):
            raise Refused(
                f"--out {options.out} holds a run with checkpoints; go on with it (--resume), or "
                "name another folder"
            )
        return options, None
    path, record = last(Path(told["out"]))
    saved = {key: value for key, value in record["options"].items() if key in Options().__dict__}
    for key, value in told.items():
        if key not in FREE and saved.get(key) != value:
            flag = "--" + key.replace("_", "-")
            raise Refused(
                f"{flag} {value} is not what {path} was trained with, {flag} {saved.get(key)}; "
                f"leave it out to go on, or begin a run of its own with --from {path}"
            )
    options = checked({**saved, "json": False, **told}, world)
    check_mesh(path, record, world // options.tp, options.tp)
    return options, (path, record)


def make(
    options: Options, me: ranks.Me, mesh: DeviceMesh, found: tuple[Path, dict] | None, out: Path
) -> Run:
    """Every rank calls it; what cannot be is refused on all of them."""
    summed = True
    if found is not None:
        with _going_on(found[0]):
            summed = checkpoints.check_bytes(*found, mesh)
    model = _model(options, me, mesh, found)
    if options.length > model.config.length:
        raise Refused(
            f"--length {options.length} is longer than the {model.config.length} tokens that the "
            f"model of {options.from_ or found} was made for; take --length "
            f"{model.config.length} or less"
        )
    try:
        with together([dist.group.WORLD], f"--out {out}"):
            if me.rank == 0:
                checkpoints.sweep(out / FOLDER)
    except (OSError, ValueError) as error:
        raise Failed(f"--out {out}: {error}; name a folder to write into") from error
    try:
        corpus = prepare(
            dist.group.WORLD,
            out / "corpus",
            vocabulary=model.config.vocabulary,
            most_bytes=options.corpus_bytes,
        )
        batches = Batches(
            corpus, rows=options.rows // options.accumulate, length=options.length, dp=mesh,
            seed=options.seed, pack=options.pack, device=me.device,
        )  # fmt: skip
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        raise Failed(f"the corpus: {error}") from error
    _check_words(options, corpus.tokenizer_json)
    optimizer = torch.optim.AdamW(groups(model, options.decay), lr=options.lr, betas=BETAS)
    words = corpus.tokenizer_json
    run = Run(options, me, mesh, model, optimizer, batches, out, words, summed=summed)
    if found is not None:
        path, record = found
        with _going_on(path):
            checkpoints.load_states(path, model, optimizer, mesh)
            batches.restore(record["data"])
            run.done = record["step"]
    return run


@contextlib.contextmanager
def _going_on(path: Path) -> Iterator[None]:
    """What is wrong with a checkpoint is known to all ranks."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise Failed(f"--resume from {path}: {error}") from error


def _model(
    options: Options, me: ranks.Me, mesh: DeviceMesh, found: tuple[Path, dict] | None
) -> GPT:
    if found is not None:
        path, record = found
        with _going_on(path):
            config = config_of(path, record).changed(recompute=options.recompute)
            with Sketching():
                model = parallelize(without_numbers(config), mesh, sequence=options.sequence)
            model = pretrained.load(model, path, mesh, device=me.device)
    elif options.from_:
        try:
            model = pretrained.from_pretrained(
                options.from_, mesh, device=me.device, dtype=torch.float32,
                sequence=options.sequence,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            raise Refused(f"--from {options.from_}: {error}") from error
        _change(model, options)
    else:
        seed_all(options.seed)
        model = parallelize(GPT(options.config()).to(me.device), mesh, sequence=options.sequence)
    return model.train()


def _check_words(options: Options, tokenizer_json: str) -> None:
    """Weights mean what their words mean: another tokenizer's ids would be noise to them."""
    beside = Path(options.from_) / "tokenizer.json"
    if options.from_ and beside.is_file() and beside.read_text() != tokenizer_json:
        raise Refused(
            f"--from {options.from_} has a tokenizer of its own, and the corpus here gives another "
            f"({options.corpus_bytes} bytes of this Python's sources): take the --corpus-bytes and "
            "the Python that it was trained with"
        )


def _change(model: GPT, options: Options) -> None:
    """What training adds to a model that came with numbers."""
    p = options.dropout
    model.config = model.config.changed(recompute=options.recompute, dropout=p, attention_dropout=p)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = p
        elif isinstance(module, Heads):
            module.dropout = p
