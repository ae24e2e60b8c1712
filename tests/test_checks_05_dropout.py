"""The checks of lesson 05 about random numbers: right answers pass, mistakes go by their names.

Every answer here runs on the judge's real ranks.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
import pytest
import torch

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from course_lib.classroom.checks.lesson_05 import streams
from tests.likeliest import likeliest

FOLDER = Path(__file__).resolve().parent.parent / "solutions" / "05_attention"

# The private state is kept from block to block.
STREAMS = '''
from contextlib import contextmanager


def dropout_streams(seed, dp_rank, tp_rank):
    """Seeds; returns private."""
    shared = (seed * 1009 + dp_rank) * 1013
    torch.manual_seed(shared)
    own = torch.Generator().manual_seed(shared + 1 + tp_rank).get_state()

    @contextmanager
    def private():
        nonlocal own
        before = torch.get_rng_state()
        torch.set_rng_state(own)
        try:
            yield
        finally:
            own = torch.get_rng_state()
            torch.set_rng_state(before)

    return private
'''
# Another style: each block begins from a number of the shared stream, and nothing is kept.
FROM_THE_SHARED_STREAM = """
class Private:
    def __init__(self, tp_rank):
        self.tp_rank = tp_rank

    def __enter__(self):
        start = int(torch.randint(2**31, ()))
        self.fork = torch.random.fork_rng(devices=[])
        self.fork.__enter__()
        torch.manual_seed(start * 37 + self.tp_rank)

    def __exit__(self, *error):
        return self.fork.__exit__(*error)


def dropout_streams(seed, dp_rank, tp_rank):
    torch.manual_seed(hash((seed, dp_rank)) % 2**40)
    return lambda: Private(tp_rank)
"""


def changed(text: str, *changes: tuple[str, str]) -> str:
    """A right answer with a mistake in it."""
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def one(*changes: tuple[str, str]) -> str:
    return changed(STREAMS, *changes)


NULL = "    from contextlib import nullcontext\n    return nullcontext\n"
END = "            torch.set_rng_state(before)\n"
WRONG_STREAMS = {
    "one seed for everybody": (one(("    return private\n", NULL)), "one stream for all"),
    "seeded by tp rank": (
        one(("torch.manual_seed(shared)", "torch.manual_seed(shared + tp_rank)")),
        "copies drop different elements",
    ),
    "replicas seeded alike": (one(("seed * 1009 + dp_rank", "seed * 1009")), "replicas drop alike"),
    "heads of replicas seeded alike": (
        one(("manual_seed(shared + 1 + tp_rank)", "manual_seed(seed + 1 + tp_rank)")),
        "heads of replicas drop alike",
    ),
    "sums of ranks": (
        one(
            ("(seed * 1009 + dp_rank) * 1013", "seed + 100 * dp_rank"),
            ("manual_seed(shared + 1 + tp_rank)", "manual_seed(seed + 50 + dp_rank + tp_rank)"),
        ),
        "seeds collide",
    ),
    "the next replica's shared stream": (
        one(("(seed * 1009 + dp_rank) * 1013", "seed + dp_rank")),
        "seeds collide",
    ),
    "never put back": (one((END, "")), "stream not given back"),
    "put back to the seed": (
        one((END, "            torch.manual_seed(shared)\n")),
        "shared stream rewound",
    ),
    "put back only where all is well": (
        one(
            (
                "        try:\n            yield\n        finally:\n",
                "        if True:\n            yield\n",
            )
        ),
        "lost on an error",
    ),
    "the shared stream moves along": (
        one(
            (
                END,
                END + "            if tp_rank == len(seen):\n                torch.rand(1)\n"
                "            seen.append(0)\n",
            ),
            ("    shared = ", "    seen = []\n    shared = "),
        ),
        "stream not given back",
    ),
    "moved by what was drawn": (
        one(
            (
                END,
                END + "            torch.rand(int(own.double().sum()) % 7 * max(0, uses))\n"
                "            uses += 1\n",
            ),
            ("nonlocal own", "nonlocal own, uses"),
            ("    shared = ", "    uses = -1\n    shared = "),
        ),
        "moved by the heads",
    ),
    "an error that is caught": (
        one(
            (
                "        finally:\n            own = torch.get_rng_state()\n" + END,
                "        except Exception:\n            pass\n"
                "        own = torch.get_rng_state()\n        torch.set_rng_state(before)\n",
            )
        ),
        "error swallowed",
    ),
    "an error that __exit__ calls handled": (
        changed(
            FROM_THE_SHARED_STREAM,
            (
                "        return self.fork.__exit__(*error)\n",
                "        self.fork.__exit__(*error)\n        return True\n",
            ),
        ),
        "error swallowed",
    ),
    "the same start in each block": (
        one(("            own = torch.get_rng_state()\n", "")),
        "the same mask again",
    ),
    "from the shared state, not from a number of it": (
        changed(
            FROM_THE_SHARED_STREAM,
            (
                "int(torch.randint(2**31, ()))",
                "int(torch.get_rng_state().double().square().sum())",
            ),
        ),
        "the same mask again",
    ),
    "the shared seed on rank 0": (
        one(("shared + 1 + tp_rank", "shared + tp_rank")),
        "heads copy the residual",
    ),
    "the clock": (
        one(
            (
                "    shared = ",
                "    import time\n    seed = int(dp_rank == 1) + seed\n    shared = ",
            ),
            ("manual_seed(shared + 1 + tp_rank)", "manual_seed(time.time_ns() + tp_rank)"),
        ),
        "not reproducible",
    ),
    "a seed of its own": (
        one(("    shared = ", "    seed = 1234\n    shared = ")),
        "seed not used",
    ),
    "nothing returned": (one(("    return private\n", "")), "nothing returned"),
    "a generator": (
        one(("    return private\n", "    return torch.Generator().manual_seed(tp_rank)\n")),
        "not a context",
    ),
    "the ranks are asked": (
        one(("    shared = ", "    dist.barrier()\n    shared = ")),
        "asked the others",
    ),
}

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
    "stored, and run once more": (
        plainly(
            "out = block(x)\n    out.register_hook(lambda g: (block(x.detach()), None)[1])\n"
            "    return out"
        ),
        "kept all the same",
    ),
    "checkpoint alone": (
        plainly("return checkpoint(block, x, use_reentrant=False)"),
        "private stream forgotten",
    ),
    "checkpoint, the older form": (
        plainly("return checkpoint(block, x, use_reentrant=True)"),
        "private stream forgotten",
    ),
    "no state kept": (
        plainly("return checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)"),
        "new masks",
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
    "left rewound": (
        again(("            private.set_state(now)", "            pass")),
        "private stream rewound",
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
        "another mask in the forward",
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
    "scaled": (again((CALL, CALL + " * 1.5")), "another forward"),
    "a rounded gradient": (
        changed(BY_FUNCTION, ("return x.grad, None", "return x.grad.float().double(), None")),
        "other gradients",
    ),
}

RIGHT = {
    "dropout_streams": (STREAMS, FROM_THE_SHARED_STREAM),
    "recompute_dropout": (RECOMPUTE, BY_FUNCTION),
}


def judged(desk: Desk, name: str, source: str) -> frame.Verdict:
    return desk.check(name, {name: source, "Again": source, "Private": source})


def reference(name: str) -> str:
    cells = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells
    source = next(c.source for c in cells if f"def {name}" in c.source)
    return source.split("\n", 1)[1]  # without the magic's line


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


@pytest.mark.parametrize("mistake", likeliest(WRONG_STREAMS))
def test_a_wrong_stream_is_refused_by_its_name(desk, mistake):
    source, name = WRONG_STREAMS[mistake]
    verdict = judged(desk, "dropout_streams", source)
    assert (verdict.outcome, verdict.name, verdict.points) == ("wrong", name, 0), str(verdict)


@pytest.mark.parametrize(
    "mistake",
    likeliest(
        WRONG_RECOMPUTE, first=("stored", "checkpoint alone", "no state kept", "left rewound")
    ),
)
def test_a_wrong_recomputation_is_refused_by_its_name(desk, mistake):
    source, name = WRONG_RECOMPUTE[mistake]
    verdict = judged(desk, "recompute_dropout", source)
    assert (verdict.outcome, verdict.name, verdict.points) == ("wrong", name, 0), str(verdict)


@pytest.mark.parametrize("name", RIGHT)
def test_what_breaks_costs_one_check(desk, name):
    for body, found in (
        ("return 1 / 0", "raised"),
        ("...", ""),
        ("return 'masks'", {"recompute_dropout": "wrong shape"}.get(name, "not a context")),
    ):
        verdict = judged(desk, name, f"def {name}(a, b, c):\n    {body}\n")
        assert verdict.name == found, str(verdict)
    assert judged(desk, name, RIGHT[name][0]).outcome == "right"


def test_the_statistical_test_tells_equal_from_independent():
    made = torch.Generator().manual_seed(2)
    masks = torch.rand(200, streams.ELEMENTS, generator=made) > 0.5
    assert streams._related(masks) is None  # 19,900 pairs, and none of them an accident
    masks[7] = masks[3]
    assert streams._related(masks) == (3, 7)
    masks[7] = ~masks[3]  # nor is the opposite of a mask independent
    assert streams._related(masks) == (3, 7)


@pytest.mark.parametrize("name", RIGHT)
def test_neither_a_hint_nor_a_verdict_gives_the_answer_away(name):
    said = " ".join(frame.find(name).hints) + frame.find(name).when_right
    for piece in ("manual_seed(", "set_state(before", "nonlocal", "* 1001", "yield"):
        assert piece not in said


HASHED = "(seed * 1009 + dp_rank) * 1013"


@pytest.mark.skipif(not sys.flags.hash_randomization, reason="PYTHONHASHSEED fixes every hash")
@pytest.mark.parametrize("text", ['"x"', 'f"replica {dp_rank}"', "str(seed)"])
def test_a_seed_from_the_hash_of_a_name_is_refused_by_its_name(desk, text):
    """Forked ranks share what makes a hash; the last rank of a check does not."""
    source = one((HASHED, f"hash({text}) % 1000 + {HASHED}"))
    verdict = desk.check("dropout_streams", {"dropout_streams": source})
    assert (verdict.outcome, verdict.name) == ("wrong", "hash of a text"), str(verdict)
    assert "zlib.crc32" in verdict.text


def test_a_hash_of_numbers_is_no_mistake(desk):
    source = one((HASHED, "(hash((seed, dp_rank)) % 2**20) * 1013"))
    verdict = desk.check("dropout_streams", {"dropout_streams": source})
    assert verdict.outcome == "right", str(verdict)
