"""`which_group` of lesson 08: numbers of ranks that hold or sum each tensor on a (dp, tp) mesh.

The right numbers follow from the mesh's two sizes; each wrong idea gives different numbers.
"""

from __future__ import annotations

from course_classroom.judge.thought import Thought, held_against, named
from course_classroom.judge.words import Page

DP, TP, RANK = 3, 4, 7  # in the question
ALL = DP * TP
RIGHT = {
    "a": RANK // TP * TP,
    "b": RANK % TP,
    **{"c": DP, "d": TP, "e": DP, "f": DP, "g": ALL, "h": TP, "i": 1, "j": DP, "k": ALL},
}
SAYS = Page(__file__, "which_group")
_IDEAS = (
    ("mesh transposed", {"a": RANK // DP * DP, "b": RANK % DP}),
    ("mesh transposed", {"a": RANK % TP, "b": RANK // TP * TP}),
    ("wrong kind of number #1", {"a": RANK // TP, "b": RANK // TP}),
    ("wrong kind of number #2", {"a": RANK, "b": RANK}),
    ("wrong group", {"a": 0, "b": 0}),
    ("tp ranks read alike #1", {"c": TP}),
    ("tp ranks read alike #2", {"c": ALL}),
    ("tp ranks read alike #3", {"c": 1}),
    ("a partial sum within a replica #1", {"d": DP}),
    ("a partial sum within a replica #1", {"d": ALL}),
    ("a partial sum within a replica #2", {"d": 1}),
    ("shards are different elements #1", {"e": TP}),
    ("shards are different elements #2", {"e": ALL}),
    ("no sum over replicas", {"e": 1, "f": 1, "g": 1}),
    ("replicated gradient, same tokens #1", {"f": ALL}),
    ("replicated gradient, same tokens #2", {"f": TP}),
    ("different tokens, partial sums #1", {"g": DP}),
    ("different tokens, partial sums #2", {"g": TP}),
    ("distinct shards #1", {"h": ALL}),
    ("distinct shards #1", {"h": DP}),
    ("distinct shards #2", {"h": 1}),
    *(("a copy counts once", {"i": many}) for many in (ALL, TP, DP)),
    ("tokens counted by tp ranks #1", {"j": ALL}),
    ("tokens counted by tp ranks #1", {"j": TP}),
    ("tokens counted by tp ranks #2", {"j": 1}),
    ("heads differ per rank #1", {"k": TP}),
    ("heads differ per rank #2", {"k": DP}),
    ("heads differ per rank #3", {"k": 1}),
)
MISTAKES = named(SAYS, _IDEAS)
JUDGE = held_against(RIGHT, MISTAKES, apart=True)
GROUPS = Thought(fields=tuple(RIGHT), judge=JUDGE, **SAYS.about)
