"""What runs on the judge's ranks for `shard_qkv`: weights, the learner's cut, what came back.

Each rank makes the same weights from the same seed and is asked for some of the pieces. Lesson 05.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from course_lib.classroom.checks import bench
from course_lib.classroom.checks.lesson_05.qkv_readings import Case
from course_lib.collectives.call import Group


def whole(case: Case, seed: int) -> tuple[Tensor, Tensor | None]:
    """The fused weight (rows, h) in the order of nn.Linear, and its bias where there is one."""
    made = torch.Generator().manual_seed(seed * 1013 + case.heads * 31 + case.n)
    weight = torch.randn(case.rows, case.hidden, generator=made, dtype=torch.float64)
    bias = torch.randn(case.rows, generator=made, dtype=torch.float64)
    weight, bias = (t.to(getattr(torch, case.dtype)) for t in (weight, bias))
    return weight, bias if case.layout == "gpt2" else None


def published(case: Case, seed: int) -> dict[str, Tensor]:
    """The same numbers as the model's checkpoint has them: Conv1D's (h, 3h), or three weights."""
    weight, bias = whole(case, seed)
    if case.layout == "gpt2":
        return {"c_attn.weight": weight.t().contiguous(), "c_attn.bias": bias}
    counts = (case.heads, case.kv_heads, case.kv_heads)
    parts = weight.split([count * case.size for count in counts])
    return {f"{name}_proj.weight": part.clone() for name, part in zip("qkv", parts, strict=True)}


def pieces(function: Callable, group: Group, cases: list[tuple], seed: int) -> list[dict]:
    """This rank's share of the pieces of all cases: (case number, rank, what came back)."""
    asked = [(number, rank) for number, case in enumerate(cases) for rank in range(Case(*case).n)]
    return [
        {"case": number, "rank": rank, **piece(function, Case(*cases[number]), seed, rank)}
        for number, rank in asked[group.rank() :: group.size()]
    ]


def piece(function: Callable, case: Case, seed: int, rank: int) -> dict:
    """What comes back for one piece, after the same piece of another checkpoint."""

    def call(weights: dict) -> tuple[list, dict, object]:
        out, facts = bench.watched(
            lambda: function(weights, case.heads, case.kv_heads, rank, case.n)
        )
        return list(out) if isinstance(out, (tuple, list)) else [], facts, out

    earlier, _, _ = call(published(case, seed + 1))
    kept = [t.detach().clone() if _plain(t) else None for t in earlier]
    given = published(case, seed)
    before = {name: tensor.clone() for name, tensor in given.items()}
    own = dict(given)
    pair, facts, out = call(own)
    pair = pair if len(pair) == 2 else None
    return {
        "overwritten": any(
            _plain(t) and not torch.equal(t.detach(), was)
            for t, was in zip(earlier, kept, strict=True)
        ),
        "emptied": sorted(set(given) - set(own)),
        "kind": type(out).__name__,
        "ops": facts["ops"],
        "changed": any(not torch.equal(given[name], before[name]) for name in given),
        "pair": pair is not None,
        "weight": told(pair[0], given) if pair else None,
        "bias": told(pair[1], given) if pair else None,
    }


def _plain(value: object) -> bool:
    """Whether this is a tensor with its elements at hand, one beside the other."""
    return (
        isinstance(value, Tensor) and value.layout is torch.strided and value.device.type == "cpu"
    )


def told(value: object, given: Mapping[str, Tensor]) -> dict:
    """What one returned thing is; its numbers only where they are few enough to be a piece."""
    if not _plain(value):
        sparse = isinstance(value, Tensor)  # ... or on no device
        kind = "tensor without elements at hand" if sparse else type(value).__name__
        return {"kind": kind, "values": None}
    plain = value.detach()
    most = max(tensor.numel() for tensor in given.values()) * 3
    return {
        "kind": "Tensor",
        "shape": list(plain.shape),
        "dtype": str(plain.dtype).removeprefix("torch."),
        "values": plain.clone() if plain.numel() <= most else None,
        "nbytes": plain.nbytes,
        "holds": plain.untyped_storage().nbytes(),
        "shared": bool(plain.numel() and bench.shares([plain], given.values())),
    }
