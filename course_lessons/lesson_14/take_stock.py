"""`take_stock` of lesson 14: the placeholders among a stage-3 model's tensors, and a full save.

Between uses a parameter has size 0, and computing with it raises no error; when a block ends, its
gathered parameters are overwritten. An answer is compared with the full model, with one gather per
parameter, and with a limit on gathered memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from itertools import chain, product

import torch
from torch import Tensor, nn

from course_classroom.judge import bench, words
from course_classroom.judge.by_cases import same
from course_classroom.judge.judge import on
from course_classroom.judge.looking import THREE, TWO, alike, near
from course_classroom.ranks import agreement
from course_lessons.lesson_14.trial import Trial, exercise, keyed
from course_lib.collectives import all_gather
from course_lib.collectives.call import Group

SAYS = words.Page(__file__, "take_stock")
KEYS = PLACEHOLDERS, DECAY, NUMEL, NORM = ("placeholders", "decay", "numel", "norm")
SMALL = 16  # elements: parameters up to this size stay replicated


# ---- code on the judge's ranks: a model whose weights are silently gathered and freed
class Small(nn.Module):
    """A table (v, h) tied to the head, two layers, a weight with three dims, a large vector, small
    parameters (one with two dims), and buffers: one is empty, and one is not in the state_dict."""

    def __init__(self, v: int, h: int, f: int, seed: int):
        super().__init__()
        self.tokens = nn.Embedding(v, h)
        self.up, self.down = nn.Linear(h, f), nn.Linear(f, h, bias=False)
        self.temperature = nn.Parameter(torch.ones(1))
        self.shift, self.mix = nn.Parameter(torch.ones(v)), nn.Parameter(torch.ones(2, 3))
        self.mixer = nn.Conv1d(h, 2, 3)
        self.register_buffer("positions", torch.zeros(3, h))
        self.register_buffer("history", torch.zeros(0, h))
        self.register_buffer("mask", torch.zeros(3, 3), persistent=False)
        self.head = nn.Linear(h, v, bias=False, device="meta")
        self.head.weight = self.tokens.weight
        self.double()
        made = torch.Generator().manual_seed(seed)
        for x in (*self.parameters(), *self.buffers()):
            if x is not self.temperature:  # it is 1. and not a placeholder
                x.data.normal_(generator=made)


class Cut:
    """The large parameters of a model, sharded over a group: full in a block, then overwritten."""

    def __init__(self, model: nn.Module, group: Group):
        self.group, self.shards = group, {}
        self.counts: Counter = Counter()  # gathers, by name
        self.blocks: Counter = Counter()  # of blocks in which a parameter is full now
        self.most = 0  # elements that were full at once
        for name, p in model.named_parameters():
            if p.numel() > SMALL:
                flat = nn.functional.pad(p.detach().flatten(), (0, -p.numel() % group.size()))
                own = flat.chunk(group.size())[group.rank()].clone()
                self.shards[p], p.data = (name, p.shape, own), p.new_empty(0)

    @contextmanager
    def gathered(self, *what: nn.Module | Tensor) -> Iterator[None]:
        """Gather these parameters inside the block; every rank of the group must call this."""
        lists = (x.parameters() if isinstance(x, nn.Module) else [x] for x in what)
        mine = [p for p in dict.fromkeys(chain(*lists)) if p in self.shards]
        for p in mine:
            if not self.blocks[p]:
                name, shape, own = self.shards[p]
                p.data = all_gather(own, self.group)[: shape.numel()].view(shape)
                self.counts[name] += 1
            self.blocks[p] += 1
        self.most = max(self.most, sum(p.numel() for p in self.shards))
        try:
            yield
        finally:
            for p in mine:
                self.blocks[p] -= 1
                if not self.blocks[p]:
                    p.data.fill_(torch.nan)
                    p.data = p.new_empty(0)


def run(function: Callable, group: Group, sizes: Sequence[int], seed: int) -> dict:
    """Call `function` on a model, and on a second model before the first model's output is read."""
    models = [Small(*sizes, seed + k) for k in range(2)]
    cut, later = (Cut(model, group) for model in models)
    given: list[tuple[str, Tensor]] = []

    def write(name: str, tensor: Tensor) -> None:
        given.append((str(name), tensor))

    out, facts = bench.watched(lambda: function(models[0], cut.gathered, write, group))
    written = [{**bench.described(x), "name": name, "tensor": _copy(x)} for name, x in given]
    bench.watched(lambda: function(models[1], later.gathered, write, group))
    for each, (_, held) in zip(written, given, strict=False):  # the later model's are at the end
        each["overwritten"] = not alike(each["tensor"], _copy(held))
    large = max(p.numel() for p in Small(*sizes, seed).parameters())
    others = sum(facts["ops"].values()) - cut.counts.total()
    twice = ", ".join(sorted(name for name, count in cut.counts.items() if count > 1))
    gathers = {
        "all gathered at once": cut.most > large,
        "gathered twice": twice,
        "more messages": others,
    }
    about = {"written": written, "writes": len(written), "largest": large}
    about |= {"most": cut.most, "twice": twice, "others": others, "gathers": gathers}
    return {**keyed(out, KEYS, _plain), **about}


def _copy(x: object) -> Tensor | None:
    return x.detach().clone() if bench.plain(x) else None


def _plain(key: str, value: object) -> list[str] | float | str:
    """Return a list of names or a number, depending on the key, or the name of a wrong type."""
    listed = key in (PLACEHOLDERS, DECAY)
    if listed and isinstance(value, list | tuple | Set) and {*map(type, value)} <= {str}:
        return sorted(value)
    plain = None if listed else bench.number(value)
    return f"a {type(value).__name__}" if plain is None else plain


# ---- verdicts
def trials(tried: Callable, seed: int) -> Iterator[Trial]:
    h = 5 + seed % 4
    for members, sizes in ((THREE, [17 + seed % 5, h, h + 2]), (TWO, [19, h + 1, h + 5])):
        yield tried(members, on(members), sizes, seed, right=Small(*sizes, seed))


def readings(model: Small, n: int) -> dict[str, list[tuple[str, object]]]:
    """Return, for each key, entries with values: the right value first, then wrong ideas."""
    state = model.state_dict(keep_vars=True)
    every = {name: p.detach() for name, p in model.named_parameters()}
    cut = sorted(name for name, x in state.items() if x.numel() > SMALL and x.requires_grad)
    own = [name for name in cut if name in every]
    more = sorted(name for name, p in every.items() if p.ndim > 1)
    right = [name for name in more if every[name].ndim == 2]
    whole, tied = [*every.values()], [every["tokens.weight"]]
    saved = [x for x in state.values() if not x.requires_grad]
    norms = [float(p.norm()) for p in whole]
    found = {
        PLACEHOLDERS: [
            ("placeholders misread", cut),
            ("one element is no placeholder", sorted([*cut, "temperature"])),
            ("an empty buffer", sorted([*cut, "history"])),
            ("second name missed", own),
            ("looked at while gathered", []),
        ],
        DECAY: [
            ("decay misread", right),
            ("more than two dims", more),
            ("dims of a placeholder", []),
            ("dims of a placeholder", [name for name in right if name not in cut]),
            ("placeholders decay", own),
            ("all decay", sorted(every)),
        ],
        NUMEL: [("numel misread", sum(p.numel() for p in whole))],
        NORM: [
            ("norm misread", sum(x * x for x in norms) ** 0.5),
            ("squared", sum(x * x for x in norms)),
            ("norms added", sum(norms)),
        ],
    }
    for entry, tensors in (
        ("placeholders counted", [p for p in whole if p.numel() <= SMALL]),
        ("tied twice #2", whole + tied),
        ("buffers counted", whole + [*model.buffers()]),
        ("buffers counted", whole + saved),
        ("tied twice #3", whole + tied + saved),
        ("only sharded parameters", [every[name] for name in own]),
        ("added over the ranks", n * whole),
    ):
        flat = torch.cat([x.flatten() for x in tensors])
        found[NUMEL].append((entry, len(flat)))
        found[NORM].append((entry, float(flat.norm())))
    return found


def at_numbers(one: Trial) -> None:
    known = readings(one.right, len(one.reports))
    for (rank, report), key in product(enumerate(one.reports), KEYS):
        seen, ((otherwise, right), *ideas) = report["values"][key], known[key]
        if same(seen, right):  # a norm is only displayed, so float32 is enough
            continue
        holds = {"wrong type": isinstance(seen, str)}
        holds |= {entry: True for entry, gives in ideas if same(seen, gives)}
        about = {"key": key, "rank": rank, "when": one.when, "where": f"on rank {rank}, {one.when}"}
        if isinstance(seen, list):
            few, many = sorted({*right} - {*seen}), sorted({*seen} - {*right})
            about |= {"few": ", ".join(few) or "none", "many": ", ".join(many) or "none"}
            about |= {"lost": about["few"], "three": about["many"]}
            beyond = {"positions", "head.weight"} & {*many}
            holds |= {"more than the parameters": key == DECAY and beyond}
            holds |= {"tied twice #1": key == DECAY and not few + many}
        SAYS.refuse({**holds, otherwise: True}, seen=seen, value=seen, **about)


def at_writes(one: Trial) -> None:
    (first, *_), state, written = one.reports, one.right.state_dict(), []
    every = {"every rank writes": lambda r: r is not first and r["written"]}
    SAYS.refuse_each(one.reports, every, when=one.when)
    names = [each["name"] for each in first["written"]]
    twice = sorted({name for name in names if names.count(name) > 1})
    SAYS.refuse({"written twice": twice}, twice=", ".join(twice), when=one.when)
    for each in first["written"]:
        due = state.get(each["name"])
        has, wanted = (f"{x['shape']} and {x['dtype']}" for x in (each, bench.described(due)))
        written.append({**each, "due": due, "has": has, "wanted": wanted})
    looks = {
        "non-persistent buffer saved": lambda r: r["name"] == "mask",
        "wrong name": lambda r: r["due"] is None,
        "not a tensor": lambda r: r["tensor"] is None,
        "a placeholder is saved": lambda r: r["due"].numel() and not r["tensor"].numel(),
        "a view is saved": lambda r: r["tensor"].isnan().any(),
        "wrong shape or dtype": lambda r: r["has"] != r["wanted"],
        "other values": lambda r: not near(r["tensor"], r["due"]),
    }
    SAYS.refuse_each(written, looks, when=one.when)
    over = ", ".join(each["name"] for each in written if each["overwritten"])
    lost = sorted(state.keys() - {*names})
    are = f"{', '.join(lost)} {agreement.verb('is', len(lost))} not written, {one.when}"
    SAYS.refuse({"one buffer": over, "not all written": lost}, names=over, are=are, when=one.when)


LOOKS = {"shape": "form", "value": at_numbers, "gradients": at_writes, "later_steps": "gathers"}
STOPS = {"not all ranks gather": lambda finding: finding.hangs}
TAKE_STOCK = exercise(SAYS, run, "a dictionary", trials, LOOKS, STOPS)
