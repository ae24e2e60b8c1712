"""What ranks can say to each other: a closed list of verbs, out of place, the group an argument.

`verbs.py` is the vocabulary, `transport.py` how gloo and NCCL carry each word, `call.py` what a
ledger may know of a call; `agreement.py` lets ranks decide alike. All later lessons speak with
these verbs alone. Lesson 01.
"""

from course_lib.collectives.call import Verb, current, labelled
from course_lib.collectives.transport import Handle
from course_lib.collectives.verbs import (
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    gather,
    recv,
    reduce_scatter,
    scatter,
    send,
)

__all__ = [
    "Handle",
    "Verb",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "current",
    "gather",
    "labelled",
    "recv",
    "reduce_scatter",
    "scatter",
    "send",
]
