"""The bytes on a GPU, a host and a disk for every stage and offload, and the cards that fit them.

The closed forms need only the number of parameters, and assume 16-bit training with Adam in our
engine. With a config, activations are counted too. Lesson 12 derives the bytes of a step.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache

from course_lib.estimate.outline import outline_of_rank
from course_lib.estimate.setting import Setting, of_each
from course_lib.gpt import Config

HALF = 2  # bytes of an element in 16 bits
UNIT = 1 << 30  # GiB
# A card counts as so many times 10^9 bytes. It has 5 to 7 % more (81,559 MiB for "80 GB", 143,771
# for "141 GB"), which is left for the CUDA context and for gaps between blocks.
CARDS = (24, 40, 80, 141)
GIGA = 10**9
MOST = 10**18  # parameters of one model, far above any model
MOST_GPUS = 1 << 18  # GPUs of one run; the largest clusters have about as many
SUFFIXES = {"": 0, "K": 3, "M": 6, "B": 9, "G": 9, "T": 12}
WAYS = (  # (stage, place of the optimizer's states, place of the parameters)
    (0, None, None),
    (1, None, None),
    (1, "cpu", None),
    (1, "nvme", None),
    (2, None, None),
    (2, "cpu", None),
    (2, "nvme", None),
    (3, None, None),
    (3, "cpu", None),
    (3, "cpu", "cpu"),
    (3, "nvme", None),
    (3, "nvme", "cpu"),
    (3, "nvme", "nvme"),
)


@dataclass(frozen=True)
class Fit:
    """Bytes of one way to train, on each GPU, on each host and on each host's disk."""

    stage: int
    optimizer: str | None
    parameters: str | None
    states: int
    activations: int | None
    host: int
    disk: int

    @property
    def gpu(self) -> int:
        return self.states + (self.activations or 0)

    @property
    def cards(self) -> list[int]:
        """The sizes in `CARDS` into which `gpu` fits."""
        return [card for card in CARDS if self.gpu <= card * GIGA]

    def as_dict(self) -> dict:
        return {
            "stage": self.stage,
            "offload_optimizer": self.optimizer or "none",
            "offload_param": self.parameters or "none",
            "gpu_bytes": self.gpu,
            "activation_bytes": self.activations,
            "host_bytes": self.host,
            "disk_bytes": self.disk,
            "fits_gb": self.cards,
        }


def fits(
    params: int,
    largest_layer: int,
    gpus: int,
    nodes: int,
    *,
    tp: int = 1,
    activations: int | None = None,
) -> list[Fit]:
    """List every way to train `params` parameters per tensor-parallel rank, with the bytes between
    the last backward pass and the update. At stage 3, the largest layer is added."""
    check_ranks(gpus, nodes, tp)
    found = []
    for stage, optimizer, parameters in WAYS:
        setting = Setting(1, stage=stage, optimizer=optimizer, parameters=parameters)
        each = of_each(setting, gpus * nodes // tp)
        device, host, disk = (-int(-cost * params // 1) for cost in each)
        if stage == 3:  # a layer in use and its gradients
            device += 2 * HALF * largest_layer
        way = stage, optimizer, parameters
        found.append(Fit(*way, device, activations, host * gpus, disk * gpus))
    return found


def check_gpus(gpus: int, name: str) -> None:
    """Refuse more GPUs than any cluster has, because counting rank by rank would take too long."""
    if gpus > MOST_GPUS:
        raise ValueError(f"{name} {gpus:,}: more than {MOST_GPUS:,} GPUs are not counted")


def nodes_of(gpus: int, per_node: int) -> int:
    """Count the nodes that `gpus` GPUs fill, and refuse several nodes if one is not full."""
    check_gpus(gpus, "--gpus")
    if gpus > per_node and gpus % per_node:
        below, above = gpus // per_node * per_node, -(-gpus // per_node) * per_node
        raise ValueError(
            f"--gpus {gpus} does not fill nodes of {per_node} GPUs: take {below} or {above}, or "
            "state the GPUs of a node with --gpus-per-node"
        )
    return -(-gpus // per_node)


def check_ranks(gpus: int, nodes: int, tp: int) -> None:
    if tp < 1 or (gpus * nodes) % tp:
        raise ValueError(
            f"tp={tp} does not divide the {gpus * nodes} GPUs ({nodes} nodes with {gpus} each) "
            "into replicas of the model"
        )


@lru_cache(maxsize=64)
def params_of_rank(config: Config, tp: int, rank: int = 0) -> int:
    """Count the parameters on rank `rank` of a model that is sharded over `tp` ranks."""
    return sum(p.numel() for p in outline_of_rank(config, tp, rank).parameters())


def count(text: str, name: str) -> int:
    """Parse a number of parameters such as 7e9, 7B, 350M, 2783959040 or 2,783,959,040."""
    grouped = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?"  # a comma separates thousands, not a fraction
    pattern = rf"([+-]?(?:{grouped}|[\d_]*\.?\d+)(?:E[+-]?\d+)?)([KMBGT]?)"
    match = re.fullmatch(pattern, text.strip().upper())
    if match is None:
        raise ValueError(f"{name} {text!r} is not a number: write 7e9, 7.5B, 350M or 2783959040")
    try:
        number = Decimal(re.sub("[_,]", "", match[1])).scaleb(SUFFIXES[match[2]])
    except ArithmeticError:  # an exponent beyond all limits
        number = Decimal("Infinity")
    if not abs(number) <= MOST:
        raise ValueError(f"{name} {text} is more than {MOST:.0e} parameters: is the unit right?")
    if number != int(number):
        raise ValueError(f"{name} {text} is not a whole number of parameters")
    return int(number)
