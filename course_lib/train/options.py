"""Options of a training run: read once from a command line or a JSON file, checked, handed on.

A misspelt name is an error with the near one beside it, never a default that stays in place. What
an option changes is derived in lessons 04 to 12.
"""

from __future__ import annotations

import argparse
import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields
from pathlib import Path

from course_lib.gpt import Config


class Refused(ValueError):
    """The call cannot work as it was typed: every rank finds that out by itself."""


def _option(default: object, text: str, **more: object):
    return field(default=default, metadata={"help": text, **more})


@dataclass(frozen=True)
class Options:
    """One run. The names are those of the command line, with - for _; the last two are not typed:
    which options were, and the checkpoint that the run goes on from."""

    family: str = _option("gpt2", "the model's family", choices=("gpt2", "llama"))
    hidden: int = _option(128, "width of the model")
    layers: int = _option(4, "number of blocks")
    heads: int = _option(4, "query heads")
    kv_heads: int = _option(0, "key/value heads; 0: as many as heads")
    inner: int = _option(0, "width of the MLP; 0: four times the hidden size")
    vocabulary: int = _option(2039, "entries of the tokenizer, which is trained on the corpus")
    dropout: float = _option(0.0, "probability of dropout, everywhere")
    from_: str = _option("", "a folder or a hub name whose weights to begin with", name="--from")
    ranks: int = _option(0, "ranks that `course train` starts on this host; 0: as many as --tp")
    tp: int = _option(
        1, "tensor parallelism: ranks that one model is sharded over; the rest are dp"
    )
    sequence: bool = _option(False, "sequence parallelism: shard the tokens between the layers too")
    stage: int = _option(
        0,
        "ZeRO: 0 shards nothing over dp, 1 optimizer states, 2 gradients too, 3 parameters too",
        choices=(0, 1, 2, 3),
    )
    offload: str = _option(
        "none",
        "what holds the optimizer's part, at stage 3 the parameters too: the device "
        "(none), the host (cpu), files (nvme)",
        choices=("none", "cpu", "nvme"),
    )
    offload_parameters: bool = _option(
        True, "stage 3: --no-offload-parameters keeps their shards on the device"
    )
    offload_optimizer: bool = _option(
        True, "stage 3 on the host: --no-offload-optimizer keeps the optimizer's part on the device"
    )
    offload_folder: str = _option("", "for files, on a local disk; default: offload/ in --out")
    units: str = _option(
        "", "stage 3: modules that are gathered as one, such as blocks.*.mlp,head; default: blocks"
    )
    fast: bool = _option(
        False,
        "stage 3: keep gathered parameters from forward to backward; --lean gathers anew",
        no="--lean",
    )
    precision: str = _option(
        "float32",
        "of the weights; 16 bits have a master copy in float32, float16 a loss scale",
        choices=("float32", "bfloat16", "float16"),
    )
    recompute: bool = _option(False, "keep each block's input alone, and recompute its activations")
    fused_loss: bool = _option(False, "head and loss in one, without the logits")
    steps: int = _option(200, "optimizer steps, counted from the very first, also after --resume")
    rows: int = _option(
        16,
        "sequences of a step, over all replicas and micro-batches; the tp ranks of one model "
        "share theirs",
    )
    length: int = _option(128, "tokens of a sequence")
    accumulate: int = _option(
        1, "gradient accumulation: micro-batches that --rows of a step is divided into"
    )
    pack: bool = _option(True, "sequences without regard to documents; --no-pack: one a sequence")
    corpus_bytes: int = _option(2_000_000, "how much text is read")
    held_back: float = _option(0.05, "fraction of the tokens that is for the validation loss alone")
    validate_every: int = _option(50, "steps between validation losses; 0: none")
    lr: float = _option(1e-3, "learning rate, after the warmup")
    warmup: int = _option(10, "steps over which the learning rate rises")
    decay: float = _option(0.1, "weight decay, of parameters with two dims or more")
    clip: float = _option(1.0, "bound of the gradients' norm; 0: none")
    seed: int = _option(0, "of the weights, the order of the sequences and the dropout masks")
    out: str = _option(
        "",
        "folder for curve and checkpoints, for all ranks to see; default: a new folder "
        "runs/DATE-TIME",
    )
    save_every: int = _option(0, "steps between checkpoints; one is written at the end in any case")
    async_save: bool = _option(
        False, "go on training while a checkpoint is written: its copy takes host memory"
    )
    keep: int = _option(2, "how many of the last checkpoints stay")
    resume: bool = _option(
        False,
        "go on from the last checkpoint in --out, at its layout or another: --ranks, --tp, "
        "--stage, --offload, --precision may change; what changes the curve may not",
    )
    log_every: int = _option(10, "steps between lines of progress")
    peak_tflops: float = _option(0.0, "of one rank, for MFU; 0: measured at the start")
    timeout: float = _option(600.0, "seconds after which a rank that waits gives up")
    plot: bool = _option(False, "leave run.png: loss, memory of each rank, bytes of a step")
    json: bool = _option(False, "one JSON document on standard output at the end")
    typed: tuple[str, ...] = ()
    checkpoint: str = ""

    @property
    def micro_rows(self) -> int:
        """Sequences of a micro-batch, on all ranks together."""
        return self.rows // self.accumulate

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0: up to --lr over the warmup, and then level,
        so that a run may go on for longer than it was first meant to."""
        return self.lr * min(1.0, (step + 1) / max(1, self.warmup))

    def config(self) -> Config:
        """The model's config; what cannot be one is refused."""
        sizes = {key: getattr(self, key) for key in ("vocabulary", "length", "hidden", "layers")}
        make = Config.gpt2 if self.family == "gpt2" else Config.llama
        try:
            return make(
                **sizes, heads=self.heads, kv_heads=self.kv_heads or None, inner=self.inner or None,
                dropout=self.dropout, attention_dropout=self.dropout, recompute=self.recompute,
            )  # fmt: skip
        except ValueError as error:
            raise Refused(str(error)) from error

    def as_dict(self) -> dict:
        """The options alone, for a record."""
        values = asdict(self)
        return {option.name: values[option.name] for option in options()}

    def to_json(self) -> str:
        """All of it, for the ranks that a launcher starts."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Options:
        values = json.loads(text)
        return cls(**{**values, "typed": tuple(values["typed"])})


def options() -> Iterator[Field]:
    """The fields that a person can set."""
    return (item for item in fields(Options) if "help" in item.metadata)


# What may differ when a run goes on: none of it changes the curve by more than a rounding.
FREE = {"steps", "out", "resume", "save_every", "keep", "log_every", "peak_tflops", "timeout"}
FREE |= {"json", "recompute", "fused_loss", "from_", "ranks", "plot", "validate_every", "fast"}
FREE |= {"offload_folder", "async_save"}
# How a run is laid out: a checkpoint describes logical tensors, and goes on at any layout.
LAYOUT = {"tp", "sequence", "stage", "offload", "offload_parameters", "offload_optimizer"}
LAYOUT |= {"units", "precision"}
OF_A_NEW_MODEL = {"family", "hidden", "layers", "heads", "kv_heads", "inner", "vocabulary"}
# Which option begins which part of the help.
PARTS = {"family": "model", "ranks": "layout: tensor parallelism, ZeRO, memory"}
PARTS |= {"steps": "training", "out": "folder, checkpoints, report"}
# Names that other programs have for these.
NEAR = {"--dtype": "--precision", "--zero": "--stage", "--zero-stage": "--stage"}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise Refused(f"{message} (--help shows all options)")


def parser(prog: str) -> argparse.ArgumentParser:
    reader = _Parser(prog=prog, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    reader.description = (
        "Train a decoder on Python's own sources: tensor parallelism × ZeRO × offload × precision, "
        "over a mesh of dp × tp ranks."
    )
    reader.add_argument(
        "--config",
        metavar="FILE",
        help="a JSON object of these options; what is typed here counts more",
    )
    part = reader
    for option in options():
        if option.name in PARTS:
            part = reader.add_argument_group(PARTS[option.name])
        default = "" if option.default == "" else f" ({option.default})"
        about: dict = {"help": option.metadata["help"] + default, "dest": option.name}
        if "no" in option.metadata:
            both = part.add_mutually_exclusive_group()
            both.add_argument(_flag(option), action="store_true", **about)
            about["help"] = f"the opposite of {_flag(option)}, the default"
            both.add_argument(option.metadata["no"], action="store_false", **about)
            continue
        if isinstance(option.default, bool):
            about["action"] = argparse.BooleanOptionalAction
        else:
            about["type"] = type(option.default)
            if "choices" in option.metadata:
                about["choices"] = option.metadata["choices"]
            else:
                about["metavar"] = about["type"].__name__.upper()
        part.add_argument(_flag(option), **about)
    return reader


def parse(argv: Sequence[str], prog: str = "python -m course_lib.train") -> Options:
    """The options that somebody typed, or wrote into the file of --config, beside the defaults."""
    reader = parser(prog)
    typed = _typed(reader, argv)
    path = typed.pop("config", None)
    typed = {**(_from_file(Path(path), reader) if path else {}), **typed}
    sizes = [name for name in typed if name in OF_A_NEW_MODEL and typed.get("from_")]
    if sizes:
        raise Refused(
            f"{flag(sizes[0])} is a size of a new model, and --from brings one with "
            "sizes of its own; leave one of the two out"
        )
    return Options(**typed, typed=tuple(typed))


def _typed(reader: argparse.ArgumentParser, argv: Sequence[str]) -> dict:
    """The options that were typed, by field; a name that is none is refused with a near one."""
    known = [text for action in reader._actions for text in action.option_strings]
    for text in argv:
        near = NEAR.get(text.split("=")[0])
        if near:
            raise Refused(f"there is no option {text}; did you mean {near}?")
    space, unknown = reader.parse_known_args(list(argv))
    if unknown:
        name = unknown[0].split("=")[0]
        near = _near(name, known)
        meant = f"; did you mean {near}?" if near else " (--help shows all options)"
        raise Refused(f"there is no option {name}{meant}")
    return vars(space)


def _near(typed: str, known: Sequence[str]) -> str | None:
    """The option that a misspelt one resembles; "--no-" before both says nothing of that."""
    start = "--no-" if typed.startswith("--no-") else "--"
    alike = {name.removeprefix(start): name for name in known if name.startswith(start)}
    near = difflib.get_close_matches(typed.removeprefix(start), alike, n=1)
    return alike[near[0]] if near else None


def flag(name: str) -> str:
    """An option as it is typed, by the name of its field."""
    return next(_flag(option) for option in options() if option.name == name)


def _flag(option: Field) -> str:
    return option.metadata.get("name", "--" + option.name.replace("_", "-"))


def _from_file(path: Path, reader: argparse.ArgumentParser) -> dict:
    try:
        values = json.loads(path.read_text())
    except OSError as error:
        raise Refused(f"--config {path}: {error.strerror or error}; name a file that is") from error
    except ValueError as error:
        raise Refused(f"--config {path} is no JSON: {error}") from error
    if not isinstance(values, Mapping):
        raise Refused(f"--config {path} holds a JSON {type(values).__name__}, not an object")
    by_flag = {_flag(option): option for option in options()}
    argv: list[str] = []
    for key, value in values.items():
        text = "--" + str(key).replace("_", "-")
        if value is None or isinstance(value, (list, dict)) or text == "--config":
            raise Refused(f"--config {path}: {key!r} cannot be {json.dumps(value)} in a file")
        if value is False and text in by_flag:
            argv.append(_opposite(by_flag[text]))
        else:
            argv.append(text if isinstance(value, bool) else f"{text}={value}")
    try:
        return _typed(reader, argv)
    except Refused as error:
        raise Refused(f"--config {path}: {error}") from error


def _opposite(option: Field) -> str:
    """--lean, --no-pack, …: what switches an option off."""
    return option.metadata.get("no", _flag(option).replace("--", "--no-", 1))
