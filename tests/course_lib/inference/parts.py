"""What the tests of inference share: small models of two families, prompts, each text by itself."""

from __future__ import annotations

import torch
from torch import Tensor

from course_lib import ranks, zero
from course_lib.generate import generate
from course_lib.gpt import GPT, Config
from tests.course_lib.tensor_parallel.parts import randomized, said

__all__ = ["CONFIGS", "alone", "folder_of", "model_of", "prompts_of", "said", "streamed"]

SIZES = {"vocabulary": 37, "length": 17, "layers": 2}
CONFIGS = {
    "gpt2": Config.gpt2(**SIZES, hidden=20, heads=5, inner=13),  # tied
    "llama": Config.llama(**SIZES, hidden=24, heads=6, kv_heads=3, inner=10),
}


def model_of(family: str) -> GPT:
    return randomized(GPT(CONFIGS[family]), "inference")


def prompts_of(rank: int) -> list[list[int]]:
    """Of unequal lengths, and other ones on each rank."""
    return [[(7 * rank + 5 * i + 3 * j + 1) % 37 for j in range(1 + (rank + 2 * i) % 5)]
            for i in range(3 - rank % 2)]  # fmt: skip


def alone(model: GPT, prompts, count: int, **how) -> list[list[int]]:
    """Each prompt by itself through the whole model."""
    return [generate(model, torch.tensor([p]), count, **how)[0].tolist() for p in prompts]


def lists(texts: Tensor | list[Tensor]) -> list[list[int]]:
    return [text.tolist() for text in texts]


def folder_of(tmp, offload: str | None):
    """An engine's `offload=` by a word."""
    return {"parameters": "nvme", "folder": tmp} if offload == "nvme" else offload


def streamed(me, family: str, **options) -> zero.Inference:
    return zero.inference(model_of(family), mesh=ranks.mesh(me, dp=me.world, tp=1), **options)
