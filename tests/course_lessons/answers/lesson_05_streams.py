"""Answers to `dropout_streams` of lesson 05."""

from tests.course_lessons.answers import changed

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
        "collective called",
    ),
    "a thousand for a thousand and one": (
        one(("(seed * 1009 + dp_rank) * 1013", "(seed * 1000 + dp_rank) * 1000")), "seeds collide"
    ),
    "1,001 for tp, and none for the shared one": (
        one(("* 1013", "* 1001")), "seeds collide"
    ),
    "digits of a hundred": (
        one(("(seed * 1009 + dp_rank) * 1013", "seed * 10000 + dp_rank * 100")), "seeds collide"
    ),
    "exclusive or": (
        one(("(seed * 1009 + dp_rank) * 1013", "seed ^ (dp_rank << 4)"),
            ("shared + 1 + tp_rank", "shared ^ (tp_rank + 1)")),
        "seeds collide",
    ),
    "a digest of joined digits": (
        one(("manual_seed(shared + 1 + tp_rank)",
             'manual_seed(zlib.crc32(f"{seed}{dp_rank}{tp_rank}".encode()))'),
            ("from contextlib", "import zlib\nfrom contextlib")),
        "seeds collide",
    ),
    "a draw of a thousand": (
        changed(FROM_THE_SHARED_STREAM, ("2**31", "1000")), "seeds collide"
    ),
    "the process's number": (
        one(("from contextlib", "import os\nfrom contextlib"),
            ("shared + 1 + tp_rank", "shared + 1 + tp_rank + os.getpid()")),
        "not reproducible",
    ),
    "a counter that outlives the call": (
        changed(FROM_THE_SHARED_STREAM,
                ("class Private:\n", "class Private:\n    count = 0\n\n"),
                ("start = int(torch.randint(2**31, ()))", "Private.count += 1\n        "
                 "start = torch.initial_seed() + Private.count")),
        "not reproducible",
    ),
}  # fmt: skip
HASHED = one(("= (seed * 1009 + dp_rank) * 1013", "= (hash((seed, dp_rank)) % 2**40) * 1013"))

RIGHT = {
    "dropout_streams": {
        "a state kept": STREAMS,
        "from the shared stream": FROM_THE_SHARED_STREAM,
        "a hash of numbers": HASHED,
    }
}
WRONG = {"dropout_streams": WRONG_STREAMS}
