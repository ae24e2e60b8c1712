"""What a plan needs that a program has no word for: said before a file is written.

The course's own program runs every plan; DeepSpeed, FSDP2 and Accelerate some of them. Lesson 15.
"""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.deepspeed_config import ours
from course_lib.plan.model import Model
from course_lib.plan.search import Plan

MOST_WORDS = 60_000  # entries of a tokenizer, of all of Python's library
FEW_WORDS, ALL_BYTES = 16_000, 10**8  # so many are in the text that is read where nothing is said
KINDS = ("deepspeed", "fsdp2", "accelerate", "torchrun", "slurm")


def cannot(kind: str, plan: Plan, model: Model, length: int) -> str | None:
    """Why a kind of file cannot say this plan, None where it can."""
    if kind not in KINDS:
        raise ValueError(f"--emit {kind} is none of {', '.join(KINDS)}")
    if kind in ("torchrun", "slurm"):
        where = {plan.setting.optimizer, plan.setting.parameters} - {None}
        if len(where) > 1:
            return f"course train has one place for what it offloads, and this is {sorted(where)}"
        if model.config is not None and model.config.vocabulary > MOST_WORDS:
            return (
                f"course train makes its tokenizer of Python's own library, which gives some "
                f"{MOST_WORDS:,} entries, and the model has {model.config.vocabulary:,}"
            )
        if words_of(plan, model, length) is None:
            return f"course train makes no new model of this shape (model_type {model.kind!r})"
        return None
    if plan.place.sequence:
        return f"sequence parallelism has no setting in what --emit {kind} writes"
    return _deepspeed(plan) if kind == "deepspeed" else _fsdp2(kind, plan, model)


def _deepspeed(plan: Plan) -> str | None:
    if plan.setting.optimizer == "nvme" and plan.setting.stage < 3:
        return "DeepSpeed has states in files (NVMe) at stage 3 alone"
    if plan.place.tp > 1 and plan.setting.stage == 3:
        return "DeepSpeed trains with tensor parallelism (AutoTP) up to stage 2, not at stage 3"
    return None


def _fsdp2(kind: str, plan: Plan, model: Model) -> str | None:
    setting, tp = plan.setting, plan.place.tp
    if setting.precision == "float16" and setting.stage:
        return "FSDP2 has no loss scale for float16; --emit deepspeed has one"
    if "nvme" in (setting.optimizer, setting.parameters):
        return "FSDP2 keeps no states in files; --emit deepspeed and --emit torchrun do"
    if (setting.optimizer == "cpu") != (setting.parameters == "cpu"):
        return "FSDP2 offloads parameters, gradients and states together, or none of them"
    if setting.stage == 1:
        return "FSDP2 has no stage 1, whose gradients stay whole until the update"
    if tp > 1 and setting.stage == 0:
        return (
            "replicas that are tensor parallel themselves are no model for DistributedDataParallel"
        )
    if tp > 1 and model.kind != "llama":
        return (
            "the plan by which torch cuts a Transformers model over tp is written here for Llama; "
            "GPT-2's q, k and v are one layer there, which it does not cut by heads"
        )
    if tp > 1 and model.config is not None and model.config.kv_heads % tp:
        return f"DTensor does not share {model.config.kv_heads} key/value heads among {tp} ranks"
    return None


def first_that_can(kind: str, plans: Sequence[Plan], model: Model, length: int) -> int | None:
    """The place of the fastest plan that a kind of file can say, from 1 on."""
    for i, plan in enumerate(plans, 1):
        if cannot(kind, plan, model, length) is None:
            return i
    return None


def words_of(plan: Plan, model: Model, length: int) -> list[str] | None:
    """The options of course_lib.train that run a plan with a new model of this shape."""
    if model.config is None:
        return None
    place, config = plan.place, model.config.changed(dropout=0.0, attention_dropout=0.0)
    words = ours.train(
        config.changed(length=length) if config.position == "learned" else config,
        length, place.world, plan.setting, tp=place.tp, sequence=place.sequence,
    )  # fmt: skip
    if words is not None and config.vocabulary > FEW_WORDS:
        words += ["--corpus-bytes", str(ALL_BYTES)]
    return words
