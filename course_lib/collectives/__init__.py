"""Collectives: a fixed set of verbs that work out of place and take the group as an argument.

`verbs.py` defines the verbs and `transport.py` runs them on gloo and NCCL. `call.py` describes each
call for the ledger, and `agreement.py` lets ranks decide together. All later lessons communicate
only through these verbs. Lesson 01.
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
