"""The check of `promise` on real ranks: right answers pass, plausible wrong ones go by their name.

The hooks and their frees of lesson 11. `test_checks_11_ways.py` has the branches and the tied head,
`test_checks_11_numbers.py` the question with numbers.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from tests.likeliest import likeliest

PATH = Path(__file__).resolve().parent.parent / "solutions" / "11_zero_3" / "promise.ipynb"

HOOKS = """
from course_lib.collectives import all_gather, all_reduce, reduce_scatter


class Part:
    def __init__(self, layer, group):
        self.parameters, self.group = list(layer.parameters()), group
        self.shapes = [p.shape for p in self.parameters]
        self.buffer = self.flat([p.detach() for p in self.parameters])
        self.shard = self.buffer.chunk(group.size())[group.rank()].clone().requires_grad_()

    def flat(self, tensors):
        joined = torch.cat([t.flatten() for t in tensors])
        return torch.nn.functional.pad(joined, (0, -joined.numel() % self.group.size()))

    def gather(self):
        self.buffer.untyped_storage().resize_(self.buffer.numel() * 8)
        all_gather(self.shard.detach(), self.group, into=self.buffer)
        at = 0
        for p, shape in zip(self.parameters, self.shapes):
            p.data = self.buffer[at : at + shape.numel()].view(shape)
            at += shape.numel()

    def free(self):
        for p in self.parameters:
            p.data = self.buffer.new_empty(0)
        self.buffer.untyped_storage().resize_(0)

    def send(self):
        whole = self.flat([p.grad for p in self.parameters])
        for p in self.parameters:
            p.grad = None
        self.shard.grad = reduce_scatter(whole, self.group)


def promise(layers, group):
    parts = [Part(layer, group) for layer in layers]
    for layer, part in zip(layers, parts):
        part.free()

        def behind(module, inputs, output, part=part):
            output.register_hook(lambda grad: part.gather())
            part.free()

        def came(parameter, part=part):
            if all(p.grad is not None for p in part.parameters):
                part.send()
                part.free()

        layer.register_forward_pre_hook(lambda *_, part=part: part.gather())
        layer.register_forward_hook(behind)
        for p in part.parameters:
            p.register_post_accumulate_grad_hook(came)
    return [part.shard for part in parts]
"""
# No hooks: each layer's forward is a function whose backward gathers, by hand.
BY_FUNCTION = """
from course_lib.collectives import all_gather, reduce_scatter


class Promised(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard, shape, group):
        ctx.save_for_backward(x, shard)
        ctx.shape, ctx.group = shape, group
        weight, bias = whole(shard, shape, group)
        return x @ weight.T + bias

    @staticmethod
    def backward(ctx, dy):
        x, shard = ctx.saved_tensors
        weight, _ = whole(shard, ctx.shape, ctx.group)
        flat = torch.cat(((dy.T @ x).flatten(), dy.sum(0)))
        own = reduce_scatter(padded(flat, ctx.group), ctx.group)
        return dy @ weight, own, None, None


def padded(flat, group):
    return torch.nn.functional.pad(flat, (0, -flat.numel() % group.size()))


def whole(shard, shape, group):
    flat = all_gather(shard, group)
    size = shape[0] * shape[1]
    return flat[:size].view(shape), flat[size : size + shape[0]]


def promise(layers, group):
    shards = []
    for layer in layers:
        flat = torch.cat((layer.weight.detach().flatten(), layer.bias.detach()))
        shard = padded(flat, group).chunk(group.size())[group.rank()].clone().requires_grad_()
        shape = tuple(layer.weight.shape)
        layer.weight.data = layer.bias.data = torch.empty(0)
        layer.forward = lambda x, s=shard, w=shape: Promised.apply(x, s, w, group)
        shards.append(shard)
    return shards
"""
# The next layer is asked for while one is at work, and the last one stays for its backward.
AHEAD = HOOKS.replace(
    "        layer.register_forward_pre_hook(lambda *_, part=part: part.gather())\n",
    "        layer.register_forward_pre_hook(\n"
    "            lambda *_, part=part: None if part.whole() else part.gather())\n",
).replace(
    "    def free(self):\n",
    "    def whole(self):\n        return self.buffer.untyped_storage().nbytes() > 0\n\n"
    "    def free(self):\n",
).replace(
    "            output.register_hook(lambda grad: part.gather())\n            part.free()\n",
    "            output.register_hook(lambda grad: None if part.whole() else part.gather())\n"
    "            if part is not parts[-1]:\n                part.free()\n",
)  # fmt: skip


def changed(text: str, *changes: tuple[str, str]) -> str:
    """A right answer with a mistake in it."""
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def hooks(*changes: tuple[str, str]) -> str:
    return changed(HOOKS, *changes)


RENEW = "        self.buffer.untyped_storage().resize_(self.buffer.numel() * 8)\n"
BEHIND = "            output.register_hook(lambda grad: part.gather())\n            part.free()\n"
SEND = "                part.send()\n                part.free()\n"
SENT = "reduce_scatter(whole, self.group)"
WRONG = {
    "never freed": (
        hooks(
            (BEHIND, "            pass\n"),
            (SEND, "                part.send()\n"),
        ),
        "not freed behind the forward",
    ),
    "kept after the forward alone": (
        hooks((BEHIND, "            output.register_hook(lambda grad: part.gather())\n")),
        "not freed behind the forward",
    ),
    "the tensor replaced": (
        hooks(
            ("\n        self.buffer.untyped_storage().resize_(0)", "\n        self.buffer = None"),
            (RENEW, ""),
            ("        all_gather(self.shard.detach(), self.group, into=self.buffer)\n",
             "        self.buffer = all_gather(self.shard.detach(), self.group)\n"),
            ("p.data = self.buffer.new_empty(0)", "p.data = torch.empty(0, dtype=p.dtype)"),
        ),
        "the graph keeps it",
    ),
    "not freed in the backward": (
        hooks((SEND, "                part.send()\n")),
        "not freed in the backward",
    ),
    "whole gradients kept": (
        hooks(("        self.shard.grad", "        self.sent = whole\n        self.shard.grad")),
        "not freed in the backward",
    ),
    "own rows": (hooks((SENT, "whole.chunk(self.group.size())[self.group.rank()].clone()")),
                 "own rows alone"),
    "a mean": (hooks((SENT, SENT + " / self.group.size()")), "a mean"),
    "summed twice": (hooks((SENT, "reduce_scatter(all_reduce(whole, self.group), self.group)")),
                     "n times"),
    "all-reduce, then cut": (
        hooks((SENT, "all_reduce(whole, self.group).chunk(self.group.size())"
               "[self.group.rank()].clone()")),
        "all-reduce, then cut",
    ),
    "the shard is a view": (
        hooks(("[group.rank()].clone().requires_grad_()", "[group.rank()].requires_grad_()"),
              ("        self.buffer = self.flat([p.detach() for p in self.parameters])\n",
               "        whole = self.flat([p.detach() for p in self.parameters])\n"
               "        self.buffer = whole.clone()\n"),
              ("self.shard = self.buffer.chunk", "self.shard = whole.chunk")),
        "cut, and kept whole",
    ),
    "not cut at all": (
        "def promise(layers, group):\n"
        "    return [torch.cat((l.weight.detach().flatten(), l.bias.detach())).requires_grad_()"
        " for l in layers]\n",
        "not cut",
    ),
    "padding forgotten": (
        "def promise(layers, group):\n"
        "    flat = [torch.cat((l.weight.detach().flatten(), l.bias.detach())) for l in layers]\n"
        "    n, r = group.size(), group.rank()\n"
        "    return [f[r * (f.numel() // n) : (r + 1) * (f.numel() // n) - 1].clone()"
        ".requires_grad_() for f in flat]\n",
        "wrong size",
    ),
    "sent at the first gradient": (
        hooks(("if all(p.grad is not None for p in part.parameters):", "if True:"),
              ("self.flat([p.grad for p in self.parameters])",
               "self.flat([torch.zeros(s, dtype=torch.float64) if p.grad is None else p.grad"
               " for p, s in zip(self.parameters, self.shapes)])"),
              ("                part.free()\n", "                part.free() if parameter is "
               "part.parameters[0] else None\n")),
        "wrong gradient",
    ),
    "no gradient": (hooks(("        self.shard.grad = ", "        own = ")), "no gradient"),
    "a copy is gathered": (
        hooks(("all_gather(self.shard.detach(), self", "all_gather(self.first, self"),
              (".clone().requires_grad_()\n",
               ".clone().requires_grad_()\n        self.first = self.shard.detach().clone()\n")),
        "another second step",
    ),
    "a message for each parameter": (
        hooks(("        all_gather(self.shard.detach(), self.group, into=self.buffer)\n",
               "        k = self.shard.numel() // 2\n"
               "        a = all_gather(self.shard.detach()[None, :k], self.group)\n"
               "        b = all_gather(self.shard.detach()[None, k:], self.group)\n"
               "        self.buffer.copy_(torch.cat((a, b), 1).flatten())\n")),
        "a message for each parameter",
    ),
    "bias before weight": (
        hooks(("list(layer.parameters()), group", "list(layer.parameters())[::-1], group")),
        "somebody else's piece",
    ),
    "another's piece": (
        hooks(("[group.rank()].clone()", "[group.rank() - 1].clone()")),
        "somebody else's piece",
    ),
    "no leaves": (
        hooks(("return [part.shard for part in parts]", "return [part.shard.detach() for part in "
               "parts]")),
        "shards that take no gradient",
    ),
    "a dictionary": (
        hooks(("return [part.shard for part in parts]",
               "return {i: part.shard for i, part in enumerate(parts)}")),
        "not a list of tensors",
    ),
    "nothing": (hooks(("    return [part.shard for part in parts]", "    parts")),
                "nothing returned"),
}  # fmt: skip


def judged(desk: Desk, source: str) -> frame.Verdict:
    return desk.check("promise", dict.fromkeys(("promise", "Part", "Promised"), source))


def test_right_answers_are_right_whatever_their_style(desk):
    for source in (HOOKS, BY_FUNCTION, AHEAD):
        verdict = judged(desk, source)
        assert verdict.outcome == "right", str(verdict)
        assert verdict.points == frame.find("promise").points


def test_the_solution_is_right(desk):
    cells = [c.source.split("\n", 1)[1] for c in nbformat.read(PATH, as_version=4).cells
             if c.source.startswith("%%ranks")]  # fmt: skip
    unit = next(c for c in cells if "class Unit" in c)
    own = next(c for c in cells if "def promise" in c)
    names = ("promise", "gather", "free", "send", "lay")
    verdict = desk.check("promise", {**dict.fromkeys(names, own), "Unit": unit})
    assert verdict.outcome == "right", str(verdict)


@pytest.mark.parametrize(
    "mistake",
    likeliest(
        WRONG,
        first=("never freed", "not freed in the backward", "the shard is a view", "not cut at all"),
    ),
)
def test_a_wrong_promise_is_refused_by_its_name(desk, mistake):
    source, name = WRONG[mistake]
    verdict = judged(desk, source)
    assert (verdict.outcome, verdict.name, verdict.points) == ("wrong", name, 0), str(verdict)


def test_what_breaks_costs_one_check(desk):
    for body, found in (
        ("return 1 / 0", "raised"),
        ("...", ""),
        ("return 'shards'", "not a list of tensors"),
        ("return [group]", "not a list of tensors"),
    ):
        verdict = judged(desk, f"def promise(layers, group):\n    {body}\n")
        assert verdict.name == found, str(verdict)
    assert judged(desk, HOOKS).outcome == "right"


def test_neither_a_hint_nor_a_verdict_gives_the_answer_away(desk):
    some = [WRONG[name][0] for name in ("never freed", "the tensor replaced")]
    exercise = frame.find("promise")
    said = " ".join([*exercise.hints, exercise.when_right])
    said += " ".join(judged(desk, source).text for source in some)
    for piece in ("resize_(0)", "untyped_storage", "new_empty(0)", "scatter(", "all_gather("):
        assert piece not in said
