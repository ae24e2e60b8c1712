"""How a GPT's weights lie on n ranks, by name, and what an answer to `reshard` makes of them.

The rules are the library's (`layout`). Every rank asks the answer for the same cases, and what came
back is held against the right pieces and those of wrong ideas. Lesson 08.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.classroom.checks import bench
from course_lib.classroom.checks.lesson_08 import model
from course_lib.gpt import Config
from course_lib.layout import cut, kv_heads

Pieces = list[dict[str, Tensor]]  # of each rank, by name
CONFIGS = {"GPT-2": model.GPT2, "Llama": model.LLAMA}


def state_of(config: Config, seed: int) -> dict[str, Tensor]:
    whole = model.dense(config, seed)
    return {k: p.detach() for k, p in whole.named_parameters(remove_duplicate=False)}


def compare(
    function: Callable, _: dist.ProcessGroup, family: str, m: int, n: int, seed: int
) -> dict:
    """What is wrong with what the answer makes of m ranks' pieces: an entry of the check's words.

    A Llama's weights are float32 here. What came back is looked at after another call.
    """
    config = CONFIGS[family]
    state = state_of(config, seed)
    if family == "Llama":
        state = {name: whole.float() for name, whole in state.items()}
    given = shards(state, config, m)
    kept, held = copy.deepcopy(given), [dict(one) for one in given]
    out, facts = bench.watched(lambda: function(given, config, n))
    if out is None:
        return _found("nothing returned")
    if not isinstance(out, (list, tuple)) or not all(isinstance(one, dict) for one in out):
        return _found("not a list", kind=type(out).__name__, n=n)
    if len(out) != n:
        return _found("another number of ranks", count=len(out), n=n)
    for one in out:
        if one.keys() != state.keys():
            names = sorted(map(str, one.keys() ^ state.keys()))
            return _found("other names", names=", ".join(names[:3]))
    if facts["ops"]:
        return _found("asked the others")
    changed = _changed(given, kept) or _replaced(given, held)
    if changed:
        return _found("input changed", name=changed)
    wrong = _all_wrong(out, kept, state, config)
    if wrong:
        return wrong[0] | {"more": len(wrong) - 1}
    before = [{name: piece.clone() for name, piece in one.items()} for one in out]
    state = {name: 2 * whole for name, whole in state.items()}
    other = shards(state, config, m)
    again = bench.watched(lambda: function(other, config, n))[0]
    overwritten, shared = _changed(out, before), _shared(out, given, config)
    if overwritten:
        return _found("one buffer for two results", name=overwritten)
    if shared:
        return _found("shared memory", of=shared[0]) | {"more": len(shared) - 1}
    if _all_wrong(again, other, state, config):
        return _found("kept from the call before")
    tied = [(one["tokens.weight"], one["head.weight"]) for one in out] if config.tied else []
    if any(a.data_ptr() != b.data_ptr() for a, b in tied):
        return _found("tied weight torn apart")
    return _found("")


def _found(entry: str, of: str = "", **about: object) -> dict:
    """A report: an entry of the check's words, of which parameter, and what it leaves open."""
    return {"entry": entry, "of": of, "about": about, "more": 0}


def _all_wrong(out: list, given: Pieces, state: dict[str, Tensor], config: Config) -> list[dict]:
    found = [_wrong(name, [one[name] for one in out], given, state, config) for name in state]
    return [one for one in found if one]


def _changed(given: Pieces, kept: Pieces) -> str:
    """What of some pieces is not as it was; nothing where all is."""
    if len(given) != len(kept):
        return "the list"
    for one, other in zip(given, kept, strict=True):
        for name in one.keys() | other.keys():
            if name not in one or name not in other or not torch.equal(one[name], other[name]):
                return name
    return ""


def _replaced(given: Pieces, held: Pieces) -> str:
    """What is another tensor than it was, equal or not."""
    pairs = zip(given, held, strict=True)
    return next((name for one, had in pairs for name in had if one[name] is not had[name]), "")


def _shared(out: Pieces, given: Pieces, config: Config) -> list[str]:
    """The parameters that lie in the memory of another one, or of what was given."""
    inputs = [piece for one in given for piece in one.values()]
    twin = "head.weight" if config.tied else None
    named = [(name, piece) for one in out for name, piece in one.items() if name != twin]
    found = bench.shares([piece for _, piece in named], inputs)
    return list(dict.fromkeys(named[int(text.split()[1]) - 1][0] for text in found))


def _wrong(
    name: str, mine: list, given: Pieces, state: dict[str, Tensor], config: Config
) -> dict | None:
    """What is wrong with one parameter's new pieces; None where nothing is."""
    n, whole = len(mine), state[name]
    right = pieces_of(name, whole, config, n)
    if not all(map(bench.plain, mine)):
        return _found("not a tensor", name)
    if any(piece.dtype != whole.dtype for piece in mine):
        return _found("another dtype", name)
    if _same(mine, right):
        holds = any(p.untyped_storage().nbytes() > p.numel() * p.element_size() for p in mine)
        return _found("still holds the whole", name) if holds else None
    ideas = readings(name, [one[name] for one in given], state, config, n)
    for entry, pieces in ideas:
        if _same(mine, pieces):
            return _found(entry, name)
    if _same(mine, right, close=True):
        return _found("not bit by bit", name)
    for rank, (got, want) in enumerate(zip(mine, right, strict=True)):
        if got.shape != want.shape:
            shapes = {"got": list(got.shape), "want": list(want.shape)}
            return _found("wrong shape", name, rank=rank, **shapes)
    return _found("wrong numbers", name)


def _same(mine: list[Tensor], other: list[Tensor], close: bool = False) -> bool:
    pairs = list(zip(mine, other, strict=False))
    if len(mine) != len(other) or any(a.shape != b.shape for a, b in pairs):
        return False
    return all(torch.allclose(a, b, rtol=1e-2) if close else torch.equal(a, b) for a, b in pairs)


def lengths(
    name: str, config: Config, n: int, heads: list[int] | None = None
) -> tuple[int, list[list[int]]] | None:
    """(dim, and for each part that is fused there how long the ranks' pieces are); None: a copy.

    `heads` are the key/value heads of each rank, where they are others than the library's.
    """
    heads = heads or [stop - start for start, stop in kv_heads(config.kv_heads, n)]
    kv = [many * config.head_size for many in heads]
    q = [size * config.heads // config.kv_heads for size in kv]
    inner = cut(config.inner, n)
    if ".qkv." in name:
        return 0, [q, kv, kv]
    if name.endswith("attention.out.weight"):
        return 1, [q]
    if ".gate_up." in name:
        return 0, [inner, inner]
    if ".up." in name:
        return 0, [inner]
    if name.endswith("mlp.down.weight"):
        return 1, [inner]
    if name in ("tokens.weight", "head.weight"):
        return 0, [cut(config.vocabulary, n)]
    return None


def pieces_of(
    name: str, whole: Tensor, config: Config, n: int, heads: list[int] | None = None
) -> list[Tensor]:
    """What each of n ranks holds of a dense parameter, in memory of its own."""
    told = lengths(name, config, n, heads)
    if told is None:
        return [whole.clone() for _ in range(n)]
    dim, parts = told
    spans = zip(whole.split([sum(part) for part in parts], dim), parts, strict=True)
    by_part = [part.split(sizes, dim) for part, sizes in spans]
    return [torch.cat(own, dim) for own in zip(*by_part, strict=True)]


def shards(state: dict[str, Tensor], config: Config, n: int) -> Pieces:
    """The state dicts of n ranks; a tied head is the same tensor as the table."""
    found: Pieces = [{} for _ in range(n)]
    for name, whole in state.items():
        tied = name == "head.weight" and config.tied
        for one, piece in zip(found, pieces_of(name, whole, config, n), strict=True):
            one[name] = one["tokens.weight"] if tied else piece
    return found


def readings(
    name: str, given: list[Tensor], state: dict[str, Tensor], config: Config, n: int
) -> Iterator[tuple[str, list[Tensor]]]:
    """Wrong ideas and what they make of one parameter, each in every way in which it was seen."""
    whole, told = state[name], lengths(name, config, n)
    if told is None:
        joined = torch.cat(given)
        yield "copies added", [whole * len(given)] * n
        yield "a copy cut", list(whole.split(cut(len(whole), n)))
        yield "copies joined", [joined] * n
        yield "copies joined", list(joined.split(cut(len(joined), n)))
        return
    (dim, parts), size = told, whole.shape[told[0]]
    right = pieces_of(name, whole, config, n)
    if len(parts) > 1:
        straight = torch.cat(given, dim)
        for rule in ([len(piece) for piece in right], cut(size, n)):
            for joined in (straight, whole):
                yield "fused straight across", list(joined.split(rule, dim))
        yield "fused straight across", pieces_of(name, straight, config, n)
    else:
        wide = whole.shape[1 - dim] if whole.dim() > 1 else 0
        for rule in (cut(wide, n), *parts) if wide else ():
            if sum(rule) == wide:
                yield "the other dim", list(whole.split(rule, 1 - dim))
        for rule in ([size // n + (rank < size % n) for rank in range(n)], cut(size, n)):
            yield "another rule", list(whole.split(rule, dim))
    by_cut = cut(config.kv_heads, n)
    yield "another rule", pieces_of(name, whole, config, n, by_cut)
    yield "nothing cut", [whole] * n
    yield "another rank's", right[::-1]
    if name == "head.weight":
        yield "tied all the same", pieces_of(name, state["tokens.weight"], config, n)
