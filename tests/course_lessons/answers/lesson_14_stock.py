"""Answers to `take_stock` of lesson 14: right, right by another road, and wrong in likely ways."""

from __future__ import annotations

from tests.course_lessons.answers import changed

STOCK = """
def take_stock(model, gathered, write, group):
    state = model.state_dict(keep_vars=True)
    own = set(model.parameters())
    empty = [name for name, x in state.items() if x.numel() == 0 and x in own]
    decay, count, squares = [], 0, torch.zeros((), dtype=torch.float64)
    for name, p in model.named_parameters():
        with gathered(p):
            count += p.numel()
            squares += p.detach().square().sum()
            if p.dim() == 2:
                decay.append(name)
            for other, x in state.items():
                if x is p and group.rank() == 0:
                    write(other, p.detach().clone())
    for name, x in state.items():
        if x not in own and group.rank() == 0:
            write(name, x)
    return {
        "placeholders": empty,
        "decay": decay,
        "numel": count,
        "norm": squares.sqrt(),
    }
"""
# Notes of every tensor first, from one pass; what rank 0 writes comes out of the block as a copy.
BY_NOTES = """
def take_stock(model, gathered, write, group):
    notes, empty = {}, []
    by_id = {}
    for name, x in model.state_dict(keep_vars=True).items():
        if isinstance(x, torch.nn.Parameter) and not x.nelement():
            empty.append(name)
        by_id.setdefault(id(x), (x, []))[1].append(name)
    own = dict(model.named_parameters())
    for x, names in by_id.values():
        with gathered(x):
            whole = x.detach().clone()
        for name in names:
            if not group.rank():
                write(name, whole)
        if names[0] in own:
            notes[names[0]] = whole.dim(), whole.numel(), float(whole.norm())
    return dict(
        placeholders=empty,
        decay=[name for name, (dims, _, _) in notes.items() if dims == 2],
        numel=sum(n for _, n, _ in notes.values()),
        norm=sum(norm**2 for _, _, norm in notes.values()) ** 0.5,
    )
"""
OPEN = "        with gathered(p):\n"
WRITE = """                if x is p and group.rank() == 0:
                    write(other, p.detach().clone())
"""


def stock(*changes: tuple[str, str]) -> str:
    return changed(STOCK, *changes)


DIMS = "if p.dim() == 2:"
NOT_OWN = "        if x not in own"
WRITES = "    for name, x in state.items():\n        if x not in own and group.rank() == 0:\n"
BUFFERS = "    for name, x in model.named_buffers():\n        if group.rank() == 0:\n"
WRONG_STOCK = {
    "three dims decay": (stock((DIMS, "if p.dim() > 1:")), "more than two dims"),
    "all buffers are written": (stock((WRITES, BUFFERS)), "non-persistent buffer saved"),
    "an empty buffer is a placeholder": (
        stock((" and x in own]", "]")), "an empty buffer"
    ),
    "one buffer for a name": (
        stock(("(model, gathered, write, group)", "(model, gathered, write, group, kept={})"),
              ("p.detach().clone())",
               "kept.setdefault(other, torch.empty_like(p)).copy_(p.detach()))")),
        "one buffer",
    ),
    "the notebook's rank 0 writes": (
        STOCK.replace("group.rank()", "dist.get_rank()"), "uses world numbers"
    ),
    "the state_dict as it is": (
        stock(("            for other, x in state.items():\n" + WRITE, ""),
              (NOT_OWN + " and group", "        if group")),
        "a placeholder is saved",
    ),
    "rank 0 alone gathers": (
        stock((OPEN, "        from contextlib import nullcontext\n"
               "        with gathered(p) if group.rank() == 0 else nullcontext():\n")),
        "not all ranks gather",
    ),
    "a view is written": (stock(("write(other, p.detach().clone())", "write(other, p.detach())")),
                          "a view is saved"),
    "dims outside the block": (
        stock((OPEN, "        if p.dim() == 2:\n            decay.append(name)\n" + OPEN),
              ("            if p.dim() == 2:\n                decay.append(name)\n", "")),
        "dims of a placeholder",
    ),
    "counted outside": (
        stock((OPEN, "        count += p.numel()\n" + OPEN),
              ("            count += p.numel()\n", "")),
        "placeholders counted",
    ),
    "norm outside": (
        stock((OPEN, "        squares += p.detach().square().sum()\n" + OPEN),
              ("            squares += p.detach().square().sum()\n", "")),
        "placeholders counted",
    ),
    "all at once": (
        stock(("    for name, p in model.named_parameters():\n",
               "    whole = gathered(model)\n    whole.__enter__()\n"
               "    for name, p in model.named_parameters():\n"),
              ("    return {", "    whole.__exit__(None, None, None)\n    return {")),
        "all gathered at once",
    ),
    "gathered for each question": (
        stock((OPEN, "        with gathered(p):\n            count += p.numel()\n" + OPEN),
              ("            count += p.numel()\n            squares", "            squares")),
        "gathered twice",
    ),
    "every rank writes": (
        stock((" and group.rank() == 0:\n                    write",
               ":\n                    write")),
        "every rank writes",
    ),
    "one element is a placeholder": (
        stock(("if x.numel() == 0 and", "if x.numel() <= 1 and")), "one element is no placeholder"
    ),
    "parameters' names alone": (
        stock(("in state.items() if x.numel() == 0 and x in own]",
               "in model.named_parameters() if x.numel() == 0]")),
        "second name missed",
    ),
    "one name of the tied": (
        stock(("if x is p and", "if x is p and other == name and")), "not all written"
    ),
    "buffers forgotten": (
        stock(("            write(name, x)\n", "            pass\n")), "not all written"
    ),
    "the tied one twice": (
        stock(("            count += p.numel()\n",
               "            count += sum(x.numel() for x in state.values() if x is p)\n")),
        "tied twice",
    ),
    "buffers counted": (
        stock((NOT_OWN, "        count += x.numel() if x not in own else 0\n" + NOT_OWN)),
        "buffers counted",
    ),
    "what is cut alone": (
        stock(("            count += p.numel()\n",
               "            count += p.numel() if name in empty else 0\n")),
        "only sharded parameters",
    ),
    "norms added": (
        stock(("p.detach().square().sum()", "p.detach().norm()"), ("squares.sqrt()", "squares")),
        "norms added",
    ),
    "no root": (stock(("squares.sqrt()", "squares")), "squared"),
    "all decay": (stock(("if p.dim() == 2:", "if p.dim():")), "all decay"),
    "both names decay": (
        stock(("decay.append(name)", "decay += [k for k, x in state.items() if x is p]")),
        "more than the parameters",
    ),
    "looked for while whole": (
        stock(("    return {", "    empty = []\n    return {")), "looked at while gathered"
    ),
    "sums sent": (
        stock(("    return {", "    dist.all_reduce(squares.clone(), group=group)\n    return {")),
        "more messages",
    ),
    "written twice": (
        stock(("                    write(other, p.detach().clone())\n",
               "                    write(other, p.detach().clone())\n"
               "                    write(other, p.detach().clone())\n")),
        "written twice",
    ),
    "halved": (stock(("write(other, p.detach().clone())", "write(other, p.detach() / 2)")),
               "other values"),
    "a list of numbers": (
        stock(("write(other, p.detach().clone())", "write(other, p.tolist())")), "not a tensor"
    ),
    "with a prefix": (
        stock(("write(other, p", 'write("module." + other, p')), "wrong name"
    ),
    "a norm of names": (stock(('"numel": count', '"numel": [str(count)]')), "wrong type"),
    "a key missing": (stock(('        "numel": count,\n', "")), "a key missing"),
    "a tuple": (stock(("    return {", "    return 1, {")), "not a dictionary"),
    "nothing": (stock(("    return {", "    made = {")), "nothing returned"),
    "placeholders decay": (
        stock(("if p.dim() == 2:", "if name in empty:")), "placeholders decay"
    ),
    "what is no vector decays": (
        stock((DIMS, 'if "bias" not in name and "norm" not in name and p.dim() != 1:')),
        "more than two dims",
    ),
    "matrices are what has columns": (
        stock((DIMS, "if len(p.shape[1:]):")), "more than two dims"
    ),
    "what is not saved is written as well": (
        stock(("    return {", "    for name, x in model.named_buffers():\n"
               "        if name not in state and group.rank() == 0:\n            write(name, x)\n"
               "    return {")),
        "non-persistent buffer saved",
    ),
    "every entry is counted": (
        stock((NOT_OWN, "        count += x.numel()\n" + NOT_OWN)),
        "numel misread",
    ),
    "nothing in it is a placeholder": (
        stock((" and x in own]", ' and x.dim()]')), "an empty buffer"
    ),
    "float32 is written": (
        stock(("write(other, p.detach().clone())", "write(other, p.detach().float())")),
        "wrong shape or dtype",
    ),
}  # fmt: skip

PLAIN = stock(("squares.sqrt()", "squares.float().sqrt()"), ('"decay": decay', '"decay": {*decay}'))
BY_CLASS = """
class Stock:
    def __init__(self, model):
        self.model, self.own = model, {id(p): name for name, p in model.named_parameters()}
        self.names = {}
        for name, x in model.state_dict(keep_vars=True).items():
            self.names.setdefault(id(x), []).append((name, x))

    def is_placeholder(self, x):
        return id(x) in self.own and 0 in x.shape


def take_stock(model, gathered, write, group):
    stock, squares = Stock(model), []
    report = {"placeholders": set(), "decay": [], "numel": 0}
    for key, entries in stock.names.items():
        x = entries[0][1]
        with gathered(x):
            if x.numel() > 16 and key in stock.own:
                report["placeholders"].update(name for name, _ in entries)
            if group.rank() == 0:
                [write(name, x.data.clone()) for name, _ in entries]
            if key in stock.own:
                rows = list(x.shape)
                report["decay"] += [stock.own[key]] * (len(rows) == 2)
                report["numel"] += x.numel()
                squares.append(torch.linalg.vector_norm(x.detach()))
    return {**report, "norm": torch.stack(squares).norm().item()}
"""
RIGHT = {
    "take_stock": {
        "all gathered": STOCK,
        "by notes": BY_NOTES,
        "a norm of float32": PLAIN,
        "a class that takes stock": BY_CLASS,
        "buffers by what the state_dict names": stock(
            (WRITES, BUFFERS.replace("if group", "if name in state and group"))
        ),
    }
}
WRONG = {"take_stock": WRONG_STOCK}
