"""What a step costs a rank before any machine is named: work, bytes of each axis, messages, tiers.

The bytes are those of the closed forms that the ledger is held to; nothing here is a curve of its
own. Lesson 15.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from course_lib.estimate.memory import States, states
from course_lib.estimate.outline import outline_of_rank
from course_lib.estimate.over_tp import tensor_parallel_bytes
from course_lib.estimate.setting import Setting
from course_lib.estimate.time.links import Place
from course_lib.estimate.time.work import Passes, passes, update_bytes
from course_lib.estimate.traffic import FAST, LEAN, must_bytes, offload_bytes
from course_lib.gpt import GPT, Config
from course_lib.ledger import forms


@dataclass(frozen=True)
class Costs:
    """Of one step of one rank.

    `passes` and `tp` (bytes and messages, all-reduces or their halves) are of a micro-batch, of
    which there are `times`; `dp` is by verb, bytes and messages of the whole step; `last` the bytes
    of the gradients that are ready when the backward has ended. `updated`: bytes that the update
    reads and writes, on the device or, `away`, on the host; `down` and `up` cross to the host and
    back, `files` to a disk and back.
    """

    place: Place
    stage: int
    times: int
    passes: Passes
    tp: tuple[float, int]
    dp: Mapping[str, tuple[float, int]]
    last: float
    updated: float
    away: bool = False
    down: float = 0.0
    up: float = 0.0
    fetches: bool = False  # what goes up are parameters on their way to their use
    files: float = 0.0


def costs(
    config: Config,
    setting: Setting,
    place: Place,
    length: int,
    *,
    held: States | None = None,
    dp_bytes: Mapping[str, float] | None = None,
) -> Costs:
    """Of a step of `setting.accumulate` micro-batches of `setting.rows` sequences on each replica.

    `held` and `dp_bytes`, where they are known already, spare the walk over all parameters.
    """
    config = config.changed(recompute=setting.recompute, attention_dropout=0.0)
    zero = {"stage": setting.stage, "n": place.dp, "precision": setting.precision}
    outline = outline_of_rank(config, place.tp, dtype=setting.dtype)
    if held is None:
        held = states(outline, offload=setting.offload, **zero)
    keep = LEAN if setting.lean else FAST
    if dp_bytes is None:
        dp_bytes = bytes_over_dp(outline, setting, place)
    cut = {"width": setting.width, "sequence": place.sequence}
    sent = 0.0
    if place.tp > 1:
        sent = tensor_parallel_bytes(config, setting.rows, length, place.tp, **cut)
    own = held.partition.numel / (place.dp if setting.stage else 1)
    moved = {"down": 0, "up": 0, "read": 0, "written": 0}
    if setting.offload is not None:
        moved = offload_bytes(
            outline, offload=setting.offload, accumulate=setting.accumulate, keep=keep, **zero
        )
    return Costs(
        place, setting.stage, setting.accumulate,
        passes(config, setting.rows, length, tp=place.tp, **cut),
        (sent, tp_messages(config, place)),
        {verb: (size, _messages(verb, size, place, held)) for verb, size in dp_bytes.items()},
        _last(dp_bytes, place, held),
        update_bytes(own, width=setting.width, master=setting.master),
        away=setting.optimizer is not None, down=moved["down"], up=moved["up"],
        fetches=setting.parameters is not None, files=moved["read"] + moved["written"],
    )  # fmt: skip


def bytes_over_dp(outline: GPT, setting: Setting, place: Place) -> dict[str, float]:
    """What a rank sends over dp in a step, by verb."""
    if place.dp == 1:
        return {}
    return must_bytes(
        outline, stage=setting.stage, n=place.dp, accumulate=setting.accumulate,
        precision=setting.precision, keep=LEAN if setting.lean else FAST,
    )  # fmt: skip


def tp_messages(config: Config, place: Place) -> int:
    """Of a micro-batch, over tp: two a block forward and two backward, again where it is run again;
    those of the table, the head and the loss. With sequence parallelism each is two halves."""
    if place.tp == 1:
        return 0
    blocks = config.layers * (6 if config.recompute else 4)
    loss = 2
    return (2 * (blocks + 2) if place.sequence else blocks + 2) + loss


def _messages(verb: str, sent: float, place: Place, held: States) -> int:
    """As many as so many bytes are of buckets (or units) of the mean size."""
    buckets = held.partition.buckets
    whole = sum(bucket.padded * bucket.dtype.itemsize for bucket in buckets)
    each = forms.all_gather(place.dp, whole // place.dp) / len(buckets)
    return round(sent / each / (2 if verb == "all_reduce" else 1)) if each else 0


def _last(dp_bytes: Mapping[str, float], place: Place, held: States) -> float:
    """Bytes of the message that waits for the end of the backward: the table's of words."""
    if not dp_bytes:
        return 0.0
    first = next(iter(held.outline.parameters()))
    bucket, _ = held.partition.where[first]
    own = bucket.padded * bucket.dtype.itemsize // place.dp
    return forms.all_gather(place.dp, own) * (2 if "all_reduce" in dp_bytes else 1)
