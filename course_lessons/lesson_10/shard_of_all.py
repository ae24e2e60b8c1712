"""`shard_of_all` of lesson 10: one bucket of parameters with gradients on only some ranks. A table
is tied to the head, ranks use different branches, and some parameters are frozen or unused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_classroom.judge import bench, frame, looking, words
from course_classroom.judge.answer import Answer
from course_classroom.judge.judge import Judge, on, refuse_none
from course_classroom.judge.looking import ITEM, THREE, TWO
from course_lessons.lesson_09.each import names_of
from course_lessons.lesson_10.descent import Step, bucket, padded, steps
from course_lib.collectives.call import Group

ROWS, BRANCHES, STEPS, EMPTY = 7, 4, 3, 2
FLAG = 64  # maximum bytes for a name, in any encoding
SAYS = words.Page(__file__, "shard_of_all")


class Model:
    """Parameters by name, with the tied head under both names; `first` has only trained ones.

    Neither 2 nor 3 divides the number of trained elements; if the last rank of three has no rows,
    both divide it.
    """

    def __init__(self, seed: int, empty: bool, n: int):
        self.seed, self.n, made = seed, n, torch.Generator().manual_seed(seed)
        wide = 3 + seed % 3
        names = ("table", "silent", "spare", "frozen", "head", "bias", "shift")
        shapes = {**dict.fromkeys(names, (ROWS,)), "table": (ROWS, wide)}
        shapes |= {f"branches.{i}": (wide, wide) for i in range(BRANCHES)}
        others = ROWS * (wide + 3) + BRANCHES * wide**2
        shapes["spare"] = (5 + (2 - empty - others) % 6,)
        draw = partial(torch.randn, generator=made, dtype=torch.float64)
        named = {name: nn.Parameter(draw(shape)) for name, shape in shapes.items()}
        named |= {name: nn.Parameter(0 * named[name]) for name in ("bias", "shift")}  # equal
        named["frozen"].requires_grad_(False)
        self.named = {**named, "head": named["table"]}
        self.first: dict[Tensor, str] = {}
        for name, p in self.named.items():
            if p.requires_grad:
                self.first.setdefault(p, name)
        numbers = [STEPS] if empty else range(STEPS)
        self.steps = steps(list(self.first), self.loss, numbers, n)

    def loss(self, step: int, rank: int) -> Tensor:
        """Return the loss; ranks use different branches in each step, and one branch is unused.

        In an additional step the last rank of three has no rows, and no gradients.
        """
        if step == STEPS and rank == EMPTY:
            return torch.zeros((), dtype=torch.float64, requires_grad=True).square()
        made = torch.Generator().manual_seed(self.seed * 1009 + 31 * step + rank)
        branch = f"branches.{(rank + step) % (self.n + 1)}"
        names = ("table", "head", "bias", "shift", "frozen", branch)
        used = [self.named[name] for name in names]
        total = sum((torch.rand(p.shape, generator=made) * p + p.square()).sum() for p in used)
        return total + 0.0 * self.named["silent"].sum()  # its gradient exists and is zero


def train(function: Callable, group: Group, seed: int, empty: bool) -> list[dict]:
    """Return the answer's shard and names in each step, and its traffic and memory."""
    model, reports, kept = Model(seed, empty, group.size()), [], []
    for step in model.steps:
        loss, handed = model.loss(step.number, group.rank()), list(model.named.items())
        out, facts = bench.watched(lambda a=loss, b=handed: function(a, b, group))
        pair = isinstance(out, (tuple, list)) and len(out) == 2
        shard, said = out if pair else (None, None)
        readable, names = bench.plain(shard), names_of(said)
        same = [name for name, _ in handed] == list(model.named)
        same &= all(p.requires_grad == (p in model.first) for p in model.named.values())
        report = {
            "kind": bench.kind(out),
            "got": f"a pair that begins with a {bench.kind(shard)}" if pair else bench.kind(out),
            "shard": shard.detach().clone() if readable else None,
            "names": None if names is None else set(map(str, names)),
            "changed": not same,
            "spoiled": any(not torch.equal(a, b) or names_of(c) != d for a, b, c, d in kept),
            "left": [name for name, p in model.named.items() if p.grad is not None],
            "verbs": ", ".join(facts["ops"]) or "nothing",
            "scatters": facts["ops"].get("reduce_scatter", 0),
            "bytes": facts["bytes"],
            "held": shard.untyped_storage().nbytes() if readable else 0,
        }
        reports.append(report)
        kept += [(shard, shard.detach().clone(), said, names)] if readable else []
        for p in model.named.values():
            p.requires_grad_(p in model.first).grad = None
    return reports


def judge_all(answer: Answer, judge: Judge) -> None:
    """Try steps on three ranks, then with an empty rank, then on two ranks (not the first two)."""
    judge.take(answer, __name__)
    seed = looking.fresh_seed()
    for members, empty in ((THREE, []), (THREE, [EMPTY]), (TWO, [])):
        when = on(members) + (f", where rank {EMPTY} has no rows" if empty else "")
        given = (seed, bool(empty))
        trial = judge.trial(answer, train, *given, members=members, when=when, empty=empty)
        model = Model(*given, len(members))
        for k, step in enumerate(model.steps):
            reports = [of_rank[k] for of_rank in trial]
            where = when if empty else f"{when}, in step {k + 1}"
            look_at_shards(reports, model, step, where)
            look_at_names(reports, model, step, where)
            look_at_traffic(reports, len(model.named), where)


def look_at_shards(reports: list[dict], model: Model, step: Step, where: str) -> None:
    """Raise the Finding that explains all ranks' shards, if they are wrong."""
    n, seen = len(reports), [one["shard"] for one in reports]
    right = bucket(step.sums, model.first, n).chunk(n)
    if looking.all_near(seen, right):
        return
    refuse_none(reports, where, "the shard and the names")
    SAYS.refuse_each(reports, {"not a pair": lambda one: one["shard"] is None}, where=where)
    head = "The shard is not that of the sum over the ranks. "
    looking.refuse_idea(seen, looking.ideas(SAYS, ideas_of_shards(model, step)), where, head)
    own = [[-(-sum(p.numel() for p in used) // n)] for used in step.each]
    shape = list(seen[0].shape)
    holds = {
        "local bucket": [list(x.shape) for x in seen] == own,
        "wrong length": seen[0].shape != right[0].shape,
        "rounded on the way": any(x.dtype != torch.float64 for x in seen),
        "wrong shard": True,
    }
    SAYS.refuse(holds, shape=shape, wanted=len(right[0]), where=where)


def ideas_of_shards(model: Model, step: Step) -> Iterator[tuple[str, list[Tensor]]]:
    """Yield each rank's result under each wrong idea."""
    n, names, sums = model.n, model.first, step.sums
    once, every = list(names), list(model.named.values())
    mine = [{p: own.get(p, 0 * p) for p in once} for own in step.each]
    users = {p: sum(p in own for own in step.each) for p in once}
    over_users = {p: sums[p] / max(1, users[p]) for p in once}
    zeros = {p: 0 * p for p in every} | sums
    by_last = list(dict.fromkeys(p for p in every[::-1] if p in names))
    by_name = dict(sorted(model.named.items()))
    flat, raw = bucket(sums, once, n), bucket(sums, once, 1)
    yield "a mean", (flat / n).chunk(n)
    yield "not summed", [bucket(own, once, n).chunk(n)[rank] for rank, own in enumerate(mine)]
    for entry, *orders in (
        ("tied twice", [p for p in every if p in names], every),
        ("frozen too", list(dict.fromkeys(every))),
        ("wrong order", by_last, by_last[::-1], once[::-1], sorted(once, key=names.get)),
        ("wrong order", list(dict.fromkeys(p for p in by_name.values() if p in names))),
        ("equal taken for the same", [p for p in once if names[p] != "shift"]),
        ("equal taken for the same", list({p.shape: p for p in once[::-1]}.values())[::-1]),
        ("unused left out", [p for p in once if users[p]]),
    ):
        for order in orders:
            yield entry, bucket(zeros, order, n).chunk(n)
    yield "not sharded", [flat] * n
    for entry, other in (
        ("mean over the ranks that used it", bucket(over_users, once, n)),
        ("padded one by one", bucket(sums, once, n, each=True)),
        ("padded in front", padded(raw, n, front=True)),
        ("padded without need", F.pad(raw, (0, n - len(raw) % n))),
    ):
        yield entry, other.chunk(n)


def look_at_names(reports: list[dict], model: Model, step: Step, where: str) -> None:
    """Check the names of parameters that got a gradient on any rank."""
    SAYS.refuse_each(reports, {"no names": lambda one: one["names"] is None}, where=where)
    seen, first, named = [one["names"] for one in reports], model.first, model.named
    own = [{first[p] for p in one} for one in step.each]
    used, last = set().union(*own), {p: name for name, p in named.items()}
    if seen == [used] * len(seen):
        return
    trained = {name for name, p in named.items() if p in first}
    alike = {
        "used by every rank": [set.intersection(*own)],
        "a zero is a gradient": [{first[p] for p, g in step.sums.items() if g.any()}],
        "unused named": [set(first.values()), set(named), trained],
        "by both names": [{name for name in trained if first[named[name]] in used}],
        "by its second name": [{last[p] for p in first if first[p] in used}],
    }
    holds = {"local flags": seen == own}
    holds |= {entry: any(seen == [one] * len(own) for one in sets) for entry, sets in alike.items()}
    head = f"The shard is correct, but the names are wrong ({where})."
    SAYS.refuse({**holds, "wrong names": True}, head=head)


def look_at_traffic(reports: list[dict], names: int, where: str) -> None:
    """Check that the traffic is one reduce-scatter and a few flags, and no memory remains."""
    n, wanted = len(reports), len(reports[0]["shard"])
    must, flags = wanted * (n - 1) * ITEM, names * 2 * (n - 1) / n
    looks = {
        "input changed": lambda one: one["changed"],
        "one buffer reused": lambda one: one["spoiled"],
        "all-reduce, then split": lambda one: not one["scatters"],
        "too much sent": lambda one: one["scatters"] > 1 or one["bytes"] > must + FLAG * flags,
        "gradients left": lambda one: one["left"],
        "view of the full bucket": lambda one: one["held"] > ITEM * wanted + 64,
    }
    SAYS.refuse_each(reports, looks, must=must, where=where)


ALL_OF_THEM = frame.Exercise(judge=judge_all, **SAYS.about)
