"""Each "auto" of a DeepSpeed config as the Hugging Face Trainer resolves it, and where from.

The Trainer fills in its own arguments, three sizes from the model's hidden size, and compares what
is no "auto" with its arguments. Without its arguments nothing is resolved. Lesson 13.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

AUTO = "auto"
OF_THE_FILE = "the file"
ZERO = "zero_optimization"
REDUCE = f"{ZERO}.reduce_bucket_size"
# What the Trainer makes of the model's hidden size, by the key; the last two at stage 3 alone.
SIZES = {
    REDUCE: ("hidden_size²", lambda h: h * h),
    f"{ZERO}.stage3_prefetch_bucket_size": ("0.9 · hidden_size²", lambda h: int(0.9 * h * h)),
    f"{ZERO}.stage3_param_persistence_threshold": ("10 · hidden_size", lambda h: 10 * h),
}
# What Accelerate, on which the Trainer stands, makes of these where no variable says otherwise.
OF_ACCELERATE = {
    f"{ZERO}.stage": 2,
    f"{ZERO}.offload_optimizer.device": "none",
    f"{ZERO}.offload_param.device": "none",
    f"{ZERO}.offload_optimizer.nvme_path": "none",
    f"{ZERO}.offload_param.nvme_path": "none",
    f"{ZERO}.stage3_gather_16bit_weights_on_model_save": False,
}
# What it fills in from its arguments, as they are.
OF_ARGUMENTS = {
    "train_micro_batch_size_per_gpu": ("per_device_train_batch_size",),
    "gradient_accumulation_steps": ("gradient_accumulation_steps",),
    "gradient_clipping": ("max_grad_norm",),
    "optimizer.params.lr": ("learning_rate",),
    "optimizer.params.betas": ("adam_beta1", "adam_beta2"),
    "optimizer.params.eps": ("adam_epsilon",),
    "optimizer.params.weight_decay": ("weight_decay",),
    "scheduler.params.warmup_max_lr": ("learning_rate",),
    "fp16.enabled": ("fp16",),
    "bf16.enabled": ("bf16",),
}
BATCH, LOWEST = "train_batch_size", "scheduler.params.warmup_min_lr"
TOTAL, WARMUP = "scheduler.params.total_num_steps", "scheduler.params.warmup_num_steps"
FILLED = (*OF_ARGUMENTS, BATCH, LOWEST, TOTAL, WARMUP)


class ValueOrigin(NamedTuple):
    """A value of the resolved config, and a sentence that says where it comes from."""

    value: object
    origin: str


class Conflict(NamedTuple):
    """A value of the file that the Trainer's arguments contradict: the Trainer ends with it."""

    path: str
    config: object
    argument: object
    name: str


@dataclass
class Resolved:
    """`config` with its "auto" values resolved; `origins` of every value in it by dotted path;
    `conflicts` with the arguments; `unresolved`, the paths that stay "auto" and why; `refusals`,
    sentences with which the integration ends before DeepSpeed is asked."""

    config: dict
    origins: dict[str, ValueOrigin] = field(default_factory=dict)
    conflicts: list[Conflict] = field(default_factory=list)
    unresolved: dict[str, str] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)

    def get(self, path: str) -> object:
        return at(self.config, path.split("."))

    def put(self, path: str, value: object, origin: str) -> None:
        *above, name = path.split(".")
        at(self.config, above)[name] = value
        self.origins[path] = ValueOrigin(value, origin)

    def fill(self, path: str, value: object, origin: str, name: str | None = None) -> None:
        """Resolve an "auto"; another value is held against the argument `name`."""
        here = self.get(path)
        if here == AUTO:
            self.put(path, value, origin)
        elif name is not None and here is not None and here != value:
            self.conflicts.append(Conflict(path, here, value, name))


def resolve(
    config: Mapping, arguments: Mapping | None, model: Mapping | None, world: int
) -> Resolved:
    """The config that the Trainer hands to DeepSpeed on `world` ranks.

    `arguments` are TrainingArguments as JSON, all or some; `model` is a config.json. Without
    arguments there is no Trainer, and nothing else resolves: DeepSpeed itself reads "auto" as text
    or takes its own default. The number of steps is known where `max_steps` says it.
    """
    work = Resolved(copy.deepcopy(dict(config)))
    if arguments is not None:
        args = read_arguments(arguments)
        _process(work, args, world, given=frozenset(arguments))
        _accelerate(work)
        _finalize(work, args, model)
    for path, value in leaves(work.config):
        work.origins.setdefault(path, ValueOrigin(value, OF_THE_FILE))
        if value == AUTO:
            work.unresolved[path] = _why(work, path, arguments, model)
    return work


def left_to_the_trainer(config: Mapping, hidden: int | None = None) -> dict:
    """A config with "auto" wherever the Trainer fills the value in; a size that it would make of
    the model's hidden size counts among these."""
    left = Resolved(copy.deepcopy(dict(config)))
    sizes = [path for path, (_, of) in SIZES.items() if hidden and left.get(path) == of(hidden)]
    for path in (*FILLED, *sizes):
        if left.get(path) is not None:
            left.put(path, AUTO, "")
    return left.config


def read_arguments(given: Mapping) -> dict:
    """The arguments that matter here, with the Trainer's defaults; a wrong kind is refused."""
    if given.get("warmup_ratio"):
        raise ValueError(
            f"warmup_ratio={given['warmup_ratio']!r} is no argument of transformers "
            f"{table()['transformers']}: write it as warmup_steps, where a number below 1 is a "
            "fraction of all steps"
        )
    kinds = {bool: "true or false", float: "a number", int: "a whole number"}
    found = {name: given.get(name, default) for name, default in table()["arguments"].items()}
    for name, value in found.items():
        kind = float if name == "warmup_steps" else type(table()["arguments"][name])
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise ValueError(
                f"the argument {name} is {json.dumps(value)}, and has to be {kinds[kind]}"
            )
    return found


def hidden_size(model: Mapping) -> int | None:
    """The hidden size by which the Trainer goes: the model's own, the largest of several, or that
    of its text part; None where a config.json has none of these."""
    own = _size_of(model, model.get("model_type"))
    if own is not None:
        return own
    kind, size = table()["text"].get(model.get("model_type"), (None, None))
    text = model.get("text_config")
    if isinstance(text, Mapping):
        return _size_of(text, text.get("model_type", kind))
    return size


@lru_cache(maxsize=1)
def table() -> dict:
    """What the release of Transformers that the course pins says: tools/trainer_table.py."""
    return json.loads(files(__package__).joinpath("trainer.json").read_text(encoding="utf-8"))


def at(config: object, path: Iterable[str], default: object = None) -> object:
    """What a config has at a path, `default` where it has nothing."""
    for name in path:
        config = config.get(name, default) if isinstance(config, Mapping) else default
    return config


def leaves(config: Mapping, above: str = "") -> Iterator[tuple[str, object]]:
    """(dotted path, value) of everything in a config that is no section."""
    for key, value in config.items():
        path = f"{above}{key}"
        if isinstance(value, Mapping):
            yield from leaves(value, f"{path}.")
        else:
            yield path, value


# ---- the three steps
def _process(work: Resolved, args: Mapping, world: int, given: frozenset) -> None:
    """What is known as soon as the arguments are there."""

    for path, names in OF_ARGUMENTS.items():
        full = f"{names[0]}_full_eval"  # evaluation in 16 bits needs an engine in 16 bits
        names = (full,) if args.get(full) and not args[names[0]] else names
        values, name = [args[name] for name in names], " and ".join(names)
        typed = "" if given.intersection(names) else f", at its default in {_release()}"
        value = values if len(names) > 1 else values[0]
        work.fill(path, value, f"{name} of the Trainer's arguments{typed}", name)
    micro, accumulate = args["per_device_train_batch_size"], args["gradient_accumulation_steps"]
    text = f"{world} ranks · per_device_train_batch_size {micro} · gradient_accumulation_steps "
    whole, text = world * micro * accumulate, f"{text}{accumulate}"
    work.fill(BATCH, whole, text, "train_batch_size (calculated)")
    work.fill(LOWEST, 0, "0, which no argument of the Trainer changes")
    if args["save_on_each_node"]:
        here = work.config.get("checkpoint")
        work.config["checkpoint"] = dict(here) if isinstance(here, Mapping) else {}
        text = "save_on_each_node of the Trainer's arguments"
        work.put("checkpoint.use_node_local_storage", True, text)


def _accelerate(work: Resolved) -> None:
    """What Accelerate's plugin adds, which the Trainer makes next."""
    if "gradient_accumulation_steps" not in work.config:
        text = "Accelerate, which writes 1 where the file has no such key, whatever the arguments"
        work.put("gradient_accumulation_steps", 1, text)
    if ZERO not in work.config:
        work.refusals.append(
            f'the file has no section "{ZERO}", and without it Accelerate does not begin; write '
            f'"{ZERO}": {{"stage": 0}} to shard nothing'
        )
    for path, value in OF_ACCELERATE.items():
        work.fill(path, value, f"Accelerate's default, {json.dumps(value)}")


def _finalize(work: Resolved, args: Mapping, model: Mapping | None) -> None:
    """What is known once there are a model and a number of steps."""
    asked = [path for path in SIZES if work.get(path) == AUTO]
    size = hidden_size(model) if asked and model is not None else None
    if asked and model is not None and size is None:
        work.refusals.append(
            "the model's config has neither hidden_size nor hidden_sizes, nor its text_config: the "
            f"Trainer cannot resolve {', '.join(asked)}; write numbers in their place"
        )
    for path, (words, of) in SIZES.items() if size is not None else ():
        if work.get(f"{ZERO}.stage") == 3 or path == REDUCE:
            text = f"{words} of --model, whose hidden_size is {size}, as the Trainer does"
            work.fill(path, of(size), text)
    total, warmup = args["max_steps"], args["warmup_steps"]
    if total > 0:
        text = "max_steps of the Trainer's arguments"
        work.fill(TOTAL, total, text, "num_training_steps (calculated)")
    if total > 0 or warmup >= 1 or warmup == 0:
        steps = int(warmup) if warmup >= 1 else math.ceil(max(total, 0) * warmup)
        text = "warmup_steps of the Trainer's arguments"
        text += f", as a fraction of max_steps {total}" if 0 < warmup < 1 else ""
        text += "" if steps else ": none, and 1 is the least that DeepSpeed takes"
        work.fill(WARMUP, max(1, steps), text, "warmup_steps")


def _why(work: Resolved, path: str, arguments: Mapping | None, model: Mapping | None) -> str:
    """Why a value stays "auto"."""
    if arguments is None:
        return (
            'only the Hugging Face Trainer resolves "auto", from its arguments, and none were '
            "named: DeepSpeed by itself takes it for text, or for its own default"
        )
    if path in SIZES and work.get(f"{ZERO}.stage") != 3 and path != REDUCE:
        return "the Trainer resolves it at stage 3 alone, where alone it has an effect"
    if path in SIZES and model is None:
        return "it follows from the model's hidden size: name a config.json with --model"
    if path in SIZES:
        return "the model's config says no hidden size: write a number"
    if path in (TOTAL, WARMUP):
        return (
            "it follows from the number of steps, which the Trainer reckons from the length of the "
            "data; say max_steps in the arguments"
        )
    return "the Trainer resolves no such key, and Accelerate ends with it: write a value"


def _release() -> str:
    return f"transformers {table()['transformers']}"


def _size_of(model: Mapping, kind: object) -> int | None:
    """The size that one part of a model has, by its own name for it, or by its kind's default."""
    name, default = table()["hidden_size"].get(kind, ("hidden_size", None))
    value = model.get(name, model.get("hidden_size", default))
    if value is None and isinstance(model.get("hidden_sizes"), list) and model["hidden_sizes"]:
        value = max(model["hidden_sizes"])
    good = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return value if good else None
