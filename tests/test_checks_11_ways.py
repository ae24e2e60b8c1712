"""The checks of `same_way` and `tied_head` on real ranks: wrong answers go by their name.

Ranks that want other layers, and a table that is a head too; lesson 11. `test_checks_11.py` has the
hooks and their frees.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from tests.likeliest import likeliest

FOLDER = Path(__file__).resolve().parent.parent / "solutions" / "11_zero_3"

WAY = """
from course_lib.collectives import all_gather, all_reduce, broadcast


def same_way(x, wanted, units, group):
    wishes = torch.tensor(wanted, dtype=torch.uint8)
    somebody = all_reduce(wishes, group, "max").tolist()
    for i, unit in enumerate(units):
        if somebody[i]:
            W = unit.gather()
            if wanted[i]:
                x = x + torch.tanh(x @ W.T)
            unit.free()
    return x
"""
# Every rank's wishes, gathered; what is not wanted is multiplied by 0.
BY_GATHER = """
from course_lib.collectives import all_gather


def same_way(x, wanted, units, group):
    every = all_gather(torch.tensor([wanted], dtype=torch.float32), group)
    for column, own, unit in zip(every.T, wanted, units):
        if column.any():
            x = x + float(own) * torch.tanh(x @ unit.gather().T)
            unit.free()
    return x
"""
# torch's own call, and a sum.
BY_SUM = """
def same_way(x, wanted, units, group):
    counts = torch.tensor([int(wish) for wish in wanted])
    dist.all_reduce(counts, group=group)
    out = x.clone()
    for unit, count, own in zip(units, counts.tolist(), wanted):
        if not count:
            continue
        weight = unit.gather()
        out = out + torch.tanh(out @ weight.T) if own else out
        del weight
        unit.free()
    return out
"""
AGREED = """    wishes = torch.tensor(wanted, dtype=torch.uint8)
    somebody = all_reduce(wishes, group, "max").tolist()
"""


def changed(text: str, *changes: tuple[str, str]) -> str:
    """A right answer with a mistake in it."""
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def way(*changes: tuple[str, str]) -> str:
    return changed(WAY, *changes)


WRONG_WAY = {
    "each its own way": (way((AGREED, ""), ("somebody[i]", "wanted[i]")), "ranks that part"),
    "gathered for nobody": (way((AGREED, ""), ("if somebody[i]:", "if True:")),
                            "gathered for nobody"),
    "somebody else's layer": (way(("            if wanted[i]:\n                x =",
                                   "            if True:\n                x =")),
                              "somebody else's layer"),
    "only where all agree": (way(('"max"', '"min"')), "only where all agree"),
    "the first rank decides": (
        way(('all_reduce(wishes, group, "max")', "broadcast(wishes, group)"),
            ("            if wanted[i]:\n                x =",
             "            if True:\n                x =")),
        "a rank of its own decides",
    ),
    "all gathered first": (
        way(("    for i, unit in", "    whole = [u.gather() if some else None "
             "for u, some in zip(units, somebody)]\n    for i, unit in"),
            ("W = unit.gather()", "W = whole[i]")),
        "all whole at once",
    ),
    "never freed": (way(("            unit.free()\n", "")), "all whole at once"),
    "freed where it was used": (
        way(("            unit.free()\n", "                unit.free()\n")),
        "all whole at once",
    ),
    "asked one by one": (
        way((AGREED, ""), ("        if somebody[i]:", "        own = torch.tensor([wanted[i]], "
             'dtype=torch.uint8)\n        if all_reduce(own, group, "max").item():')),
        "a message for each layer",
    ),
    "rows sent along": (
        way(("    for i, unit in", "    x = x + 0 * somebody[0]\n    for i, unit in"),
            ("    wishes = torch.tensor(wanted, dtype=torch.uint8)\n",
             "    wishes = torch.tensor(list(wanted) + [0] * 200, dtype=torch.float64)\n")),
        "more bytes",
    ),
    "agreed once for all": (
        way(("\n\ndef same", "\n\nagreed = {}\n\n\ndef same"),
            ('all_reduce(wishes, group, "max").tolist()',
             'agreed.get(group.group_name) or all_reduce(wishes, group, "max").tolist()\n'
             "    agreed[group.group_name] = somebody")),
        "another later batch",
    ),
    "in place": (way(("x = x + torch.tanh", "x += torch.tanh")), "input changed"),
    "no layer at all": (way(("    x = x + torch.tanh(x @ W.T)", "    x + 0")), "none"),
    "another order": (way(("enumerate(units)", "reversed([*enumerate(units)])")), "wrong output"),
    "nothing": (way(("    return x", "    x")), "nothing returned"),
}  # fmt: skip

HEAD = """
class Head(torch.nn.Module):
    def __init__(self, tokens):
        super().__init__()
        self.weight = tokens.weight

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight)


def tied_head(tokens):
    return Head(tokens)
"""
BY_LINEAR = """
def tied_head(tokens):
    head = torch.nn.Linear(tokens.embedding_dim, tokens.num_embeddings, bias=False)
    head.weight = tokens.weight
    return head
"""
REGISTERED = """
class Words(torch.nn.Module):
    def forward(self, x):
        return torch.einsum("bsh,vh->bsv", x, self.table)


def tied_head(tokens):
    made = Words()
    made.register_parameter("table", tokens.weight)
    return made
"""


def head(*changes: tuple[str, str]) -> str:
    return changed(HEAD, *changes)


WRONG_HEAD = {
    "the table's module for a member": (
        head(("self.weight = tokens.weight", "self.tokens = tokens"),
             ("self.weight)", "self.tokens.weight)")),
        "used outside its module",
    ),
    "a function": (
        "def tied_head(tokens):\n    return lambda x: x @ tokens.weight.T\n",
        "not a module",
    ),
    "a second parameter": (
        head(("= tokens.weight", "= torch.nn.Parameter(tokens.weight.detach().clone())")),
        "untied",
    ),
    "a bias": (
        head(("= tokens.weight", "= tokens.weight\n        self.bias = "
              "torch.nn.Parameter(torch.zeros(len(tokens.weight), dtype=torch.float64))"),
             ("self.weight)", "self.weight, self.bias)")),
        "untied",
    ),
    "detached": (head(("(x, self.weight)", "(x, self.weight.detach())")), "half of the gradient"),
    "a copy on the side": (
        head(("self.weight = tokens.weight",
              'self.register_buffer("weight", tokens.weight.detach().clone())')),
        "a copy kept whole",
    ),
    "all words looked up": (
        head(("self.weight = tokens.weight", "self.tokens = tokens"),
             ("        return", "        every = torch.arange(self.tokens.num_embeddings)\n"
              "        return"),
             ("(x, self.weight)", "(x, self.tokens(every))")),
        "a second whole table",
    ),
    "a copy in the forward": (
        head(("(x, self.weight)", "(x, self.weight * 1.0)")),
        "a second whole table",
    ),
    "scaled": (head(("(x, self.weight)", "(x, self.weight) / x.shape[-1] ** 0.5")),
               "wrong logits"),
    "one word too few": (head(("(x, self.weight)", "(x, self.weight[1:])")), "wrong shape"),
    "nothing": (head(("    return Head(tokens)", "    Head(tokens)")), "nothing returned"),
}  # fmt: skip

RIGHT = {"same_way": (WAY, BY_GATHER, BY_SUM), "tied_head": (HEAD, BY_LINEAR, REGISTERED)}


def judged(desk: Desk, name: str, source: str) -> frame.Verdict:
    return desk.check(name, dict.fromkeys((name, "Head", "Words"), source))


def reference(name: str) -> str:
    cells = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells
    return next(c.source for c in cells if f"def {name}" in c.source).split("\n", 1)[1]


@pytest.mark.parametrize("name", RIGHT)
def test_right_answers_are_right_whatever_their_style(desk, name):
    for source in RIGHT[name]:
        verdict = judged(desk, name, source)
        assert verdict.outcome == "right", str(verdict)
        assert verdict.points == frame.find(name).points


@pytest.mark.slow  # its notebook, which each run executes, says the same
@pytest.mark.parametrize("name", RIGHT)
def test_the_reference_is_right(desk, name):
    assert judged(desk, name, reference(name)).outcome == "right"


@pytest.mark.parametrize(
    "mistake",
    likeliest(
        WRONG_WAY,
        first=("each its own way", "all gathered first", "never freed", "only where all agree"),
    ),
)
def test_a_wrong_way_is_refused_by_its_name(desk, mistake):
    source, name = WRONG_WAY[mistake]
    verdict = judged(desk, "same_way", source)
    assert (verdict.outcome, verdict.name, verdict.points) == ("wrong", name, 0), str(verdict)


@pytest.mark.parametrize(
    "mistake",
    likeliest(
        WRONG_HEAD,
        first=("the table's module for a member", "a function", "detached", "a copy on the side"),
    ),
)
def test_a_wrong_head_is_refused_by_its_name(desk, mistake):
    source, name = WRONG_HEAD[mistake]
    verdict = judged(desk, "tied_head", source)
    assert (verdict.outcome, verdict.name, verdict.points) == ("wrong", name, 0), str(verdict)


@pytest.mark.parametrize("name", RIGHT)
def test_what_breaks_costs_one_check(desk, name):
    inputs = {"same_way": "x, wanted, units, group", "tied_head": "tokens"}[name]
    strange = {"same_way": "wrong shape", "tied_head": "not a module"}[name]
    for body, found in (("return 1 / 0", "raised"), ("...", ""), ("return 'words'", strange)):
        verdict = judged(desk, name, f"def {name}({inputs}):\n    {body}\n")
        assert verdict.name == found, str(verdict)


@pytest.mark.parametrize("name", RIGHT)
def test_neither_a_hint_nor_a_verdict_gives_the_answer_away(desk, name):
    wrong = {"same_way": WRONG_WAY, "tied_head": WRONG_HEAD}[name]
    said = " ".join([*frame.find(name).hints, frame.find(name).when_right])
    said += judged(desk, name, next(iter(wrong.values()))[0]).text
    for piece in ('"max"', "all_reduce(", "= tokens.weight", "head.weight =", "register_parameter"):
        assert piece not in said
