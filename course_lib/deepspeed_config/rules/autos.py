"""Each "auto" that is left: what the Trainer would fill in, and what no program does.

DeepSpeed itself knows no "auto": a model drops the key, so that its default counts, and a key read
from the dict stays the text. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.deepspeed_config import auto
from course_lib.deepspeed_config.config import Config
from course_lib.deepspeed_config.finding import Finding

TRAINER = "transformers, integrations/deepspeed.py"
ACCELERATE = "accelerate, utils/dataclasses.py"
OF_THE_TRAINER = 'only the Trainer resolves this "auto"'
# What the Trainer fills in; auto.py does it.
TRAINERS = {
    "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size",
    "gradient_clipping", "optimizer.params.lr", "optimizer.params.betas", "optimizer.params.eps",
    "optimizer.params.weight_decay", "scheduler.params.warmup_min_lr",
    "scheduler.params.warmup_max_lr", "scheduler.params.warmup_num_steps",
    "scheduler.params.total_num_steps", "fp16.enabled", "bf16.enabled", *auto.SIZES,
}  # fmt: skip


def check(config: Config) -> Iterator[Finding]:
    """A finding for every "auto" that stays."""
    tuned = config.get("autotuning.enabled") is True
    for path, key, section, value in config.entries():
        if value != "auto" or _own(key) or tuned:
            continue
        dotted = ".".join(path)
        if config.arguments is not None and dotted not in config.reasons:
            continue
        yield _left(config, path, dotted, key, section)


def _own(key: dict | None) -> bool:
    """Whether "auto" is a value of DeepSpeed's own here, or just a text."""
    if key is None:
        return True  # unknown.py
    kinds = key.get("of", [key])
    words = any("auto" in kind.get("choices", ()) for kind in kinds)
    return words or key.get("default") == "auto" or key.get("type") in ("text", "path", "any")


def _left(config: Config, path: tuple, dotted: str, key: dict, section: dict) -> Finding:
    release, checked = config.schema.release, key.get("checked")
    if key.get("type") == "object":
        outcome = f"DeepSpeed {release} takes a section here, and no text."
    elif checked and section.get("strict"):
        shown = "true" if key.get("default") is True else str(key.get("default")).lower()
        outcome = f"DeepSpeed {release} drops it without a word: the default, {shown}, counts."
    else:
        outcome = f"DeepSpeed {release} keeps the text, and breaks where it is used."
    if config.arguments is not None:
        why = config.reasons.get(dotted, "")
        if dotted in TRAINERS:
            return config.finding(
                "auto", "hint", path, f'what this "auto" becomes is not known here: {why}',
                "The Trainer resolves it, once it has all that it needs.", TRAINER,
                "nothing, or name what is missing here", value=True,
            )  # fmt: skip
        return config.finding(
            "auto", "error", path, f'no program resolves this "auto": {why}', outcome, TRAINER,
            "write a value, or leave the key out for its default", value=True,
        )  # fmt: skip
    if dotted in TRAINERS:
        return config.finding(
            "auto", "hint", path, OF_THE_TRAINER, outcome, TRAINER,
            "right under the Trainer (--args shows what it becomes); elsewhere write a value",
            value=True,
        )  # fmt: skip
    if dotted in auto.OF_ACCELERATE:
        level = "warning" if path[-1] == "stage" else "hint"
        return config.finding(
            "auto", level, path, 'only Accelerate resolves this "auto"', outcome, ACCELERATE,
            "write a value", value=True,
        )  # fmt: skip
    silent = checked and section.get("strict") and key.get("type") != "object"
    return config.finding(
        "auto", "warning" if silent else "error", path, 'no program resolves this "auto"',
        f"The Trainer fills in other keys, not this one. {outcome}", TRAINER,
        "write a value, or leave the key out for its default", value=True,
        repair=("remove",) if silent else None,
    )  # fmt: skip
