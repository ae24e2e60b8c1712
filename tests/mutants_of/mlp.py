"""Mistakes in course_lib/tensor_parallel/mlp.py."""

from tests.mutation import Mutant

FILE = "course_lib/tensor_parallel/mlp.py"
TESTS = "tests/tensor_parallel/test_mlp.py::"
DENSE = f"{TESTS}test_the_mlp_is_the_dense_one_and_sends_one_sum_each_way"
ROWS = (
    "        rows = [(start, stop), (inner + start, inner + stop)]  # of gate, and of up the same"
)

MUTANTS = [
    Mutant(
        "mlp-fused-cut-straight",
        FILE,
        ROWS,
        "        rows = [(2 * start, 2 * stop)]",
        (f"{TESTS}test_a_column_of_up_lies_beside_its_own_gate[2]", f"{DENSE}[3-None]"),
        "the first rank gets gates alone, the last one ups; every shape fits",
        "T13",
    ),
    Mutant(
        "mlp-up-beside-another-gate",
        FILE,
        ROWS,
        "        rows = [(start, stop), (2 * inner - stop, 2 * inner - start)]",
        (f"{TESTS}test_a_column_of_up_lies_beside_its_own_gate[3]",),
        "each rank bends its ups by the gates of others",
        "T13",
    ),
    Mutant(
        "mlp-halves-change-places",
        FILE,
        ROWS,
        "        rows = [(inner + start, inner + stop), (start, stop)]",
        (f"{DENSE}[1-None]",),
        "gate and up change places, on one rank too",
    ),
    Mutant(
        "mlp-cut-twice",
        FILE,
        "    if isinstance(mlp.down, RowParallelLinear):",
        "    if False:",
        (f"{TESTS}test_a_plan_is_laid_once_and_by_members",),
        "a second plan over the first fails halfway",
    ),
    Mutant(
        "mlp-overlap-forgotten",
        FILE,
        "            mlp.gate_up, group, rows=rows, overlap=overlap\n",
        "            mlp.gate_up, group, rows=rows\n",
        ("tests/tensor_parallel/test_overlap.py::"
         "test_the_choice_reaches_every_plans_first_layer",),
        "whoever measures without overlap measures with it",
    ),
    Mutant(
        "mlp-message-between",
        FILE,
        "        mlp.up = ColumnParallelLinear.from_dense(mlp.up, group, overlap=overlap)\n"
        "    mlp.down = RowParallelLinear.from_dense(mlp.down, group)",
        "        mlp.up = ColumnParallelLinear.from_dense(\n"
        "            mlp.up, group, overlap=overlap, gather_output=True\n"
        "        )\n"
        '    joined = mlp.activation != "swiglu"\n'
        "    mlp.down = RowParallelLinear.from_dense(mlp.down, group, split_input=joined)",
        (f"{DENSE}[2-None]", f"{TESTS}test_nothing_is_sent_between_the_two_layers"),
        "joined and cut again: every number is right, and two messages are for nothing",
        "T4",
    ),
]  # fmt: skip
