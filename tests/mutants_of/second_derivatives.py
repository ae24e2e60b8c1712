"""Mistakes in the second derivatives of course_lib/tensor_parallel/."""

from tests.mutation import Mutant

AT = "course_lib/tensor_parallel/"
TESTS = "tests/tensor_parallel/test_second_derivatives.py::"
LAYERS = TESTS + "test_the_hessian_of_cut_layers_times_a_vector_is_the_dense_ones[2]"
TOKENS = TESTS + "test_the_hessian_through_gathered_tokens_times_a_vector_is_the_dense_ones[2-True]"
AGAIN = TESTS + "test_the_hessian_through_gathered_tokens_times_a_vector_is_the_dense_ones[2-False]"
LOSSES = TESTS + "test_hessian_and_third_derivative_of_the_loss_are_the_dense_ones[2]"
MODES = TESTS + "test_other_modes_of_differentiation_are_refused_by_name"


def mutant(name: str, file: str, old: str, new: str, test: str, why: str) -> Mutant:
    return Mutant(f"twice-{name}", AT + file, old, new, (test,), why)


MUTANTS = [
    mutant(
        "column-dropped",
        "products.py",
        "        if torch.is_grad_enabled():  # create_graph=True: autograd",
        "        if False:  # create_graph=True: autograd",
        LAYERS,
        "the first derivative is computed in place, and its own is not the dense one",
    ),
    mutant(
        "column-x-not-copied",
        "products.py",
        "            whole = copy(x, ctx.group, sum_in=ctx.sum_in)",
        "            whole = x",
        LAYERS,
        "x's gradient through dW is each rank's part of a sum that is not taken",
    ),
    mutant(
        "row-dy-not-copied",
        "products.py",
        "            own = copy(dy, ctx.group, sum_in=ctx.sum_in)",
        "            own = dy",
        LAYERS,
        "what comes back to dY is each rank's part of a sum that is not taken",
    ),
    mutant(
        "gathered-not-scattered",
        "sequence.py",
        "        dx = None if grad is None else scatter_sum(grad, ctx.group, S, ctx.sizes)",
        "        dx = None if grad is None else grad.split(ctx.sizes, S)[ctx.group.rank()]",
        TOKENS,
        "a rank keeps its own part of the sum for its tokens",
    ),
    mutant(
        "gathered-again-as-replicated",
        "sequence.py",
        "gather(kept, ctx.group, S, ctx.sizes, after=SHARDED)",
        'gather(kept, ctx.group, S, ctx.sizes, after="replicated")',
        AGAIN,
        "each rank goes on with the whole in its own way, and its parts are not summed",
    ),
    mutant(
        "scattered-bias-summed-n-times",
        "sequence.py",
        "reduce(rows_of(dy).sum(0), ctx.group)",
        "rows_of(whole).sum(0)",
        TOKENS,
        "the bias's gradient goes back to all tokens from every rank",
    ),
    mutant(
        "loss-softmax-of-a-rank",
        "loss_again.py",
        "        softmax = above / copy(reduce(above.sum(-1), group), group)[:, None]\n".lstrip(),
        "softmax = above / reduce(above.sum(-1), group)[:, None]\n",
        LOSSES,
        "the sum's gradient is each rank's part of its own",
    ),
    mutant(
        "loss-grad-not-copied",
        "loss_again.py",
        "weight = copy(torch.where(ignored, 0.0, weight.to(words.dtype)), group)  # (t,)",
        "weight = torch.where(ignored, 0.0, weight.to(words.dtype))",
        LOSSES,
        "what comes back to the loss's own gradient is a part of a sum",
    ),
    mutant(
        "head-states-not-copied",
        "fused_cross_entropy.py",
        "            x = copy(states, ctx.group)",
        "            x = states",
        LOSSES,
        "the states' second derivative is each rank's part of a sum",
    ),
    mutant(
        "tangent-lost",
        "../collectives/call.py",
        "    if forward_ad._current_level >= 0 and",
        "    if forward_ad._current_level >= 9 and",
        MODES,
        "a message takes a tensor with a tangent and returns one without",
    ),
    mutant(
        "func-as-torch-says",
        "conjugates.py",
        "        if torch._C._are_functorch_transforms_active():",
        "        if False:",
        MODES,
        "the error tells the user to override a staticmethod of ours",
    ),
]
