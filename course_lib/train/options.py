"""Options of a training run: read once from a command line or a JSON file, and checked.

A misspelt name is an error that shows the nearest name, and is never silently ignored. The effects
of the options are derived in lessons 04 to 12.
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
    """The error for an impossible call; every rank detects it itself."""


def _option(default: object, text: str, **more: object):
    return field(default=default, metadata={"help": text, **more})


@dataclass(frozen=True)
class Options:
    """The options of one run, named as on the command line, but with _ for -. The last two are not
    typed: `typed` lists the typed options, and `checkpoint` is where the run continues."""

    # fmt: off
    family: str = _option("gpt2", "architecture of the model", choices=("gpt2", "llama"))
    hidden: int = _option(128, "hidden size of the model")
    layers: int = _option(4, "number of transformer blocks")
    heads: int = _option(4, "number of query heads in each block")
    kv_heads: int = _option(0, "number of key/value heads in each block (0 means as many as query "
        "heads)")
    inner: int = _option(0, "inner width of the MLP (0 means four times the hidden size)")
    vocabulary: int = _option(2039, "vocabulary size of the tokenizer, which is trained on the "
        "corpus")
    dropout: float = _option(0.0, "dropout probability of the embedding, the attention weights and "
        "each branch")
    from_: str = _option("", "start with the weights of this model, a folder or a name on the "
        "Hugging Face Hub", name="--from")
    ranks: int = _option(0, "number of ranks that `course train` starts on this host (0 means as "
        "many as --tp)")
    tp: int = _option(1, "tensor parallelism: number of ranks that share one replica of the model")
    sequence: bool = _option(False, "sequence parallelism: also shard the activations along the "
        "sequence outside the tensor-parallel layers")
    stage: int = _option(0, "ZeRO stage: over the replicas, 0 shards nothing, 1 shards the "
        "optimizer states, 2 also shards the gradients, and 3 also shards the parameters",
        choices=(0, 1, 2, 3))
    offload: str = _option("none", "storage of the optimizer states, and with --stage 3 also of "
        "the parameters: on the device (none), in host memory (cpu), or in files (nvme)",
        choices=("none", "cpu", "nvme"))
    offload_parameters: bool = _option(True, "with --stage 3 and --offload: offload the parameter "
        "shards, or keep them on the device (--no-offload-parameters)")
    offload_optimizer: bool = _option(True, "with --stage 3 and --offload: offload the optimizer "
        "states, or keep them on the device (--no-offload-optimizer)")
    offload_folder: str = _option("", "folder on a local disk for the files of --offload nvme "
        "(default: the subfolder offload of --out)")
    units: str = _option("", "names of the modules that --stage 3 gathers, each as a unit, such as "
        "blocks.*.mlp,head (default: blocks)")
    fast: bool = _option(False, "with --stage 3: keep the gathered parameters from the forward "
        "pass to the backward pass", no="--lean",
        no_help="with --stage 3: free the gathered parameters after the forward pass, and gather "
        "them again for the backward pass")
    precision: str = _option("float32", "dtype of the weights (bfloat16 and float16 add float32 "
        "master weights, and float16 also adds a loss scale)",
        choices=("float32", "bfloat16", "float16"))
    recompute: bool = _option(False, "keep only each block's input, and recompute its activations "
        "in the backward pass")
    fused_loss: bool = _option(False, "compute the output head and the loss together, without "
        "storing the logits")
    steps: int = _option(200, "total number of optimizer steps, including those before --resume")
    rows: int = _option(16, "number of sequences per step, in total over all replicas and "
        "micro-batches (the ranks of one replica process the same sequences)")
    length: int = _option(128, "number of tokens per sequence")
    accumulate: int = _option(1, "gradient accumulation: number of micro-batches into which the "
        "sequences of a step are divided")
    pack: bool = _option(True, "let a sequence continue from one document into the next (with "
        "--no-pack, each sequence comes from a single document)")
    corpus_bytes: int = _option(2_000_000, "maximum number of bytes of text to read for the corpus")
    held_back: float = _option(0.05, "fraction of the corpus that is used only for the validation "
        "loss")
    validate_every: int = _option(50, "number of steps between validation losses (0 means no "
        "validation)")
    lr: float = _option(1e-3, "learning rate after the warmup")
    warmup: int = _option(10, "number of steps over which the learning rate rises to --lr")
    decay: float = _option(0.1, "weight decay of parameters that have two or more dimensions")
    clip: float = _option(1.0, "maximum gradient norm, to which larger gradients are scaled (0 "
        "means no limit)")
    seed: int = _option(0, "random seed for the weights, the order of the sequences and the "
        "dropout masks")
    out: str = _option("", "folder for the loss curve and the checkpoints, which all ranks must be "
        "able to access (default: a new folder runs/DATE-TIME)")
    save_every: int = _option(0, "number of steps between checkpoints (a checkpoint is always "
        "written at the end, and 0 means only then)")
    async_save: bool = _option(False, "continue training while a checkpoint is written (this needs "
        "host memory for a copy)")
    keep: int = _option(2, "number of latest checkpoints to keep (older checkpoints are deleted)")
    resume: bool = _option(False, "continue from the last checkpoint in --out (--ranks, --tp, "
        "--stage, --offload and --precision may change, but options that change the loss curve "
        "must stay the same)")
    log_every: int = _option(10, "number of steps between progress lines")
    peak_tflops: float = _option(0.0, "peak TFLOP/s of one rank, used to compute MFU (0 means that "
        "the peak is measured at the start)")
    timeout: float = _option(600.0, "seconds that a rank waits for another rank before the run "
        "fails")
    plot: bool = _option(False, "write run.png to --out, with plots of the loss, and of the memory "
        "and the sent bytes of each rank")
    json: bool = _option(False, "print one JSON document to standard output at the end")
    # fmt: on
    typed: tuple[str, ...] = ()
    checkpoint: str = ""

    @property
    def micro_rows(self) -> int:
        """Sequences of a micro-batch, over all ranks."""
        return self.rows // self.accumulate

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0: it rises to --lr during the warmup
        and is then constant, so that a run may continue longer than first planned."""
        return self.lr * min(1.0, (step + 1) / max(1, self.warmup))

    def config(self) -> Config:
        """Create the model's config; invalid values are refused."""
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
        """Return the options without `typed` and `checkpoint`, for a record."""
        values = asdict(self)
        return {option.name: values[option.name] for option in options()}

    def to_json(self) -> str:
        """Serialise everything, for the ranks that a launcher starts."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Options:
        values = json.loads(text)
        return cls(**{**values, "typed": tuple(values["typed"])})


def options() -> Iterator[Field]:
    """Yield the fields that a person can set."""
    return (item for item in fields(Options) if "help" in item.metadata)


# Options that may differ when a run resumes: they change the curve at most by rounding.
FREE = {"steps", "out", "resume", "save_every", "keep", "log_every", "peak_tflops", "timeout"}
FREE |= {"json", "recompute", "fused_loss", "from_", "ranks", "plot", "validate_every", "fast"}
FREE |= {"offload_folder", "async_save"}
# The layout of a run: a checkpoint describes logical tensors, so it continues at any layout.
LAYOUT = {"tp", "sequence", "stage", "offload", "offload_parameters", "offload_optimizer"}
LAYOUT |= {"units", "precision"}
OF_A_NEW_MODEL = {"family", "hidden", "layers", "heads", "kv_heads", "inner", "vocabulary"}
# The first option of each section of the help.
PARTS = {"family": "model", "ranks": "layout: tensor parallelism, ZeRO, memory"}
PARTS |= {"steps": "training", "out": "folder, checkpoints, report"}
# Names of these options in other programs.
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
        help="JSON file with an object of these options (options on the command line override it)",
    )
    part = reader
    for option in options():
        if option.name in PARTS:
            part = reader.add_argument_group(PARTS[option.name])
        value = {"True": "on", "False": "off"}.get(str(option.default), option.default)
        default = "" if value == "" else f" [default: {value}]"
        about: dict = {"help": option.metadata["help"] + default, "dest": option.name}
        if "no" in option.metadata:
            both = part.add_mutually_exclusive_group()
            both.add_argument(_flag(option), action="store_true", **about)
            about["help"] = f"{option.metadata['no_help']} [default]"
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
    """Merge the typed options, the options in the --config file, and the defaults."""
    reader = parser(prog)
    typed = _typed(reader, argv)
    path = typed.pop("config", None)
    typed = {**(_from_file(Path(path), reader) if path else {}), **typed}
    sizes = [name for name in typed if name in OF_A_NEW_MODEL and typed.get("from_")]
    if sizes:
        raise Refused(
            f"{flag(sizes[0])} is a size of a new model, but --from brings a model with its own "
            "sizes; omit one of the two"
        )
    return Options(**typed, typed=tuple(typed))


def _typed(reader: argparse.ArgumentParser, argv: Sequence[str]) -> dict:
    """Return the typed options by field; an unknown name is refused with the nearest name."""
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
    """Find the option that a misspelt one resembles, without comparing a common "--no-"."""
    start = "--no-" if typed.startswith("--no-") else "--"
    alike = {name.removeprefix(start): name for name in known if name.startswith(start)}
    near = difflib.get_close_matches(typed.removeprefix(start), alike, n=1)
    return alike[near[0]] if near else None


def flag(name: str) -> str:
    """Return an option as it is typed, from the name of its field."""
    return next(_flag(option) for option in options() if option.name == name)


def _flag(option: Field) -> str:
    return option.metadata.get("name", "--" + option.name.replace("_", "-"))


def _from_file(path: Path, reader: argparse.ArgumentParser) -> dict:
    try:
        values = json.loads(path.read_text())
    except OSError as error:
        raise Refused(f"--config {path}: {error.strerror or error}. Name a real file") from error
    except ValueError as error:
        raise Refused(f"--config {path} is not JSON: {error}") from error
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
    """Return the flag that switches an option off: --lean, --no-pack, …"""
    return option.metadata.get("no", _flag(option).replace("--", "--no-", 1))
