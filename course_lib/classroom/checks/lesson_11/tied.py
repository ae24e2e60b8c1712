"""`tied_head` of lesson 11: the embedding is the head's weight too, at stage 3.

An answer makes the head; with it a small model trains three steps and is held against the dense
one, against the messages of a head of the check's own, and against what is whole in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib import zero
from course_lib.classroom.checks import bench, looking
from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none
from course_lib.classroom.checks.lesson_11.meter import Meter, refuse_first
from course_lib.classroom.checks.words import Page
from course_lib.collectives.call import Group
from course_lib.memory.watch import Watch

SAYS = Page("lesson_11/tied_head")
STEPS, RATE, BLOCKS = 3, 0.05, 2
PROMISED = "gathered only while its unit runs"  # the library's words
GATHERS = ("all_gather", "reduce_scatter")


class Numbers(NamedTuple):
    """The same on every rank, and on the judge; b·s is smaller than h: logits than the table."""

    table: Tensor  # (v, h)
    blocks: Tensor  # (block, h, h)
    ids: Tensor  # (step, n, b, s)
    dys: Tensor  # (step, n, b, s, v)

    def other_tables(self) -> list[Tensor]:
        """Of two more models, whose heads are made before this one's and after it."""
        return [self.table + k for k in (1, 2)]

    def dense(self, only: str = "") -> list[tuple[list[Tensor], Tensor, list[Tensor]]]:
        """(logits of each rank, the table after it, the head's inputs) of each step; `only` one of
        the table's two uses has a gradient."""
        table, blocks, steps = self.table.clone(), self.blocks.clone(), []
        for ids, dys in zip(self.ids, self.dys, strict=True):
            leaves = [table.clone().requires_grad_(), blocks.clone().requires_grad_()]
            looked, head = (
                leaves[0].detach() if only == other else leaves[0] for other in ("head", "lookup")
            )
            xs = looked[ids]  # (n, b, s, h)
            for weight in leaves[1]:
                xs = torch.tanh(xs @ weight.T)
            logits = xs @ head.T
            grads = torch.autograd.grad((logits * dys).sum() / len(ids), leaves)
            table, blocks = table - RATE * grads[0], blocks - RATE * grads[1]
            steps.append(([*logits.detach()], table, [*xs.detach()]))
        return steps


def numbers(b: int, s: int, v: int, h: int, n: int, seed: int) -> Numbers:
    """Fresh numbers from a seed."""
    made = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=made, dtype=torch.float64)

    table, blocks = random(v, h) / 2, random(BLOCKS, h, h) / 2
    ids = torch.randint(v, (STEPS, n, b, s), generator=made)
    return Numbers(table, blocks, ids, random(STEPS, n, b, s, v))


class Small(nn.Module):
    """A table, some blocks, and a head that is made of the table."""

    def __init__(self, given: Numbers, head: Callable[[nn.Embedding], nn.Module]):
        super().__init__()
        self.tokens = nn.Embedding(*given.table.shape, _weight=given.table.clone())
        self.blocks = nn.ModuleList(nn.Linear(*w.shape, bias=False) for w in given.blocks)
        for block, weight in zip(self.blocks, given.blocks, strict=True):
            block.weight = nn.Parameter(weight.clone())
        self.head = head(self.tokens)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)  # (b, s, h)
        for block in self.blocks:
            x = torch.tanh(block(x))
        return self.head(x)  # (b, s, v)


def our_head(tokens: nn.Embedding) -> nn.Module:
    """The head whose messages are the budget."""
    head = nn.Linear(tokens.embedding_dim, tokens.num_embeddings, bias=False, device="meta")
    head.weight = tokens.weight
    return head


def run(function: Callable, group: Group, *sizes: int) -> dict:
    """Train with the answer's head, then with the check's own."""
    given = numbers(*sizes[:4], group.size(), sizes[4])
    return {**_train(function, given, group), "ours": _train(our_head, given, group)["sent"]}


def _train(function: Callable, given: Numbers, group: Group) -> dict:
    rank, made = group.rank(), []
    mesh = DeviceMesh.from_group(group, "cpu", mesh_dim_names=("dp",))
    report = {"steps": [], "sent": {}, "promise": False, "parameters": 0, "kept": 0}
    others = [nn.Embedding.from_pretrained(t, freeze=False) for t in given.other_tables()]
    with Watch() as watch:

        def head(tokens: nn.Embedding) -> nn.Module:
            # Another model's head before this one and one after it: what is kept is met again.
            # Parameters that the answer makes have the tables' dtype.
            torch.set_default_dtype(torch.float64)
            try:
                for each in (others[0], tokens, others[1]):
                    made.append(bench.watched(lambda each=each: function(each))[0])
            finally:
                torch.set_default_dtype(torch.float32)
            return made[1] if isinstance(made[1], nn.Module) else nn.Identity()

        model = Small(given, head)
        report["same"] = torch.equal(model.tokens.weight, given.table)
        report["shared"] = made[1] is not None and any(made[1] is made[k] for k in (0, 2))
        report["kind"], report["module"] = type(made[1]).__name__, isinstance(made[1], nn.Module)
        if not report["module"]:
            return report
        report["parameters"] = sum(p.numel() for p in model.parameters())
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        options = {"units": list(model.blocks), "prefetch": 0, "persist": 0}
        engine = zero.engine(model, optimizer, stage=3, mesh=mesh, **options)
        meter, in_blocks = Meter(watch, given.table.nbytes), [0]
        report["before"] = meter.now(0)
        for block in model.blocks:
            block.register_forward_hook(lambda *_: in_blocks.append(meter.now(0)))
        try:
            for ids, dy in zip(given.ids, given.dys, strict=True):
                report["steps"].append(_step(engine, ids[rank], dy[rank], report, meter))
        except RuntimeError as error:
            report["promise"] = PROMISED in str(error)
            if not report["promise"]:
                raise
        report["in the blocks"] = max(in_blocks)
    engine.close()
    return report


def _step(engine: zero.Engine, ids: Tensor, dy: Tensor, report: dict, meter: Meter) -> dict:
    logits, there = bench.watched(lambda: engine(ids))
    found = {**bench.described(logits), "logits": None}
    if not (bench.plain(logits) and logits.shape == dy.shape):
        return found
    found["logits"] = logits.detach().clone()
    if len(report["steps"]) == 1:  # after the forward the unit that ends it may stay
        report["kept"] = meter.now(1)
    _, back = bench.watched(lambda: engine.backward((logits * dy).sum()))
    sent = {op: there["ops"].get(op, 0) + back["ops"].get(op, 0) for op in GATHERS}
    report["sent"] = {**sent, "bytes": there["bytes"] + back["bytes"]}  # of the last step
    engine.step()
    with engine.gathered(engine.model):
        # In halves: a copy of the whole one would be found in the next step.
        found["table"] = [half.clone() for half in engine.model.tokens.weight.detach().chunk(2)]
    return found


def judge_tied(answer: Answer, judge: Judge) -> None:
    """Try tied_head; raise the Finding that explains best what is wrong."""
    judge.take(answer, __name__)
    seed = looking.fresh_seed()
    h = 6 + seed % 3
    for members, *sizes in ((looking.THREE, 2, 2, 37, h), (looking.TWO, 1, 4, 41, h + 1)):
        when = on(members)
        reports = judge.trial(answer, run, *sizes, seed, members=members, when=when)
        refuse_none(reports, when, "a module")
        given = numbers(*sizes, len(members), seed)
        ranks = [({"rank": r, "when": when}, report) for r, report in enumerate(reports)]
        for look in (look_at_module, look_at_logits, look_at_steps, look_at_budget):
            look(ranks, given)


Ranks = list[tuple[dict, dict]]  # of each: where it was, what it reports


def look_at_module(ranks: Ranks, given: Numbers) -> None:
    """A module, that has the table for a parameter, and no other."""
    whole = given.table.numel() + given.blocks.numel()
    for where, report in ranks:
        extra = report["parameters"] - whole
        holds = {
            "not a module": not report["module"],
            "one head for all #1": report["shared"],
            "another table": not report["same"],
            "used outside its module": report["promise"],
            "untied": extra,
        }
        refuse_first(SAYS, holds, **where, kind=report["kind"], extra=extra)


def look_at_logits(ranks: Ranks, given: Numbers) -> None:
    """The first logits: of every entry, and with the model's own table."""
    right, _, xs = given.dense()[0]
    for where, report in ranks:
        if report["steps"][0]["logits"] is None:
            raise SAYS("wrong shape", got=looking.came_back(report["steps"][0]), **where)
    seen, when = [report["steps"][0]["logits"] for _, report in ranks], ranks[0][0]["when"]
    theirs = ([x @ table.T for x in xs] for table in given.other_tables())
    looking.refuse_idea(
        seen, looking.ideas(SAYS, (("one head for all #2", gives) for gives in theirs)), when
    )
    for where, report in ranks:
        if not looking.near(report["steps"][0]["logits"], right[where["rank"]]):
            looking.refuse_general(seen, right, when, what="logits")
            raise SAYS("wrong logits", **where)


def look_at_steps(ranks: Ranks, given: Numbers) -> None:
    """Logits and the table after each of three steps."""
    half = {use: given.dense(use)[0][1] for use in ("lookup", "head")}
    for where, report in ranks:
        if report["before"]:
            raise SAYS("a copy kept whole", before=report["before"], **where)
        tables = [torch.cat(did["table"]) for did in report["steps"]]
        for use, other in (("lookup", "head"), ("head", "lookup")):
            if looking.near(tables[0], half[use]):
                raise SAYS("half of the gradient", use=use, other=other, **where)
        for step, (logits, table, _) in enumerate(given.dense()):
            seen = report["steps"][step]["logits"]
            if not (
                looking.near(seen, logits[where["rank"]]) and looking.near(tables[step], table)
            ):
                raise SAYS("another step", step=step + 1, **where)


def look_at_budget(ranks: Ranks, given: Numbers) -> None:
    """The table is whole while it is used, once; no messages beyond those of our own head."""
    for where, report in ranks:
        sent, ours = report["sent"], report["ours"]
        holds = {
            "whole all the way": report["in the blocks"],
            "a second whole table": report["kept"] > 1,
            "over budget": any(sent[k] > ours[k] + 64 * (k == "bytes") for k in sent),
        }
        refuse_first(SAYS, holds, **where, **sent, kept=report["kept"], ours=ours)


TIED_HEAD = Exercise(judge=judge_tied, **SAYS.about)
