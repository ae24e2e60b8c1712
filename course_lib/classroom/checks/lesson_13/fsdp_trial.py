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

from course_lib.classroom.checks import bench
from course_lib.classroom.checks.lesson_13.words import NoWord, Words, words
from course_lib.collectives.call import Group
from course_lib.ledger import ledger

SIZES = (7, 11, 5, 3)  # of the layers: a dim that no number of ranks divides
KNOWN = ("reshard_after_forward", "mp_policy", "offload_policy")
REFUSED, STOPPED = "ValueError", "another error"


def fsdp() -> ModuleType:
    """FSDP2, which takes a second to import: where a check runs, and not where one is asked for."""
    from torch.distributed import fsdp

    return fsdp


def warm() -> None:
    """FSDP2 and a first step with it, on the ranks that all load this together."""
    mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu", mesh_dim_names=("dp",))
    half = fsdp().MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    measured(mesh, {"reshard_after_forward": True, "mp_policy": half})


def run(function: Callable, group: Group, configs: list[dict]) -> dict:
    """`function(config)` on each, and what comes of the arguments that it gives."""
    mesh = DeviceMesh.from_group(group, "cpu", mesh_dim_names=("dp",))
    runs: dict[str, dict] = {}
    return {"configs": [_tried(function, mesh, config, runs) for config in configs]}


def _tried(function: Callable, mesh: DeviceMesh, config: dict, runs: dict[str, dict]) -> dict:
    given = copy.deepcopy(config)
    report: dict = {"kind": "", "text": "", "given": {}, "unsaid": None, "measured": None}
    try:
        out, _ = bench.watched(lambda: function(given))
    except ValueError as error:
        report["kind"], report["text"] = REFUSED, str(error)[:200]
        return {**report, "changed": given != config}
    except Exception as error:
        if _reference(config) is not None:
            raise
        text = f"{type(error).__name__}: {error}"[:200]
        return {**report, "kind": STOPPED, "text": text, "changed": given != config}
    report["changed"] = given != config
    report["kind"] = type(out).__name__
    pair = isinstance(out, (tuple, list)) and len(out) == 2 and isinstance(out[0], Mapping)
    if not pair:
        return report
    keywords, unsaid = dict(out[0]), out[1]
    report["kind"] = "pair"
    report["given"] = {str(name): described(value) for name, value in keywords.items()}
    if isinstance(unsaid, list | tuple | Set) or hasattr(unsaid, "keys"):
        report["unsaid"] = sorted(str(name).removeprefix("zero_optimization.") for name in unsaid)
    reference = _reference(config)
    if reference is not None and set(keywords) <= set(KNOWN):
        report["right"] = _run(mesh, reference, runs)
        try:
            report["measured"] = _run(mesh, keywords, runs)
        except (TypeError, ValueError, AttributeError, RuntimeError) as error:
            report["text"] = f"{type(error).__name__}: {error}"[:200]
    return report


def _run(mesh: DeviceMesh, keywords: Mapping, runs: dict[str, dict]) -> dict:
    """One run for all configs that come to the same arguments."""
    told = str(sorted((name, described(value)) for name, value in keywords.items()))
    if told not in runs:
        runs[told] = measured(mesh, keywords)
    return runs[told]


def described(value: object) -> object:
    """A keyword's value as data."""
    kinds = fsdp()
    if isinstance(value, kinds.CPUOffloadPolicy):
        return {"policy": "cpu", "pinned": value.pin_memory}
    if isinstance(value, kinds.OffloadPolicy):
        return {"policy": "none"}
    if isinstance(value, kinds.MixedPrecisionPolicy):
        types = (value.param_dtype, value.reduce_dtype, value.output_dtype)
        dtypes = [str(t).removeprefix("torch.") for t in types]
        return {"policy": "mixed", "dtypes": dtypes, "casts": value.cast_forward_inputs}
    if value is None or isinstance(value, (bool, int)):
        return value
    return type(value).__name__


def arguments(said: Words) -> dict:
    """The keyword arguments of `fully_shard` for the reference's words."""
    kinds = [None if t is None else getattr(torch, t) for t in (said.parameters, said.reductions)]
    policy = fsdp().MixedPrecisionPolicy(param_dtype=kinds[0], reduce_dtype=kinds[1])
    keywords: dict = {"reshard_after_forward": said.reshard, "mp_policy": policy}
    if said.pinned is not None:
        keywords["offload_policy"] = fsdp().CPUOffloadPolicy(pin_memory=said.pinned)
    return keywords


def _reference(config: dict) -> dict | None:
    try:
        return arguments(words(config))
    except NoWord:
        return None


def measured(mesh: DeviceMesh, keywords: Mapping) -> dict:
    """One step of a small model under these arguments: what is sent, and what is held after it.

    A CPU has no memory to pin; what is pinned is told by the policy, and changes nothing here.
    """
    api, keywords = fsdp(), dict(keywords)
    if isinstance(keywords.get("offload_policy"), api.CPUOffloadPolicy):
        keywords["offload_policy"] = api.CPUOffloadPolicy(pin_memory=False)
    torch.manual_seed(13)
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(*pair), nn.Tanh()) for pair in pairwise(SIZES[:-1])),
        nn.Linear(*SIZES[-2:]),
    )
    for block in model[:-1]:
        api.fully_shard(block, mesh=mesh, **keywords)
    api.fully_shard(model, mesh=mesh, **keywords)
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
        "bytes": int(book.bytes(column="must")),
    }


def _held(parameter: Tensor) -> int:
    """Bytes that a rank holds of a parameter now: its shard, or all of it where it was kept."""
    own = parameter.to_local() if hasattr(parameter, "to_local") else parameter  # a DTensor is cut
    return own.untyped_storage().nbytes()
