"""The memory that a DeepSpeed config needs on each GPU and host, by part, before a run starts.

It counts states by stage and offload, buckets (times 4.5 with overlap), parameters that stay
gathered at stage 3, and activations if the model is known. Lesson 13.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from course_lib.estimate.deepspeed import OVERLAP
from course_lib.estimate.model import Model
from course_lib.estimate.setting import Setting, of_each
from course_lib.estimate.shape import Shape
from course_lib.peers.deepspeed_config.auto import at

# DeepSpeed's own defaults, in elements, of settings that take memory.
BUCKET, PREFETCH, PERSIST, LIVE = 5 * 10**8, 5 * 10**7, 10**5, 10**9
FILE_BUFFERS = {"offload_param": (5, 10**8), "offload_optimizer": (4, 0)}  # count, elements
HALVES = {"bf16": "bfloat16", "fp16": "float16"}
PLACES = {"gpu": "GPU", "host": "host", "disk": "disk"}
UNIT = 1 << 30


@dataclass(frozen=True)
class Forecast:
    """Bytes by part on each GPU, and on each rank's share of its host and its disk. `left_out`
    names the parts that are not counted, and `assumed` states the assumptions."""

    gpu: dict[str, int]
    host: dict[str, int]
    disk: dict[str, int]
    ranks: int
    left_out: list[str] = field(default_factory=list)
    assumed: str = ""

    def total(self, place: str) -> int:
        """Sum all parts of a place; "host" and "disk" are for a node with `ranks` ranks."""
        return sum(getattr(self, place).values()) * (1 if place == "gpu" else self.ranks)

    def as_dict(self) -> dict:
        sums = {f"{place}_bytes": self.total(place) for place in PLACES}
        parts = {place: getattr(self, place) for place in PLACES}
        words = {"left_out": self.left_out, "assumed": self.assumed}
        return sums | parts | {"ranks_of_a_host": self.ranks, **words}

    def lines(self, unit: int = UNIT, word: str = "GiB") -> list[str]:
        """Format the parts of each place in units of `unit` bytes, the largest part first."""
        found = []
        for place, name in PLACES.items():
            by_size = sorted(getattr(self, place).items(), key=lambda part: -part[1])
            words = ", ".join(f"{part} {size / unit:,.2f}" for part, size in by_size if size)
            each = "" if place == "gpu" or self.ranks == 1 else f", for each of {self.ranks}"
            if total := self.total(place):
                found.append(f"{name}: {total / unit:,.2f} {word} ({words}{each})")
        return found + [f"not counted: {text}" for text in self.left_out]


def forecast(
    config: Mapping,
    model: Model | Mapping | str | Path,
    world: int,
    *,
    gpus: int | None = None,
    length: int | None = None,
    recompute: bool = False,
    tp: int = 1,
    sequence: bool = False,
) -> Forecast:
    """Forecast the memory of a resolved config on `world` ranks, `gpus` of them per node.

    Activations are counted for a micro-batch whose sequences have `length` tokens, by default the
    model's maximum. A remaining "auto" counts as DeepSpeed's default and is listed. `tp` ranks
    share the model and, with `sequence`, also the tokens between its sharded layers.
    """
    if world < 1:
        raise ValueError(f"world={world} has to be a whole number of ranks, 1 or more")
    model, values = _model(model), _Values(config)
    setting, shape = _setting(values, recompute), model.shape_of_rank(tp)
    width, replicas = setting.width, world // tp
    device, host, disk = (-int(-each * shape.params // 1) for each in of_each(setting, replicas))
    gpu, on_host = {"states": device}, {"states": host}
    if setting.stage:  # communication reserves both buckets below stage 3, but one at stage 3
        overlaps = values.get("zero_optimization.overlap_comm", setting.stage == 3)
        bucket = values.zero("reduce_bucket_size", BUCKET)
        bucket += values.zero("allgather_bucket_size", BUCKET) if setting.stage < 3 else 0
        gpu["buckets"] = int(bucket * width * (OVERLAP if overlaps is True else 1))
    if setting.stage == 3:
        gpu |= _whole(values, shape, model.numels, replicas, width)
    left_out = list(values.left_out)
    length = model.length(length or 0) if length or model.longest else 0
    if not length:
        left_out.append("activations, because the config states no longest sequence (--length)")
    elif model.activations_unknown:
        left_out.append(f"activations, because {model.activations_unknown}")
    else:
        how = {"recompute": recompute, "tp": tp, "sequence": sequence}
        kept = model.kept(setting.rows, length, setting.dtype, **how)
        gpu["activations"] = kept.peak
    for section, (count, least) in FILE_BUFFERS.items():
        if values.device(section) == "nvme":
            number = values.zero(f"{section}.buffer_count", count)
            size = values.zero(f"{section}.buffer_size", least) or shape.largest_layer
            on_host[f"{section} buffers"] = number * size * (width if least else 4)
    left_out.append("the CUDA context, gaps between blocks, temporary tensors")
    assumed = (
        f"{world} GPUs, {setting.rows} row{'s'[: setting.rows != 1]} of {length:,} tokens per "
        f"micro-batch, {setting.precision}, AdamW, fused attention, gradient checkpointing "
        f"{'on' if recompute else 'off'}"
    )
    return Forecast(gpu, on_host, {"states": disk}, gpus or world, left_out, assumed)


class _Values:
    """Values of a config by dotted path, with DeepSpeed's defaults."""

    def __init__(self, config: Mapping):
        self.config = config
        self.left_out: list[str] = []

    def get(self, path: str, default: object = None) -> object:
        here = at(self.config, path.split("."))
        if here == "auto":
            self.left_out.append(f'{path}, which is still "auto" (counted as {default})')
        return default if here is None or here == "auto" else here

    def number(self, path: str, default: int) -> int:
        value = self.get(path, default)
        good = isinstance(value, (int, float)) and not isinstance(value, bool)
        return int(value) if good and 0 <= value < math.inf else default

    def zero(self, key: str, default: int) -> int:
        return self.number(f"zero_optimization.{key}", default)

    def device(self, section: str) -> str | None:
        place = self.get(f"zero_optimization.{section}.device")
        return place if place in ("cpu", "nvme") else None


def _setting(values: _Values, recompute: bool) -> Setting:
    stage = values.zero("stage", 0)
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"zero_optimization.stage={stage} is none of 0, 1, 2, 3")
    half = [kind for kind in HALVES if values.get(f"{kind}.enabled") is True]
    return Setting(
        rows=values.number("train_micro_batch_size_per_gpu", 1),
        accumulate=values.number("gradient_accumulation_steps", 1),
        recompute=recompute,
        stage=stage,
        optimizer=values.device("offload_optimizer") if stage else None,
        parameters=values.device("offload_param") if stage == 3 else None,
        precision=HALVES[half[0]] if half else "float32",
    )


def _whole(
    values: _Values, shape: Shape, numels: Sequence[int], world: int, width: int
) -> dict[str, int]:
    """Count stage 3's parameters that stay gathered, may stay gathered, or are prefetched."""
    threshold = values.zero("stage3_param_persistence_threshold", PERSIST)
    small = sum(size for size in numels if size < threshold)
    small = min(small, values.zero("stage3_model_persistence_threshold", small))
    rest = shape.params - small
    live = max(min(values.zero("stage3_max_live_parameters", LIVE), rest), shape.largest_layer)
    ahead = min(values.zero("stage3_prefetch_bucket_size", PREFETCH), rest - min(live, rest))
    return {
        "persistent parameters": int(small * width * (world - 1) / world),
        "live parameters": live * width,
        "prefetched parameters": ahead * width,
        "gradients of a layer": shape.largest_layer * width,
    }


def _model(model: Model | Mapping | str | Path) -> Model:
    if isinstance(model, Model):
        return model
    return Model(model) if isinstance(model, Mapping) else Model.read(model)
