"""What runs on the judge's ranks for `reshard`: pieces from m ranks to n, and a model of them.

Every rank asks the answer for the same cases, and all are compared; then ranks load what came out
into a cut model and train it beside the dense one. Lesson 08.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from course_lib.classroom.checks import bench
from course_lib.classroom.checks.lesson_08 import model, reshard_cut
from course_lib.gpt import GPT, Config
from course_lib.tensor_parallel.cross_entropy import cross_entropy

CONFIGS = {"GPT-2": model.GPT2, "Llama": model.LLAMA}


def state_of(config: Config, seed: int) -> dict[str, Tensor]:
    whole = model.dense(config, seed)
    return {k: p.detach() for k, p in whole.named_parameters(remove_duplicate=False)}


def compare(
    function: Callable, _: dist.ProcessGroup, family: str, m: int, n: int, seed: int
) -> dict:
    """What the answer makes of m ranks' pieces, held against the n that there should be.

    A Llama's weights are float32 here. What came back is looked at after another call.
    """
    config = CONFIGS[family]
    state = state_of(config, seed)
    if family == "Llama":
        state = {name: whole.float() for name, whole in state.items()}
    given = reshard_cut.shards(state, config, m)
    kept, held = copy.deepcopy(given), [dict(one) for one in given]
    out, facts = bench.watched(lambda: function(given, config, n))
    told = {"kind": type(out).__name__, "problem": "", "ops": facts["ops"], "wrong": []}
    told |= {"changed": _changed(given, kept), "overwritten": "", "kept": False}
    if not told["changed"]:  # another tensor in the place of one is a change, equal or not
        pairs = zip(given, held, strict=True)
        other = [name for one, had in pairs for name in had if one[name] is not had[name]]
        told["changed"] = "".join(other[:1])
    if isinstance(out, tuple):
        out = list(out)
    if not isinstance(out, list) or not all(isinstance(one, dict) for one in out):
        return {**told, "problem": "kind"}
    if len(out) != n:
        return {**told, "problem": "count", "count": len(out)}
    names = [set(one) for one in out]
    if any(one != set(state) for one in names):
        off = next(one for one in names if one != set(state))
        return {**told, "problem": "names", "names": sorted(off ^ set(state))[:3]}
    told["wrong"] = _all_wrong(out, kept, state, config)
    if not told["wrong"]:
        before = [{name: piece.clone() for name, piece in one.items()} for one in out]
        state = {name: 2 * whole for name, whole in state.items()}
        other = reshard_cut.shards(state, config, m)
        again = bench.watched(lambda: function(other, config, n))[0]
        told["kept"] = bool(_all_wrong(again, other, state, config))
        told["overwritten"] = _changed(out, before)
        told["wrong"] = [] if told["overwritten"] else _shared(out, given, config)
    told["torn"] = (
        config.tied
        and all(one["idea"] == "shared" for one in told["wrong"])
        and any(_start(piece["tokens.weight"]) != _start(piece["head.weight"]) for piece in out)
    )
    return told


def _all_wrong(
    out: list, given: reshard_cut.Pieces, state: dict[str, Tensor], config: Config
) -> list[dict]:
    found = [_wrong(name, [one[name] for one in out], given, state[name], config) for name in state]
    return [one for one in found if one]


def _changed(given: reshard_cut.Pieces, kept: reshard_cut.Pieces) -> str:
    """What of some pieces is not as it was; nothing where all is."""
    if len(given) != len(kept):
        return "the list"
    for one, other in zip(given, kept, strict=True):
        for name in one.keys() | other.keys():
            if name not in one or name not in other or not torch.equal(one[name], other[name]):
                return name
    return ""


def _shared(out: reshard_cut.Pieces, given: reshard_cut.Pieces, config: Config) -> list[dict]:
    """The parameters that lie in the memory of another one, or of what was given."""
    inputs = [piece for one in given for piece in one.values()]
    twin = "head.weight" if config.tied else None
    named = [(name, piece) for one in out for name, piece in one.items() if name != twin]
    found = bench.shares([piece for _, piece in named], inputs)
    names = [named[int(text.split()[1]) - 1][0] for text in found]
    return [{"name": name, "idea": "shared"} for name in dict.fromkeys(names)]


def _start(tensor: Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.numel()


def _wrong(
    name: str, mine: list, given: reshard_cut.Pieces, whole: Tensor, config: Config
) -> dict | None:
    """What is wrong with one parameter's new pieces; None where nothing is."""
    n = len(mine)
    right = reshard_cut.pieces_of(name, whole, config, n)
    dense = [bench.plain(piece) for piece in mine]
    kinds = [type(piece).__name__ for piece, fine in zip(mine, dense, strict=True) if not fine]
    if kinds:
        return {"name": name, "idea": "kind", "kind": kinds[0]}
    if any(piece.dtype != whole.dtype for piece in mine):
        return {"name": name, "idea": "dtype"}
    if _same(mine, right):
        holds = any(p.untyped_storage().nbytes() > p.numel() * p.element_size() for p in mine)
        return {"name": name, "idea": "holds"} if holds else None
    if _same(mine, right, close=True):
        return {"name": name, "idea": "not bit by bit"}
    found = reshard_cut.readings(name, [one[name] for one in given], whole, config, n)
    for idea, ways in found.items():
        if any(_same(mine, way) for way in ways):
            return {"name": name, "idea": idea}
    shapes = [list(piece.shape) for piece in mine]
    wanted = [list(piece.shape) for piece in right]
    if shapes != wanted:
        rank = next(r for r in range(n) if shapes[r] != wanted[r])
        return {"name": name, "idea": "shape", "rank": rank, "got": shapes[rank],
                "want": wanted[rank]}  # fmt: skip
    return {"name": name, "idea": "values"}


def _same(mine: list[Tensor], other: list[Tensor], close: bool = False) -> bool:
    pairs = list(zip(mine, other, strict=False))
    if len(mine) != len(other) or any(a.shape != b.shape for a, b in pairs):
        return False
    return all(torch.allclose(a, b) if close else torch.equal(a, b) for a, b in pairs)


def run(function: Callable, group: dist.ProcessGroup, family: str, m: int, seed: int) -> float:
    """From m ranks' pieces to this group's; the largest gap to the dense model in two steps."""
    config, n, rank = CONFIGS[family], group.size(), group.rank()
    whole = model.dense(config, seed)
    given = reshard_cut.shards(state_of(config, seed), config, m)
    (out, _) = bench.watched(lambda: function(given, config, n))
    mine = model.cut_over(model.dense(config, seed + 1), group)  # other numbers, to be replaced
    with torch.no_grad():
        for name, p in mine.named_parameters():
            p.copy_(out[rank][name])
    return max(_gaps(mine, whole, seed, group))


def _gaps(mine: GPT, whole: GPT, seed: int, group: dist.ProcessGroup) -> list[float]:
    ids, targets = model.tokens(whole.config, seed)
    found = []
    for _ in range(2):
        want = F.cross_entropy(whole(ids).flatten(0, 1), targets.flatten())
        got = cross_entropy(mine(ids), targets, group, vocabulary=whole.config.vocabulary)
        found.append(abs(float(want) - float(got)))
        for one, loss in ((whole, want), (mine, got)):
            one.zero_grad()
            loss.backward()
            with torch.no_grad():
                for p in one.parameters():
                    p -= 0.1 * p.grad
    found.append(float((mine.norm.weight - whole.norm.weight).abs().max()))
    return found
