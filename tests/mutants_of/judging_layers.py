"""Mistakes in the looks at layers over ranks: what passes that should not, or goes by no name."""

from tests.mutation import Mutant

HERE = "course_lib/classroom/checks/"
LOOKS, LAYERS = HERE + "layer_looks.py", HERE + "layers.py"
FIVE, HALF_BLOCK = HERE + "lesson_04/five.py", HERE + "lesson_06/half_block.py"
WIRING = "tests/test_checks_04.py::test_a_plausible_wiring_is_refused_by_its_name"
RIGHT = "tests/test_checks.py::test_a_right_answer_is_right"
WRONG = "tests/test_checks.py::test_a_wrong_answer_is_refused_by_its_name"
HALF = f"{WRONG}[sequence_mlp-"
SHARED = f"{WRONG}[five_to_two-"

MUTANTS = [
    Mutant(
        "layers-messages-not-held",
        LOOKS,
        "            if there not in self.budget.forward or back not in self.budget.backward:\n",
        "            if not there:\n",
        (
            f"{WIRING}[the five of the question]",
            f"{HALF}all-reduce, then cut]",
            f"{HALF}gathered for each]",
        ),
        "five collectives pass for two",
        "T4",
    ),
    Mutant(
        "layers-backward-not-counted",
        LOOKS,
        "            if there not in self.budget.forward or back not in self.budget.backward:\n",
        "            if there not in self.budget.forward:\n",
        (f"{WIRING}[an f for each product]",),
        "only the forward is counted",
        "T4",
    ),
    Mutant(
        "layers-bytes-not-held",
        LOOKS,
        "            if over or sent[0] > most[0] or sent[1] > most[1]:\n",
        "            if over:\n",
        (f"{WIRING}[both gradients side by side in one f]",),
        "two gradients in one message pass for their sum",
        "T4",
    ),
    Mutant(
        "layers-sums-without-number",
        LOOKS,
        "            if over or sent[0] > most[0] or sent[1] > most[1]:\n",
        "            if sent[0] > most[0] or sent[1] > most[1]:\n",
        (f"{HALF}three sums of two]",),
        "more sums than there are parameters pass",
        "T4",
    ),
    Mutant(
        "layers-budget-of-half",
        FIVE,
        "    return fair, fair\n",
        "    return fair // 2, fair // 2\n",
        (
            "tests/test_checks_04.py::test_another_right_mlp_is_accepted[the pairs]",
            "tests/test_checks_04.py::test_the_reference_answer_is_right[five_to_two]",
        ),
        "an answer that keeps the budget to the byte is refused",
    ),
    Mutant(
        "layers-again-is-refused",
        HALF_BLOCK,
        "backward=[PAIR, AGAIN],\n",
        "backward=[PAIR],\n",
        (f"{RIGHT}[sequence_mlp-gathered again]",),
        "the frugal variant is refused",
    ),
    Mutant(
        "layers-gradients-not-held",
        LOOKS,
        "        for look in (self._gradients, self._traffic, self._memory, self._later):\n",
        "        for look in (self._traffic, self._memory):\n",
        (
            f"{WIRING}[the bias on rank 0, before the sum]",
            f"{HALF}weight not summed]",
            f"{HALF}summed twice]",
        ),
        "a bias that only one rank trains passes",
        "T3",
    ),
    Mutant(
        "layers-one-wrong-gradient-passes",
        LOOKS,
        "        if not wrong:\n            return\n",
        "        if len(wrong) < 2:\n            return\n",
        (f"{WIRING}[no f]", f"{WIRING}[a part of the bias before the sum]"),
        "one wrong gradient of five passes",
        "T3",
    ),
    Mutant(
        "layers-later-steps-not-held",
        LOOKS,
        "        for step in range(layers.STEPS):\n",
        "        for step in range(1):\n",
        (f"{WIRING}[something is kept]",),
        "an answer that is right in the first step alone passes",
        "T29",
    ),
    Mutant(
        "layers-one-at-a-time",
        LOOKS,
        "        self._at_once(answer, judge, seed)\n",
        "",
        (
            f"{HALF}saved in the class]",
            f"{SHARED}the group on the class]",
            f"{SHARED}the forward's tensors in a global name]",
        ),
        "no second layer is alive at once",
        "T29",
    ),
    Mutant(
        "layers-the-same-numbers-at-once",
        LAYERS,
        "        whole = layer.numbers(sizes, seed + number)\n",
        "        whole = layer.numbers(sizes, seed)\n",
        (f"{RIGHT}[sequence_mlp-by conjugates]",),
        "two layers that are alive at once cannot be told apart",
        "T29",
    ),
    Mutant(
        "layers-input-may-change",
        LAYERS,
        '    report["changed"] = given != also or not all(map(torch.equal, before, now))\n',
        '    report["changed"] = False\n',
        (f"{WIRING}[in place]",),
        "a weight that was changed under the caller's hands passes",
        "T1",
    ),
    Mutant(
        "layers-degenerate-numbers",
        LAYERS,
        "            return self.drawn(layout.name, drawn)\n",
        "            return self.drawn(layout.name, drawn * (len(shape) > 1))\n",
        (f"{WIRING}[no bias]",),
        "degenerate inputs: a bias of zeros cannot be missed",
        "T29",
    ),
    Mutant(
        "layers-memory-not-looked-at",
        LOOKS,
        '            if self.kept and report["wide"] > 1:\n',
        '            if self.kept and report["wide"] > 9:\n',
        (f"{HALF}norm behind the gather]", f"{HALF}a copy kept on the side]"),
        "an answer whose norm works on all tokens passes: right, and not cut",
    ),
    Mutant(
        "layers-memory-of-what-is-gone",
        LAYERS,
        "        if found <= 1:\n            break\n",
        "        return max(found, 2)\n",
        (f"{RIGHT}[sequence_mlp-gathered again]",),
        "what lives a moment longer in a backend's thread is counted as kept",
    ),
    Mutant(
        "layers-every-group-is-the-world",
        FIVE,
        "        (TWO, sizes(7 + seed % 3 * 2)),\n",
        "        (THREE, sizes(7 + seed % 3 * 2)),\n",
        (f"{WIRING}[the notebook's group]",),
        "the group is always the whole world",
    ),
    Mutant(
        "layers-lengths-that-divide-only",
        HALF_BLOCK,
        '(TWO, {"b": 3, "s": 5, "h": 8, "f": 7}),\n',
        '(THREE, {"b": 3, "s": 3, "h": 8, "f": 7}),\n',
        (f"{HALF}the notebook's rank]",),
        "no smaller group is tried",
        "T29",
    ),
    Mutant(
        "layers-sizes-are-those-of-cut",
        HALF_BLOCK,
        "    return cut(s, n)[::-1]\n",
        "    return cut(s, n)\n",
        (f"{HALF}sizes left to cut]",),
        "an answer that does not use its sizes passes",
        "T29",
    ),
]
