"""Answers to `recompute_dropout` of lesson 05."""

from tests.course_lessons.answers import changed

RECOMPUTE = '''
from torch.utils.checkpoint import checkpoint


def recompute_dropout(block, x, private):
    """block(x), run again in the backward."""
    before, first = private.get_state(), [True]

    def run(x):
        if first.pop() if first else False:
            return block(x)
        now = private.get_state()
        private.set_state(before)
        try:
            return block(x)
        finally:
            private.set_state(now)

    return checkpoint(run, x, use_reentrant=False)
'''
# Another style: an autograd function, nothing of torch.utils.
BY_FUNCTION = """
class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, block, private):
        ctx.block, ctx.private = block, private
        ctx.before = torch.get_rng_state(), private.get_state()
        ctx.save_for_backward(x)
        with torch.no_grad():
            return block(x)

    @staticmethod
    def backward(ctx, grad):
        now = torch.get_rng_state(), ctx.private.get_state()
        torch.set_rng_state(ctx.before[0])
        ctx.private.set_state(ctx.before[1])
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.block(x)
        torch.set_rng_state(now[0])
        ctx.private.set_state(now[1])
        torch.autograd.backward(y, grad)
        return x.grad, None, None


def recompute_dropout(block, x, private):
    return Again.apply(x, block, private)
"""
BY_CONTEXT = """
from contextlib import contextmanager, nullcontext

from torch.utils.checkpoint import checkpoint


@contextmanager
def replayed(generator, state):
    now = generator.get_state()
    generator.set_state(state)
    try:
        yield
    finally:
        generator.set_state(now)


def recompute_dropout(block, x, private):
    state = private.get_state()
    return checkpoint(
        block, x, use_reentrant=False, context_fn=lambda: (nullcontext(), replayed(private, state))
    )
"""
STACK = changed(
    BY_FUNCTION,
    ("class Again", "states = []\n\n\nclass Again"),
    ("        ctx.before = torch.get_rng_state(), private.get_state()\n",
     "        states.append((torch.get_rng_state(), private.get_state()))\n"),
    ("        now = ", "        before = states.pop()\n        now = "),
    ("ctx.before[0]", "before[0]"),
    ("ctx.before[1]", "before[1]"),
)  # fmt: skip


def again(*changes: tuple[str, str]) -> str:
    return changed(RECOMPUTE, *changes)


def plainly(line: str) -> str:
    """An answer of one line, with checkpoint at hand."""
    return (
        "from torch.utils.checkpoint import checkpoint\n\n\n"
        f"def recompute_dropout(block, x, private):\n    {line}\n"
    )


CALL = "return checkpoint(run, x, use_reentrant=False)"
WRONG_RECOMPUTE = {
    "stored": (plainly("return block(x)"), "nothing recomputed"),
    "checkpoint alone": (
        plainly("return checkpoint(block, x, use_reentrant=False)"),
        "private stream forgotten",
    ),
    "no state kept": (
        plainly("return checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)"),
        "new masks",
    ),
    "left rewound": (
        again(("            private.set_state(now)", "            pass")),
        "private stream rewound",
    ),
    "stored, and run once more": (
        plainly(
            "out = block(x)\n    out.register_hook(lambda g: (block(x.detach()), None)[1])\n"
            "    return out"
        ),
        "activations still kept",
    ),
    "checkpoint, the older form": (
        plainly("return checkpoint(block, x, use_reentrant=True)"),
        "private stream forgotten",
    ),
    "the private one alone": (
        again((CALL, CALL.replace("False)", "False, preserve_rng_state=False)"))),
        "shared stream forgotten",
    ),
    "taken after the forward": (
        again(
            ("before, first = private.get_state(), [True]", "before, first = [], [True]"),
            (
                "            return block(x)\n        now",
                "            out = block(x)\n            before.append(private.get_state())\n"
                "            return out\n        now",
            ),
            ("set_state(before)", "set_state(before[0])"),
        ),
        "state taken too late",
    ),
    "no finally": (
        again(
            (
                "        try:\n            return block(x)\n        finally:\n            private",
                "        out = block(x)\n        private",
            ),
            ("set_state(now)", "set_state(now)\n        return out"),
        ),
        "private stream rewound",
    ),
    "the shared one left rewound": (
        changed(BY_FUNCTION, ("        torch.set_rng_state(now[0])\n", "")),
        "shared stream rewound",
    ),
    "seeded in both runs": (
        plainly(
            "def run(x):\n        torch.manual_seed(5)\n        private.manual_seed(6)\n"
            "        return block(x)\n    return checkpoint(run, x, use_reentrant=False)"
        ),
        "wrong mask in the forward pass",
    ),
    "the forward moves on": (
        again(
            (
                "            return block(x)\n        now",
                "            out = block(x)\n            torch.rand(1)\n"
                "            return out\n        now",
            )
        ),
        "moved in the forward",
    ),
    "x cut off": (
        again((CALL, CALL.replace(", x,", ", x.detach().requires_grad_(),"))),
        "x cut off",
    ),
    "weights left out": (
        changed(
            BY_FUNCTION,
            (
                "        torch.autograd.backward(y, grad)\n        return x.grad, None, None",
                "        return torch.autograd.grad(y, x, grad)[0], None, None",
            ),
        ),
        "weights left out",
    ),
    "counted twice": (
        changed(
            BY_FUNCTION,
            (
                "backward(y, grad)\n",
                "backward(y, grad, retain_graph=True)\n"
                "        torch.autograd.backward(y, grad, inputs=list(ctx.block.weights))\n",
            ),
        ),
        "counted twice",
    ),
    "run three times": (
        changed(
            BY_FUNCTION,
            (
                "        with torch.enable_grad():\n            y",
                "        ctx.block(x.detach())\n        torch.set_rng_state(ctx.before[0])\n"
                "        ctx.private.set_state(ctx.before[1])\n"
                "        with torch.enable_grad():\n            y",
            ),
        ),
        "run too often",
    ),
    "without a history": (plainly("with torch.no_grad():\n        return block(x)"), "no history"),
    "nothing": (again((CALL, CALL.replace("return ", ""))), "nothing returned"),
    "a pair": (again((CALL, CALL + ", private")), "wrong shape"),
    "scaled": (again((CALL, CALL + " * 1.5")), "wrong forward result"),
    "a rounded gradient": (
        changed(BY_FUNCTION, ("return x.grad, None", "return x.grad.float().double(), None")),
        "rounded on the way",
    ),
    "a state in the class": (
        changed(BY_FUNCTION, ("ctx.before = ", "Again.before = "),
                ("ctx.before[0]", "Again.before[0]"), ("ctx.before[1]", "Again.before[1]")),
        "one state for two blocks",
    ),
    "the private state in a global": (
        again(("def recompute", "before = None\n\n\ndef recompute"),
              ("    before, first = ", "    global before\n    before, first = ")),
        "one state for two blocks",
    ),
    "a state for each block": (
        changed(RECOMPUTE, ("def recompute", "kept = {}\n\n\ndef recompute"),
                ("before, first = private.get_state()", "kept[block], first = private.get_state()"),
                ("set_state(before)", "set_state(kept[block])")),
        "one state for two blocks",
    ),
    "a state for each x": (
        changed(RECOMPUTE, ("def recompute", "kept = {}\n\n\ndef recompute"),
                ("before, first = private.get_state()",
                 "key = id(x)\n    kept[key], first = private.get_state()"),
                ("set_state(before)", "set_state(kept[key])")),
        "one state for two blocks",
    ),
    "a stack of states": (STACK, "one state for two blocks"),
    "a queue of states": (
        changed(STACK, ("states.pop()", "states.pop(0)")),
        "one state for two blocks",
    ),
    "its seeds set again": (
        changed(BY_FUNCTION, ("torch.set_rng_state(ctx.before[0])",
                              "torch.manual_seed(torch.initial_seed())"),
                ("ctx.private.set_state(ctx.before[1])",
                 "ctx.private.manual_seed(ctx.private.initial_seed())")),
        "new masks",
    ),
    "its result kept once more": (
        changed(BY_FUNCTION, ("            return block(x)\n\n",
                              "            ctx.y = block(x)\n        return ctx.y.clone()\n\n")),
        "activations still kept",
    ),
    "its result kept beside x": (
        changed(
            BY_FUNCTION,
            (
                "            return block(x)\n\n",
                "            y = block(x)\n        ctx.both = torch.stack((x, y))\n"
                "        return y\n\n",
            ),
        ),
        "activations still kept",
    ),
    "nearly the same gradient": (
        changed(BY_FUNCTION, ("return x.grad, None", "return x.grad * (1 + 1e-15), None")),
        "wrong gradients",
    ),
}  # fmt: skip

RIGHT = {
    "recompute_dropout": {
        "checkpoint": RECOMPUTE,
        "a Function": BY_FUNCTION,
        "contexts": BY_CONTEXT,
        "the older form": changed(RECOMPUTE, ("use_reentrant=False", "use_reentrant=True")),
    }
}
WRONG = {"recompute_dropout": WRONG_RECOMPUTE}
