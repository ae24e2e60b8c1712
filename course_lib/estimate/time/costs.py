"""What a step costs a rank before any machine is named: work, bytes of each axis, messages, tiers.

The bytes are those of the closed forms that the ledger is held to; nothing here is a curve of its
own. Lesson 15.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch

from course_lib.estimate.activations import kept
from course_lib.estimate.backward import Cut
from course_lib.estimate.memory import States, states
from course_lib.estimate.model import Model
from course_lib.estimate.outline import outline_of_rank
from course_lib.estimate.over_tp import loss_bytes, summed_bytes, tensor_parallel_bytes
from course_lib.estimate.peak import step_peak
from course_lib.estimate.setting import Needs, Setting, moves
from course_lib.estimate.time.machine import Place
from course_lib.estimate.time.work import Passes, Work, passes, update_bytes
from course_lib.estimate.traffic import FAST, LEAN, must_bytes, offload_bytes
from course_lib.gpt import GPT, Config
from course_lib.ledger import forms

LOSS_SUMS = 2  # all-reduces of a loss whose vocabulary is cut: the largest logits, and two sums


@dataclass(frozen=True)
class Costs:
    """Of one step of one rank.

    `passes` and `tp` are of a micro-batch, of which there are `times`, `dp` of the whole step:
    bytes and messages by verb, where tp's gathers and scatters are `halves`; `last` the
    bytes of the gradients that are ready when the backward has ended. `updated`: bytes that the
    update reads and writes, on the device or, `away`, on the host; `down` and `up` cross to the
    host and back, `files` to a disk and back.
    """

    place: Place
    stage: int
    times: int
    passes: Passes
    tp: Mapping[str, tuple[float, int]]
    dp: Mapping[str, tuple[float, int]]
    last: float
    updated: float
    away: bool = False
    down: float = 0.0
    up: float = 0.0
    fetches: bool = False  # what goes up are parameters on their way to their use
    files: float = 0.0
    hidden: float = math.inf  # the model's, by which products are as fast as wide ones or slower


class ModelCounts:
    """What follows from a model's parameters alone, whatever its rows are: counted once for each
    tp, dp, stage and offload. Bytes of a step are those of its first micro-batch and so many more
    for each further one. `rank` is one of dp; `keep`: bytes of parameters that may stay whole."""

    def __init__(
        self, config: Config, setting: Setting, place: Place, rank: int = 0, keep: int | None = None
    ):
        self.offload, self.dp = setting.offload, place.dp
        self.keep = (LEAN if setting.lean else FAST) if keep is None else keep
        # Fused kernels drop attention's weights without keeping them: nothing of that is counted.
        self.config = config.changed(recompute=setting.recompute, attention_dropout=0.0)
        self.outline = _outline(self.config, place.tp, setting.dtype)
        how = {"precision": setting.precision, "offload": setting.offload}
        self.held = states(self.outline, stage=setting.stage, n=place.dp, rank=rank, **how)
        self._known: dict[tuple[Callable, int], Mapping[str, float]] = {}

    def peak(self, setting: Setting, place: Place, length: int) -> int:
        """Bytes of the GPU at the highest point of a step with the setting's rows."""
        how = {"accumulate": setting.accumulate, "keep": self.keep, "held": self.held}
        cut = Cut(place.tp, 0, place.sequence)
        return step_peak(self.outline, setting.rows, length, cut=cut, **how).total

    def needs(self, setting: Setting, place: Place, length: int) -> Needs:
        """What such a step takes of a rank and a node; what crosses between the tiers is left to
        `moved`."""
        cut = {"tp": place.tp, "sequence": place.sequence}
        forward = kept(self.config, setting.rows, length, width=setting.width, **cut)
        tiers = self.held.by_tier(alive=True)
        host, disk = (tiers[name] * place.ranks for name in ("host", "disk"))
        sent = round(sum(self.dp_bytes(setting.accumulate).values()))
        return Needs(self.peak(setting, place, length), forward.total, host, disk, sent)

    def dp_bytes(self, times: int) -> dict[str, float]:
        """What a rank sends over dp in a step of so many micro-batches, by verb."""
        return {} if self.dp == 1 else self._line(must_bytes, times)

    def moved(self, times: int) -> dict[str, float]:
        """What crosses between the tiers."""
        if self.offload is None:
            return dict.fromkeys(("down", "up", "read", "written"), 0)
        return self._line(offload_bytes, times)

    def _line(self, form: Callable, times: int) -> dict[str, float]:
        """A figure that grows by as much with each micro-batch, from its first two values."""
        for k in (1, 2)[:times]:
            if (form, k) not in self._known:
                how = {"accumulate": k, "keep": self.keep, "held": self.held}
                self._known[form, k] = form(self.outline, **how)
        first = self._known[form, 1]
        second = self._known.get((form, 2), first)
        return {key: x + (times - 1) * (second[key] - x) for key, x in first.items()}


@lru_cache(maxsize=32)
def _outline(config: Config, tp: int, dtype: torch.dtype) -> GPT:
    """Shapes that stages, offloads and replicas have in common."""
    return outline_of_rank(config, tp, dtype=dtype)


def costs(
    config: Config,
    setting: Setting,
    place: Place,
    length: int,
    *,
    counted: ModelCounts | None = None,
) -> Costs:
    """Of a step of `setting.accumulate` micro-batches of `setting.rows` sequences on each replica.
    `counted`: what follows from the parameters, where it is known already."""
    counted = counted or ModelCounts(config, setting, place)
    config, held, k = counted.config, counted.held, setting.accumulate
    over_dp, moved = counted.dp_bytes(k), counted.moved(k)
    own = held.partition.numel / (place.dp if setting.stage else 1)
    messages = {verb: (size, _messages(verb, size, place, held)) for verb, size in over_dp.items()}
    work, over_tp = _decoder(config, setting, place, length)
    updated = update_bytes(own, width=setting.width, master=setting.master)
    tiers = {"down": moved["down"], "up": moved["up"], "files": moved["read"] + moved["written"]}
    tiers |= {"away": setting.optimizer is not None, "fetches": setting.parameters is not None}
    over = (over_tp, messages, _last(over_dp, place, held))
    return Costs(place, setting.stage, k, work, *over, updated, **tiers, hidden=config.hidden)


def costs_of_model(
    model: Model, setting: Setting, place: Place, length: int, needs: Needs
) -> Costs:
    """The same of any model, with the bytes of `needs` over dp and between the tiers."""
    config, largest = model.config, model.shape_of_rank(place.tp).largest_layer * setting.width
    if config is not None:
        config = config.changed(recompute=setting.recompute)
        work, over_tp = _decoder(config, setting, place, length)
    else:
        work, over_tp = _counted(model, setting, place, length)
    sent, k = needs.sent if place.dp > 1 else 0, setting.accumulate
    gathers, sums = moves(setting)
    each = sent / (gathers + sums)
    buckets, last = max(1, round(each / largest)), min(each, largest)
    over_dp = {"reduce_scatter": (sums * each, sums * buckets)}
    over_dp["all_gather"] = gathers * each, gathers * buckets
    if setting.stage == 0:
        over_dp, last = {"all_reduce": (sent, buckets)}, 2 * last
    over_dp = over_dp if sent else {}
    own = model.params_of_rank(place.tp) / (place.dp if setting.stage else 1)
    updated = update_bytes(own, width=setting.width, master=setting.master)
    tiers = {"down": needs.down, "up": needs.up, "files": needs.read + needs.written}
    tiers |= {"away": setting.optimizer is not None, "fetches": setting.parameters is not None}
    over = (over_tp, over_dp, last, updated)
    return Costs(place, setting.stage, k, work, *over, **tiers, hidden=model.hidden)


def _decoder(
    config: Config, setting: Setting, place: Place, length: int
) -> tuple[Passes, dict[str, tuple[float, int]]]:
    """(work of a micro-batch, messages over tp) of a decoder of ours, by its closed forms."""
    how = {"width": setting.width, "sequence": place.sequence}
    work = passes(config, setting.rows, length, tp=place.tp, **how)
    if place.tp == 1:
        return work, {}
    sent = tensor_parallel_bytes(config, setting.rows, length, place.tp, **how)
    summed = summed_bytes(config, setting.rows, length, place.tp, **how)
    sums, halves = tp_messages(config, place)
    return work, {"all_reduce": (summed, sums), "halves": (sent - summed, halves)}


def _counted(
    model: Model, setting: Setting, place: Place, length: int
) -> tuple[Passes, dict[str, tuple[float, int]]]:
    """The same of another family: two flops for each token and parameter that is in a product,
    attention's pairs, and the bytes that a forward keeps, written and read once, in the backward
    read once more. Over tp two passes have a sum for each layer that is cut by rows."""
    theirs, tokens, tp = model.theirs(), setting.rows * length, place.tp
    pairs = 4.0 * tokens * length * theirs.attention_width / tp
    kept = model.kept(setting.rows, length, setting.dtype, tp=tp, sequence=place.sequence)
    blocks, ends = (0, 0) if kept is None else (sum(kept.blocks), kept.ends)
    flops = 2.0 * theirs.product_params(tp) * tokens + pairs
    forward = Work(flops, 2.0 * (blocks + ends), pairs)
    backward = Work(2 * flops, 1.5 * forward.moved, 2 * pairs)
    if setting.recompute:  # not the head
        head = 2.0 * theirs.head_params(tp) * tokens
        backward = backward.plus(Work(flops - head, 2.0 * blocks, pairs))
    work = Passes(forward, backward)
    if tp == 1:
        return work, {}
    sums = theirs.sums * (3 if setting.recompute else 2) + 2  # and the table's, and the head's
    sent = sums * forms.all_reduce(tp, tokens * theirs.config.hidden_size * setting.width)
    loss = loss_bytes(tokens, tp, setting.width)
    if place.sequence:
        return work, {"all_reduce": (loss, LOSS_SUMS), "halves": (sent, 2 * sums)}
    return work, {"all_reduce": (sent + loss, sums + LOSS_SUMS)}


def tp_messages(config: Config, place: Place) -> tuple[int, int]:
    """(all-reduces, gathers and scatters) of a micro-batch over tp: two a block forward and two
    backward, again where it is run again; the table's, the head's and the loss's.

    With sequence parallelism each of a layer is two halves, and norms' gradients are summed.
    """
    if place.tp == 1:
        return 0, 0
    layers = config.layers * (6 if config.recompute else 4) + 2
    if not place.sequence:
        return layers + LOSS_SUMS, 0
    norms = 2 * config.layers + 1
    return LOSS_SUMS + norms, 2 * layers + (config.position == "learned")


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
