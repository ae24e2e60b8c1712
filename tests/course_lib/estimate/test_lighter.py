"""Ways that need fewer bytes: beside real runs of the same kind, and beside published sizes."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from course_lib.estimate.forward_watch import linear_layers
from course_lib.estimate.lighter import lighter
from course_lib.estimate.model import Model
from course_lib.estimate.transformers_model import TransformersModel
from course_lib.memory import peak
from tests.course_lib.estimate.test_transformers_model import LENGTH, small

pytest.importorskip("transformers")
HALF, GIGA, aten = torch.bfloat16, 10**9, torch.ops.aten
KEPT = [aten.mm.default, aten.bmm.default, aten._scaled_dot_product_flash_attention_for_cpu.default]


def measured(model: TransformersModel, again: dict | None, prepare=lambda real: None) -> int:
    config = copy.deepcopy(model.model.config)
    real = type(model.model)._from_config(config, attn_implementation="sdpa", dtype=HALF).train()
    prepare(real)
    if again is not None:
        real.gradient_checkpointing_enable(gradient_checkpointing_kwargs=again)
    ids = torch.randint(3, config.vocab_size, (4, LENGTH))
    with peak(device="cpu") as found:
        real(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    return found.bytes


@pytest.mark.parametrize(("words", "above", "below"), [(1000, 0.01, 0.01), (64, 0.0, 0.04)])
def test_selective_recomputation_keeps_what_products_give(words, above, below):
    """With many words the loss is the highest point, with few the block that is run again."""
    model = TransformersModel(small("llama-3.1-8b", num_hidden_layers=6, vocab_size=words), "")
    contexts = partial(create_selective_checkpoint_contexts, KEPT)
    real = measured(model, {"use_reentrant": False, "context_fn": contexts})
    plain, some, none = (
        model.kept(4, LENGTH, **how).peak for how in ({}, {"selective": True}, {"recompute": True})
    )
    assert (1 - below) * real <= some <= (1 + above) * real
    assert none < 0.6 * some and some < 0.8 * plain


class WithAdapter(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer, sizes = layer, (layer.in_features, layer.out_features)
        self.a, self.b = (
            torch.nn.Linear(*pair, bias=False, dtype=HALF)
            for pair in ((sizes[0], 16), (16, sizes[1]))
        )

    def forward(self, x):
        return self.layer(x) + self.b(self.a(x))


@pytest.mark.parametrize("again", [None, {}])
def test_adapters_keep_what_real_ones_keep(again):
    model, added = TransformersModel(small("mistral-7b"), ""), []

    def adapt(real):
        real.requires_grad_(False)
        real.enable_input_require_grads()
        for layer in linear_layers(real):
            (name, parent) = next(
                (name, parent)
                for parent in real.modules()
                for name, child in parent.named_children()
                if child is layer
            )
            setattr(parent, name, WithAdapter(layer))
        added.append(sum(p.numel() for p in real.parameters() if p.requires_grad))

    real = measured(model, again, adapt)
    assert [model.adapt(16)] == added
    counted = model.kept(4, LENGTH, recompute=again is not None)
    assert counted.peak == pytest.approx(real, rel=0.02)


def test_65_billion_parameters_are_fine_tuned_in_48_gigabytes():
    """As QLoRA's paper has it, beside 780 of AdamW with 16-bit weights."""
    keys = {"model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80}
    keys |= {"num_attention_heads": 64, "intermediate_size": 22016, "vocab_size": 32000}
    model = Model(keys | {"max_position_embeddings": 2048, "tie_word_embeddings": False})
    ways = {way.name.split(",")[0]: way for way in lighter(model, 8, 512)}
    sizes = [way.whole / GIGA for way in ways.values()]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > 780
    assert 35 < ways["QLoRA"].whole / GIGA < 48
    assert 130 < ways["LoRA"].whole / GIGA < 150  # 2 bytes of each parameter, and activations
    assert ways["LoRA"].sharded < ways["LoRA"].whole / 5
    assert ways["bf16 without master weights"].whole == pytest.approx(8 * 65.3e9, rel=0.02)
