"""What a DeepSpeed file takes on each GPU and host, part by part, before anything is started.

States by stage and offload, the buckets times 4.5 where communication overlaps, what may stay whole
at stage 3, activations where the model is a decoder of ours. Lesson 13.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from course_lib.estimate.activations import kept
from course_lib.estimate.deepspeed import OVERLAP
from course_lib.estimate.setting import Setting, of_each
from course_lib.estimate.shape import Shape, read, read_ours, shape_of
from course_lib.gpt import Config
from course_lib.pretrained.config import TRAITS, from_transformers
from course_lib.pretrained.sketch import without_numbers

# DeepSpeed's own defaults, in elements, of what takes memory.
BUCKET, PREFETCH, PERSIST, LIVE = 5 * 10**8, 5 * 10**7, 10**5, 10**9
FILE_BUFFERS = {"offload_param": (5, 10**8), "offload_optimizer": (4, 0)}  # how many, elements
UNIT = 1 << 30


@dataclass(frozen=True)
class Forecast:
    """Bytes by part on each GPU and on each rank's share of its host and its disk; `left_out` says
    in words what is not counted."""

    gpu: dict[str, int]
    host: dict[str, int]
    disk: dict[str, int]
    ranks: int
    left_out: list[str] = field(default_factory=list)

    @property
    def gpu_bytes(self) -> int:
        return sum(self.gpu.values())

    @property
    def host_bytes(self) -> int:
        """Of a node with `ranks` ranks."""
        return sum(self.host.values()) * self.ranks

    @property
    def disk_bytes(self) -> int:
        return sum(self.disk.values()) * self.ranks

    def as_dict(self) -> dict:
        return {
            "gpu_bytes": self.gpu_bytes, "host_bytes": self.host_bytes,
            "disk_bytes": self.disk_bytes, "gpu": self.gpu, "host": self.host, "disk": self.disk,
            "ranks_of_a_host": self.ranks, "left_out": self.left_out,
        }  # fmt: skip

    def lines(self, unit: int = UNIT, word: str = "GiB") -> list[str]:
        """For people: each part in such units, the largest first."""
        found = []
        for place, parts, total in (
            ("GPU", self.gpu, self.gpu_bytes),
            ("host", self.host, self.host_bytes),
            ("disk", self.disk, self.disk_bytes),
        ):
            if total:
                by_size = sorted(parts.items(), key=lambda part: -part[1])
                words = ", ".join(f"{name} {size / unit:,.2f}" for name, size in by_size if size)
                each = "" if place == "GPU" or self.ranks == 1 else f", for each of {self.ranks}"
                found.append(f"{place}: {total / unit:,.2f} {word} ({words}{each})")
        return found + [f"not counted: {text}" for text in self.left_out]


def forecast(
    config: Mapping,
    model: Mapping | str | Path,
    world: int,
    *,
    gpus: int | None = None,
    length: int | None = None,
    recompute: bool = False,
) -> Forecast:
    """What a resolved config takes with this config.json on `world` ranks, `gpus` of them a node.

    Activations are those of one micro-batch of `length` tokens, by default the model's longest.
    What is still "auto" counts as DeepSpeed's default, and is named.
    """
    if world < 1:
        raise ValueError(f"world={world} has to be a whole number of ranks, 1 or more")
    known, shape = _model(model)
    values = _Values(config)
    setting = _setting(values, recompute)
    stage, width = setting.stage, setting.width
    device, host, disk = (-int(-each * shape.params // 1) for each in of_each(setting, world))
    gpu = {"states": device}
    gpu |= _buckets(values, stage, width)
    if stage == 3:
        gpu |= _whole(values, shape, known, world, width)
    left_out = list(values.left_out)
    activations = _activations(known, setting, length)
    if activations is None:
        left_out.append("activations, which are known for GPT-2's and Llama's config.json")
    else:
        gpu["activations"] = activations
    on_host = {"states": host}
    for section, (count, least) in FILE_BUFFERS.items():
        if values.device(section) == "nvme":
            number = values.zero(f"{section}.buffer_count", count)
            size = values.zero(f"{section}.buffer_size", least) or shape.largest_layer
            on_host[f"{section} buffers"] = number * size * (width if least else 4)
    left_out.append("the CUDA context, gaps between blocks, an operation's own temporaries")
    return Forecast(gpu, on_host, {"states": disk}, gpus or world, left_out)


class _Values:
    """A config's values by dotted path, with DeepSpeed's defaults."""

    def __init__(self, config: Mapping):
        self.config = config
        self.left_out: list[str] = []

    def get(self, path: str, default: object = None) -> object:
        here: object = self.config
        for key in path.split("."):
            here = here.get(key) if isinstance(here, Mapping) else None
        if here == "auto":
            self.left_out.append(f'{path}, which is still "auto": counted as {default}')
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
    half = [kind for kind in ("bf16", "fp16") if values.get(f"{kind}.enabled") is True]
    names = {"bf16": "bfloat16", "fp16": "float16"}
    accumulate = values.number("gradient_accumulation_steps", 1)
    return Setting(
        rows=values.number("train_micro_batch_size_per_gpu", 1), accumulate=accumulate,
        recompute=recompute, stage=stage,
        optimizer=values.device("offload_optimizer") if stage else None,
        parameters=values.device("offload_param") if stage == 3 else None,
        precision=names[half[0]] if half else "float32",
    )  # fmt: skip


def _buckets(values: _Values, stage: int, width: int) -> dict[str, int]:
    """What communication sets aside: both buckets below stage 3, one at stage 3."""
    if not stage:
        return {}
    overlaps = values.get("zero_optimization.overlap_comm", stage == 3)
    times = OVERLAP if overlaps is True else 1
    reduce = values.zero("reduce_bucket_size", BUCKET)
    gather = values.zero("allgather_bucket_size", BUCKET) if stage < 3 else 0
    return {"buckets": int((reduce + gather) * width * times)}


def _whole(
    values: _Values, shape: Shape, known: Config | None, world: int, width: int
) -> dict[str, int]:
    """At stage 3: what is kept whole always, what may stay so, and what is fetched ahead."""
    threshold = values.zero("stage3_param_persistence_threshold", PERSIST)
    small = 0
    if known is not None:
        sizes = [p.numel() for p in without_numbers(known).parameters()]
        small = sum(size for size in sizes if size < threshold)
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


def _activations(known: Config | None, setting: Setting, length: int | None) -> int | None:
    if known is None:
        return None
    config = known.changed(recompute=setting.recompute, attention_dropout=0.0)
    found = kept(config, setting.rows, length or config.length, width=setting.width)
    # torch's loss makes two more of the logits; a block that is run again is whole meanwhile.
    return found.total + 2 * found.logits + (found.block if setting.recompute else 0)


def _model(model: Mapping | str | Path) -> tuple[Config | None, Shape]:
    if not isinstance(model, Mapping):
        return read_ours(model), read(model)
    if model.get("model_type") not in TRAITS:
        raise ValueError(
            f"model_type={model.get('model_type')!r}: as a mapping only {', '.join(TRAITS)} are "
            "read; name the config.json"
        )
    known = from_transformers(model, Path("config.json"))
    return known, shape_of(known)
