"""The judge's bench: what runs on its ranks round a learner's function, and measures it.

Nothing that the function prints comes through, whatever it returns is described before it is
believed. From lesson 01 on.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist

from course_classroom.judge import untouched
from course_classroom.judge.thought import as_float
from course_classroom.ranks import values
from course_lib.ledger import ledger
from course_lib.ledger.book import Record

_KEPT = "__kept__"
_BY_HAND = ("torch.distributed", "course_lib")  # and not by DDP or FSDP2, which wait elsewhere
_begun: list[Record] = []  # of the trial that runs in this process: its calls without a wait
_MANY = 10_000  # entries of a list that are looked at; a trial asks for a handful
_MOST = 10_000  # elements of a tensor that the judge wants to see; what it asks for is far smaller


class _Nowhere(io.TextIOBase):
    """Takes megabytes and keeps none."""

    def write(self, text: str) -> int:
        return len(text)


def clear(namespace: dict) -> None:
    """Forget everything that an earlier answer defined, and put back what it may have changed."""
    if _KEPT not in namespace:
        namespace[_KEPT] = set(namespace) | {_KEPT}
    for name in set(namespace) - namespace[_KEPT] - {"__holders__", untouched.KEPT, untouched.SET}:
        del namespace[name]
    everyone = dist.group.WORLD
    for made in list(dist.distributed_c10d._world.pg_map):
        if made is not everyone:  # an earlier answer's, or its engine's: each keeps threads awake
            dist.destroy_process_group(made)
    namespace.update(
        torch=torch, dist=dist, group=everyone, rank=everyone.rank(), world=everyone.size()
    )


def fresh(namespace: dict, modules: Iterable[str]) -> None:
    """Clear the namespace and load `modules`, with what their trials would load at a first use."""
    changed = untouched.replaced(namespace)
    if changed:
        raise RuntimeError(f"an earlier answer has replaced {changed[0]}")
    clear(namespace)
    for name in modules:
        getattr(importlib.import_module(name), "warm", lambda: None)()
    untouched.keep(namespace, modules)


def arrange(namespace: dict, text: str) -> None:
    """Make the group of a packed trial, and the function that the timed cell calls."""
    plan, function = _unpacked(text)
    made = namespace["__trial__"] = group(plan["members"])
    namespace["__tried__"] = lambda: function(namespace[plan["answer"]], made, *plan["args"])


def measured(text: str) -> object:
    """What a packed function returns that is no trial's."""
    plan, function = _unpacked(text)
    return function(*plan["args"])


def _unpacked(text: str) -> tuple[dict, Callable]:
    plan = values.unpack(text)
    module, name = plan["function"]
    return plan, getattr(importlib.import_module(module), name)


def unawaited() -> list[str]:
    """The calls under `watched`, since the trial was arranged, that nobody has waited for."""
    return [f"{record.op} ({record.site})" for record in _begun if not record.waits]


def shares(results: Iterable[torch.Tensor], inputs: Iterable[torch.Tensor] = ()) -> list[str]:
    """Which results lie in the memory of an input, or of another result, in words."""
    seen = {x.untyped_storage()._cdata: "an input" for x in inputs if x.numel()}
    found = []
    for number, result in enumerate(results):
        if not (isinstance(result, torch.Tensor) and result.numel()):
            continue
        key = result.untyped_storage()._cdata
        if key in seen:
            found.append(f"result {number + 1} lies in the memory of {seen[key]}")
        seen.setdefault(key, f"result {number + 1}")
    return found


def healthy() -> bool:
    """Whether a sum in a group of its own still comes out, and a ledger still sees it.

    It also takes the first call of everything upon itself, so that no trial is charged for that.
    """
    n = dist.get_world_size()
    made = dist.new_group(list(range(n)))
    x = torch.tensor([dist.get_rank() + 1.0])
    with _empty_is_nan(), ledger() as book:
        dist.all_reduce(x, group=made)
    dist.destroy_process_group(made)
    torch.ones(1, requires_grad=True).exp().sum().backward()
    return x.item() == n * (n + 1) / 2 and book.count("all_reduce") == 1


def group(members: list[int]) -> dist.ProcessGroup:
    """A fresh group for one trial; every rank has to call this."""
    _begun.clear()
    return dist.new_group(members)


def end(made: dist.ProcessGroup) -> None:
    if made is not dist.GroupMember.NON_GROUP_MEMBER:
        dist.destroy_process_group(made)


def inputs(length: int, seed: int, rank: int) -> torch.Tensor:
    """The numbers of one rank in a trial; the judge makes the same ones to compare with."""
    made = torch.Generator().manual_seed(seed * 1009 + rank)
    return torch.randn(length, generator=made, dtype=torch.float64)


def report(function: Callable, x: torch.Tensor, made: dist.ProcessGroup) -> dict:
    """Call `function(x, group)`, which has to return a tensor like x, and say what came back."""
    shape, dtype = x.shape, x.dtype
    out, facts = _watched(function, x, made)
    as_expected = plain(out) and out.shape == shape and out.dtype == dtype
    return {**facts, **described(out), "out": out.detach().clone() if as_expected else None}


def report_list(function: Callable, x: torch.Tensor, made: dist.ProcessGroup) -> dict:
    """Call `function(x, group)`, which has to return a list of tensors, and say what came back."""
    out, facts = _watched(function, x, made)
    entries = list(out[:_MANY]) if isinstance(out, (list, tuple)) else []
    tensors = [one for one in entries if plain(one)]
    starts = [one.data_ptr() for one in tensors if one.numel()]
    return {
        **facts,
        "whole": list(out.shape) if isinstance(out, torch.Tensor) else None,
        "kinds": [kind(one) for one in entries],
        "shapes": [list(one.shape) for one in tensors],
        "dtypes": [_dtype(one) for one in tensors],
        "entries": [one.detach().clone() if one.numel() < _MOST else None for one in tensors],
        "one_buffer": len(set(starts)) < len(starts),
    }


def _watched(function: Callable, x: torch.Tensor, made: dist.ProcessGroup) -> tuple[object, dict]:
    """What `function(x, group)` returned, under a ledger, and what it did on the way."""
    before = x.clone()
    out, facts = watched(lambda: function(x, made))
    return out, {**facts, "kind": kind(out), "changed": not torch.equal(x, before)}


def plain(out: object) -> bool:
    """Whether it is a tensor with numbers that can be read: not sparse, not on meta."""
    readable = isinstance(out, torch.Tensor) and out.layout == torch.strided
    return readable and out.device.type == "cpu"


def kind(out: object) -> str:
    """What came back, in a word or three."""
    name = type(out).__name__
    if not isinstance(out, torch.Tensor) or plain(out):
        return name
    return f"{name} on {out.device.type}" if out.layout == torch.strided else f"sparse {name}"


def number(out: object) -> float | None:
    """A real number of any kind, or a tensor or array with one in it, as a float; None else."""
    try:
        return as_float(out)
    except Exception:  # text, no data, beyond floats, or whatever an object does when it is asked
        return None


def keyed(out: object, keys: Sequence[str], plain: Callable[[str, object], object]) -> dict:
    """What stands under the keys of a dictionary, each made data by `plain(key, value)`."""
    there = out if isinstance(out, Mapping) else {}
    return {
        "kind": "dict" if there is out else kind(out),
        "lost": ", ".join(key for key in keys if key not in there),
        "values": {key: plain(key, there[key]) for key in keys if key in there},
    }


def described(out: object) -> dict:
    """What came back, as far as a look at its shape needs it."""
    is_tensor = plain(out)
    return {
        "kind": kind(out),
        "shape": list(out.shape) if is_tensor else None,
        "dtype": _dtype(out) if is_tensor else None,
    }


def called(function: Callable, *args: object) -> tuple[object, Exception | None, tuple]:
    """What `function(*args)` returned, or the error that it ended with, and what it has made of
    the copies that it was given."""
    given, out, error = copy.deepcopy(args), None, None
    try:
        out, _ = watched(lambda: function(*given))
    except Exception as caught:  # whatever it is, the check says it
        error = caught
    return out, error, given


def watched(action: Callable[[], object]) -> tuple[object, dict]:
    """What `action()` returned, in silence and under a ledger, and what went over the wire."""
    with _silence(), _empty_is_nan(), ledger() as book:
        out = action()
    own = [r for r in book.records if r.asynchronous and r.issued_by in _BY_HAND]
    _begun.extend(r for r in own if not r.waits)
    return out, {
        "ops": dict(Counter(record.op for record in book.records)),
        "phases": dict(Counter(f"{record.op} {record.phase}" for record in book.records)),
        "messages": [record.payload for record in book.records if record.op == "send"],
        "bytes": int(book.bytes(column="must")),
    }


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    nowhere = _Nowhere()
    with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        yield


@contextlib.contextmanager
def _empty_is_nan() -> Iterator[None]:
    """torch.empty gives NaNs: what is read before it has arrived shows, whatever lay there."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")  # the other way to set it imports torch's compiler
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
