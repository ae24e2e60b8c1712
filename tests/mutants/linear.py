"""Mistakes in course_lib/tensor_parallel/linear.py and products.py."""

from tests.support.mutation import Mutant

FILE = "course_lib/tensor_parallel/linear.py"
PRODUCTS = "course_lib/tensor_parallel/products.py"
TESTS = "tests/course_lib/tensor_parallel/test_linear.py::"
FEATURES = "tests/course_lib/tensor_parallel/test_features.py::"
DENSE = f"{TESTS}test_cut_layers_are_the_dense_one"
SHARED = f"{TESTS}test_products_that_share_an_input_share_one_message"

MUTANTS = [
    Mutant(
        "linear-bias-n-times",
        PRODUCTS,
        "        return y if bias is None else y.add_(bias)",
        "        return y if bias is None else y.add_(bias, alpha=group.size())",
        (f"{DENSE}[3-None]",),
        "the bias is added on every rank before the sum",
        "T3",
    ),
    Mutant(
        "linear-bias-trained-n-times",
        PRODUCTS,
        "        return None, None, dx, dw, flat.sum(0) if needs_bias else None",
        "        db = flat.sum(0) * torch.distributed.get_world_size() if needs_bias else None\n"
        "        return None, None, dx, dw, db",
        (f"{DENSE}[3-None]",),
        "the forward is right, and the bias learns n times as fast",
        "T3",
    ),
    Mutant(
        "linear-one-message-for-each-product",
        PRODUCTS,
        "    return list(_ColumnProducts.apply(group, overlap, sum_in, *given))",
        "    each = [(w, b) for w, b in zip(given[1:], given[1 + len(weights) :], strict=False)]\n"
        "    return [_ColumnProducts.apply(group, overlap, sum_in, given[0], *one)[0] "
        "for one in each]",
        (f"{SHARED}[3]",),
        "an f for each projection: right, and as many sums of dX as there are products",
        "T4",
    ),
    Mutant(
        "linear-rows-not-summed",
        PRODUCTS,
        "        y = _sum(part, group, sum_in).to(part.dtype)",
        "        y = part",
        (f"{DENSE}[2-None]",),
        "every rank goes on with its part of a sum",
        "T2",
    ),
    Mutant(
        "linear-dx-rounded",
        PRODUCTS,
        "            dx = under_way.wait()\n",
        "            dx = under_way.wait().float()\n",
        (f"{DENSE}[3-None]",),
        "a gradient that went through float32 passes every tolerance of 1e-5",
        "T28",
    ),
    Mutant(
        "linear-frozen-x-is-sent",
        PRODUCTS,
        "needs_x, needs_weight = ctx.needs_input_grad[3], ",
        "needs_x, needs_weight = True, ",
        (f"{SHARED}[3]",),
        "the first layer of a model sums a gradient that nobody wants",
        "T4",
    ),
    Mutant(
        "linear-empty-part",
        PRODUCTS,
        "    return x.reshape(x.shape[:-1].numel(), x.shape[-1])",
        "    return x.reshape(-1, x.shape[-1])",
        (f"{DENSE}[4-None]",),
        "9 columns on four ranks: the last has none, fails in the backward, and the others wait",
        "T29",
    ),
    Mutant(
        "linear-sum-in-ignored",
        PRODUCTS,
        "    part = part if dtype is None else part.to(dtype)\n",
        "",
        (f"{TESTS}test_sums_of_narrow_numbers_may_be_taken_in_wide_ones",),
        "256 and three times 1 are 256 in bfloat16",
        "T27",
    ),
    Mutant(
        "linear-autocast-ignored",
        PRODUCTS,
        "    if not torch.is_autocast_enabled(device.type):",
        "    if True:",
        (f"{FEATURES}test_autocast_narrows_products_and_messages_and_no_gradient",),
        "what the backward kept is wide where the gradient is narrow",
        "T27",
    ),
    Mutant(
        "linear-autocast-narrows-float64",
        PRODUCTS,
        "    narrow = (torch.float32, torch.float16, torch.bfloat16)",
        "    narrow = (torch.float64, torch.float32, torch.float16, torch.bfloat16)",
        (f"{FEATURES}test_autocast_narrows_products_and_messages_and_no_gradient",),
        "float64 under autocast is narrowed, which torch does not do",
        "T28",
    ),
    Mutant(
        "linear-pieces-of-equal-length",
        FILE,
        "        self.spans = [span(length, n, rank)] if spans is None else list(spans)\n",
        "        each = length // n\n"
        "        own = [(rank * each, (rank + 1) * each)]\n"
        "        self.spans = own if spans is None else list(spans)\n",
        (f"{DENSE}[3-None]",),
        "right for torch.chunk's pieces, wrong for a cut of one's own",
        "T29",
    ),
    Mutant(
        "linear-frozen-thaws",
        FILE,
        "    return nn.Parameter(torch.cat(parts, dim), requires_grad=whole.requires_grad)",
        "    return nn.Parameter(torch.cat(parts, dim))",
        (f"{FEATURES}test_what_is_frozen_stays_so_and_sends_nothing",),
        "a frozen layer is trained once it is cut",
    ),
    Mutant(
        "linear-joined-then-summed",
        FILE,
        "self.sizes, after=REPLICATED)",
        'self.sizes, after="sharded")',
        (f"{DENSE}[2-None]",),
        "all ranks go on alike, so the gradients come back n times too large",
        "T5",
    ),
    Mutant(
        "linear-bias-cut-with-its-rows",
        FILE,
        "        self.way = AllTokens(group, sum_in=sum_in)\n",
        "        self.way = AllTokens(group, sum_in=sum_in)\n"
        "        if self.bias is not None:\n"
        "            self.bias.data.mul_(self.group.rank() == 0)\n",
        (f"{DENSE}[2-None]",),
        "the bias lives on the first rank, and the copies of it are none",
        "T3",
    ),
    Mutant(
        "linear-copies-of-groups",
        "course_lib/tensor_parallel/rank_module.py",
        "            memo[id(group)] = group",
        "            pass",
        (
            "tests/course_lib/tensor_parallel/test_misuse.py::test_copies_and_averages_work_and_files_"
            "are_refused[2-sequence]",
        ),
        "a model cannot be copied, as averaging of weights and many trainers do",
    ),
]  # fmt: skip
