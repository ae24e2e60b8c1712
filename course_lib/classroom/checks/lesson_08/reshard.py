"""`reshard` of lesson 08: a cut model's weights from one number of ranks to another, bit by bit.

Each case is held against the pieces that the library's plan makes, and wrong ones against the ideas
that they come from; then models made of the new pieces are trained on real ranks.
"""

from __future__ import annotations

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on
from course_lib.classroom.checks.lesson_08 import reshard_trial
from course_lib.classroom.checks.looking import THREE, TWO, fresh_seed

TOLERANCE = 1e-10  # float64
CASES = [
    ("GPT-2", 1, 4),
    ("GPT-2", 4, 2),
    ("GPT-2", 2, 1),
    ("Llama", 1, 4),
    ("Llama", 4, 2),
    ("Llama", 2, 1),
    ("GPT-2", 2, 3),
    ("Llama", 3, 2),
    ("Llama", 2, 2),
    ("GPT-2", 1, 1),
]
IDEAS = {
    "fused straight across": (
        "fused straight across",
        "It is several weights in one: q, k and v, or gate and up. A rank's piece holds its part "
        "of each, one after the other, so the pieces cannot be joined end to end, nor the whole "
        "cut straight across.",
    ),
    "copies added": (
        "copies added",
        "It is replicated, and the copies were added up. One of them is the logical tensor.",
    ),
    "copies joined": (
        "copies joined",
        "It is replicated, and the copies were joined, as if they were shards.",
    ),
    "a copy cut": ("a copy cut", "It is replicated, and was sharded."),
    "the other dim": (
        "the other dim",
        "It was sharded along the other dim. `attention.out` and `mlp.down` are cut by columns of "
        "the stored weight, all the others by rows.",
    ),
    "another rule": (
        "another rule",
        "The pieces' lengths follow another rule. Heads are spread as evenly as they go and are "
        "never cut through; the vocabulary and the MLP's inner size go by `span`, as torch.chunk "
        "cuts.",
    ),
    "nothing cut": ("nothing cut", "Every rank has all of it: right, and not sharded."),
    "turned round": ("another rank's", "Each rank has the piece of another one."),
    "not bit by bit": (
        "not bit by bit",
        "The values are close and not the same. Nothing has to be computed here: weights are "
        "moved, and a mean of equal copies is rounded.",
    ),
    "dtype": ("another dtype", "Its dtype has changed on the way."),
    "holds": (
        "still holds the whole",
        "The piece is right, and a view: its memory is that of the whole tensor. A rank that keeps "
        "it keeps everything. Give each piece memory of its own.",
    ),
    "kind": ("not a tensor", "It is no tensor."),
    "shared": (
        "shared memory",
        "The values are right, and not in memory of their own: who trains one of the new models "
        "changes another one, or the shards that you were given. `clone` gives memory of its own.",
    ),
    "values": ("wrong numbers", "Its shape is right and its values are not."),
}


def judge_reshard(answer: Answer, judge: Judge) -> None:
    """Each case by itself, then models of the new pieces on three ranks and on two."""
    judge.take(answer, reshard_trial.__name__)
    seed = fresh_seed()
    for case in CASES:
        family, m, n = case
        where = f"{family}, from {m} rank{'s' * (m > 1)} to {n}"
        reports = judge.trial(
            answer, reshard_trial.compare, *case, seed, members=THREE, when=f"({where})"
        )
        for report in reports:
            _look_at_result(report, n, where)
            _look_at_pieces(report, where)
    for members, family in ((THREE, "GPT-2"), (TWO, "Llama")):
        gap = max(
            judge.trial(
                answer, reshard_trial.run, family, 4, seed, members=members, when=on(members)
            )
        )
        if not gap <= TOLERANCE:
            raise Finding(
                "another model",
                f"A {family} made of your pieces, {on(members)}, is off by {gap:.2g} from the "
                "dense one.",
            )


def _look_at_result(report: dict, n: int, where: str) -> None:
    if report["kind"] == "NoneType":
        raise Finding("nothing returned", f"None came back ({where}). Did you forget `return`?")
    if report["problem"] == "kind":
        raise Finding(
            "not a list",
            f"What came back ({where}) is a {report['kind']}; wanted is a list of {n} dictionaries "
            "from names to tensors, one for each rank.",
        )
    if report["problem"] == "count":
        raise Finding(
            "another number of ranks",
            f"{report['count']} dictionaries came back ({where}); wanted are {n}.",
        )
    if report["problem"] == "names":
        raise Finding(
            "other names",
            f"The names are not those of the model ({where}): look at "
            f"{', '.join(report['names'])}. Every rank has every name, a tied head's among them.",
        )
    if report["ops"]:
        raise Finding("asked the others", "A collective was called; all pieces are given.")
    if report["changed"]:
        raise Finding(
            "input changed",
            f"Your function changed {report['changed']} of the pieces it was given ({where}).",
        )


def _look_at_pieces(report: dict, where: str) -> None:
    if report["wrong"]:
        one = report["wrong"][0]
        more = len(report["wrong"]) - 1
        others = f" ({more} more are not right either.)" if more else ""
        if one["idea"] == "shape":
            raise Finding(
                "wrong shape",
                f"{one['name']} ({where}): rank {one['rank']} should have {one['want']} of it, and "
                f"has {one['got']}.{others}",
            )
        name, text = IDEAS[one["idea"]]
        raise Finding(name, f"{one['name']} ({where}): {text}{others}")
    if report["overwritten"]:
        raise Finding(
            "one buffer for two results",
            f"{report['overwritten']} of what came back was another tensor after the next call "
            f"({where}). Each result needs memory of its own.",
        )
    if report["kept"]:
        raise Finding(
            "kept from the call before",
            f"A second call, with other weights, did not give theirs ({where}). Does your function "
            "keep something between calls?",
        )
    if report["torn"]:
        raise Finding(
            "tied weight torn apart",
            f"The tied head and the embedding are two tensors now ({where}). They were one: "
            "held twice, it costs twice, and the first step of training makes them differ.",
        )


RESHARD = Exercise(
    name="reshard",
    title="From one rank to four, to two",
    points=4,
    judge=judge_reshard,
    when_right=(
        "From one rank to four, to two and back to one, bit by bit, for GPT-2 and for Llama, and "
        "between two and three; the tied weight stayed one; and models made of your pieces trained "
        "like the dense one on three ranks and on two."
    ),
    hints=(
        "Two steps are clearer than one: from m pieces to the logical tensor, and from that to n "
        "pieces. Each needs to know, for a name, along which dim it is cut and how long the "
        "ranks' pieces are.",
        "A piece of `qkv` is three pieces: split it into its q, k and v rows first, by the lengths "
        "that *this rank* has. Then all ranks' q belong together. gate_up in the same way.",
        "A rank's q rows: its key/value heads · (heads / kv_heads) · head_size. Its k rows: its "
        "key/value heads · head_size.",
        "At the end: is the head the same tensor as the table, where it was one before? And does "
        "each piece have memory of its own (`torch.cat` and `clone` make some, `split` does not)?",
    ),
)
