"""Mistakes in course_lib/tensor_parallel/sequence.py and sequence_plan.py."""

from tests.support.mutation import Mutant

FILE = "course_lib/tensor_parallel/sequence.py"
PLAN = "course_lib/tensor_parallel/sequence_plan.py"
TESTS = "tests/course_lib/tensor_parallel/test_sequence.py::"
MODEL = "tests/course_lib/tensor_parallel/test_model.py::"

PRODUCTS = TESTS + "test_gathered_and_scattered_products_are_the_dense_ones[2]"
PAIR_AGAIN = TESTS + "test_a_pair_of_layers_sends_the_bytes_of_the_formula[False-2]"
AUTOCAST = TESTS + "test_autocast_narrows_the_products_and_their_messages"
TRAINED = TESTS + "test_a_model_with_cut_tokens_trains_as_the_dense_one[2-1-configs1-False]"
DROPOUT = TESTS + "test_dropout_of_cut_tokens_is_the_whole_sequences[2-config0-True]"
STEP = TESTS + "test_a_step_sends_what_the_formulas_say[2-config0-True]"
STEP_AGAIN = TESTS + "test_a_step_sends_what_the_formulas_say[3-config1-False]"
STRANGE = TESTS + "test_what_the_plan_cannot_know_is_refused"
CARRIED = MODEL + "test_a_cut_model_can_be_copied_saved_and_made_without_numbers[2-config0-True]"


def mutant(name: str, old: str, new: str, tests: tuple[str, ...], why: str, trap=None) -> Mutant:
    return Mutant(f"sequence-{name}", FILE, old, new, tests, why, trap)


def plan(name: str, old: str, new: str, tests: tuple[str, ...], why: str, trap=None) -> Mutant:
    return Mutant(f"sequence-plan-{name}", PLAN, old, new, tests, why, trap)


MUTANTS = [
    mutant(
        "norms-not-summed",
        "    packed = conjugates.copy(torch.cat([p.reshape(-1) for p in given]), group)",
        "    packed = torch.cat([p.reshape(-1) for p in given])",
        (TRAINED, STEP),
        "a norm's weights learn from this rank's tokens alone, and drift apart",
        "T16",
    ),
    mutant(
        "row-bias-of-own-tokens",
        "return None, None, dx, dw, flat.sum(0) if needs_bias else None",
        "return None, None, dx, dw, rows_of(dy).sum(0) if needs_bias else None",
        (PRODUCTS, TRAINED),
        "a row bias learns from this rank's tokens alone",
        "T16",
    ),
    mutant(
        "bias-before-the-sum",
        "        y = reduce_scatter(F.linear(x, weight), group, S, sizes)  # (b, s/tp, f)\n"
        "        return y if bias is None else y.add_(bias)",
        "        return reduce_scatter(F.linear(x, weight, bias), group, S, sizes)",
        (PRODUCTS, TRAINED),
        "the bias is added once by each rank",
        "T3",
    ),
    mutant(
        "formula-one-move-less",
        '"backward": (2 if keep else 3) * move,',
        '"backward": 2 * move,',
        (PAIR_AGAIN, STEP_AGAIN),
        "gathering again is thought to be free",
    ),
    mutant(
        "not-narrowed",
        "    given = autocast(x.device, x, weight, bias)",
        "    given = (x, weight, bias)",
        (AUTOCAST,),
        "autocast does not reach the second product",
    ),
    mutant(
        "equal-parts",
        "        return cut(self.length, self.group.size())",
        "        return [self.length // self.group.size()] * self.group.size()",
        (TRAINED, DROPOUT),
        "the last tokens of a sequence that does not divide are lost",
    ),
    mutant(
        "length-unchecked",
        "        if x.dim() < 2 or x.shape[S] != sizes[rank]:",
        "        if x.dim() < 2:",
        (STRANGE,),
        "another sequence's lengths are used for what is recomputed",
    ),
    plan(
        "norm-dense",
        "        weight, bias = shared_once(self.weight, self.bias, group=self.group)",
        "        weight, bias = self.weight, self.bias",
        (TRAINED, STEP),
        "norms are used as if each rank saw all tokens",
        "T16",
    ),
    plan(
        "last-norm-forgotten",
        "    model.norm = SharedNorm(model.norm, tokens)\n",
        "",
        (TRAINED, STEP),
        "the norm before the head owes a sum like all others",
        "T16",
    ),
    plan(
        "masks-shared",
        "        with private(self.tokens.group, dim=S, start=start, whole=self.tokens.length):\n"
        "            return self.dropout(x)",
        "        return self.dropout(x)",
        (DROPOUT,),
        "all ranks drop the same places of different tokens",
        "T14",
    ),
    mutant(
        "plan-keep-ignored",
        "        return gathered_products(x, weights, biases, self.group, sizes, keep=self.keep)",
        "        return gathered_products(x, weights, biases, self.group, sizes)",
        (STEP_AGAIN,),
        "keep=False keeps",
    ),
    plan(
        "norm-kept-twice",
        "        self.norm = (norm,)  #",
        "        self.norm = norm  #",
        (CARRIED,),
        "a norm's parameters get a second name in the state",
    ),
]
