"""What runs on the judge's ranks for `in_fsdp2`: a small model under the arguments that it gives.

FSDP2 itself shards it, on the ranks of the trial, and the ledger says what it sent; beside it the
same model under the reference's arguments. Lesson 13.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Set
from itertools import pairwise
from types import ModuleType

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from course_classroom.judge import bench
from course_lessons.lesson_13.words import Words, words
from course_lib.collectives.call import Group
from course_lib.ledger import ledger

SIZES = (7, 11, 5, 3)  # of the layers: a dim that no number of ranks divides
KNOWN = ("reshard_after_forward", "mp_policy", "offload_policy")


def fsdp() -> ModuleType:
    """FSDP2, which takes a second to import: where a check runs, and not where one is asked for."""
    from torch.distributed import fsdp

    return fsdp


def warm() -> None:
    """FSDP2 and a first step with it, on the ranks that all load this together."""
    mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu", mesh_dim_names=("dp",))
    half = fsdp().MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    measured(mesh, {"reshard_after_forward": True, "mp_policy": half})


def run(function: Callable, group: Group, configs: list[dict]) -> list[dict]:
    """`function(config)` on each, and what comes of the arguments that it gives."""
    mesh = DeviceMesh.from_group(group, "cpu", mesh_dim_names=("dp",))
    runs: dict[str, dict] = {}  # one for all configs that come to the same arguments

    def once(keywords: Mapping) -> dict:
        key = str(sorted(keywords.items(), key=str))
        runs[key] = runs.get(key) or measured(mesh, keywords)
        return runs[key]

    return [_tried(function, config, once) for config in configs]


def _tried(function: Callable, config: dict, once: Callable[[Mapping], dict]) -> dict:
    given, said = copy.deepcopy(config), words(config)
    report: dict = {"text": "", "strange": "", "unsaid": None}
    try:
        out, _ = bench.watched(lambda: function(given))
    except Exception as error:
        if said and not isinstance(error, ValueError):
            raise
        kind = "ValueError" if isinstance(error, ValueError) else ""
        return {**report, "kind": kind, "text": _told(error), "changed": given != config}
    report |= {"kind": type(out).__name__, "changed": given != config}
    if not (isinstance(out, (tuple, list)) and len(out) == 2 and isinstance(out[0], Mapping)):
        return report
    keywords, unsaid = dict(out[0]), out[1]
    policy = keywords.get("offload_policy")
    away = isinstance(policy, fsdp().CPUOffloadPolicy)
    report |= {
        "kind": "pair",
        "strange": ", ".join(sorted(map(str, {*keywords} - {*KNOWN}))),
        "default": keywords.get("reshard_after_forward") is None,
        "pinned": bool(policy.pin_memory) if away else None,
    }
    if isinstance(unsaid, list | tuple | Set) or hasattr(unsaid, "keys"):
        report["unsaid"] = sorted(str(name).removeprefix("zero_optimization.") for name in unsaid)
    if said and not report["strange"]:
        report["right"] = once(arguments(said))
        try:
            report["mine"] = once(keywords)
        except (TypeError, ValueError, AttributeError, RuntimeError) as error:
            report["text"] = _told(error)
    return report


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def arguments(said: Words) -> dict:
    """The keyword arguments of `fully_shard` for the reference's words."""
    kinds = [None if t is None else getattr(torch, t) for t in (said.parameters, said.reductions)]
    policy = fsdp().MixedPrecisionPolicy(param_dtype=kinds[0], reduce_dtype=kinds[1])
    keywords: dict = {"reshard_after_forward": said.reshard, "mp_policy": policy}
    if said.pinned is not None:
        keywords["offload_policy"] = fsdp().CPUOffloadPolicy(pin_memory=said.pinned)
    return keywords


def measured(mesh: DeviceMesh, keywords: Mapping) -> dict:
    """One step of a small model under these arguments: what is sent, and what is held after it.

    A CPU has no memory to pin; what is pinned is told by the policy, and changes nothing here.
    """
    api, keywords = fsdp(), dict(keywords)
    if isinstance(keywords.get("offload_policy"), api.CPUOffloadPolicy):
        keywords["offload_policy"] = api.CPUOffloadPolicy(pin_memory=False)
    torch.manual_seed(13)
    blocks = (nn.Sequential(nn.Linear(*pair), nn.Tanh()) for pair in pairwise(SIZES[:-1]))
    model = nn.Sequential(*blocks, nn.Linear(*SIZES[-2:]))
    for part in (*model[:-1], model):
        api.fully_shard(part, mesh=mesh, **keywords)
    with ledger() as book:
        out = model(torch.ones(4, SIZES[0]))
        held = sum(map(_held, model.parameters()))
        out.float().square().sum().backward()

    def types(op: str) -> list[str]:
        return sorted({record.dtype for record in book.records if record.op == op})

    return {
        "again": book.count("all_gather", phase="backward"),
        "gathered": types("all_gather"),
        "reduced": types("reduce_scatter"),
        "held": held,
        "output": str(out.dtype).removeprefix("torch."),
    }


def _held(parameter: Tensor) -> int:
    """Bytes that a rank holds of a parameter now: its shard, or all of it where it was kept."""
    own = parameter.to_local() if hasattr(parameter, "to_local") else parameter  # a DTensor is cut
    return own.untyped_storage().nbytes()
