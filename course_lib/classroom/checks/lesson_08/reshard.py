"""`reshard` of lesson 08: a sharded model's weights on another number of ranks, bit by bit.

Each case is held against the pieces that the library's plan makes, and wrong ones against the ideas
that they come from.
"""

from __future__ import annotations

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge
from course_lib.classroom.checks.lesson_08 import reshard_trial
from course_lib.classroom.checks.looking import THREE, fresh_seed
from course_lib.classroom.checks.words import Words

CASES = [
    *(("GPT-2", 1, 4), ("GPT-2", 4, 2), ("GPT-2", 2, 1)),
    *(("Llama", 1, 4), ("Llama", 4, 2), ("Llama", 2, 1)),
    *(("GPT-2", 2, 3), ("Llama", 3, 2), ("Llama", 2, 2), ("GPT-2", 1, 1)),
]
SAYS = Words("""
fused straight across: It is several weights in one: q, k and v, or gate and up. A rank's piece
  holds its part of each, one after the other, so the pieces cannot be joined end to end, nor the
  whole cut straight across.
copies added: It is replicated, and the copies were added up. One of them is the logical tensor.
copies joined: It is replicated, and the copies were joined, as if they were shards.
a copy cut: It is replicated, and was sharded.
the other dim: It was sharded along the other dim. `attention.out` and `mlp.down` are cut by columns
  of the stored weight, all the others by rows.
another rule: The pieces' lengths follow another rule. Heads are spread as evenly as they go and are
  never cut through; the vocabulary and the MLP's inner size go by `cut`, as torch.chunk cuts.
nothing cut: Every rank has all of it: right, and not sharded.
another rank's: Each rank has the piece of another one.
tied all the same: It is the embedding's, and this model is not tied: it has a head of its own.
not bit by bit: The values are close and not the same. Nothing has to be computed here: weights are
  moved; a mean of equal copies is rounded, and so is what goes through another dtype.
another dtype: Its dtype has changed on the way.
still holds the whole: The piece is right, and a view: its memory is that of the whole tensor. A
  rank that keeps it keeps everything. Give each piece memory of its own.
not a tensor: It is no tensor.
shared memory: The values are right, and not in memory of their own: who trains one of the new
  models changes another one, or the shards that you were given. `clone` gives memory of its own.
wrong numbers: Its shape is right and its values are not.
wrong shape: Rank {rank} should have {want} of it, and has {got}.
nothing returned: None came back ({where}). Did you forget `return`?
not a list: What came back ({where}) is a {kind}; wanted is a list of {n} dictionaries from names to
  tensors, one for each rank.
another number of ranks: {count} dictionaries came back ({where}); wanted are {n}.
other names: The names are not those of the model ({where}): look at {names}. Every rank has every
  name, a tied head's among them.
asked the others: A collective was called; all pieces are given.
input changed: Your function changed {name} of the pieces it was given ({where}).
one buffer for two results: {name} of what came back was another tensor after the next call
  ({where}). Each result needs memory of its own.
kept from the call before: A second call, with other weights, did not give theirs ({where}). Does
  your function keep something between calls?
tied weight torn apart: The tied head and the embedding are two tensors now ({where}). They were
  one: held twice, it costs twice, and the first step of training makes them differ.
""")


def judge_reshard(answer: Answer, judge: Judge) -> None:
    """Each case by itself, on every rank."""
    judge.take(answer, reshard_trial.__name__)
    seed = fresh_seed()
    for case in CASES:
        family, m, n = case
        where = f"{family}, from {m} rank{'s' * (m > 1)} to {n}"
        reports = judge.trial(
            answer, reshard_trial.compare, *case, seed, members=THREE, when=f"({where})"
        )
        for report in reports:
            _refuse(report, where)


def _refuse(report: dict, where: str) -> None:
    """A Finding where a rank has reported one: of all that came back, or of one parameter."""
    if report["entry"]:
        name, text = SAYS.of(report["entry"], where=where, **report["about"])
        of = f"{report['of']} ({where}): " if report["of"] else ""
        others = f" ({report['more']} more are not right either.)" if report["more"] else ""
        raise Finding(name, f"{of}{text}{others}")


RESHARD = Exercise(
    name="reshard",
    title="From one rank to four, to two",
    points=4,
    judge=judge_reshard,
    when_right=(
        "From one rank to four, to two and back to one, bit by bit, for GPT-2 and for Llama, and "
        "between two and three; the tied weight stayed one; and each piece has memory of its own."
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
