"""Each "auto" of a DeepSpeed config as the Hugging Face Trainer resolves it, with its origin.

The Trainer fills in its own arguments, and three sizes that depend on the model's hidden size. It
compares explicit values with its arguments. Without arguments, nothing is resolved. Lesson 13.
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
# The Trainer's formulas from the model's hidden size, by key; the last two only at stage 3.
SIZES = {
    REDUCE: ("hidden_size²", lambda h: h * h),
    f"{ZERO}.stage3_prefetch_bucket_size": ("0.9 · hidden_size²", lambda h: int(0.9 * h * h)),
    f"{ZERO}.stage3_param_persistence_threshold": ("10 · hidden_size", lambda h: 10 * h),
}
# Defaults of Accelerate, which the Trainer uses, unless an environment variable differs.
OF_ACCELERATE = {
    f"{ZERO}.stage": 2,
    f"{ZERO}.offload_optimizer.device": "none",
    f"{ZERO}.offload_param.device": "none",
    f"{ZERO}.offload_optimizer.nvme_path": "none",
    f"{ZERO}.offload_param.nvme_path": "none",
    f"{ZERO}.stage3_gather_16bit_weights_on_model_save": False,
}
# Keys that the Trainer copies from its arguments.
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
    """A value of the resolved config, and a sentence about its origin."""

    value: object
    origin: str


class Conflict(NamedTuple):
    """A value in the file that contradicts the Trainer's arguments, so the Trainer stops."""

    path: str
    config: object
    argument: object
    name: str


@dataclass
class Resolved:
    """`config` with its "auto" values resolved, the `origins` of all values by dotted path, and the
    `conflicts` with the arguments. `unresolved` gives the reason for each path that remains "auto".
    `refusals` are errors that occur before DeepSpeed is called."""

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
        """Resolve an "auto"; compare any other value with the argument `name`."""
        here = self.get(path)
        if here == AUTO:
            self.put(path, value, origin)
        elif name is not None and here is not None and here != value:
            self.conflicts.append(Conflict(path, here, value, name))


def resolve(
    config: Mapping, arguments: Mapping | None, model: Mapping | None, world: int
) -> Resolved:
    """Resolve the config as the Trainer passes it to DeepSpeed on `world` ranks.

    `arguments` are all or some TrainingArguments as JSON; `model` is a config.json. Without
    arguments there is no Trainer, so nothing is resolved: DeepSpeed itself reads "auto" as text or
    uses its own default. The number of steps is known only if `max_steps` states it.
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
    """Write "auto" for every value that the Trainer fills in, including sizes that equal its
    formula for the model's hidden size."""
    left = Resolved(copy.deepcopy(dict(config)))
    sizes = [path for path, (_, of) in SIZES.items() if hidden and left.get(path) == of(hidden)]
    for path in (*FILLED, *sizes):
        if left.get(path) is not None:
            left.put(path, AUTO, "")
    return left.config


def read_arguments(given: Mapping) -> dict:
    """Read the relevant arguments, with the Trainer's defaults; refuse wrong types."""
    if given.get("warmup_ratio"):
        raise ValueError(
            f"warmup_ratio={given['warmup_ratio']!r} is not an argument of transformers "
            f"{table()['transformers']}. Write it as warmup_steps, where a number below 1 is a "
            "fraction of all steps"
        )
    kinds = {bool: "true or false", float: "a number", int: "a whole number"}
    found = {name: given.get(name, default) for name, default in table()["arguments"].items()}
    for name, value in found.items():
        kind = float if name == "warmup_steps" else type(table()["arguments"][name])
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise ValueError(
                f"the argument {name} is {json.dumps(value)}, but must be {kinds[kind]}"
            )
    return found


def hidden_size(model: Mapping) -> int | None:
    """Return the hidden size that the Trainer uses: the model's own, the largest of several, or the
    text part's. Return None if the config.json has none of these."""
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
    """Load the table for the course's Transformers release (see tools/trainer_table.py)."""
    return json.loads(files(__package__).joinpath("trainer.json").read_text(encoding="utf-8"))


def at(config: object, path: Iterable[str], default: object = None) -> object:
    """Read a config at a path; return `default` if nothing is there."""
    for name in path:
        config = config.get(name, default) if isinstance(config, Mapping) else default
    return config


def leaves(config: Mapping, above: str = "") -> Iterator[tuple[str, object]]:
    """Yield (dotted path, value) for everything in a config that is not a section."""
    for key, value in config.items():
        path = f"{above}{key}"
        if isinstance(value, Mapping):
            yield from leaves(value, f"{path}.")
        else:
            yield path, value


# ---- the three steps
def _process(work: Resolved, args: Mapping, world: int, given: frozenset) -> None:
    """Resolve everything that follows from the arguments."""

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
    work.fill(LOWEST, 0, "0, because no argument of the Trainer changes it")
    if args["save_on_each_node"]:
        here = work.config.get("checkpoint")
        work.config["checkpoint"] = dict(here) if isinstance(here, Mapping) else {}
        text = "save_on_each_node of the Trainer's arguments"
        work.put("checkpoint.use_node_local_storage", True, text)


def _accelerate(work: Resolved) -> None:
    """Add the defaults of Accelerate's plugin, which the Trainer creates next."""
    if "gradient_accumulation_steps" not in work.config:
        text = "Accelerate, which writes 1 if the key is missing, whatever the arguments"
        work.put("gradient_accumulation_steps", 1, text)
    if ZERO not in work.config:
        work.refusals.append(
            f'Accelerate does not start without the section "{ZERO}"; write "{ZERO}" as '
            f'{{"stage": 0}} to shard nothing'
        )
    for path, value in OF_ACCELERATE.items():
        work.fill(path, value, f"Accelerate's default, {json.dumps(value)}")


def _finalize(work: Resolved, args: Mapping, model: Mapping | None) -> None:
    """Resolve everything that needs a model and a number of steps."""
    asked = [path for path in SIZES if work.get(path) == AUTO]
    size = hidden_size(model) if asked and model is not None else None
    if asked and model is not None and size is None:
        work.refusals.append(
            "the model's config (and its text_config) has no hidden_size or hidden_sizes, so the "
            f"Trainer cannot resolve {', '.join(asked)}; write numbers instead"
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
        text += "" if steps else ", so none, but DeepSpeed requires at least 1"
        work.fill(WARMUP, max(1, steps), text, "warmup_steps")


def _why(work: Resolved, path: str, arguments: Mapping | None, model: Mapping | None) -> str:
    """Explain why a value remains "auto"."""
    if arguments is None:
        return (
            'only the Hugging Face Trainer resolves "auto", but none of its arguments were given, '
            "so DeepSpeed itself reads it as text or uses its own default"
        )
    if path in SIZES and work.get(f"{ZERO}.stage") != 3 and path != REDUCE:
        return "the Trainer resolves it only at stage 3, because it has no effect elsewhere"
    if path in SIZES and model is None:
        return "it depends on the model's hidden size, so name a config.json with --model"
    if path in SIZES:
        return "the model's config states no hidden size, so write a number"
    if path in (TOTAL, WARMUP):
        return (
            "it depends on the number of steps, which the Trainer computes from the length of the "
            "data, so set max_steps in the arguments"
        )
    return "the Trainer does not resolve this key, and Accelerate stops, so write a value"


def _release() -> str:
    return f"transformers {table()['transformers']}"


def _size_of(model: Mapping, kind: object) -> int | None:
    """Return the hidden size that a config states, or its model type's default."""
    name, default = table()["hidden_size"].get(kind, ("hidden_size", None))
    value = model.get(name, model.get("hidden_size", default))
    if value is None and isinstance(model.get("hidden_sizes"), list) and model["hidden_sizes"]:
        value = max(model["hidden_sizes"])
    good = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return value if good else None
