"""Mistakes in loss_checks.py and class_weights.py of course_lib/tensor_parallel/."""

from tests.mutation import Mutant

AT = "course_lib/tensor_parallel/"
TOGETHER = (
    "tests/tensor_parallel/test_loss_checks.py::test_what_one_rank_refuses_is_refused_on_all[2]"
)
WEIGHTED = "tests/tensor_parallel/test_class_weights.py::test_weighted_losses_are_torchs[2]"
CLASSES = "tests/tensor_parallel/test_class_weights.py::"
NONE = CLASSES + "test_weights_send_nothing_and_what_is_none_is_refused"


def mutant(name: str, file: str, old: str, new: str, test: str, why: str) -> Mutant:
    return Mutant(f"loss-{name}", AT + file, old, new, (test,), why)


MUTANTS = [
    mutant(
        "refused-alone",
        "loss_checks.py",
        "        return RefusedHere(message)",
        "        return ValueError(message)",
        TOGETHER,
        "one rank raises, and the others wait for it in the first sum",
    ),
    mutant(
        "own-tokens-refused-alone",
        "loss_checks.py",
        "            raise RefusedHere(message)",
        "            raise ValueError(message)",
        TOGETHER,
        "of fewer tokens than ranks, the rank that has them all waits for the others",
    ),
    mutant(
        "refusal-not-heard",
        "cross_entropy.py",
        "    if check:\n        check_not_refused(most, group)\n",
        "",
        TOGETHER,
        "the other ranks take the infinities for logits, and go on to the next sum",
    ),
    mutant(
        "infinite-is-refused",
        "loss_checks.py",
        "    if reasons:  # none where",
        "    if reasons or refusal is None:  # none where",
        TOGETHER,
        "logits that are infinite are taken for another rank's refusal",
    ),
    mutant(
        "weighted-mean-by-count",
        "cross_entropy.py",
        "    if weights is not None:\n        return total",
        "    if weights is not None and not count:\n        return total",
        WEIGHTED,
        "the mean divides by the number of tokens, not by the sum of their weights",
    ),
    mutant(
        "smoothing-unweighted",
        "class_weights.py",
        "return x.sum(-1) if weights is None else x @ weights.own",
        "return x.sum(-1)",
        WEIGHTED,
        "the smoothed part counts each word once, whatever its weight",
    ),
    mutant(
        "weights-of-the-first-rank",
        "class_weights.py",
        "wide[slice(*mine)]",
        "wide[: mine[1] - mine[0]]",
        WEIGHTED,
        "every rank takes the weights of the first words",
    ),
    mutant(
        "fused-weights-of-the-first-tokens",
        "fused_cross_entropy.py",
        "weights._replace(token=weights.token[rows])",
        "weights._replace(token=weights.token[: rows.stop - rows.start])",
        WEIGHTED,
        "each slice of tokens takes the weights of the first ones",
    ),
    mutant(
        "weights-of-any-length",
        "class_weights.py",
        "    if tuple(weight.shape) != (vocabulary,):",
        "    if weight.dim() != 1:",
        NONE,
        "weights for the padding, or a rank's own, shift or fail far away",
    ),
]
