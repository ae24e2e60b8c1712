"""Answers to `two_collectives` of lesson 07: right ones, and likely wrong ones with their names."""

from __future__ import annotations

from tests.course_lessons.answers import changed
from tests.course_lessons.answers.lesson_07_tried import HEAD, SUMS

TWO = f"""{HEAD}
class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets, start, group):
        t, width = logits.shape
        own = logits.amax(-1)
        m = all_reduce(own, group, "max")
        e = (logits - m[:, None]).exp_()
        local = targets - start
        here = (local >= 0) & (local < width)
        local = local.clamp(0, width - 1)
        some = logits.gather(1, local[:, None])[:, 0]
        {SUMS}
        e.div_(total[:, None])
        ctx.save_for_backward(e, here, local)
        return total.log() + m - l_y

    @staticmethod
    def backward(ctx, grad):
        p, here, local = ctx.saved_tensors
        p = p.clone()
        p[torch.arange(len(p)), local] -= here.to(p.dtype)
        return p * grad[:, None], None, None, None

"""
CALL = """
def two_collectives(logits, targets, start, group):
    return Loss.apply(logits, targets, start, group)
"""
BY_AUTOGRAD = f"""{HEAD}
from course_lib.tensor_parallel.conjugates import reduce

def two_collectives(logits, targets, start, group):
    m = all_reduce(logits.detach().amax(-1), group, "max")
    local = targets - start
    here = (local >= 0) & (local < logits.shape[-1])
    some = logits.gather(-1, local.clamp(0, logits.shape[-1] - 1)[:, None])[:, 0]
    own = torch.stack([(logits - m[:, None]).exp().sum(-1), torch.where(here, some, 0.0)])
    total, l_y = reduce(own, group)
    return total.log() + m - l_y
"""
CLOSURE = f"""{HEAD}
def two_collectives(logits, targets, start, group):
    width = logits.shape[1]
    with torch.no_grad():
        own = logits.amax(-1)
        base = torch.where(own.isinf(), 0.0, own)
        s = (logits - base[:, None]).exp().sum(-1)
        local = targets - start
        here = (local >= 0) & (local < width)
        l_y = logits.gather(1, local.clamp(0, width - 1)[:, None])[:, 0]
        m = all_reduce(own, group, "max")
        both = torch.stack((s * (own - m).exp(), torch.where(here, l_y, 0.0)))
        s, l_y = all_reduce(both, group)

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return m + s.log() - l_y

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            p = (x - m[:, None]).exp() / s[:, None]
            p[here.nonzero()[:, 0], local[here]] -= 1
            return p * grad[:, None]

    return Own.apply(logits)
"""


def two(*pairs: tuple[str, str], before: str = "") -> str:
    text = changed(TWO, *pairs)
    return text.replace("class Loss", f"{before}\n\nclass Loss") + CALL


RIGHT: dict = {
    "two_collectives": {
        "the Function's own apply": TWO + "two_collectives = Loss.apply\n",
        "a class in another cell": [TWO, HEAD + CALL],
        "two, by autograd": BY_AUTOGRAD,
        "a class made at each call": CLOSURE,
    }
}
WRONG: dict = {
    "two_collectives": {
        "kept in the class": (
            two(
                ("ctx.save_for_backward(e, here, local)", "Loss.saved = (e, here, local)"),
                ("ctx.saved_tensors", "Loss.saved"),
            ),
            "second call in between",
        ),
        "a part kept in a global": (
            two(
                (
                    "ctx.save_for_backward(e, here, local)",
                    "ctx.save_for_backward(e)\n        STATE.update(here=here, local=local)",
                ),
                (
                    "p, here, local = ctx.saved_tensors",
                    "(p,), (here, local) = ctx.saved_tensors, STATE.values()",
                ),
                before="STATE = {}",
            ),
            "second call in between",
        ),
        "the largest logit of all tokens": (
            two(("logits.amax(-1)", "logits.max().repeat(t)")),
            "one largest logit for all tokens",
        ),
        "grad.mean()": (
            two(("p * grad[:, None]", "p * grad.mean()")),
            "one gradient for all tokens",
        ),
        "divided by the tokens": (
            two(("p * grad[:, None]", "p * grad[:, None] / len(p)")),
            "gradient of the mean",
        ),
        "its start kept in a global": (
            two(
                (
                    "ctx.save_for_backward(e, here, local)",
                    "ctx.save_for_backward(e, targets)\n        STATE.update(start=start)",
                ),
                (
                    "p, here, local = ctx.saved_tensors",
                    "p, targets = ctx.saved_tensors\n        local = targets - STATE['start']\n"
                    "        here = (local >= 0) & (local < p.shape[1])\n"
                    "        local = local.clamp(0, p.shape[1] - 1)",
                ),
                before="STATE = {}",
            ),
            "second call in between",
        ),
        "the one-hot not weighed": (
            two(
                ("        p = p.clone()\n", "        p = p * grad[:, None]\n"),
                ("return p * grad[:, None], None", "return p, None"),
            ),
            "half of it scaled",
        ),
        "popped in the backward": (
            two(
                ("ctx.save_for_backward(e, here, local)", "ctx.kept = [local, here, e]"),
                (
                    "p, here, local = ctx.saved_tensors",
                    "p, here, local = (ctx.kept.pop() for _ in range(3))",
                ),
            ),
            "second backward",
        ),
        "0 times -inf": (
            two(("torch.where(here, some, 0.0)", "some * here")),
            "zero times infinity",
        ),
        "one buffer for every gradient": (
            two(
                (
                    "return p * grad[:, None], None",
                    "out = BUFFER.setdefault(p.shape, torch.empty_like(p))\n"
                    "        return torch.mul(p, grad[:, None], out=out), None",
                ),
                before="BUFFER = {}",
            ),
            "one buffer for two results",
        ),
        "a mask kept beside the softmax": (
            two(
                (
                    "ctx.save_for",
                    "ctx.hot = torch.arange(width) == local[:, None]\n        ctx.save_for",
                )
            ),
            "keeps too much",
        ),
        "a copy kept beside": (
            two(("ctx.save_for", "ctx.x = logits.clone()\n        ctx.save_for")),
            "keeps too much",
        ),
    }
}
