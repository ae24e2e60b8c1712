"""`which_group` of lesson 08: over which ranks of a (dp, tp) mesh each thing is shared or summed.

The right numbers follow from the mesh's two sizes; each wrong idea has its own.
"""

from __future__ import annotations

from course_lib.classroom.checks.thought import Mistake, Thought, held_against
from course_lib.classroom.checks.words import Words

DP, TP, RANK = 3, 4, 7  # in the question
ALL = DP * TP
RIGHT = {
    "a": RANK // TP * TP,
    "b": RANK % TP,
    **{"c": DP, "d": TP, "e": DP, "f": DP, "g": ALL, "h": TP, "i": 1, "j": DP, "k": ALL},
}
SAYS = Words("""
the mesh turned over: Neighbours in rank share a *tp* group: rank = dp_rank · 4 + tp_rank. A tp
  group is a row of the mesh, a dp group a column.
a number, not a rank #1: Asked is for the number that the group's first rank has among all twelve,
  and not for a coordinate or a count.
a number, not a rank #2: That is the rank itself. Asked is for the lowest rank in its group.
another rank's group: That is the lowest rank of all, and rank 7 is in another group than it.
tp ranks read alike #1: The ranks of a tp group work on one forward together, each on a part of the
  weights. They have to see the same tokens; replicas have to see others.
tp ranks read alike #2: Not every rank reads a batch of its own: the ranks of a tp group share one.
tp ranks read alike #3: A global batch there is, but no rank reads all of it: each replica takes its
  own rows.
a partial sum within a replica #1: `mlp.down` is cut by rows over tp: each rank of the *tp* group
  has a part of the sum. Replicas have other tokens, and their activations never meet.
a partial sum within a replica #2: A rank has some columns of the weight: what its product gives is
  a part of the sum. The rest is on the other ranks of its tp group.
shards are different numbers #1: Tensor-parallel ranks hold *different* columns of `mlp.up`: their
  gradients belong to different parameters, and to add them makes no sense. The same columns are on
  one rank of each replica.
shards are different numbers #2: Of all twelve ranks only some hold the same columns of `mlp.up`:
  one in each replica.
replicas never met: Each replica has seen other rows. Without a sum over them every replica trains a
  model of its own.
a copy that saw the same #1: Without sequence parallelism every tp rank sends the *same* tokens
  through `norm_1`, and what comes back has gone through f: each has the complete gradient already.
  To sum it over tp counts it four times.
a copy that saw the same #2: Without sequence parallelism the tp ranks have the same, complete
  gradient here. The replicas have other tokens, and theirs have to be summed.
other tokens, so a sum #1: With sequence parallelism the tp ranks send different *tokens* through
  `norm_1`. Its weight took part in different work on every one of the ranks.
other tokens, so a sum #2: Over tp the gradient is a partial sum now, and over the replicas it still
  is one.
distinct shards #1: After the gradients' sum all replicas hold the same, and the ranks of a tp group
  hold different shards. The norm adds only what is different, each once.
distinct shards #2: One rank's shard is a part of the weight; the others' squares are missing.
a copy counts once: After the gradients' sum all twelve ranks hold the same gradient of
  `norm_1.weight`. It is one logical tensor.
tokens counted by tp ranks #1: The four tp ranks of a replica count the same tokens; the replicas
  have others. Summed over all twelve, every token counts four times.
tokens counted by tp ranks #2: A replica's own count is not that of the batch: the mean is over all
  replicas' tokens.
heads are a rank's own #1: Heads differ from tp rank to tp rank, and tokens from replica to replica:
  no two ranks may drop the same places inside the heads.
heads are a rank's own #2: That is right for the residual stream, which tp ranks share. Heads are a
  rank's own.
heads are a rank's own #3: One stream for all would drop the same places in different heads and
  different rows.
""")
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
MISTAKES = tuple(Mistake(*SAYS.of(entry), values) for entry, values in _IDEAS)
GROUPS = Thought(
    name="which_group",
    title="Which group for what",
    points=3,
    fields=tuple(RIGHT),
    judge=held_against(lambda: RIGHT, lambda: MISTAKES, apart=True),
    when_right=(
        "Activations are summed where the weights are different and the tokens the same (tp), "
        "gradients where the tokens are different and the weights the same (dp); and what is a "
        "copy counts once."
    ),
    hints=(
        "Draw the mesh: three rows of four ranks, numbered row by row. A row is a replica.",
        "For each line ask two things: do these ranks hold the same *weights*? Have they seen the "
        "same *tokens*?",
        "Same weights, other tokens: the gradients are added. Other weights, same tokens: the "
        "activations are. Both the same: replicated, with complete gradients, and counted once.",
    ),
)
