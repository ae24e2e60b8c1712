"""The costs of a step on a rank, independent of any machine: work, bytes, messages and tiers.

The bytes come from the closed forms that are tested against the ledger. This module fits no curves.
Lesson 15.
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

LOSS_SUMS = 2  # all-reduces of a loss over a sharded vocabulary: largest logits, and two sums


@dataclass(frozen=True)
class Costs:
    """Costs of one step on one rank.

    `passes` and `tp` are per micro-batch, of which there are `times`, and `dp` is for the full
    step. `tp` and `dp` map verbs to bytes and messages, with tp's gathers and scatters as `halves`.
    `last` is the bytes of gradients that are ready only after the backward pass. `updated` is the
    bytes that the update reads and writes, on the host if `away`. `down` and `up` are the bytes
    moved to the host and back, and `files` the bytes read and written on a disk.
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
    fetches: bool = False  # True if parameters go up just before their use
    files: float = 0.0
    hidden: float = math.inf  # the model's hidden size, because narrow products are slower


class ModelCounts:
    """Counts that depend on a model's parameters but not on its rows, made once for each tp, dp,
    stage and offload. A step's bytes grow linearly with its micro-batches. `rank` is the rank along
    dp, and `keep` the bytes of parameters that may stay gathered."""

    def __init__(
        self, config: Config, setting: Setting, place: Place, rank: int = 0, keep: int | None = None
    ):
        self.offload, self.dp = setting.offload, place.dp
        self.keep = (LEAN if setting.lean else FAST) if keep is None else keep
        # Attention dropout is not counted, because fused kernels keep nothing for it.
        self.config = config.changed(recompute=setting.recompute, attention_dropout=0.0)
        self.outline = _outline(self.config, place.tp, setting.dtype)
        how = {"precision": setting.precision, "offload": setting.offload}
        self.held = states(self.outline, stage=setting.stage, n=place.dp, rank=rank, **how)
        self._known: dict[tuple[Callable, int], Mapping[str, float]] = {}

    def peak(self, setting: Setting, place: Place, length: int) -> int:
        """Compute the GPU's peak bytes in a step with the setting's rows."""
        how = {"accumulate": setting.accumulate, "keep": self.keep, "held": self.held}
        cut = Cut(place.tp, 0, place.sequence)
        return step_peak(self.outline, setting.rows, length, cut=cut, **how).total

    def needs(self, setting: Setting, place: Place, length: int) -> Needs:
        """Compute a step's needs on a rank and a node, without the traffic between tiers, which
        `moved` counts."""
        cut = {"tp": place.tp, "sequence": place.sequence}
        forward = kept(self.config, setting.rows, length, width=setting.width, **cut)
        tiers = self.held.by_tier(alive=True)
        host, disk = (tiers[name] * place.ranks for name in ("host", "disk"))
        sent = round(sum(self.dp_bytes(setting.accumulate).values()))
        return Needs(self.peak(setting, place, length), forward.total, host, disk, sent)

    def dp_bytes(self, times: int) -> dict[str, float]:
        """Count the bytes that a rank sends over dp in a step of `times` micro-batches, by verb."""
        return {} if self.dp == 1 else self._line(must_bytes, times)

    def moved(self, times: int) -> dict[str, float]:
        """Count the bytes that cross between the tiers."""
        if self.offload is None:
            return dict.fromkeys(("down", "up", "read", "written"), 0)
        return self._line(offload_bytes, times)

    def _line(self, form: Callable, times: int) -> dict[str, float]:
        """Compute counts that are linear in the micro-batches from their first two values."""
        for k in (1, 2)[:times]:
            if (form, k) not in self._known:
                how = {"accumulate": k, "keep": self.keep, "held": self.held}
                self._known[form, k] = form(self.outline, **how)
        first = self._known[form, 1]
        second = self._known.get((form, 2), first)
        return {key: x + (times - 1) * (second[key] - x) for key, x in first.items()}


@lru_cache(maxsize=32)
def _outline(config: Config, tp: int, dtype: torch.dtype) -> GPT:
    """Build the outline that all stages, offloads and replicas share."""
    return outline_of_rank(config, tp, dtype=dtype)


def costs(
    config: Config,
    setting: Setting,
    place: Place,
    length: int,
    *,
    counted: ModelCounts | None = None,
) -> Costs:
    """Count the costs of a step of `setting.accumulate` micro-batches of `setting.rows` sequences
    on each replica. `counted` has the parameters' counts, if made before."""
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
    """Count a step's costs for any model; `needs` has the bytes over dp and between the tiers."""
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
    """Count (a micro-batch's work, its messages over tp) for our decoder, with closed forms."""
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
    """Count the same for other families: two flops per token and product parameter, attention's
    pairs, and kept bytes, which are written once, read once, and read again in the backward pass.
    Over tp, each row-parallel layer has an all-reduce in both passes."""
    theirs, tokens, tp = model.theirs(), setting.rows * length, place.tp
    pairs = 4.0 * tokens * length * theirs.attention_width / tp
    kept = model.kept(setting.rows, length, setting.dtype, tp=tp, sequence=place.sequence)
    blocks, ends = (0, 0) if kept is None else (sum(kept.blocks), kept.ends)
    flops = 2.0 * theirs.product_params(tp) * tokens + pairs
    forward = Work(flops, 2.0 * (blocks + ends), pairs)
    backward = Work(2 * flops, 1.5 * forward.moved, 2 * pairs)
    if setting.recompute:  # but not the head
        head = 2.0 * theirs.head_params(tp) * tokens
        backward = backward.plus(Work(flops - head, 2.0 * blocks, pairs))
    work = Passes(forward, backward)
    if tp == 1:
        return work, {}
    sums = theirs.sums * (3 if setting.recompute else 2) + 2  # plus the table's and the head's
    sent = sums * forms.all_reduce(tp, tokens * theirs.config.hidden_size * setting.width)
    loss = loss_bytes(tokens, tp, setting.width)
    if place.sequence:
        return work, {"all_reduce": (loss, LOSS_SUMS), "halves": (sent, 2 * sums)}
    return work, {"all_reduce": (sent + loss, sums + LOSS_SUMS)}


def tp_messages(config: Config, place: Place) -> tuple[int, int]:
    """Count a micro-batch's messages over tp: (all-reduces, gathers plus scatters). A block has two
    sums in each pass, and two more if it is recomputed. Embedding, head and loss add a few.

    Sequence parallelism splits each sum of a layer into two halves, and sums the norms' gradients.
    """
    if place.tp == 1:
        return 0, 0
    layers = config.layers * (6 if config.recompute else 4) + 2
    if not place.sequence:
        return layers + LOSS_SUMS, 0
    norms = 2 * config.layers + 1
    return LOSS_SUMS + norms, 2 * layers + (config.position == "learned")


def _messages(verb: str, sent: float, place: Place, held: States) -> int:
    """Count the messages for `sent` bytes, at the mean size of a bucket (or unit)."""
    buckets = held.partition.buckets
    whole = sum(bucket.padded * bucket.dtype.itemsize for bucket in buckets)
    each = forms.all_gather(place.dp, whole // place.dp) / len(buckets)
    return round(sent / each / (2 if verb == "all_reduce" else 1)) if each else 0


def _last(dp_bytes: Mapping[str, float], place: Place, held: States) -> float:
    """Count the bytes of the last message, which waits for the embedding table's gradient."""
    if not dp_bytes:
        return 0.0
    first = next(iter(held.outline.parameters()))
    bucket, _ = held.partition.where[first]
    own = bucket.padded * bucket.dtype.itemsize // place.dp
    return forms.all_gather(place.dp, own) * (2 if "all_reduce" in dp_bytes else 1)
