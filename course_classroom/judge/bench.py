"""The judge's bench: code that runs and measures a learner's function on the judge's ranks.

The function's prints are suppressed, and its result is described before it is used. From lesson 01
on.
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
_BY_HAND = ("torch.distributed", "course_lib")  # rather than by DDP or FSDP2, which wait elsewhere
_begun: list[Record] = []  # calls of this process's trial that were not waited for
_MANY = 10_000  # maximum list entries to inspect; a trial needs only a few
_MOST = 10_000  # maximum elements of a tensor to inspect; trials use far smaller ones


class _Nowhere(io.TextIOBase):
    """A stream that discards everything."""

    def write(self, text: str) -> int:
        return len(text)


def clear(namespace: dict) -> None:
    """Delete all definitions of an earlier answer, and restore everything that it changed."""
    if _KEPT not in namespace:
        namespace[_KEPT] = set(namespace) | {_KEPT}
    for name in set(namespace) - namespace[_KEPT] - {"__holders__", untouched.KEPT, untouched.SET}:
        del namespace[name]
    everyone = dist.group.WORLD
    for made in list(dist.distributed_c10d._world.pg_map):
        if made is not everyone:  # of an earlier answer or its engine, which keeps threads awake
            dist.destroy_process_group(made)
    namespace.update(
        torch=torch, dist=dist, group=everyone, rank=everyone.rank(), world=everyone.size()
    )


def fresh(namespace: dict, modules: Iterable[str]) -> None:
    """Clear the namespace; load `modules` and everything that their trials load on first use."""
    changed = untouched.replaced(namespace)
    if changed:
        raise RuntimeError(f"an earlier answer has replaced {changed[0]}")
    clear(namespace)
    for name in modules:
        getattr(importlib.import_module(name), "warm", lambda: None)()
    untouched.keep(namespace, modules)


def arrange(namespace: dict, text: str) -> None:
    """Create the group for a packed trial, and the function that the timed cell calls."""
    plan, function = _unpacked(text)
    made = namespace["__trial__"] = group(plan["members"])
    namespace["__tried__"] = lambda: function(namespace[plan["answer"]], made, *plan["args"])


def measured(text: str) -> object:
    """Call a packed function outside a trial, and return its result."""
    plan, function = _unpacked(text)
    return function(*plan["args"])


def _unpacked(text: str) -> tuple[dict, Callable]:
    plan = values.unpack(text)
    module, name = plan["function"]
    return plan, getattr(importlib.import_module(module), name)


def unawaited() -> list[str]:
    """Return the calls that this trial made under `watched` and never waited for."""
    return [f"{record.op} ({record.site})" for record in _begun if not record.waits]


def shares(results: Iterable[torch.Tensor], inputs: Iterable[torch.Tensor] = ()) -> list[str]:
    """Describe the results that share memory with an input or with another result."""
    seen = {x.untyped_storage()._cdata: "an input" for x in inputs if x.numel()}
    found = []
    for number, result in enumerate(results):
        if not (isinstance(result, torch.Tensor) and result.numel()):
            continue
        key = result.untyped_storage()._cdata
        if key in seen:
            found.append(f"result {number + 1} shares memory with {seen[key]}")
        seen.setdefault(key, f"result {number + 1}")
    return found


def healthy() -> bool:
    """Return True if a sum in a new group is right and the ledger sees it.

    It also makes the first call of each kind, so that no trial is charged for its setup.
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
    """Create a new group for one trial; every rank has to call this."""
    _begun.clear()
    return dist.new_group(members)


def end(made: dist.ProcessGroup) -> None:
    if made is not dist.GroupMember.NON_GROUP_MEMBER:
        dist.destroy_process_group(made)


def inputs(length: int, seed: int, rank: int) -> torch.Tensor:
    """Return one rank's numbers in a trial; the judge generates the same numbers for comparison."""
    made = torch.Generator().manual_seed(seed * 1009 + rank)
    return torch.randn(length, generator=made, dtype=torch.float64)


def report(function: Callable, x: torch.Tensor, made: dist.ProcessGroup) -> dict:
    """Call `function(x, group)`, which has to return a tensor like x, and describe its result."""
    shape, dtype = x.shape, x.dtype
    out, facts = _watched(function, x, made)
    as_expected = plain(out) and out.shape == shape and out.dtype == dtype
    return {**facts, **described(out), "out": out.detach().clone() if as_expected else None}


def report_list(function: Callable, x: torch.Tensor, made: dist.ProcessGroup) -> dict:
    """Call `function(x, group)`, which has to return a list of tensors, and describe its result."""
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
    """Call `function(x, group)` under a ledger; return its result and the facts about the call."""
    before = x.clone()
    out, facts = watched(lambda: function(x, made))
    return out, {**facts, "kind": kind(out), "changed": not torch.equal(x, before)}


def plain(out: object) -> bool:
    """Return True for a tensor with readable numbers: strided and on the CPU."""
    readable = isinstance(out, torch.Tensor) and out.layout == torch.strided
    return readable and out.device.type == "cpu"


def kind(out: object) -> str:
    """Describe the type of a result in one to three words."""
    name = type(out).__name__
    if not isinstance(out, torch.Tensor) or plain(out):
        return name
    return f"{name} on {out.device.type}" if out.layout == torch.strided else f"sparse {name}"


def number(out: object) -> float | None:
    """Return a real number, or a one-element tensor or array, as a float; otherwise None."""
    try:
        return as_float(out)
    except Exception:  # text, no data, beyond floats, or an error of the object
        return None


def keyed(out: object, keys: Sequence[str], plain: Callable[[str, object], object]) -> dict:
    """Return the values under the keys of a dictionary, converted by `plain(key, value)`."""
    there = out if isinstance(out, Mapping) else {}
    return {
        "kind": "dict" if there is out else kind(out),
        "lost": ", ".join(key for key in keys if key not in there),
        "values": {key: plain(key, there[key]) for key in keys if key in there},
    }


def described(out: object) -> dict:
    """Return a result's kind, shape and dtype for a check of its shape."""
    is_tensor = plain(out)
    return {
        "kind": kind(out),
        "shape": list(out.shape) if is_tensor else None,
        "dtype": _dtype(out) if is_tensor else None,
    }


def called(function: Callable, *args: object) -> tuple[object, Exception | None, tuple]:
    """Call `function(*args)` with copies of `args`; return its result, its error, and the copies in
    their state after the call."""
    given, out, error = copy.deepcopy(args), None, None
    try:
        out, _ = watched(lambda: function(*given))
    except Exception as caught:  # the check reports any error
        error = caught
    return out, error, given


def watched(action: Callable[[], object]) -> tuple[object, dict]:
    """Run `action()` silently under a ledger; return its result and its traffic."""
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
    """Make torch.empty return NaNs, so that reads of data before its arrival are detected."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")  # the other setter imports torch's compiler
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
