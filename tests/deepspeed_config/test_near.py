"""The nearest right name to a wrong one."""

from __future__ import annotations

import pytest

from course_lib.deepspeed_config.near import nearest
from tests.deepspeed_config.parts import shipped


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("zero_optimisation", "zero_optimization"),
        ("zero", "zero_optimization"),
        ("gradient_clip", "gradient_clipping"),
        ("trainBatchSize", "train_batch_size"),
        ("micro_batch_size", "train_micro_batch_size_per_gpu"),
        ("gradient-accumulation-steps", "gradient_accumulation_steps"),
        ("accumulation_steps_gradient", "gradient_accumulation_steps"),
        ("fp61", "fp16"),
        ("b16", "bf16"),
        ("AIO", "aio"),
        ("learning_rate", None),
        ("xyz", None),
    ],
)
def test_the_nearest_name(wrong, right):
    assert nearest(wrong, shipped().root["keys"]) == right


def test_a_doubt_decides_between_two():
    """bf16 is one letter away from nf16 and fp16 two, but it is fp16 that has a loss scale."""
    assert nearest("nf16", ["bf16", "fp16"]) == "bf16"
    assert nearest("nf16", ["bf16", "fp16"], doubt=lambda x: 1.5 * (x == "bf16")) == "fp16"
