"""Answers to `promise` of lesson 11: right ones, and likely wrong ones with their names."""

from __future__ import annotations

from tests.course_lessons.answers import changed

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


def hooks(*changes: tuple[str, str]) -> str:
    return changed(HOOKS, *changes)


RENEW = "        self.buffer.untyped_storage().resize_(self.buffer.numel() * 8)\n"
BEHIND = "            output.register_hook(lambda grad: part.gather())\n            part.free()\n"
SEND = "                part.send()\n                part.free()\n"
SENT = "reduce_scatter(whole, self.group)"
WRONG_PROMISE = {
    "never freed": (
        hooks(
            (BEHIND, "            pass\n"),
            (SEND, "                part.send()\n"),
        ),
        "not freed after the forward",
    ),
    "not freed in the backward": (
        hooks((SEND, "                part.send()\n")),
        "not freed in the backward",
    ),
    "the shard is a view": (
        hooks(("[group.rank()].clone().requires_grad_()", "[group.rank()].requires_grad_()"),
              ("        self.buffer = self.flat([p.detach() for p in self.parameters])\n",
               "        whole = self.flat([p.detach() for p in self.parameters])\n"
               "        self.buffer = whole.clone()\n"),
              ("self.shard = self.buffer.chunk", "self.shard = whole.chunk")),
        "sharded, full copy kept",
    ),
    "not cut at all": (
        "def promise(layers, group):\n"
        "    return [torch.cat((l.weight.detach().flatten(), l.bias.detach())).requires_grad_()"
        " for l in layers]\n",
        "not sharded",
    ),
    "kept after the forward alone": (
        hooks((BEHIND, "            output.register_hook(lambda grad: part.gather())\n")),
        "not freed after the forward",
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
    "whole gradients kept": (
        hooks(("        self.shard.grad", "        self.sent = whole\n        self.shard.grad")),
        "not freed in the backward",
    ),
    "own rows": (hooks((SENT, "whole.chunk(self.group.size())[self.group.rank()].clone()")),
                 "only own rows"),
    "a mean": (hooks((SENT, SENT + " / self.group.size()")), "a mean"),
    "summed twice": (hooks((SENT, "reduce_scatter(all_reduce(whole, self.group), self.group)")),
                     "n times"),
    "all-reduce, then split": (
        hooks((SENT, "all_reduce(whole, self.group).chunk(self.group.size())"
               "[self.group.rank()].clone()")),
        "all-reduce, then split",
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
        "wrong second step",
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
        "wrong rank's piece",
    ),
    "another's piece": (
        hooks(("[group.rank()].clone()", "[group.rank() - 1].clone()")),
        "wrong rank's piece",
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
    "reduced to one rank": (
        hooks(
            (
                "self.shard.grad = reduce_scatter(whole, self.group)",
                "first = torch.distributed.get_global_rank(self.group, 0)\n"
                "        torch.distributed.reduce(whole, first, group=self.group)\n"
                "        own = whole.chunk(self.group.size())[self.group.rank()]\n"
                "        self.shard.grad = own.clone()",
            )
        ),
        "on one rank only",
    ),
    "parts in a global": (
        hooks(
            ("\n\ndef promise", "\n\nparts = []\n\n\ndef promise"),
            (
                "    parts = [Part(layer, group) for layer in layers]\n"
                "    for layer, part in zip(layers, parts):",
                "    parts.extend(Part(layer, group) for layer in layers)\n"
                "    for layer, part in zip(layers, parts[-len(layers) :]):",
            ),
            ("for part in parts]", "for part in parts[: len(layers)]]"),
        ),
        "wrong size",
    ),
    "shards of float32": (
        hooks(("all_gather(self.shard.detach(), self.group, into=self.buffer)",
               "self.buffer.copy_(all_gather(self.shard.detach().float(), self.group))")),
        "rounded on the way",
    ),
}  # fmt: skip

RIGHT: dict = {
    "promise": {"hooks": HOOKS, "a function of its own": BY_FUNCTION, "asked ahead": AHEAD}
}
WRONG: dict = {"promise": WRONG_PROMISE}
