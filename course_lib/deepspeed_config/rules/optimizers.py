"""The optimizer and the scheduler of a config: their type, what each takes, what goes with offload.

The parameters go to a class as they are: one that it does not take, or that it lacks, stops the run
once it has begun. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.deepspeed_config.config import Config
from course_lib.deepspeed_config.finding import Finding
from course_lib.deepspeed_config.near import nearest

ENGINE = "deepspeed/runtime/engine.py"
SCHEDULES = "deepspeed/runtime/lr_schedules.py"
# What the engine takes out of Adam's parameters before it hands them on.
ENGINES_OWN = ("torch_adam", "adam_w_mode", "fp32_optimizer_states")
TAKES_AUTO = "total_num_steps"


def check(config: Config) -> Iterator[Finding]:
    """A finding for a type that is not there, and for parameters that its class refuses."""
    known = {
        "optimizer": (config.schema.optimizer, config.schema.data["optimizers"]),
        "scheduler": (config.schema.data["schedulers"].get, config.schema.data["schedulers"]),
    }
    for what, (find, names) in known.items():
        section = config.stated(what)
        if not isinstance(section, dict):
            continue
        kind = section.get("type")
        if kind is None:
            if section:
                yield _typeless(config, what)
            continue
        if not isinstance(kind, str):
            continue  # values.py
        entry = find(kind)
        if entry is None:
            yield _unknown(config, what, kind, names)
            continue
        yield from _required(config, what, kind, entry, section)
        if what == "optimizer":
            yield from _optimizer(config, kind, entry)
        else:
            yield from _scheduler(config)


def _typeless(config: Config, what: str) -> Finding:
    return config.finding(
        "needs", "error", what, f'"{what}" has no "type"',
        f"Without a type DeepSpeed takes the {what} for absent, and its parameters with it.",
        "deepspeed/runtime/config.py", f'add "{what}.type", such as '
        + ('"AdamW"' if what == "optimizer" else '"WarmupLR"'),
    )  # fmt: skip


def _unknown(config: Config, what: str, kind: str, names: dict) -> Finding:
    shown = {name.lower(): name for name in names} | {"adam": "Adam", "adamw": "AdamW",
             "lamb": "Lamb", "lion": "Lion", "muon": "Muon", "adagrad": "Adagrad"}  # fmt: skip
    near = nearest(kind, [shown.get(name, name) if what == "optimizer" else name for name in names])
    whose = f"DeepSpeed {config.schema.release} nor torch"
    return config.finding(
        "type", "error", f"{what}.type", f'"{kind}" is no {what} of {whose}',
        "DeepSpeed looks among its own, and then in torch for a class of this name.",
        ENGINE, f'write "{near}"' if near else f"write the name of a {what} of theirs", value=True,
        repair=("value", near) if near else None,
    )  # fmt: skip


def _required(
    config: Config, what: str, kind: str, entry: dict, section: dict
) -> Iterator[Finding]:
    params = section.get("params", {})
    if not isinstance(params, dict):
        return
    for name, key in entry["keys"].items():
        if key.get("required") and name not in params:
            yield config.finding(
                "needs", "error", f"{what}.params" if "params" in section else what,
                f'"{kind}" needs "{name}"', "Its class has no default for it.",
                entry.get("source", ""), f'add "{what}.params.{name}"'
                + ('; "auto" under the Trainer' if name == TAKES_AUTO else ""),
            )  # fmt: skip
    needed = any(key.get("required") for key in entry["keys"].values())
    if what == "scheduler" and "params" not in section and not needed:
        yield config.finding(
            "needs", "error", what, f'"{what}" has no "params"',
            "DeepSpeed unpacks them for the class, and None cannot be unpacked.", ENGINE,
            'add "params": {}',
        )  # fmt: skip


def _optimizer(config: Config, kind: str, entry: dict) -> Iterator[Finding]:
    params = config.stated("optimizer.params")
    params = params if isinstance(params, dict) else {}
    if "max_grad_norm" in params:
        value = params["max_grad_norm"]
        yield config.finding(
            "contradiction", "error", "optimizer.params.max_grad_norm",
            '"max_grad_norm" is no parameter of an optimizer here', "The engine refuses it.",
            ENGINE,
            f'write "gradient_clipping": {value} at the top level',
            repair=None if config.has("gradient_clipping") else ("rename", ("gradient_clipping",)),
        )  # fmt: skip
    name = kind.lower() if entry["deepspeed"] else kind
    built = _class(config, name, params, entry)
    if built is not None:
        yield from _refused(config, built, entry, params, name)
    yield from _pairs(config, params)
    if name == "lamb" and config.get("fp16.loss_scale", 0):
        yield config.finding(
            "contradiction", "error", "fp16.loss_scale", '"Lamb" needs a dynamic loss scale',
            "The engine asserts it.", ENGINE, 'write "loss_scale": 0', value=True,
        )  # fmt: skip
    stage, device = config.stage, config.device("optimizer")
    if not stage or built is None:
        return
    allowed = config.get("zero_allow_untested_optimizer") is True
    if built not in config.schema.data["suited"] and not allowed:
        yield config.finding(
            "contradiction", "error", "optimizer.type",
            f'"{kind}" has not been tested with ZeRO',
            f"At stage {stage} the engine refuses an optimizer that it does not know to work on "
            "shards.", ENGINE, 'add "zero_allow_untested_optimizer": true, or write "AdamW"',
            value=True,
        )  # fmt: skip
    if device != "none" and not _on_cpu(built) and not params.get("torch_adam"):
        yield config.finding(
            "contradiction", "warning", "optimizer.type",
            f'"{kind}" is offloaded, and DeepSpeed has none of it for the CPU',
            "Offloaded states are updated on the CPU: DeepSpeed's own Adam, Adagrad and Lion are "
            "made for that.", ENGINE, 'write "AdamW"', value=True,
        )  # fmt: skip


def _class(config: Config, name: str, params: dict, entry: dict) -> str | None:
    """The class that the engine builds, by its name."""
    offloaded = config.device("optimizer") != "none"
    if name in ("adam", "adamw"):
        if params.get("torch_adam") is True:
            plain = name == "adam" and params.get("adam_w_mode") is False
            return "Adam" if plain else "AdamW"
        return "DeepSpeedCPUAdam" if offloaded else "FusedAdam"
    if name == "adagrad":
        return "DeepSpeedCPUAdagrad" if offloaded else "Adagrad"
    if name == "lion":
        return "DeepSpeedCPULion" if offloaded else "FusedLion"
    if name in ("muon", "muadam", "muadamw", "musgd"):
        return None
    return next(iter(entry.get("classes", {})), None)


def _refused(config: Config, built: str, entry: dict, params: dict, name: str) -> Iterator[Finding]:
    """Parameters that some class of this optimizer takes, and the one that is built does not."""
    takes = entry["classes"].get("AdamW" if built == "Adam" else built)
    own = ENGINES_OWN if name in ("adam", "adamw") else ()
    if takes is None:
        return
    for key in params:
        if key in entry["keys"] and key not in takes and key not in own and key != "max_grad_norm":
            others = [cls for cls, keys in entry["classes"].items() if key in keys]
            yield config.finding(
                "needs", "error", f"optimizer.params.{key}",
                f'{built}, which is built here, takes no "{key}"',
                f"It is a parameter of {', '.join(others)}.", ENGINE,
                "take it out" + (', or add "torch_adam": true' if "AdamW" in others else ""),
            )  # fmt: skip


def _pairs(config: Config, params: dict) -> Iterator[Finding]:
    betas = params.get("betas")
    if isinstance(betas, list) and len(betas) != 2:
        yield config.finding(
            "type", "error", "optimizer.params.betas", f'"betas" has {len(betas)} entries, not 2',
            "They are the decay of the first moment and of the second.", ENGINE,
            "write two numbers, such as [0.9, 0.999]", value=True,
        )  # fmt: skip
    elif isinstance(betas, list):
        for beta in betas:
            if isinstance(beta, (int, float)) and not 0 <= beta < 1:
                yield config.finding(
                    "range", "error", "optimizer.params.betas", f"{beta} is no decay",
                    "A moment's decay is at least 0 and less than 1.", ENGINE,
                    "write two numbers, such as [0.9, 0.999]", value=True,
                )  # fmt: skip
    rate = params.get("lr")
    if isinstance(rate, (int, float)) and not isinstance(rate, bool) and rate < 0:
        yield config.finding(
            "range", "error", "optimizer.params.lr", f"the learning rate is {rate}",
            "Optimizers refuse one below 0.", ENGINE, "write a number above 0", value=True,
        )  # fmt: skip


def _on_cpu(built: str) -> bool:
    return built.startswith(("DeepSpeedCPU", "ZenFlowCPU")) or built == "MuonWithAuxAdam"


def _scheduler(config: Config) -> Iterator[Finding]:
    at = "scheduler.params"
    warmup, total = config.get(f"{at}.warmup_num_steps"), config.get(f"{at}.total_num_steps")
    for name in ("warmup_num_steps", "total_num_steps"):
        value = config.get(f"{at}.{name}")
        if isinstance(value, int) and not isinstance(value, bool) and value <= 0:
            yield config.finding(
                "range", "error", f"{at}.{name}", f'"{name}" is {value}, and has to be at least 1',
                "The schedule divides by it.", SCHEDULES, "write 1 or more", value=True,
            )  # fmt: skip
    if isinstance(warmup, int) and isinstance(total, int) and 0 < total < warmup:
        yield config.finding(
            "contradiction", "warning", f"{at}.warmup_num_steps",
            f"the warm-up takes {warmup} steps of {total}",
            "The rate never reaches its top, let alone comes down.", SCHEDULES,
            "let warmup_num_steps be the smaller", value=True,
        )  # fmt: skip
    low, high = config.get(f"{at}.warmup_min_lr"), config.get(f"{at}.warmup_max_lr")
    if isinstance(low, (int, float)) and isinstance(high, (int, float)) and low > high:
        yield config.finding(
            "contradiction", "warning", f"{at}.warmup_min_lr",
            f"the rate falls in the warm-up, from {low} to {high}",
            "warmup_min_lr is where it begins, warmup_max_lr where it ends.", SCHEDULES,
            "exchange the two", value=True,
        )  # fmt: skip
    stated = config.stated(f"{at}.warmup_type")
    if isinstance(stated, str) and stated not in ("log", "linear"):
        yield config.finding(
            "type", "warning", f"{at}.warmup_type", f'"{stated}" is no type of warm-up',
            'It is "log" or "linear"; DeepSpeed takes "log" for any other.', SCHEDULES,
            f'write "{nearest(stated, ["log", "linear"]) or "linear"}"', value=True,
        )  # fmt: skip
