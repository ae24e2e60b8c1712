"""Each unresolved "auto", and each value that contradicts the Trainer's arguments.

DeepSpeed itself does not know "auto": a config model drops the key and uses the default, and a key
that is read from the dict keeps the text. The Trainer compares other values. Lesson 13.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from course_lib.peers.deepspeed_config import auto
from course_lib.peers.deepspeed_config.config import DeepSpeedConfig, Row

TRAINER, ACCELERATE = "transformers, integrations/deepspeed.py", "accelerate, utils/dataclasses.py"
OF_THE_TRAINER = 'only the Trainer resolves this "auto"'
OF_ACCELERATE = 'only Accelerate resolves this "auto"'
LEAVE = "write a value, or leave the key out for its default"
TRAINERS = {*auto.FILLED, *auto.SIZES}
# Values of TrainingArguments.optim that DeepSpeed's Adam replaces without a difference.
ADAMS = ("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused")
SCHEDULES = {"WarmupLR": "constant_with_warmup", "WarmupDecayLR": "linear"}
SCHEDULES |= {"WarmupCosineLR": "cosine"}


def check(config: DeepSpeedConfig) -> Iterator[Row]:
    """Yield a finding for every "auto" that remains and for each contradicted argument."""
    tuned = config.get("autotuning.enabled") is True
    for path, key, section, value in config.entries():
        resolved = config.arguments is not None and ".".join(path) not in config.auto.unresolved
        if value == "auto" and not (_own(key) or tuned or resolved):
            yield _left(config, path, key, section)
    yield from _conflicts(config)
    yield from _both(config, config.arguments or {})


def _own(key: dict | None) -> bool:
    """Return True if "auto" is a valid value of this key, by name or as any text."""
    if key is None:
        return True  # handled by unknown.py
    words = any("auto" in kind.get("choices", ()) for kind in key.get("of", [key]))
    return words or key.get("default") == "auto" or key.get("type") in ("text", "path", "any")


def _left(config: DeepSpeedConfig, path: tuple, key: dict, section: dict) -> Row:
    dotted, of_section = ".".join(path), key.get("type") == "object"
    silent = key.get("checked") and section.get("strict") and not of_section
    outcome = "keeps the text and fails where it is used."
    if of_section:
        outcome = "expects a section here, not a text."
    elif silent:
        default = str(key.get("default")).lower()
        outcome = f"silently drops it and uses the default, {default}."
    outcome = f"DeepSpeed {config.schema.release} {outcome}"
    if config.arguments is not None:
        why = config.auto.unresolved[dotted]
        if dotted in TRAINERS:
            message = f'the value of this "auto" is unknown here, because {why}'
            reason = "The Trainer resolves it later, when it has the missing value."
            return ("hint", path, message, reason, "nothing, or name the missing value", TRAINER)
        message = f'no program resolves this "auto", because {why}'
        return ("error", path, message, outcome, LEAVE, TRAINER)
    if dotted in TRAINERS:
        remedy = "correct with the Trainer (--args shows the value); otherwise write a value"
        return ("hint", path, OF_THE_TRAINER, outcome, remedy, TRAINER)
    if dotted in auto.OF_ACCELERATE:
        level, message = "warning" if path[-1] == "stage" else "hint", OF_ACCELERATE
        return (level, path, message, outcome, "write a value", ACCELERATE)
    level, repair = ("warning", ("remove",)) if silent else ("error", None)
    reason = f"The Trainer fills in other keys, not this one. {outcome}"
    return (level, path, 'no program resolves this "auto"', reason, LEAVE, TRAINER, repair)


def _conflicts(config: DeepSpeedConfig) -> Iterator[Row]:
    """Yield the contradictions that make the Trainer refuse the config."""
    for conflict in config.auto.conflicts:
        theirs = json.dumps(conflict.argument)
        ours = f"the file says {json.dumps(conflict.config)}"
        message = f"{ours}, but the argument {conflict.name} is {theirs}"
        reason = "The Trainer compares the two and stops if they differ."
        yield ("error", conflict.path, message, reason, f'write "auto", or {theirs}', TRAINER)
    for sentence in config.auto.refusals:
        message, _, remedy = sentence.partition("; ")
        remedy = remedy or "write the values in numbers"
        yield ("error", "", message, "The integration stops with this error.", remedy, TRAINER)


def _both(config: DeepSpeedConfig, arguments: dict) -> Iterator[Row]:
    """Yield optimizers or schedulers that the file and the arguments state differently."""
    optim, stated = arguments.get("optim", ADAMS[0]), config.stated("optimizer")
    kind, theirs = config.get("scheduler.type"), arguments.get("lr_scheduler_type")
    same = SCHEDULES.get(str(kind))
    instead = f', or write lr_scheduler_type="{same}"' if same else ""
    unused = "the Trainer creates none, so the argument has no effect."
    if isinstance(stated, dict) and optim not in ADAMS:
        message = f'the file has an optimizer, and the arguments say optim="{optim}"'
        reason = f"With an optimizer in the file {unused}"
        remedy = 'remove "optimizer" from the file, or optim from the arguments'
        yield ("warning", "optimizer", message, reason, remedy, TRAINER)
    forced = config.get("zero_force_ds_cpu_optimizer", True)
    offloaded = not config.has("optimizer") and config.device("optimizer") != "none"
    if offloaded and forced and optim not in ADAMS:
        path = "zero_optimization.offload_optimizer"
        message = f'the optimizer is offloaded, and the arguments say optim="{optim}"'
        reason = "DeepSpeed offloads only its own CPU optimizers."
        remedy = 'write "zero_force_ds_cpu_optimizer": false, or use an AdamW'
        yield ("error", path, message, reason, remedy, "deepspeed/runtime/engine.py")
    if isinstance(config.stated("scheduler"), dict) and theirs not in (None, same):
        message = f'the file has {kind}, and the arguments say lr_scheduler_type="{theirs}"'
        remedy = f'remove "scheduler" from the file{instead}'
        reason = f"With a scheduler in the file {unused}"
        yield ("warning", "scheduler", message, reason, remedy, TRAINER)
