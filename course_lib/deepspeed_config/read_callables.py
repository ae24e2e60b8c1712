"""Optimizers and schedulers → the parameters that each takes, from the signatures of its class.

`optimizer.params` and `scheduler.params` go to a class as they are, and no model of DeepSpeed's
looks at them. Lesson 13.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path

from course_lib.deepspeed_config.read_models import PLAIN, kind_of, plain
from course_lib.deepspeed_config.recording import within_package

# What the engine itself takes out of Adam's parameters before it builds one.
ENGINES_OWN = {
    "torch_adam": ("boolean", False),
    "adam_w_mode": ("boolean", True),
    "fp32_optimizer_states": ("boolean", True),
}
GIVEN = ("self", "params", "model_params", "optimizer")  # what is no setting of a config


def optimizers() -> dict[str, dict]:
    """Name, as DeepSpeed compares it, → {"classes": {class: [parameters]}, "keys": …}."""
    import torch
    from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
    from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
    from deepspeed.ops.lamb import FusedLamb
    from deepspeed.ops.lion import DeepSpeedCPULion, FusedLion
    from deepspeed.runtime.config import DEEPSPEED_OPTIMIZERS
    from deepspeed.runtime.engine import DeepSpeedEngine

    adam = (FusedAdam, DeepSpeedCPUAdam, torch.optim.AdamW)
    classes = {
        "adam": adam,
        "adamw": adam,
        "adagrad": (torch.optim.Adagrad, DeepSpeedCPUAdagrad),
        "lamb": (FusedLamb,),
        "lion": (FusedLion, DeepSpeedCPULion),
        "muon": adam,
        "muadam": (torch.optim.Adam,),
        "muadamw": (torch.optim.AdamW,),
        "musgd": (torch.optim.SGD,),
    }
    sections = {}
    for name in DEEPSPEED_OPTIMIZERS:
        section = _section(classes.get(name, ()))
        if name in ("adam", "adamw", "muon"):
            for key, (kind, default) in ENGINES_OWN.items():
                section["keys"].setdefault(key, {"type": kind, "default": default})
        if name == "muon":
            halves = ("_MUON_HALF_KEYS", "_ADAM_HALF_KEYS")
            more = {key for half in halves for key in getattr(DeepSpeedEngine, half, ())}
            for key in (more | {"muon_lr", "adam_lr"}) - {"betas"}:
                kind = "text" if key == "ns_method" else "number"
                section["keys"].setdefault(key, {"type": kind})
        section["deepspeed"] = True
        section["open"] = name.startswith("mu")  # built by code that we do not see
        sections[name] = section
    # Under any other name torch.optim's class of that very name is built.
    for name, item in _classes(torch.optim, torch.optim.Optimizer):
        if name.lower() not in sections:
            sections[name] = {**_section((item,)), "deepspeed": False}
    return sections


def schedulers() -> dict[str, dict]:
    """Name → the section of its parameters: DeepSpeed's schedulers, and torch's after them."""
    import torch
    from deepspeed.runtime import lr_schedules

    sections = {}
    for name, item in _classes(torch.optim.lr_scheduler, torch.optim.lr_scheduler.LRScheduler):
        sections[name] = {**_section((item,), by_group=True), "deepspeed": False}
    for name in lr_schedules.VALID_LR_SCHEDULES:
        schedule = getattr(lr_schedules, name)
        sections[name] = {**_section((schedule,), by_group=True), "deepspeed": True}
    return sections


def _classes(module: object, base: type) -> Iterator[tuple[str, type]]:
    for name, item in vars(module).items():
        if inspect.isclass(item) and issubclass(item, base) and item is not base and name[0] != "_":
            yield name, item


def _section(classes: Iterable[type], *, by_group: bool = False) -> dict:
    keys: dict[str, dict] = {}
    takes: dict[str, list[str]] = {}
    source = ""
    for item in classes:
        source = source or within_package(Path(inspect.getsourcefile(item) or ""))
        names = takes.setdefault(item.__name__, [])
        hints = _hints(item)
        for name, parameter in inspect.signature(item.__init__).parameters.items():
            if name in GIVEN or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                continue
            names.append(name)
            key = _key(parameter, hints.get(name))
            if by_group and name.endswith("_lr"):  # a rate for each group of parameters
                key |= {"type": "union", "of": [{"type": "number"}, {"type": "list"}]}
            elif by_group and name.endswith(("_size", "_count", "_steps", "_up", "_down")):
                key["type"] = "integer"
            keys.setdefault(name, key)
    return {"classes": takes, "keys": keys, "source": source}


def _hints(item: type) -> dict[str, object]:
    try:
        return typing.get_type_hints(item.__init__)
    except (NameError, TypeError):
        return {}


def _key(parameter: inspect.Parameter, hint: object) -> dict:
    default = parameter.default
    kind = {"type": "any"} if hint is None else kind_of(hint)
    if kind["type"] == "union":  # such as a number or a tensor
        kind["of"] = [part for part in kind["of"] if part["type"] not in ("instance", "any")]
        if len(kind["of"]) == 1:
            kind = {**kind["of"][0], **({"null": True} if kind.get("null") else {})}
    if default is parameter.empty:
        return {**kind, "required": True}
    if kind["type"] in ("any", "instance") and default is not None:
        kind = {"type": PLAIN.get(type(default), "any")}
        if kind["type"] == "integer":
            kind = {"type": "number"}  # 0 stands for 0.0 in many a signature
    if kind["type"] == "list" and "items" not in kind:
        kind["items"] = {"type": "number"}
    return {**kind, "default": plain(default)}
