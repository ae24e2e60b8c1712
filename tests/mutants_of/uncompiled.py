"""Mistakes in course_lib/collectives/uncompiled.py and in what bears its mark."""

from tests.mutation import Mutant

FILE = "course_lib/collectives/uncompiled.py"
TESTS = "tests/tensor_parallel/test_compile.py::"

MUTANTS = [
    Mutant(
        "compile-without-a-reason",
        FILE,
        "    function._torchdynamo_disable_msg = REASON",
        "    function._torchdynamo_disable_msg = None",
        (TESTS + "test_a_loss_inside_of_a_compiled_function_is_the_plain_one",),
        "fullgraph=True is refused, and nobody learns why",
    ),
    Mutant(
        "compile-looks-into-the-loss",
        "course_lib/tensor_parallel/cross_entropy.py",
        "@uncompiled\ndef cross_entropy(",
        "def cross_entropy(",
        (TESTS + "test_a_loss_inside_of_a_compiled_function_is_the_plain_one",),
        "torch.compile takes the loss apart, and ranks break their graphs at different places",
    ),
    Mutant(
        "compile-looks-into-gathering",
        "course_lib/tensor_parallel/sequence_plan.py",
        "    @uncompiled\n    def forward(self, ids: Tensor) -> Tensor:",
        "    def forward(self, ids: Tensor) -> Tensor:",
        (TESTS + "test_a_compiled_model_is_the_plain_one[True]",),
        "the embedding is taken apart up to its message",
    ),
]
