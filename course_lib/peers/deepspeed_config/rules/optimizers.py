"""The optimizer and scheduler of a config: type, parameters, and compatibility with offload.

Parameters are passed to a class unchanged. If a parameter is unknown or missing, the run stops only
after it has started. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.peers.deepspeed_config.config import DeepSpeedConfig, Row
from course_lib.peers.deepspeed_config.near import nearest

ENGINE = "deepspeed/runtime/engine.py"
SCHEDULES = "deepspeed/runtime/lr_schedules.py"
# DeepSpeed's own spellings; it compares them in lower case.
OWN = {name.lower(): name for name in ("Adam", "AdamW", "Lamb", "Lion", "Muon", "Adagrad")}
# Parameters of Adam that the engine removes before it passes the rest on.
ENGINES_OWN = ("torch_adam", "adam_w_mode", "fp32_optimizer_states")
ADAMS, CLIPPING = ("adam", "adamw"), "gradient_clipping"
# The class that the engine builds for a name: on the CPU if states are offloaded, and otherwise.
BUILT = {
    **dict.fromkeys(ADAMS, ("DeepSpeedCPUAdam", "FusedAdam")),
    "adagrad": ("DeepSpeedCPUAdagrad", "Adagrad"),
    "lion": ("DeepSpeedCPULion", "FusedLion"),
    **dict.fromkeys(("muon", "muadam", "muadamw", "musgd"), (None, None)),
}


def check(config: DeepSpeedConfig) -> Iterator[Row]:
    """Yield a finding for an unknown type, and for parameters that a known type refuses."""
    schedulers = config.schema.data["schedulers"]
    for what, find, names, usual in (
        ("optimizer", config.schema.optimizer, config.schema.data["optimizers"], "AdamW"),
        ("scheduler", schedulers.get, schedulers, "WarmupLR"),
    ):
        section = config.stated(what)
        if not isinstance(section, dict) or not section:
            continue
        kind = section.get("type")
        entry = find(kind) if isinstance(kind, str) else None
        if kind is None:
            message = f'"{what}" has no "type"'
            reason = f"Without a type DeepSpeed treats the {what} as absent and ignores its "
            reason += "parameters."
            yield ("error", what, message, reason, f'add "{what}.type", such as "{usual}"')
        elif entry is not None:
            yield from _required(config, what, kind, entry, section)
            yield from _optimizer(config, kind, entry) if what == "optimizer" else _rates(config)
        elif isinstance(kind, str):  # others are handled by values.py
            spelled = OWN if what == "optimizer" else {}
            near = nearest(kind, [spelled.get(name, name) for name in names])
            message = f'"{kind}" is no {what} of DeepSpeed {config.schema.release} or torch'
            reason = "DeepSpeed searches its own classes and then torch for this name."
            remedy = f'write "{near}"' if near else f"write the name of a {what} of either"
            repair = ("value", near) if near else None
            yield ("error", f"{what}.type", message, reason, remedy, ENGINE, repair)


def _required(
    config: DeepSpeedConfig, what: str, kind: str, entry: dict, section: dict
) -> Iterator[Row]:
    params = section.get("params", {})
    if not isinstance(params, dict):
        return
    required = [name for name, key in entry["keys"].items() if key.get("required")]
    at, source = f"{what}.params" if "params" in section else what, entry.get("source", "")
    for name in required:
        if name not in params:
            message, reason = f'"{kind}" needs "{name}"', "The class has no default for it."
            auto = ' ("auto" with the Trainer)' if name == "total_num_steps" else ""
            yield ("error", at, message, reason, f'add "{what}.params.{name}"{auto}', source)
    if what == "scheduler" and "params" not in section and not required:
        reason = "DeepSpeed unpacks them for the class, and None cannot be unpacked."
        yield ("error", what, f'"{what}" has no "params"', reason, 'add "params": {}', ENGINE)


def _optimizer(config: DeepSpeedConfig, kind: str, entry: dict) -> Iterator[Row]:
    params = config.stated("optimizer.params")
    params = params if isinstance(params, dict) else {}
    if "max_grad_norm" in params:
        message = '"max_grad_norm" is not an optimizer parameter in DeepSpeed'
        path, reason = "optimizer.params.max_grad_norm", "The engine refuses it."
        remedy = f'write "gradient_clipping": {params["max_grad_norm"]} at the top level'
        repair = None if config.has(CLIPPING) else ("rename", (CLIPPING,))
        yield ("error", path, message, reason, remedy, ENGINE, repair)
    name = kind.lower() if entry["deepspeed"] else kind
    built = _class(config, name, params, entry)
    yield from _refused(config, built, entry, params, name)
    yield from _numbers(config, params)
    if name == "lamb" and config.get("fp16.loss_scale", 0):
        message, reason = '"Lamb" needs a dynamic loss scale', "The engine asserts it."
        yield ("error", "fp16.loss_scale", message, reason, 'write "loss_scale": 0', ENGINE)
    if not config.stage or built is None:
        return
    allowed = config.get("zero_allow_untested_optimizer") is True
    if built not in config.schema.data["suited"] and not allowed:
        message = f'"{kind}" has not been tested with ZeRO'
        reason = f"At stage {config.stage} the engine refuses an optimizer unless it is known "
        reason += "to work on shards."
        remedy = 'add "zero_allow_untested_optimizer": true, or write "AdamW"'
        yield ("error", "optimizer.type", message, reason, remedy, ENGINE)
    on_cpu = built.startswith("DeepSpeedCPU") or params.get("torch_adam")
    if config.device("optimizer") != "none" and not on_cpu:
        message = f'"{kind}" is offloaded, but DeepSpeed has no CPU version of it'
        reason = "Offloaded states are updated on the CPU, and DeepSpeed's own Adam, Adagrad and "
        reason += "Lion are made for that."
        yield ("warning", "optimizer.type", message, reason, 'write "AdamW"', ENGINE)


def _class(config: DeepSpeedConfig, name: str, params: dict, entry: dict) -> str | None:
    """Return the name of the class that the engine builds, or None if it is unknown."""
    if name in ADAMS and params.get("torch_adam") is True:
        return "Adam" if name == "adam" and params.get("adam_w_mode") is False else "AdamW"
    on_cpu, else_ = BUILT.get(name) or [next(iter(entry.get("classes", {})), None)] * 2
    return on_cpu if config.device("optimizer") != "none" else else_


def _refused(
    config: DeepSpeedConfig, built: str | None, entry: dict, params: dict, name: str
) -> Iterator[Row]:
    """Yield parameters that the class built here refuses but the optimizer's other one accepts."""
    takes = entry["classes"].get("AdamW" if built == "Adam" else built)
    own = ("max_grad_norm", *(ENGINES_OWN if name in ADAMS else ()))
    for key in params if takes is not None else ():
        if key in entry["keys"] and key not in (*takes, *own):
            others = [cls for cls, keys in entry["classes"].items() if key in keys]
            message = f'{built}, which is built here, does not accept "{key}"'
            reason = f"It is a parameter of {', '.join(others)}."
            remedy = "remove it" + (', or add "torch_adam": true' if "AdamW" in others else "")
            yield ("error", f"optimizer.params.{key}", message, reason, remedy, ENGINE)


def _numbers(config: DeepSpeedConfig, params: dict) -> Iterator[Row]:
    betas, rate = params.get("betas"), params.get("lr")
    remedy = "write two numbers, such as [0.9, 0.999]"
    for wrong, reason in _betas(betas) if isinstance(betas, list) else ():
        yield ("error", "optimizer.params.betas", wrong, reason, remedy, ENGINE)
    if isinstance(rate, (int, float)) and not isinstance(rate, bool) and rate < 0:
        message, reason = f"the learning rate is {rate}", "Optimizers refuse a negative rate."
        remedy = "write a positive number"
        yield ("error", "optimizer.params.lr", message, reason, remedy, ENGINE)


def _betas(betas: list) -> list[tuple[str, str]]:
    if len(betas) != 2:
        reason = "They are the decays of the first and second moments."
        return [(f'"betas" has {len(betas)} entries instead of 2', reason)]
    wrong = [x for x in betas if isinstance(x, (int, float)) and not 0 <= x < 1]
    return [(f"{x} is no decay", "A decay is at least 0 and less than 1.") for x in wrong]


def _rates(config: DeepSpeedConfig) -> Iterator[Row]:
    """Yield findings about a scheduler's numbers."""
    at = "scheduler.params"
    warmup, total = (config.get(f"{at}.{name}_num_steps") for name in ("warmup", "total"))
    low, high = (config.get(f"{at}.warmup_{name}_lr") for name in ("min", "max"))
    how = config.stated(f"{at}.warmup_type")
    for name, value in (("warmup_num_steps", warmup), ("total_num_steps", total)):
        if isinstance(value, int) and not isinstance(value, bool) and value <= 0:
            message = f'"{name}" is {value} but must be at least 1'
            reason, remedy = "The schedule divides by it.", "write 1 or more"
            yield ("error", f"{at}.{name}", message, reason, remedy, SCHEDULES)
    if isinstance(warmup, int) and isinstance(total, int) and 0 < total < warmup:
        message = f"the warm-up takes {warmup} steps, but the run has {total}"
        reason = "The rate never reaches its maximum."
        remedy = "make warmup_num_steps smaller"
        yield ("warning", f"{at}.warmup_num_steps", message, reason, remedy, SCHEDULES)
    if isinstance(low, (int, float)) and isinstance(high, (int, float)) and low > high:
        message = f"the rate falls in the warm-up, from {low} to {high}"
        reason = "The warm-up starts at warmup_min_lr and ends at warmup_max_lr."
        yield ("warning", f"{at}.warmup_min_lr", message, reason, "exchange the two", SCHEDULES)
    if isinstance(how, str) and how not in ("log", "linear"):
        message = f'"{how}" is not a type of warm-up'
        reason = 'It must be "log" or "linear"; DeepSpeed reads any other as "log".'
        remedy = f'write "{nearest(how, ["log", "linear"]) or "linear"}"'
        yield ("warning", f"{at}.warmup_type", message, reason, remedy, SCHEDULES)
