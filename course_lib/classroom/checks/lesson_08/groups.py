"""`which_group` of lesson 08: over which ranks of a (dp, tp) mesh each thing is shared or summed.

The right numbers follow from the mesh's two sizes; each wrong idea has its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from course_lib.classroom.checks.thought import Mistake, Thought, compare

DP, TP = 3, 4  # in the question
RANK = 7
ALL = DP * TP


def judge_groups(given: Mapping) -> None:
    """Hold the numbers against the two sizes of the mesh, and misreadings by name."""
    right = {
        "a": RANK // TP * TP,
        "b": RANK % TP,
        "c": DP,
        "d": TP,
        "e": DP,
        "f": DP,
        "g": ALL,
        "h": TP,
        "i": 1,
        "j": DP,
        "k": ALL,
    }
    compare(given, right, MISTAKES, apart=True)


MISTAKES = (
    Mistake(
        "the mesh turned over",
        "Neighbours in rank share a *tp* group: rank = dp_rank · 4 + tp_rank. A tp group is a row "
        "of the mesh, a dp group a column.",
        {"a": RANK // DP * DP, "b": RANK % DP},
    ),
    Mistake(
        "the mesh turned over",
        "That is the first rank of the other group: neighbours in rank share a *tp* group.",
        {"a": RANK % TP, "b": RANK // TP * TP},
    ),
    Mistake(
        "a number, not a rank",
        "Asked is for the number that the group's first rank has among all twelve, and not for "
        "a coordinate or a count.",
        {"a": RANK // TP, "b": RANK // TP},
    ),
    Mistake(
        "a number, not a rank",
        "That is the rank itself. Asked is for the lowest rank in its group.",
        {"a": RANK, "b": RANK},
    ),
    Mistake(
        "another rank's group",
        "That is the lowest rank of all, and rank 7 is in another group than it.",
        {"a": 0, "b": 0},
    ),
    Mistake(
        "tp ranks read alike",
        "The ranks of a tp group work on one forward together, each on a part of the weights. They "
        "have to see the same tokens; replicas have to see others.",
        {"c": TP},
    ),
    Mistake(
        "tp ranks read alike",
        "Not every rank reads a batch of its own: the ranks of a tp group share one.",
        {"c": ALL},
    ),
    Mistake(
        "tp ranks read alike",
        "A global batch there is, but no rank reads all of it: each replica takes its own rows.",
        {"c": 1},
    ),
    Mistake(
        "a partial sum within a replica",
        "`mlp.down` is cut by rows over tp: each rank of the *tp* group has a part of the sum. "
        "Replicas have other tokens, and their activations never meet.",
        {"d": DP},
    ),
    Mistake(
        "a partial sum within a replica",
        "Replicas have other tokens: activations are never added across dp.",
        {"d": ALL},
    ),
    Mistake(
        "a partial sum within a replica",
        "A rank has some columns of the weight: what its product gives is a part of the sum. The "
        "rest is on the other ranks of its tp group.",
        {"d": 1},
    ),
    Mistake(
        "shards are different numbers",
        "Tensor-parallel ranks hold *different* columns of `mlp.up`: their gradients belong to "
        "different parameters, and to add them makes no sense. The same columns are on one rank of "
        "each replica.",
        {"e": TP},
    ),
    Mistake(
        "shards are different numbers",
        "Of all twelve ranks only some hold the same columns of `mlp.up`: one in each replica.",
        {"e": ALL},
    ),
    Mistake(
        "replicas never met",
        "Each replica has seen other rows. Without a sum over them every replica trains a model of "
        "its own.",
        {"e": 1, "f": 1, "g": 1},
    ),
    Mistake(
        "a copy that saw the same",
        "Without sequence parallelism every tp rank sends the *same* tokens through `norm_1`, and "
        "what comes back has gone through f: each has the complete gradient already. To sum it "
        "over tp counts it four times.",
        {"f": ALL},
    ),
    Mistake(
        "a copy that saw the same",
        "Without sequence parallelism the tp ranks have the same, complete gradient here. The "
        "replicas have other tokens, and theirs have to be summed.",
        {"f": TP},
    ),
    Mistake(
        "other tokens, so a sum",
        "With sequence parallelism the tp ranks send different *tokens* through `norm_1`. Its "
        "weight took part in different work on every one of the ranks.",
        {"g": DP},
    ),
    Mistake(
        "other tokens, so a sum",
        "Over tp the gradient is a partial sum now, and over the replicas it still is one.",
        {"g": TP},
    ),
    Mistake(
        "distinct shards",
        "After the gradients' sum all replicas hold the same. The norm counts each once: "
        "the four different shards of one replica.",
        {"h": ALL},
    ),
    Mistake(
        "distinct shards",
        "The replicas hold copies of a shard, the ranks of a tp group different ones. Only what is "
        "different is added.",
        {"h": DP},
    ),
    Mistake(
        "distinct shards",
        "One rank's shard is a part of the weight; the others' squares are missing.",
        {"h": 1},
    ),
    Mistake(
        "a copy counts once",
        "All twelve ranks hold the same gradient of `norm_1.weight`. It is one logical tensor.",
        {"i": ALL},
    ),
    Mistake(
        "a copy counts once",
        "Along this axis, too, the gradient of `norm_1.weight` is a copy: it counts once.",
        {"i": TP},
    ),
    Mistake(
        "a copy counts once",
        "After the gradients' sum the replicas hold the same: it counts once.",
        {"i": DP},
    ),
    Mistake(
        "tokens counted by tp ranks",
        "The four tp ranks of a replica count the same tokens. Summed over all twelve, every token "
        "counts four times.",
        {"j": ALL},
    ),
    Mistake(
        "tokens counted by tp ranks",
        "The tp ranks count the same tokens; the replicas have others.",
        {"j": TP},
    ),
    Mistake(
        "tokens counted by tp ranks",
        "A replica's own count is not that of the batch: the mean is over all replicas' tokens.",
        {"j": 1},
    ),
    Mistake(
        "heads are a rank's own",
        "Heads differ from tp rank to tp rank, and tokens from replica to replica: no two ranks "
        "may drop the same places inside the heads.",
        {"k": TP},
    ),
    Mistake(
        "heads are a rank's own",
        "That is right for the residual stream, which tp ranks share. Heads are a rank's own.",
        {"k": DP},
    ),
    Mistake(
        "heads are a rank's own",
        "One stream for all would drop the same places in different heads and different rows.",
        {"k": 1},
    ),
)

GROUPS = Thought(
    name="which_group",
    title="Which group for what",
    points=3,
    fields=tuple("abcdefghijk"),
    judge=judge_groups,
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
