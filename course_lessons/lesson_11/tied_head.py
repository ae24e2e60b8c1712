"""`tied_head` of lesson 11: a small model trains at stage 3 with the answer's head. It is compared
with the dense model, and its messages and memory with the check's own head."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from course_classroom.judge import bench, frame, looking, words
from course_classroom.judge.answer import Answer
from course_classroom.judge.judge import Judge, on, refuse_none
from course_lessons.lesson_11.meter import Meter
from course_lib import zero
from course_lib.collectives.call import Group
from course_lib.memory.lifetimes import StorageWatch

SAYS = words.Page(__file__, "tied_head")
STEPS, RATE, BLOCKS = 3, 0.05, 2
PROMISED = "gathered only while its unit runs"  # as the library words it


class Dense:
    """Table (v, h), blocks (block, h, h), ids and logits' gradients (step, n, b, s). b·s is smaller
    than h, so logits are smaller than the table. All ranks and the judge draw the same numbers."""

    def __init__(self, b: int, s: int, v: int, h: int, seed: int, n: int):
        made = torch.Generator().manual_seed(seed)
        draw = partial(torch.randn, generator=made, dtype=torch.float64)
        self.table, self.blocks = draw(v, h) / 2, draw(BLOCKS, h, h) / 2
        self.ids = torch.randint(v, (STEPS, n, b, s), generator=made)
        self.dys = draw(STEPS, n, b, s, v)
        # Of two more models, whose heads are made before and after this one's.
        self.other_tables = [self.table + k for k in (1, 2)]

    def steps(self, only: str = "") -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return (the ranks' logits, the table after the step, the head's inputs) for each step;
        with `only`, just one of the table's two uses has a gradient."""
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
            steps.append((logits.detach(), table, xs.detach()))
        return steps


def our_head(tokens: nn.Embedding) -> nn.Module:
    """Return the check's own head, whose messages define the budget."""
    head = nn.Linear(tokens.embedding_dim, tokens.num_embeddings, bias=False, device="meta")
    head.weight = tokens.weight
    return head


def run(function: Callable, group: Group, *sizes: int) -> dict:
    """Train with the answer's head, then with the check's own head."""
    dense = Dense(*sizes, group.size())
    return {**_train(function, dense, group), "ours": _train(our_head, dense, group)}


def _train(function: Callable, dense: Dense, group: Group) -> dict:
    rank, made = group.rank(), []
    mesh = DeviceMesh.from_group(group, "cpu", mesh_dim_names=("dp",))
    report = {"rank": rank, "steps": [], "promise": False, "extra": 0}
    others = [nn.Embedding.from_pretrained(t, freeze=False) for t in dense.other_tables]
    with StorageWatch() as watch:

        def head(tokens: nn.Embedding) -> nn.Module:
            # Heads of other models before and after this one reveal state that is kept. New
            # parameters of the answer have the tables' dtype.
            torch.set_default_dtype(torch.float64)
            try:
                for each in (others[0], tokens, others[1]):
                    made.append(bench.watched(lambda each=each: function(each))[0])
            finally:
                torch.set_default_dtype(torch.float32)
            return made[1] if isinstance(made[1], nn.Module) else nn.Identity()

        tokens = nn.Embedding(*dense.table.shape, _weight=dense.table.clone())
        blocks = [nn.Linear(*weight.shape, bias=False) for weight in dense.blocks]
        for block, weight in zip(blocks, dense.blocks, strict=True):
            block.weight = nn.Parameter(weight.clone())
        between = [layer for block in blocks for layer in (block, nn.Tanh())]
        model = nn.Sequential(tokens, *between, head(tokens))
        report["same"] = torch.equal(tokens.weight, dense.table)
        report["shared"] = made[1] is not None and any(made[1] is made[k] for k in (0, 2))
        report["kind"], report["module"] = type(made[1]).__name__, isinstance(made[1], nn.Module)
        if not report["module"]:
            return report
        whole = dense.table.numel() + dense.blocks.numel()
        report["extra"] = sum(p.numel() for p in model.parameters()) - whole
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        options = {"units": blocks, "prefetch": 0, "persist": 0}
        engine = zero.engine(model, optimizer, stage=3, mesh=mesh, **options)
        meter, in_blocks = Meter(watch, dense.table.nbytes), [0]
        report["before"] = meter.now(0)
        for block in blocks:
            block.register_forward_hook(lambda *_: in_blocks.append(meter.now(0)))
        try:
            for ids, dy in zip(dense.ids[:, rank], dense.dys[:, rank], strict=True):
                _step(engine, ids, dy, report, meter)
        except RuntimeError as error:
            report["promise"] = PROMISED in str(error)
            if not report["promise"]:
                raise
        report["in the blocks"] = max(in_blocks)
    engine.close()
    return report


def _step(engine: zero.Engine, ids: Tensor, dy: Tensor, report: dict, meter: Meter) -> None:
    logits, there = bench.watched(lambda: engine(ids))
    found = {"got": looking.came_back(bench.described(logits)), "logits": None}
    report["steps"].append(found)
    if not (bench.plain(logits) and logits.shape == dy.shape):
        return
    found["logits"] = logits.detach().clone()
    if len(report["steps"]) == 2:  # the unit that ends the forward may stay
        report["kept"] = meter.now(1)
    _, back = bench.watched(lambda: engine.backward((logits * dy).sum()))
    report["bytes"] = there["bytes"] + back["bytes"]  # of the last step
    for op in ("all_gather", "reduce_scatter"):
        report[op] = there["ops"].get(op, 0) + back["ops"].get(op, 0)
    engine.step()
    with engine.gathered(engine.model):
        # In halves, because a full copy would be found in the next step.
        found["table"] = [half.clone() for half in engine.model[0].weight.detach().chunk(2)]


def judge_tied(answer: Answer, judge: Judge) -> None:
    judge.take(answer, __name__)
    seed = looking.fresh_seed()
    h = 6 + seed % 3
    for members, *sizes in ((looking.THREE, 2, 2, 37, h), (looking.TWO, 1, 4, 41, h + 1)):
        when = on(members)
        reports = judge.trial(answer, run, *sizes, seed, members=members, when=when)
        refuse_none(reports, when, "a module")
        dense = Dense(*sizes, seed, len(members))
        look_at_the_head(reports, dense, when)
        look_at_steps(reports, dense, when)


def look_at_the_head(reports: list[dict], dense: Dense, when: str) -> None:
    """Check that the head is a module whose only parameter is the table; check its first logits."""
    form = {
        "not a module": lambda r: not r["module"],
        "one head for all #1": lambda r: r["shared"],
        "embedding changed": lambda r: not r["same"],
        "used outside its module": lambda r: r["promise"],
        "untied": lambda r: r["extra"],
    }
    SAYS.refuse_each(reports, form, when=when)
    first = [report["steps"][0] for report in reports]
    SAYS.refuse_each(first, {"wrong shape": lambda did: did["logits"] is None}, when=when)
    (right, _, xs), seen = dense.steps()[0], [did["logits"] for did in first]
    theirs = [("one head for all #2", xs @ table.T) for table in dense.other_tables]
    looking.refuse_idea(seen, looking.ideas(SAYS, theirs), when)
    for rank, logits in enumerate(seen):
        if not looking.near(logits, right[rank]):
            looking.refuse_general(seen, right, when, what="logits")
            raise SAYS("wrong logits", rank=rank, when=when)


def look_at_steps(reports: list[dict], dense: Dense, when: str) -> None:
    """Check three steps' logits, tables and messages, and that a full table exists only in use."""
    SAYS.refuse_each(reports, {"full copy kept": lambda r: r["before"]}, when=when)
    half = {use: dense.steps(use)[0][1] for use in ("lookup", "head")}
    for rank, report in enumerate(reports):
        tables = [torch.cat(did["table"]) for did in report["steps"]]
        for use, other in (("lookup", "head"), ("head", "lookup")):
            if looking.alike(tables[0], half[use]):
                raise SAYS("half of the gradient", use=use, other=other, rank=rank, when=when)
        for k, (logits, table, _) in enumerate(dense.steps()):
            seen = [report["steps"][k]["logits"], tables[k]]
            if not looking.all_near(seen, [logits[rank], table]):
                raise SAYS("wrong step", step=k + 1, rank=rank, when=when)
    beyond = {"all_gather": 0, "reduce_scatter": 0, "bytes": 64}  # ours
    budget = {
        "table never freed": lambda r: r["in the blocks"],
        "a second full table": lambda r: r["kept"] > 1,
        "over budget": lambda r: any(r[k] > r["ours"][k] + more for k, more in beyond.items()),
    }
    SAYS.refuse_each(reports, budget, when=when)


TIED_HEAD = frame.Exercise(judge=judge_tied, **SAYS.about)
