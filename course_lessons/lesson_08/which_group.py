"""`which_group` of lesson 08: over which ranks of a (dp, tp) mesh each thing is shared or summed.

The right numbers follow from the mesh's two sizes; each wrong idea has its own.
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
    ("the mesh turned over", {"a": RANK // DP * DP, "b": RANK % DP}),
    ("the mesh turned over", {"a": RANK % TP, "b": RANK // TP * TP}),
    ("a number, not a rank #1", {"a": RANK // TP, "b": RANK // TP}),
    ("a number, not a rank #2", {"a": RANK, "b": RANK}),
    ("another rank's group", {"a": 0, "b": 0}),
    ("tp ranks read alike #1", {"c": TP}),
    ("tp ranks read alike #2", {"c": ALL}),
    ("tp ranks read alike #3", {"c": 1}),
    ("a partial sum within a replica #1", {"d": DP}),
    ("a partial sum within a replica #1", {"d": ALL}),
    ("a partial sum within a replica #2", {"d": 1}),
    ("shards are different numbers #1", {"e": TP}),
    ("shards are different numbers #2", {"e": ALL}),
    ("replicas never met", {"e": 1, "f": 1, "g": 1}),
    ("a copy that saw the same #1", {"f": ALL}),
    ("a copy that saw the same #2", {"f": TP}),
    ("other tokens, so a sum #1", {"g": DP}),
    ("other tokens, so a sum #2", {"g": TP}),
    ("distinct shards #1", {"h": ALL}),
    ("distinct shards #1", {"h": DP}),
    ("distinct shards #2", {"h": 1}),
    *(("a copy counts once", {"i": many}) for many in (ALL, TP, DP)),
    ("tokens counted by tp ranks #1", {"j": ALL}),
    ("tokens counted by tp ranks #1", {"j": TP}),
    ("tokens counted by tp ranks #2", {"j": 1}),
    ("heads are a rank's own #1", {"k": TP}),
    ("heads are a rank's own #2", {"k": DP}),
    ("heads are a rank's own #3", {"k": 1}),
)
MISTAKES = named(SAYS, _IDEAS)
JUDGE = held_against(RIGHT, MISTAKES, apart=True)
GROUPS = Thought(fields=tuple(RIGHT), judge=JUDGE, **SAYS.about)
