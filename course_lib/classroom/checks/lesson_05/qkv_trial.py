"""What runs on the judge's ranks for `shard_qkv`: weights, the learner's cut, what came back.

Each rank makes the same weights from the same seed and is asked for some of the pieces. Lesson 05.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from course_lib.classroom.checks import bench
from course_lib.classroom.checks.lesson_05.qkv_readings import Case


def whole(case: Case, seed: int) -> tuple[Tensor, Tensor | None]:
    """The fused weight (rows, h) in the order of nn.Linear, and its bias where there is one."""
    made = torch.Generator().manual_seed(seed * 1013 + case.heads * 31 + case.n)
    weight = torch.randn(case.rows, case.hidden, generator=made, dtype=torch.float64)
    bias = torch.randn(case.rows, generator=made, dtype=torch.float64)
    return weight, bias if case.layout == "gpt2" else None


def published(case: Case, seed: int) -> dict[str, Tensor]:
    """The same numbers as the model's checkpoint has them: Conv1D's (h, 3h), or three weights."""
    weight, bias = whole(case, seed)
    if case.layout == "gpt2":
        return {"c_attn.weight": weight.t().contiguous(), "c_attn.bias": bias}
    counts = (case.heads, case.kv_heads, case.kv_heads)
    parts = weight.split([count * case.size for count in counts])
    return {f"{name}_proj.weight": part.clone() for name, part in zip("qkv", parts, strict=True)}


def pieces(function: Callable, cases: list[tuple], seed: int, me: int, world: int) -> list[dict]:
    """Every world-th piece of all cases, from rank `me` on: (case number, rank, what came back)."""
    asked = [(number, rank) for number, case in enumerate(cases) for rank in range(case[-1])]
    return [
        {"case": number, "rank": rank, **piece(function, Case(*cases[number]), seed, rank)}
        for number, rank in asked[me::world]
    ]


def piece(function: Callable, case: Case, seed: int, rank: int) -> dict:
    given = published(case, seed)
    before = {name: tensor.clone() for name, tensor in given.items()}

    def call():
        return function(dict(given), case.heads, case.kv_heads, rank, case.n)

    out, facts = bench.watched(call)
    pair = list(out) if isinstance(out, (tuple, list)) and len(out) == 2 else None
    return {
        "kind": type(out).__name__,
        "ops": facts["ops"],
        "changed": any(not torch.equal(given[name], before[name]) for name in given),
        "pair": pair is not None,
        "weight": told(pair[0], given) if pair else None,
        "bias": told(pair[1], given) if pair else None,
    }


def told(value: object, given: Mapping[str, Tensor]) -> dict:
    """What one returned thing is; its numbers only where they are few enough to be a piece."""
    if not isinstance(value, Tensor):
        return {"kind": type(value).__name__, "values": None}
    plain = value.detach()
    most = max(tensor.numel() for tensor in given.values()) * 3
    return {
        "kind": "Tensor",
        "shape": list(plain.shape),
        "dtype": str(plain.dtype).removeprefix("torch."),
        "values": plain.clone() if plain.numel() <= most else None,
        "nbytes": plain.nbytes,
        "holds": plain.untyped_storage().nbytes(),
    }
