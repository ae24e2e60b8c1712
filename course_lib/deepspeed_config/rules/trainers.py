"""Keys that the Trainer's arguments contradict, and what else the two say of one thing.

The Trainer compares what is no "auto" with its arguments and refuses a mismatch. Lesson 13.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from course_lib.deepspeed_config.auto import Resolved
from course_lib.deepspeed_config.config import Config
from course_lib.deepspeed_config.finding import Finding

TRAINER = "transformers, integrations/deepspeed.py"
# TrainingArguments.optim that DeepSpeed's Adam takes the place of without a difference.
ADAMS = ("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused")


def check(config: Config, resolved: Resolved) -> Iterator[Finding]:
    """A finding for every contradiction, and for what the Trainer refuses before it begins."""
    for conflict in resolved.conflicts:
        theirs = json.dumps(conflict.argument)
        yield config.finding(
            "arguments", "error", conflict.path,
            f"the file says {json.dumps(conflict.config)}, the argument {conflict.name} {theirs}",
            "The Trainer compares the two and ends where they differ.", TRAINER,
            f'write "auto", or {theirs}', value=True,
        )  # fmt: skip
    for sentence in resolved.refusals:
        first, _, remedy = sentence.partition("; ")
        yield config.finding(
            "arguments", "error", ("",), first, "The integration ends with it.", TRAINER,
            remedy or "write the values in numbers",
        )  # fmt: skip
    arguments = config.arguments or {}
    if isinstance(config.stated("optimizer"), dict) and "optim" in arguments:
        optim = arguments["optim"]
        if optim not in ADAMS:
            yield config.finding(
                "arguments", "warning", "optimizer",
                f'the file has an optimizer, and the arguments say optim="{optim}"',
                "With an optimizer in the file the Trainer makes none of its own: the argument "
                "does not count.", TRAINER,
                'take "optimizer" out of the file, or optim out of the arguments',
            )  # fmt: skip
    forced = config.get("zero_force_ds_cpu_optimizer", True)
    optim = arguments.get("optim", ADAMS[0])
    offloaded = not config.has("optimizer") and config.device("optimizer") != "none"
    if offloaded and forced and optim not in ADAMS:
        yield config.finding(
            "arguments", "error", "zero_optimization.offload_optimizer",
            f'the optimizer is offloaded, and the arguments say optim="{optim}"',
            "DeepSpeed refuses to offload an optimizer that is not its own for the CPU.",
            "deepspeed/runtime/engine.py",
            'write "zero_force_ds_cpu_optimizer": false, or take an AdamW',
        )  # fmt: skip
    if isinstance(config.stated("scheduler"), dict) and "lr_scheduler_type" in arguments:
        kind = config.get("scheduler.type")
        same = {"WarmupLR": "constant_with_warmup", "WarmupDecayLR": "linear",
                "WarmupCosineLR": "cosine"}.get(str(kind))  # fmt: skip
        if arguments["lr_scheduler_type"] != same:
            yield config.finding(
                "arguments", "warning", "scheduler",
                f'the file has {kind}, and the arguments say lr_scheduler_type='
                f'"{arguments["lr_scheduler_type"]}"',
                "With a scheduler in the file the Trainer makes none of its own: the argument does "
                "not count.", TRAINER, 'take "scheduler" out of the file'
                + (f', or write lr_scheduler_type="{same}"' if same else ""),
            )  # fmt: skip
