"""`reshard` of lesson 08: a sharded model's weights for a different number of ranks, bit by bit.

Each result is compared with the shards of a GPT's weights by the library's rules (`layout`), and a
wrong result with the results of wrong ideas.
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

Pieces = list[dict[str, Tensor]]  # for each rank, by name
Fault = tuple[str, str, dict]  # an entry of SAYS, its parameter, and its placeholders
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
    """Return the errors in the answer's result for m ranks' pieces.

    A Llama's weights are float32 here. The first result is examined after a second call.
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
        return [_fault("wrong number of ranks", count=len(out), n=n)]
    names = sorted({str(name) for one in out for name in one.keys() ^ state.keys()})
    if names:
        return [_fault("wrong names", names=", ".join(names[:3]))]
    if facts["ops"]:
        return [_fault("collective called")]
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
    return [_fault("tied weight no longer shared")] if torn else []


def _fault(entry: str, of: str = "", **about: object) -> Fault:
    return entry, of, about


def _changed(pieces: Pieces, before: Pieces, alike: Callable = torch.equal) -> str:
    """Return the name of a changed piece, or an empty string if there is none."""
    if len(pieces) != len(before):
        return "the list"
    for one, had in zip(pieces, before, strict=True):
        for name in one.keys() | had.keys():
            if name not in one or name not in had or not alike(one[name], had[name]):
                return name
    return ""


def _shared(out: Pieces, given: Pieces, config: Config) -> list[str]:
    """Return the parameters that share memory with a different parameter or with the input."""
    inputs = [piece for one in given for piece in one.values()]
    twin = "head.weight" if config.tied else None
    named = [(name, piece) for one in out for name, piece in one.items() if name != twin]
    found = bench.shares([piece for _, piece in named], inputs)
    return list(dict.fromkeys(named[int(text.split()[1]) - 1][0] for text in found))


def _wrong(out: list, given: Pieces, state: dict[str, Tensor], config: Config) -> list[Fault]:
    """Return the errors in each parameter's new pieces."""
    found = []
    for name in state:
        mine, parts = [one[name] for one in out], [one[name] for one in given]
        entry, about = _wrong_with(name, mine, parts, state, config)
        found += [_fault(entry, name, **about)] if entry else []
    return found


def _wrong_with(
    name: str, mine: list, given: list[Tensor], state: dict[str, Tensor], config: Config
) -> tuple[str, dict]:
    """Return the entry for an error in one parameter's new pieces, and its placeholders."""
    n, whole = len(mine), state[name]
    right = pieces_of(name, whole, config, n)
    if not all(map(bench.plain, mine)):
        return "not a tensor", {}
    if any(piece.dtype != whole.dtype for piece in mine):
        return "wrong dtype", {}
    if _same(mine, right):
        holds = any(p.untyped_storage().nbytes() > p.numel() * p.element_size() for p in mine)
        return "keeps the checkpoint alive" if holds else "", {}
    for entry, pieces in readings(name, given, state, config, n):
        if _same(mine, pieces):
            return entry, {}
    if _same(mine, right, close=True):
        return "not bit by bit", {}
    for rank, (got, want) in enumerate(zip(mine, right, strict=True)):
        if got.shape != want.shape:
            return "wrong shape", {"rank": rank, "got": list(got.shape), "want": list(want.shape)}
    return "wrong values", {}


def _same(mine: list[Tensor], other: list[Tensor], close: bool = False) -> bool:
    if [a.shape for a in mine] != [b.shape for b in other]:
        return False
    pairs = zip(mine, other, strict=True)
    return all(torch.allclose(a, b, rtol=1e-2) if close else torch.equal(a, b) for a, b in pairs)


def lengths(
    name: str, config: Config, n: int, heads: list[int] | None = None
) -> tuple[int, list[list[int]]] | None:
    """Return (dim, lengths of the ranks' pieces for each fused part), or None for a copy.

    `heads` are the key/value heads of each rank, if these differ from the library's.
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
    """Return each rank's shard of a dense parameter, in separate memory."""
    rule = lengths(name, config, n, heads)
    if rule is None:
        return [whole.clone() for _ in range(n)]
    dim, parts = rule
    spans = zip(whole.split([sum(part) for part in parts], dim), parts, strict=True)
    by_part = [part.split(sizes, dim) for part, sizes in spans]
    return [torch.cat(own, dim) for own in zip(*by_part, strict=True)]


def shards(state: dict[str, Tensor], config: Config, n: int) -> Pieces:
    """Return the state dicts of n ranks; a tied head is the same tensor as the table."""
    by_name = {name: pieces_of(name, whole, config, n) for name, whole in state.items()}
    if config.tied:
        by_name["head.weight"] = by_name["tokens.weight"]
    return [{name: pieces[rank] for name, pieces in by_name.items()} for rank in range(n)]


def readings(
    name: str, given: list[Tensor], state: dict[str, Tensor], config: Config, n: int
) -> Iterator[tuple[str, list[Tensor]]]:
    """Yield wrong ideas and their results for one parameter, in every variant."""
    whole, rule = state[name], lengths(name, config, n)
    if rule is None:
        joined = torch.cat(given)
        yield "replicas added", [whole * len(given)] * n
        yield "replicated tensor sharded", list(whole.split(cut(len(whole), n)))
        yield "replicas joined", [joined] * n
        yield "replicas joined", list(joined.split(cut(len(joined), n)))
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
                yield "wrong dim", list(whole.split(sizes, 1 - dim))
        for sizes in ([size // n + (rank < size % n) for rank in range(n)], cut(size, n)):
            yield "wrong split rule", list(whole.split(sizes, dim))
    by_cut = cut(config.kv_heads, n)
    yield "wrong split rule", pieces_of(name, whole, config, n, by_cut)
    yield "nothing sharded", [whole] * n
    yield "piece of a different rank", right[::-1]
    if name == "head.weight":
        yield "tied although untied", pieces_of(name, state["tokens.weight"], config, n)


def judge_reshard(answer: Answer, judge: Judge) -> None:
    """Try each case in a separate trial on three ranks."""
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
                more = f" ({len(faults) - 1} more are wrong too.)" if faults[1:] else ""
                raise Finding(name, f"{head}{text}{more}")


RESHARD = Exercise(judge=judge_reshard, **SAYS.about)
