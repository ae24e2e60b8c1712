"""Answers to `same_way` and `tied_head` of lesson 11, right and likely wrong ones."""

from __future__ import annotations

from tests.course_lessons.answers import changed

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


def way(*changes: tuple[str, str]) -> str:
    return changed(WAY, *changes)


WRONG_WAY = {
    "each its own way": (
        way((AGREED, ""), ("somebody[i]", "wanted[i]")), "ranks in different gathers"
    ),
    "all gathered first": (
        way(("    for i, unit in", "    whole = [u.gather() if some else None "
             "for u, some in zip(units, somebody)]\n    for i, unit in"),
            ("W = unit.gather()", "W = whole[i]")),
        "all gathered at once",
    ),
    "never freed": (way(("            unit.free()\n", "")), "all gathered at once"),
    "only where all agree": (way(('"max"', '"min"')), "only where all agree"),
    "unneeded gathers": (way((AGREED, ""), ("if somebody[i]:", "if True:")),
                            "unneeded gathers"),
    "unwanted layer used": (way(("            if wanted[i]:\n                x =",
                                   "            if True:\n                x =")),
                              "unwanted layer used"),
    "the first rank decides": (
        way(('all_reduce(wishes, group, "max")', "broadcast(wishes, group)"),
            ("            if wanted[i]:\n                x =",
             "            if True:\n                x =")),
        "first rank decides",
    ),
    "freed where it was used": (
        way(("            unit.free()\n", "                unit.free()\n")),
        "all gathered at once",
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
        "wrong in a later batch",
    ),
    "in place": (way(("x = x + torch.tanh", "x += torch.tanh")), "input changed"),
    "no layer at all": (way(("    x = x + torch.tanh(x @ W.T)", "    x + 0")), "none"),
    "wrong order": (way(("enumerate(units)", "reversed([*enumerate(units)])")), "wrong output"),
    "nothing": (way(("    return x", "    x")), "nothing returned"),
    "a copy of each weight": (
        way(
            ("\n\ndef same", "\n\nkept = {}\n\n\ndef same"),
            ("W = unit.gather()", "W = kept[i] = unit.gather().clone()"),
        ),
        "full copies kept",
    ),
    "a copy until the next one": (
        way(("W = unit.gather()", "W = unit.gather().clone()")),
        "full copies kept",
    ),
    "units taken out of the list": (
        way(("enumerate(units)", "enumerate([units.pop(0) for _ in wanted])")),
        "input changed",
    ),
    "only where the first rank wants": (
        way(('all_reduce(wishes, group, "max")', "broadcast(wishes, group)")),
        "first rank decides",
    ),
    "more than half": (
        way(("if somebody[i]:", "if somebody[i] > 1:"), (', "max"', "")),
        "only where most agree",
    ),
    "one vote": (
        way(("if somebody[i]:", "if somebody[i] == 1:"), (', "max"', "")),
        "exactly one vote",
    ),
    "W as it is": (way(("x @ W.T", "x @ W")), "W not transposed"),
    "no residual": (way(("x = x + torch.tanh", "x = torch.tanh")), "x left out"),
    "nothing to do": (
        way(("    wishes =", "    if not any(wanted):\n        return x\n    wishes =")),
        "left out by an empty rank",
    ),
    "in float32": (
        way(("torch.tanh(x @ W.T)", "torch.tanh(x.float() @ W.float().T).double()")),
        "rounded on the way",
    ),
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
    "detached": (head(("(x, self.weight)", "(x, self.weight.detach())")), "half of the gradient"),
    "a copy on the side": (
        head(("self.weight = tokens.weight",
              'self.register_buffer("weight", tokens.weight.detach().clone())')),
        "full copy kept",
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
    "all words looked up": (
        head(("self.weight = tokens.weight", "self.tokens = tokens"),
             ("        return", "        every = torch.arange(self.tokens.num_embeddings)\n"
              "        return"),
             ("(x, self.weight)", "(x, self.tokens(every))")),
        "a second full table",
    ),
    "a copy in the forward": (
        head(("(x, self.weight)", "(x, self.weight * 1.0)")),
        "a second full table",
    ),
    "scaled": (head(("(x, self.weight)", "(x, self.weight) / x.shape[-1] ** 0.5")),
               "wrong logits"),
    "one word too few": (head(("(x, self.weight)", "(x, self.weight[1:])")), "wrong shape"),
    "nothing": (head(("    return Head(tokens)", "    Head(tokens)")), "nothing returned"),
    "the table of the last": (
        head(
            ("self.weight = tokens.weight", "Head.last = self.weight = tokens.weight"),
            ("(x, self.weight)", "(x, Head.last)"),
        ),
        "one head for all",
    ),
    "a head for each size": (
        head(
            ("class Head", "heads = {}\n\n\nclass Head"),
            ("return Head(tokens)", "return heads.setdefault(tokens.weight.shape, Head(tokens))"),
        ),
        "one head for all",
    ),
    "the other way round": (
        "def tied_head(tokens):\n"
        "    head = torch.nn.Linear(tokens.embedding_dim, tokens.num_embeddings, bias=False)\n"
        "    tokens.weight = head.weight\n    return head\n",
        "embedding changed",
    ),
    "in float32": (
        head(("(x, self.weight)", "(x.float(), self.weight.float()).double()")),
        "rounded on the way",
    ),
}  # fmt: skip

RIGHT: dict = {
    "same_way": {"a vote": WAY, "wishes gathered": BY_GATHER, "a sum": BY_SUM},
    "tied_head": {"a module": HEAD, "a Linear": BY_LINEAR, "registered": REGISTERED},
}
WRONG: dict = {"same_way": WRONG_WAY, "tied_head": WRONG_HEAD}
