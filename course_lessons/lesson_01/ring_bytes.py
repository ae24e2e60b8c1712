"""`ring_bytes` of lesson 01: predicted bytes that each rank sends in a ring all-reduce, for four n.

The right numbers, and the numbers of each misreading, come from the ledger's closed form.
"""

from __future__ import annotations

import math

from course_classroom.judge.thought import Thought, held_against, named
from course_classroom.judge.words import Page
from course_lib.ledger import forms

RANKS = (2, 3, 4, 8)
B = 600_000 * 4  # float32, in the question
RIGHT = {n: forms.all_reduce(n, B) for n in RANKS}  # the bytes that one of n ranks sends
SAYS = Page(__file__, "ring_bytes")
MISREADINGS = (
    ("only one round", lambda n: RIGHT[n] / 2),
    ("sent and received", lambda n: 2 * RIGHT[n]),
    ("all ranks together", lambda n: n * RIGHT[n]),
    ("full tensors", lambda n: (n - 1) * B),
    ("full tensors", lambda n: n * B),
    ("a tree", lambda n: 2 * math.ceil(math.log2(n)) * B),
    ("inverted factor", lambda n: 2 * n / (n - 1) * B),
    ("one step too many", lambda n: 2 * B),
    ("one step too many", lambda n: (2 * n - 1) / n * B),
    ("the tensor once", lambda n: B),
    ("one message", lambda n: B / n),
    ("one message", lambda n: 2 * B / n),
    ("unit", lambda n: RIGHT[n] / 1024**2),
    ("elements, not bytes", lambda n: RIGHT[n] / 4),
    ("several ideas", lambda n: RIGHT[n] / 8),
)
MISTAKES = named(SAYS, [(entry, {n: sent(n) for n in RANKS}) for entry, sent in MISREADINGS])
RING_BYTES = Thought(fields=RANKS, judge=held_against(RIGHT, MISTAKES), **SAYS.about)
