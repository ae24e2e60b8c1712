"""Mistakes in course_lib/tensor_parallel/cross_entropy.py and fused_cross_entropy.py."""

from tests.support.mutation import Mutant

PLAIN = "course_lib/tensor_parallel/cross_entropy.py"
FUSED = "course_lib/tensor_parallel/fused_cross_entropy.py"
CHECKS = "course_lib/tensor_parallel/loss_checks.py"
CHOICE = "course_lib/tensor_parallel/kernel_choice.py"
TESTS = "tests/course_lib/tensor_parallel/test_cross_entropy.py::"
KERNELS = "tests/course_lib/tensor_parallel/test_loss_kernels.py::"
ONE = "tests/course_lib/tensor_parallel/test_fused.py::"

LABELS = TESTS + "test_every_label_on_every_rank[2]"
OPTIONS = TESTS + "test_ignored_smoothed_reduced_and_padded[2]"
FAR = TESTS + "test_logits_far_from_zero_and_infinite_ones[2]"
NARROW = TESTS + "test_narrow_logits_are_summed_in_float32[1]"
KEPT = TESTS + "test_the_callers_logits_are_untouched_and_backward_goes_twice[2]"
PEAK = TESTS + "test_the_peak_is_one_shard_of_logits[float32-0-0.0]"
REFUSED = TESTS + "test_what_would_be_a_wrong_number_is_an_error"
CHOSEN = KERNELS + "test_the_choice"
WITHOUT = KERNELS + "test_where_kernels_do_not_work_one_sentence_says_why"
FUSED_DENSE = ONE + "test_head_and_loss_in_one_are_the_product_and_the_loss[2]"
FUSED_PEAK = ONE + "test_the_peak_is_at_most_a_quarter_of_a_shard[float32-True]"
FUSED_REFUSED = ONE + "test_what_does_not_fit_is_refused"


def plain(name: str, old: str, new: str, tests: tuple[str, ...], why: str, trap=None) -> Mutant:
    return Mutant(f"cross-entropy-{name}", PLAIN, old, new, tests, why, trap)


def fused(name: str, old: str, new: str, tests: tuple[str, ...], why: str, trap=None) -> Mutant:
    return Mutant(f"fused-{name}", FUSED, old, new, tests, why, trap)


MUTANTS = [
    plain(
        "logits-overwritten",
        "torch.empty_like(logits) if softmax is None else softmax",
        "logits if softmax is None else softmax",
        (KEPT,),
        "the backward writes its softmax into the logits: a second one starts from that",
        "T6",
    ),
    plain(
        "logits-lowered-in-place",
        "(words - finite(local_max[rows])[:, None]).sum(-1)",
        "words.sub_(finite(local_max[rows])[:, None]).sum(-1)",
        (KEPT,),
        "the forward takes the largest off the caller's own logits",
        "T6",
    ),
    plain(
        "first-word-of-a-shard",
        "        local = targets[rows] - start\n        here = (local >= 0) & (local < real)",
        "        local = targets[rows] - start\n        here = (local > 0) & (local < real)",
        (LABELS,),
        "a shard's first word is nobody's",
        "T7",
    ),
    plain(
        "word-after-a-shard",
        "    right = torch.where((local >= 0) & (local < real), (smoothing - 1) * weight, 0.0)",
        "    right = torch.where((local >= 0) & (local <= real), (smoothing - 1) * weight, 0.0)",
        (LABELS,),
        "the gradient of the next rank's first word goes to this rank's last as well",
        "T7",
    ),
    plain(
        "ignored-loss",
        "torch.where(ignored, 0.0, losses)",
        "losses",
        (OPTIONS,),
        "an ignored token looks like another rank's: its loss is the logsumexp",
        "T8",
    ),
    plain(
        "ignored-gradient",
        "weight = torch.where(targets == ctx.part.ignore_index, 0.0, grad.to(share.dtype))  # (t,)",
        "weight = grad.to(share.dtype)",
        (OPTIONS,),
        "an ignored token teaches: with smoothed labels, all words",
        "T8",
    ),
    plain(
        "nothing-to-learn",
        "total / count.clamp(min=1)",
        "total / count",
        (OPTIONS,),
        "the mean over no token is 0/0",
        "T8",
    ),
    Mutant(
        "cross-entropy-padding-takes-part",
        CHECKS,
        "real = max(0, min(stop, vocabulary) - start)",
        "real = stop - start",
        (LABELS,),
        "logits of padding are part of the softmax",
        "T9",
    ),
    plain(
        "padding-gradient",
        "    out[:, real:] = 0.0\n",
        "    out[:, real:] = 1.0\n",
        (LABELS,),
        "rows that are no words get a gradient",
        "T9",
    ),
    plain(
        "smoothing-over-own-words",
        "losses = losses - part.smoothing / part.vocabulary * sum_of_logits[0]",
        "losses = losses - part.smoothing / part.real * sum_of_logits[0] if part.real else losses",
        (OPTIONS,),
        "labels are smoothed over this rank's words",
        "T10",
    ),
    plain(
        "smoothed-gradient-over-own-words",
        "words -= smoothing / vocabulary * weight[rows, None]",
        "words -= smoothing / real * weight[rows, None]",
        (OPTIONS,),
        "the gradient smooths over this rank's words",
        "T10",
    ),
    Mutant(
        "cross-entropy-full-logits",
        CHECKS,
        "    if width == stop - start:\n        return\n    whole",
        "    if width >= stop - start:\n        return\n    whole",
        (REFUSED, FUSED_REFUSED),
        "the full logits give a loss that is too high by log N",
        "T11",
    ),
    plain(
        "no-maximum",
        'm = all_reduce(local_max, group, "max")',
        'm = all_reduce(local_max, group, "max") * 0',
        (FAR,),
        "exponentials overflow",
        "T12",
    ),
    plain(
        "dead-shard",
        "    local_sumexp.masked_fill_(local_max == -math.inf, 0.0)",
        "    local_sumexp.mul_(1.0)",
        (FAR,),
        "a shard of nothing but -inf makes NaN of every loss",
        "T12",
    ),
    Mutant(
        "cross-entropy-dead-shard-smoothed",
        PLAIN,
        "return torch.where(maximum == -math.inf, 0.0, maximum)",
        "return maximum",
        (FAR,),
        "a shard of nothing but -inf makes NaN of a smoothed loss, which is infinite",
        "T12",
    ),
    plain(
        "dead-shard-gradient",
        "        if broken:\n",
        "        if False:\n",
        (FAR,),
        "a shard of nothing but -inf makes NaN of its own gradient",
        "T12",
    ),
    plain(
        "kept-narrow",
        "if keep and logits.dtype == wide(logits) else None",
        "if keep else None",
        (NARROW,),
        "the softmax of bf16 logits is rounded before the gradient is made of it",
        "T12",
    ),
    Mutant(
        "cross-entropy-narrow-sums",
        CHECKS,
        "return torch.float64 if logits.dtype == torch.float64 else torch.float32",
        "return logits.dtype",
        (NARROW,),
        "bf16 logits are summed in bf16",
        "T12",
    ),
    plain(
        "whole-at-once",
        "    step = min(tokens, max(1, at_once // max(1, width)))",
        "    step = tokens",
        (PEAK,),
        "a second shard of memory for what lies below the largest",
    ),
    Mutant(
        "cross-entropy-range-unchecked",
        CHECKS,
        "wrong = ((targets < 0) | (targets >= vocabulary)) & (targets != ignore_index)",
        "wrong = (targets < 0) & (targets != ignore_index)",
        (REFUSED,),
        "a target beyond the vocabulary is nobody's, and its loss the logsumexp",
    ),
    Mutant(
        "cross-entropy-kernels-in-float32",
        CHOICE,
        "x.dtype not in _DTYPES or ",
        "",
        (CHOSEN,),
        "float64 logits are summed in float32 on a GPU",
        "T12",
    ),
    Mutant(
        "cross-entropy-kernels-or-nothing",
        CHOICE,
        "        return None\n    return loss_kernels",
        "        raise\n    return loss_kernels",
        (WITHOUT,),
        "no loss at all on a machine where Triton does not work",
    ),
    fused(
        "all-at-once",
        "-(-flat.numel() // 8) if tokens_at_once is None",
        "flat.numel() if tokens_at_once is None",
        (FUSED_PEAK,),
        "a whole shard of logits after all",
    ),
    fused(
        "logits-live-on",
        "            del logits  # before the next logits are computed\n",
        "            ctx.last = logits\n",
        (FUSED_PEAK,),
        "two pieces of logits are alive at once",
    ),
    fused(
        "ignored-token",
        "token = torch.where(targets == ctx.part.ignore_index, 0.0, grad.to(share.dtype))  # (t,)",
        "token = grad.to(share.dtype)",
        (FUSED_DENSE,),
        "an ignored token teaches: with smoothed labels, all words",
        "T8",
    ),
]
