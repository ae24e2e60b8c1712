"""`reshard` of lesson 08: a sharded model's weights on another number of ranks, bit by bit.

Each case is held against the pieces that the library's rules (`layout`) make of a GPT's weights,
and wrong ones against the ideas that they come from.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from course_classroom.judge import bench
from course_classroom.judge.answer import Answer
from course_classroom.judge.finding import Finding
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import Judge
from course_classroom.judge.looking import THREE, fresh_seed
from course_classroom.judge.words import Page
from course_lessons.lesson_08 import model
from course_lib.gpt import Config
from course_lib.layout import cut, kv_heads

Pieces = list[dict[str, Tensor]]  # of each rank, by name
Fault = tuple[str, str, dict]  # an entry of SAYS, of which parameter, and what it leaves open
CONFIGS = {"GPT-2": model.GPT2, "Llama": model.LLAMA}
CASES = [
    *(("GPT-2", 1, 4), ("GPT-2", 4, 2), ("GPT-2", 2, 1)),
    *(("Llama", 1, 4), ("Llama", 4, 2), ("Llama", 2, 1)),
    *(("GPT-2", 2, 3), ("Llama", 3, 2), ("Llama", 2, 2), ("GPT-2", 1, 1)),
]
SAYS = Page(__file__, "reshard")


def state_of(config: Config, seed: int) -> dict[str, Tensor]:
    whole = model.dense(config, seed)
    return {k: p.detach() for k, p in whole.named_parameters(remove_duplicate=False)}


def compare(
    function: Callable, _: dist.ProcessGroup, family: str, m: int, n: int, seed: int
) -> list[Fault]:
    """What is wrong with what the answer makes of m ranks' pieces.

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
        return [_fault("nothing returned")]
    if not isinstance(out, (list, tuple)) or not all(isinstance(one, dict) for one in out):
        return [_fault("not a list", kind=type(out).__name__, n=n)]
    if len(out) != n:
        return [_fault("another number of ranks", count=len(out), n=n)]
    names = sorted({str(name) for one in out for name in one.keys() ^ state.keys()})
    if names:
        return [_fault("other names", names=", ".join(names[:3]))]
    if facts["ops"]:
        return [_fault("asked the others")]
    changed = _changed(given, kept) or _changed(given, held, operator.is_)
    if changed:
        return [_fault("input changed", name=changed)]
    wrong = _wrong(out, kept, state, config)
    if wrong:
        return wrong
    before = [{name: piece.clone() for name, piece in one.items()} for one in out]
    state = {name: 2 * whole for name, whole in state.items()}
    other = shards(state, config, m)
    again = bench.watched(lambda: function(other, config, n))[0]
    overwritten = _changed(out, before)
    if overwritten:
        return [_fault("one buffer for two results", name=overwritten)]
    shared = _shared(out, given, config)
    if shared:
        return [_fault("shared memory", name) for name in shared]
    if _wrong(again, other, state, config):
        return [_fault("kept from the call before")]
    tied = [(one["tokens.weight"], one["head.weight"]) for one in out] if config.tied else []
    torn = any(a.data_ptr() != b.data_ptr() for a, b in tied)
    return [_fault("tied weight torn apart")] if torn else []


def _fault(entry: str, of: str = "", **about: object) -> Fault:
    return entry, of, about


def _changed(pieces: Pieces, before: Pieces, alike: Callable = torch.equal) -> str:
    """What of some pieces is not as it was; nothing where all is."""
    if len(pieces) != len(before):
        return "the list"
    for one, had in zip(pieces, before, strict=True):
        for name in one.keys() | had.keys():
            if name not in one or name not in had or not alike(one[name], had[name]):
                return name
    return ""


def _shared(out: Pieces, given: Pieces, config: Config) -> list[str]:
    """The parameters that lie in the memory of another one, or of what was given."""
    inputs = [piece for one in given for piece in one.values()]
    twin = "head.weight" if config.tied else None
    named = [(name, piece) for one in out for name, piece in one.items() if name != twin]
    found = bench.shares([piece for _, piece in named], inputs)
    return list(dict.fromkeys(named[int(text.split()[1]) - 1][0] for text in found))


def _wrong(out: list, given: Pieces, state: dict[str, Tensor], config: Config) -> list[Fault]:
    """What is wrong with each parameter's new pieces."""
    found = []
    for name in state:
        mine, parts = [one[name] for one in out], [one[name] for one in given]
        entry, about = _wrong_with(name, mine, parts, state, config)
        found += [_fault(entry, name, **about)] if entry else []
    return found


def _wrong_with(
    name: str, mine: list, given: list[Tensor], state: dict[str, Tensor], config: Config
) -> tuple[str, dict]:
    """The entry for one parameter's new pieces, and what it leaves open."""
    n, whole = len(mine), state[name]
    right = pieces_of(name, whole, config, n)
    if not all(map(bench.plain, mine)):
        return "not a tensor", {}
    if any(piece.dtype != whole.dtype for piece in mine):
        return "another dtype", {}
    if _same(mine, right):
        holds = any(p.untyped_storage().nbytes() > p.numel() * p.element_size() for p in mine)
        return "still holds the whole" if holds else "", {}
    for entry, pieces in readings(name, given, state, config, n):
        if _same(mine, pieces):
            return entry, {}
    if _same(mine, right, close=True):
        return "not bit by bit", {}
    for rank, (got, want) in enumerate(zip(mine, right, strict=True)):
        if got.shape != want.shape:
            return "wrong shape", {"rank": rank, "got": list(got.shape), "want": list(want.shape)}
    return "wrong numbers", {}


def _same(mine: list[Tensor], other: list[Tensor], close: bool = False) -> bool:
    if [a.shape for a in mine] != [b.shape for b in other]:
        return False
    pairs = zip(mine, other, strict=True)
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
    inner, words = cut(config.inner, n), cut(config.vocabulary, n)
    rules = {
        ".qkv.": (0, [q, kv, kv]),
        ".attention.out.weight": (1, [q]),
        ".gate_up.": (0, [inner, inner]),
        ".up.": (0, [inner]),
        ".mlp.down.weight": (1, [inner]),
        "tokens.weight": (0, [words]),
        "head.weight": (0, [words]),
    }
    return next((rule for part, rule in rules.items() if part in name), None)


def pieces_of(
    name: str, whole: Tensor, config: Config, n: int, heads: list[int] | None = None
) -> list[Tensor]:
    """What each of n ranks holds of a dense parameter, in memory of its own."""
    rule = lengths(name, config, n, heads)
    if rule is None:
        return [whole.clone() for _ in range(n)]
    dim, parts = rule
    spans = zip(whole.split([sum(part) for part in parts], dim), parts, strict=True)
    by_part = [part.split(sizes, dim) for part, sizes in spans]
    return [torch.cat(own, dim) for own in zip(*by_part, strict=True)]


def shards(state: dict[str, Tensor], config: Config, n: int) -> Pieces:
    """The state dicts of n ranks; a tied head is the same tensor as the table."""
    by_name = {name: pieces_of(name, whole, config, n) for name, whole in state.items()}
    if config.tied:
        by_name["head.weight"] = by_name["tokens.weight"]
    return [{name: pieces[rank] for name, pieces in by_name.items()} for rank in range(n)]


def readings(
    name: str, given: list[Tensor], state: dict[str, Tensor], config: Config, n: int
) -> Iterator[tuple[str, list[Tensor]]]:
    """Wrong ideas and what they make of one parameter, each in every way in which it was seen."""
    whole, rule = state[name], lengths(name, config, n)
    if rule is None:
        joined = torch.cat(given)
        yield "copies added", [whole * len(given)] * n
        yield "a copy cut", list(whole.split(cut(len(whole), n)))
        yield "copies joined", [joined] * n
        yield "copies joined", list(joined.split(cut(len(joined), n)))
        return
    dim, parts = rule
    size, right = whole.shape[dim], pieces_of(name, whole, config, n)
    if len(parts) > 1:
        straight = torch.cat(given, dim)
        for sizes in ([len(piece) for piece in right], cut(size, n)):
            for joined in (straight, whole):
                yield "fused straight across", list(joined.split(sizes, dim))
        yield "fused straight across", pieces_of(name, straight, config, n)
    else:
        wide = whole.shape[1 - dim] if whole.dim() > 1 else 0
        for sizes in (cut(wide, n), *parts) if wide else ():
            if sum(sizes) == wide:
                yield "the other dim", list(whole.split(sizes, 1 - dim))
        for sizes in ([size // n + (rank < size % n) for rank in range(n)], cut(size, n)):
            yield "another rule", list(whole.split(sizes, dim))
    by_cut = cut(config.kv_heads, n)
    yield "another rule", pieces_of(name, whole, config, n, by_cut)
    yield "nothing cut", [whole] * n
    yield "another rank's", right[::-1]
    if name == "head.weight":
        yield "tied all the same", pieces_of(name, state["tokens.weight"], config, n)


def judge_reshard(answer: Answer, judge: Judge) -> None:
    """Each case by itself, on every rank."""
    judge.take(answer, __name__)
    seed = fresh_seed()
    for family, m, n in CASES:
        where = f"{family}, from {m} rank{'s' * (m > 1)} to {n}"
        given, when = (family, m, n, seed), f"({where})"
        for faults in judge.trial(answer, compare, *given, members=THREE, when=when):
            if faults:
                entry, of, about = faults[0]
                name, text = SAYS.of(entry, where=where, **about)
                head = f"{of} ({where}): " if of else ""
                more = f" ({len(faults) - 1} more are not right either.)" if faults[1:] else ""
                raise Finding(name, f"{head}{text}{more}")


RESHARD = Exercise(judge=judge_reshard, **SAYS.about)
