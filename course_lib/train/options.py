"""What a run can be told, on the command line or in a JSON file, and what it refuses to be told.

A misspelt name is an error with the near one beside it, never a default that stays in place.
Lesson 08.
"""

from __future__ import annotations

import argparse
import difflib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path

from course_lib.gpt import Config


class Refused(ValueError):
    """The call cannot work as it was typed: every rank finds that out by itself."""


def _option(default: object, text: str, **more: object):
    return field(default=default, metadata={"help": text, **more})


@dataclass(frozen=True)
class Options:
    """One run. The names are those of the command line, with - for _."""

    family: str = _option("gpt2", "the model's family", choices=("gpt2", "llama"))
    hidden: int = _option(128, "width of the model")
    layers: int = _option(4, "number of blocks")
    heads: int = _option(4, "query heads")
    kv_heads: int = _option(0, "key/value heads; 0: as many as heads")
    inner: int = _option(0, "width of the MLP; 0: four times the hidden size")
    vocabulary: int = _option(2039, "words of the tokenizer, which is trained on the corpus")
    dropout: float = _option(0.0, "probability of dropout, everywhere")
    from_: str = _option("", "a folder or a hub name whose weights to begin with", name="--from")
    tp: int = _option(1, "ranks that one model is cut over; the others hold replicas")
    sequence: bool = _option(False, "cut the tokens between the layers too")
    recompute: bool = _option(False, "keep each block's input alone, and run it again")
    steps: int = _option(200, "optimizer steps, from the very beginning")
    rows: int = _option(16, "rows of a step, on all ranks together")
    length: int = _option(128, "tokens of a row")
    accumulate: int = _option(1, "cut the rows of a step into so many micro-batches")
    pack: bool = _option(True, "rows without regard to documents; --no-pack: a document a row")
    corpus_bytes: int = _option(2_000_000, "how much text is read")
    lr: float = _option(1e-3, "learning rate, after the warmup")
    warmup: int = _option(10, "steps over which it rises")
    decay: float = _option(0.1, "weight decay, of what has two dims or more")
    clip: float = _option(1.0, "bound of the gradients' norm; 0: none")
    dtype: str = _option("float32", "of the products", choices=("float32", "bfloat16"))
    fused_loss: bool = _option(False, "head and loss in one, without the logits")
    seed: int = _option(0, "of the weights, the rows' order and the masks")
    out: str = _option("", "folder for curve and checkpoints, for all ranks to see; default: runs/")
    save_every: int = _option(0, "steps between checkpoints; 0: one at the end")
    keep: int = _option(2, "how many of the last checkpoints stay")
    resume: bool = _option(False, "go on from the last checkpoint in --out")
    log_every: int = _option(10, "steps between lines of progress")
    peak_tflops: float = _option(0.0, "of one rank, for MFU; 0: measured at the start")
    timeout: float = _option(600.0, "seconds after which a rank that waits gives up")
    json: bool = _option(False, "one JSON document on standard output at the end")

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


# What may differ when a run goes on: none of it changes the curve by more than a rounding.
FREE = {"steps", "out", "resume", "save_every", "keep", "log_every", "peak_tflops", "timeout"}
FREE |= {"json", "recompute", "fused_loss", "from_"}
OF_A_NEW_MODEL = {"family", "hidden", "layers", "heads", "kv_heads", "inner", "vocabulary"}
AT_LEAST = dict.fromkeys(("tp", "steps", "rows", "length", "accumulate", "keep"), 1)
AT_LEAST |= {"log_every": 1, "corpus_bytes": 1, "warmup": 0, "save_every": 0, "kv_heads": 0}
AT_LEAST |= {"inner": 0, "lr": 0.0, "decay": 0.0, "clip": 0.0, "peak_tflops": 0.0, "seed": 0}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise Refused(f"{message} (--help shows all options)")


def parser(prog: str) -> argparse.ArgumentParser:
    made = _Parser(prog=prog, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    made.description = "Train a decoder on Python's own sources, over a mesh of dp × tp ranks."
    made.add_argument("--config", metavar="FILE", help="a JSON object of these options; what is "
                      "typed here counts more")  # fmt: skip
    for one in fields(Options):
        default = "" if one.default in ("", MISSING) else f" ({one.default})"
        about: dict = {"help": one.metadata["help"] + default, "dest": one.name}
        if isinstance(one.default, bool):
            about["action"] = argparse.BooleanOptionalAction
        else:
            about |= {"type": type(one.default), "metavar": type(one.default).__name__.upper()}
            about |= {k: one.metadata[k] for k in ("choices",) if k in one.metadata}
            if "choices" in about:
                del about["metavar"]
        made.add_argument(one.metadata.get("name", "--" + one.name.replace("_", "-")), **about)
    return made


def given(argv: Sequence[str], prog: str = "python -m course_lib.train") -> dict:
    """The options that somebody typed, or wrote into the file of --config: no defaults."""
    reader = parser(prog)
    typed, unknown = reader.parse_known_args(list(argv))
    if unknown:
        known = [text for action in reader._actions for text in action.option_strings]
        near = difflib.get_close_matches(unknown[0].split("=")[0], known, n=1)
        meant = f"; did you mean {near[0]}?" if near else " (--help shows all options)"
        raise Refused(f"there is no option {unknown[0]}{meant}")
    told = vars(typed)
    path = told.pop("config", None)
    told = {**(_from_file(Path(path), reader) if path else {}), **told}
    sizes = [name for name in told if name in OF_A_NEW_MODEL and told.get("from_")]
    if sizes:
        raise Refused(
            f"--{sizes[0].replace('_', '-')} is a size of a new model, and --from brings one with "
            "sizes of its own; leave one of the two out"
        )
    return told


def _from_file(path: Path, reader: argparse.ArgumentParser) -> dict:
    try:
        told = json.loads(path.read_text())
    except OSError as error:
        raise Refused(f"--config {path}: {error.strerror or error}; name a file that is") from error
    except ValueError as error:
        raise Refused(f"--config {path} is no JSON: {error}") from error
    if not isinstance(told, Mapping):
        raise Refused(f"--config {path} holds a JSON {type(told).__name__}, not an object")
    names = {one.metadata.get("name", one.name).lstrip("-"): one for one in fields(Options)}
    argv: list[str] = []
    for key, value in told.items():
        one = names.get(str(key).replace("-", "_"))
        if one is None:
            near = difflib.get_close_matches(str(key), names, n=1)
            meant = f"; did you mean {near[0]!r}?" if near else "."
            raise Refused(f"--config {path}: no option {key!r}{meant} All: {', '.join(names)}")
        if type(value) is not type(one.default) and not (
            isinstance(one.default, float) and type(value) is int
        ):
            kind = {bool: "true or false", str: "text"}.get(type(one.default), "a number")
            whole = "a whole number" if isinstance(one.default, int) else kind
            kind = kind if isinstance(one.default, bool) else whole
            raise Refused(f"--config {path}: {key!r} is {json.dumps(value)}, and has to be {kind}")
        flag = one.metadata.get("name", "--" + one.name.replace("_", "-"))
        if isinstance(value, bool):
            argv.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            argv.append(f"{flag}={value}")
    return vars(reader.parse_args(argv))


def checked(told: Mapping, world: int) -> Options:
    """The options of a run of `world` ranks, once they can be."""
    options = Options(**told)
    for name, least in AT_LEAST.items():
        value = getattr(options, name)
        if not (value >= least and math.isfinite(value)):
            raise Refused(f"--{name.replace('_', '-')} {value} has to be {least} or more")
    if not (options.timeout > 0 and math.isfinite(options.timeout)):
        raise Refused(f"--timeout {options.timeout} has to be above 0 seconds")
    if world % options.tp:
        fit = [n for n in range(1, world + 1) if world % n == 0]
        raise Refused(
            f"--tp {options.tp} does not divide the {world} rank(s) of this run into replicas; "
            f"take one of {', '.join(map(str, fit))}, or start another number of ranks"
        )
    if options.rows % options.accumulate:
        raise Refused(
            f"--rows {options.rows} cannot be cut into --accumulate {options.accumulate} "
            "micro-batches of equally many rows; take a multiple"
        )
    if options.rows // options.accumulate < world // options.tp:
        raise Refused(
            f"--rows {options.rows} in {options.accumulate} micro-batch(es) leave some of the "
            f"{world // options.tp} replicas without a row; take more rows"
        )
    if options.resume and not options.out:
        raise Refused("--resume goes on with the run in a folder: name it with --out")
    if not options.from_:
        _check_cut(options.config(), options.tp)
    return options


def _check_cut(config: Config, tp: int) -> None:
    """What the plan of a cut would refuse, before a rank is started."""
    from course_lib.tensor_parallel.embedding import check_vocabulary
    from course_lib.tensor_parallel.qkv_layout import shares

    try:
        shares(config.heads, config.kv_heads, tp)
        check_vocabulary(config.vocabulary, tp)
    except ValueError as error:
        raise Refused(f"--tp {tp}: {error}") from error


def as_dict(options: Options) -> dict:
    return asdict(options)
