"""The differences between the shipped key file and an installed DeepSpeed, in both directions.

`python -m tools.deepspeed_keys` compares names and defaults of its config models, the parameters of
its optimizers and schedulers, and the names that its parser removed. Details that only DeepSpeed's
code knows, such as the texts accepted by a validator, are written by hand. Lesson 13.
"""

from __future__ import annotations

import enum
import inspect
import json
import sys
from collections.abc import Iterator

from course_lib.peers.deepspeed_config.schema import SHIPPED, Schema

# Section → module and name of the config model that reads it; nested models follow.
MODELS = {
    "bf16": "runtime.precision_config:DeepSpeedBF16Config",
    "comet": "monitor.config:CometConfig",
    "comms_logger": "comm.config:CommsLoggerConfig",
    "compile": "compile.config:CompileConfig",
    "csv_monitor": "monitor.config:CSVConfig",
    "fp16": "runtime.precision_config:DeepSpeedFP16Config",
    "hybrid_engine": "runtime.config:HybridEngineConfig",
    "tensor_parallel": "runtime.tensor_parallel.config:TPTrainingConfig",
    "tensorboard": "monitor.config:TensorBoardConfig",
    "timers.throughput": "utils.config:DeepSpeedThroughputTimerConfig",
    "wandb": "monitor.config:WandbConfig",
    "weight_quantization": "inference.config:WeightQuantConfig",
    "zero_optimization": "runtime.zero.config:DeepSpeedZeroConfig",
}
OPTIMIZERS = "ops.adam:FusedAdam ops.adam:DeepSpeedCPUAdam ops.adagrad:DeepSpeedCPUAdagrad "
OPTIMIZERS += "ops.lamb:FusedLamb ops.lion:FusedLion ops.lion:DeepSpeedCPULion"
GIVEN = {"self", "params", "model_params", "optimizer"}  # not settings of a config


def differences(known: Schema) -> Iterator[str]:
    """Yield a line for every key that differs between the installed release and `known`."""
    from deepspeed.runtime import config, lr_schedules

    for path, where in MODELS.items():
        yield from _of_model(path, _named(where), known)
    for name, item in vars(config).items():
        if name in ("_REMOVED_TOP_LEVEL_CONFIG_KEYS", "_REMOVED_ZERO_CONFIG_KEYS"):
            above = "zero_optimization." if "ZERO" in name else ""
            for key in {f"{above}{key}" for key in item} - set(known.data["removed"]):
                yield f"{key}: removed"
    for where in OPTIMIZERS.split():
        item = _named(where)
        takes = [entry["classes"] for entry in known.data["optimizers"].values()]
        kept = next((names[item.__name__] for names in takes if item.__name__ in names), ())
        yield from _of_class(item, kept)
    for name in lr_schedules.VALID_LR_SCHEDULES:
        section = known.data["schedulers"].get(name, {"keys": {}})
        yield from _of_class(getattr(lr_schedules, name), section["keys"])


def _named(where: str) -> type:
    module, _, name = where.partition(":")
    return getattr(__import__(f"deepspeed.{module}", fromlist=[name]), name)


def _of_model(path: str, model: type, known: Schema) -> Iterator[str]:
    section = known.find(tuple(path.split(".")))["section"]
    names = set()
    for name, field in model.model_fields.items():
        spelled = field.alias or name
        names |= {name, spelled}
        key = section["keys"].get(spelled)
        if key is None:
            yield f"{path}.{spelled}: not in the file"
            continue
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        if "section" not in key and _plain(default) != key.get("default"):
            yield f"{path}.{spelled}: {default!r} by default, but {key.get('default')!r} in it"
        inner = [x for x in (field.annotation, *getattr(field.annotation, "__args__", ()))
                 if hasattr(x, "model_fields")]  # fmt: skip
        if inner and "section" in key:
            yield from _of_model(f"{path}.{spelled}", inner[0], known)
    for name in section["keys"].keys() - names:
        yield f"{path}.{name}: only in the file"


def _of_class(item: type, kept: object) -> Iterator[str]:
    taken = inspect.signature(item.__init__).parameters.values()
    names = {one.name for one in taken if one.kind is one.POSITIONAL_OR_KEYWORD} - GIVEN
    for name in names ^ set(kept):
        yield f"{item.__name__}: {name}, only in {'the release' if name in names else 'the file'}"


def _plain(default: object) -> object:
    value = default.value if isinstance(default, enum.Enum) else default
    return json.loads(json.dumps(value, default=str))


if __name__ == "__main__":
    found = list(differences(Schema(json.loads(SHIPPED.read_text(encoding="utf-8")))))
    print("\n".join(found))
    sys.exit(1 if found else 0)
