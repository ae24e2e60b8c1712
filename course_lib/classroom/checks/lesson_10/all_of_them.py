"""`shard_of_all` of lesson 10: one bucket of parameters that not every rank has a gradient for.

A head is tied to its table, each rank takes another branch, and one parameter is frozen, one used
by no rank. Held against one process with all losses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.classroom.checks import bench, looking
from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none
from course_lib.classroom.checks.lesson_09.each import names_of, refuse_each
from course_lib.classroom.checks.lesson_10.cuts import bucket, padded, shards
from course_lib.classroom.checks.looking import ITEM, THREE, TWO, fresh_seed
from course_lib.classroom.checks.words import Page
from course_lib.collectives.call import Group

ROWS, BRANCHES, STEPS, EMPTY = 7, 4, 3, 2
FLAG = 64  # bytes that a name may cost, however it is told
SAYS = Page("lesson_10/shard_of_all")


class Step(NamedTuple):
    """One step: names and parameters, those trained by their first names, each rank's gradients."""

    number: int
    given: list[tuple[str, nn.Parameter]]
    first: dict[Tensor, str]
    each: list[dict[Tensor, Tensor]]

    def sums(self) -> dict[Tensor, Tensor]:
        """Over the ranks; zeros where none has a gradient."""
        return {p: sum((g[p] for g in self.each if p in g), 0 * p.detach()) for p in self.first}


def parameters(seed: int, even: bool) -> list[tuple[str, nn.Parameter]]:
    """Of a model whose head is its table again. Neither 2 nor 3 divide the number of elements that
    are trained, or where it is `even`, both do."""
    made = torch.Generator().manual_seed(seed)
    wide = 3 + seed % 3
    shapes = dict.fromkeys(("table", "silent", "spare", "frozen", "head", "bias", "shift"), (ROWS,))
    shapes |= {"table": (ROWS, wide), **{f"branches.{i}": (wide, wide) for i in range(BRANCHES)}}
    others = ROWS * (wide + 3) + BRANCHES * wide**2
    shapes["spare"] = (5 + (2 - even - others) % 6,)
    draw = partial(torch.randn, generator=made, dtype=torch.float64)
    named = {name: nn.Parameter(draw(shape)) for name, shape in shapes.items()}
    named |= {name: nn.Parameter(0 * named[name]) for name in ("bias", "shift")}  # alike, as fresh
    named["frozen"].requires_grad_(False)
    return list({**named, "head": named["table"]}.items())


def loss_of(given: list[tuple[str, nn.Parameter]], seed: int, step: int, rank: int, n: int):
    """A rank's loss; in each step it takes another branch, and one branch is no rank's.

    In a step beyond them the last rank of three has no rows, and a gradient for nothing.
    """
    if step == STEPS and rank == EMPTY:
        return torch.zeros((), dtype=torch.float64, requires_grad=True).square()
    made, named = torch.Generator().manual_seed(seed * 1009 + 31 * step + rank), dict(given)
    branch = f"branches.{(rank + step) % (n + 1)}"
    used = [named[name] for name in ("table", "head", "bias", "shift", "frozen", branch)]
    total = sum((torch.rand(p.shape, generator=made) * p + p.square()).sum() for p in used)
    return total + 0.0 * named["silent"].sum()  # its gradient is there, and is zero


def steps(seed: int, n: int, empty: bool) -> Iterator[Step]:
    """Three steps, each after a plain descent by the right sums; or one with an empty rank."""
    given = parameters(seed, even=empty)
    first = {p: name for name, p in given[::-1] if p.requires_grad}
    first = {p: first[p] for _, p in given if p in first}
    for number in [STEPS] if empty else range(STEPS):
        losses = [loss_of(given, seed, number, rank, n) for rank in range(n)]
        each = [torch.autograd.grad(loss, list(first), allow_unused=True) for loss in losses]
        each = [{p: g for p, g in zip(first, one, strict=True) if g is not None} for one in each]
        yield (step := Step(number, given, first, each))
        with torch.no_grad():
            for p, grad in step.sums().items():
                p -= 0.05 * grad


def train(function: Callable, group: Group, seed: int, empty: bool) -> list[dict]:
    """The answer's shard and names in each step, and what it left behind and sent."""
    reports, kept = [], []
    for step in steps(seed, group.size(), empty):
        loss = loss_of(step.given, seed, step.number, group.rank(), group.size())
        handed = list(step.given)
        out, facts = bench.watched(lambda a=loss, b=handed: function(a, b, group))
        pair = isinstance(out, (tuple, list)) and len(out) == 2
        shard, said = out if pair else (None, None)
        readable, names = bench.plain(shard), names_of(said)
        same = [name for name, _ in handed] == [name for name, _ in step.given]
        same &= all(p.requires_grad == (p in step.first) for _, p in step.given)
        reports.append({
            "kind": bench.kind(out),
            "got": f"a pair that begins with a {bench.kind(shard)}" if pair else bench.kind(out),
            "shard": shard.detach().clone() if readable else None,
            "names": None if names is None else set(map(str, names)),
            "changed": not same,
            "spoiled": any(not torch.equal(a, b) or names_of(c) != d for a, b, c, d in kept),
            "left": [name for name, p in step.given if p.grad is not None],
            "verbs": ", ".join(facts["ops"]) or "nothing",
            "scatters": facts["ops"].get("reduce_scatter", 0),
            "bytes": facts["bytes"],
            "held": shard.untyped_storage().nbytes() if readable else 0,
        })  # fmt: skip
        kept += [(shard, shard.detach().clone(), said, names)] if readable else []
        for _, p in step.given:
            p.requires_grad_(p in step.first).grad = None
    return reports


def judge_all(answer: Answer, judge: Judge) -> None:
    """Three steps on three ranks and one with an empty rank, then on two that are not the
    notebook's first two."""
    judge.take(answer, __name__)
    seed = fresh_seed()
    for members, empty in ((THREE, []), (THREE, [EMPTY]), (TWO, [])):
        n = len(members)
        when = on(members) + (f", where rank {EMPTY} has no rows" if empty else "")
        told = (seed, bool(empty))
        trial = judge.trial(answer, train, *told, members=members, when=when, empty=empty)
        for k, step in enumerate(steps(seed, n, bool(empty))):
            reports = [of_rank[k] for of_rank in trial]
            where = when if empty else f"{when}, in step {k + 1}"
            look_at_shards(reports, step, where)
            look_at_names(reports, step, where)
            look_at_traffic(reports, step, where)


def look_at_shards(reports: list[dict], step: Step, where: str) -> None:
    """The idea that explains all ranks' shards, where they are not right."""
    n, sums, seen = len(reports), step.sums(), [one["shard"] for one in reports]
    right = shards(bucket(sums, step.first, n), n)
    if looking.all_near(seen, right):
        return
    refuse_none(reports, where, "the shard and the names")
    refuse_each(SAYS, reports, {"not a pair": lambda one: one["shard"] is None}, where=where)
    head = "The shard is not that of the sum over the ranks. "
    looking.refuse_idea(seen, looking.ideas(SAYS, ideas_of_shards(step, n)), where, head)
    own = [-(-sum(p.numel() for p in one) // n) for one in step.each]
    if [list(x.shape) for x in seen] == [[length] for length in own]:
        raise SAYS("its own bucket", where=where)
    if seen[0].shape != right[0].shape:
        raise SAYS("wrong length", shape=list(seen[0].shape), wanted=len(right[0]), where=where)
    narrow = {"rounded on the way": lambda one: one["shard"].dtype != torch.float64}
    refuse_each(SAYS, reports, narrow, dtype=seen[0].dtype, where=where)
    raise SAYS("wrong shard", where=where)


def ideas_of_shards(step: Step, n: int) -> Iterator[tuple[str, list[Tensor]]]:
    """What each rank would return under each wrong idea."""
    once, sums = list(step.first), step.sums()
    names, every = step.first, [p for _, p in step.given]
    mine = [{p: one.get(p, 0 * p) for p in once} for one in step.each]
    users = {p: sum(p in one for one in step.each) for p in once}
    over_users = {p: sums[p] / max(1, users[p]) for p in once}
    zeros = {p: 0 * p for p in every} | sums
    by_last = list(dict.fromkeys(p for p in every[::-1] if p in names))
    by_name = sorted((name, number) for number, (name, p) in enumerate(step.given) if p in names)
    flat, raw = bucket(sums, once, n), bucket(sums, once, 1)
    yield "a mean", shards(flat / n, n)
    yield "not summed", [shards(bucket(own, once, n), n)[rank] for rank, own in enumerate(mine)]
    for entry, *orders in (
        ("tied twice", [p for p in every if p in names], every),
        ("frozen too", list(dict.fromkeys(every))),
        ("another order", by_last, by_last[::-1], once[::-1], sorted(once, key=names.get)),
        ("another order", list(dict.fromkeys(every[number] for _, number in by_name))),
        ("equal taken for the same", [p for p in once if names[p] != "shift"]),
        ("equal taken for the same", list({p.shape: p for p in once[::-1]}.values())[::-1]),
        ("unused left out", [p for p in once if users[p]]),
    ):
        for order in orders:
            yield entry, shards(bucket(zeros, order, n), n)
    yield "not cut", [flat] * n
    yield "a mean over its users", shards(bucket(over_users, once, n), n)
    yield "padded one by one", shards(bucket(sums, once, n, each=True), n)
    yield "padded in front", shards(padded(raw, n, front=True), n)
    yield "padded without need", shards(F.pad(raw, (0, n - len(raw) % n)), n)


def look_at_names(reports: list[dict], step: Step, where: str) -> None:
    """Which parameters got a gradient, on any rank."""
    refuse_each(SAYS, reports, {"no names": lambda one: one["names"] is None}, where=where)
    seen, first, given = [one["names"] for one in reports], step.first, step.given
    own = [{first[p] for p in one} for one in step.each]
    used, last = set().union(*own), {p: name for name, p in given}
    if seen == [used] * len(seen):
        return
    alike = (
        ("used by every rank", set.intersection(*own)),
        ("a zero is a gradient", {first[p] for p, g in step.sums().items() if g.any()}),
        ("used by nobody", set(first.values())),
        ("used by nobody", {name for name, _ in given}),
        ("used by nobody", {name for name, p in given if p in first}),
        ("by both names", {name for name, p in given if first.get(p) in used}),
        ("by the other name", {last[p] for p in first if first[p] in used}),
    )
    said = [("its own flags", own), *((entry, [names] * len(seen)) for entry, names in alike)]
    entry = next((entry for entry, names in said if names == seen), "wrong names")
    name, text = SAYS.of(entry)
    raise Finding(name, f"The shard is right, the names are not {where}. {text}")


def look_at_traffic(reports: list[dict], step: Step, where: str) -> None:
    """One reduce-scatter and a few flags; nothing left behind."""
    n, wanted = len(reports), len(reports[0]["shard"])
    must, flags = wanted * (n - 1) * ITEM, len(step.given) * 2 * (n - 1) / n
    looks = {
        "input changed": lambda one: one["changed"],
        "one buffer reused": lambda one: one["spoiled"],
        "all-reduce, then cut": lambda one: not one["scatters"],
        "too much sent": lambda one: one["scatters"] > 1 or one["bytes"] > must + FLAG * flags,
        "gradients left": lambda one: one["left"],
        "a view of the whole": lambda one: one["held"] > ITEM * wanted + 64,
    }
    refuse_each(SAYS, reports, looks, must=must, where=where)


ALL_OF_THEM = Exercise(judge=judge_all, **SAYS.about)
