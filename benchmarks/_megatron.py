"""Megatron-core as a peer, on GPUs and on a CPU: its groups, its GPT with our weights, its loss.

A CPU needs some settings: weights created on the host, no fused kernels, no separate gloo groups.
Its random state tracker tracks nothing, because dropout is off. The sum of dX overlaps with the
weight's gradient, as by default. Attention is torch's fused attention, as in all methods here,
since Megatron-core's own unfused attention needs a buffer on a GPU.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import _progress
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib import ranks
from course_lib.gpt import GPT, Attention
from course_lib.layout import span

MISSING = (
    "megatron-core is not installed here, so it is left out. Install it (Linux only) with the "
    "extra `bench`: pip install -e '.[bench]' -c constraints.txt"
)


def installed() -> bool:
    try:
        return importlib.util.find_spec("megatron.core") is not None
    except ImportError:
        return False


def note() -> dict:
    """Return a result's note, also printed to standard error, if the peer is missing."""
    if installed():
        return {}
    print(MISSING, file=sys.stderr)
    return {"notes": [MISSING]}


@contextmanager
def started(me: ranks.Me) -> Iterator[bool]:
    """Start its groups, all ranks as one tensor-parallel group; yield False if not installed."""
    if not installed():
        yield False
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="megatron")  # about features that a CPU lacks
        from megatron.core import parallel_state
        from megatron.core.tensor_parallel import random

        parallel_state.initialize_model_parallel(me.world, create_gloo_process_groups=False)
        random.initialize_rng_tracker(inference_rng_tracker=True)
        try:
            yield True
        finally:
            parallel_state.destroy_model_parallel()


def joined(me: ranks.Me, stack: ExitStack, without: Sequence[str]) -> list[str]:
    """Start its groups while the stack is open; return the methods to omit (with it if missing)."""
    if "megatron-core" in without:
        return [*without]
    with _progress.doing("megatron-core"):
        there = stack.enter_context(started(me))
    return [*without, *([] if there else ["megatron-core"])]


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Compute its loss of a copy of the logits (t, v/tp), since it overwrites its input."""
    from megatron.core.tensor_parallel import vocab_parallel_cross_entropy

    return vocab_parallel_cross_entropy(logits.clone(), targets).mean()


def model(dense: GPT, me: ranks.Me, dtype: torch.dtype):
    """Create its GPTModel with this rank's shard of a dense GPT-2's weights (evenly divisible)."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig

    config, layer = dense.config, get_gpt_layer_local_spec()
    layer.submodules.self_attention.submodules.core_attention = FusedAttention
    made = GPTModel(
        TransformerConfig(
            num_layers=config.layers,
            hidden_size=config.hidden,
            num_attention_heads=config.heads,
            ffn_hidden_size=config.inner,
            layernorm_epsilon=config.epsilon,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            activation_func=lambda x: F.gelu(x, approximate="tanh"),
            tensor_model_parallel_size=me.world,
            params_dtype=dtype,
            bf16=dtype == torch.bfloat16,
            use_cpu_initialization=True,
            perform_initialization=False,
            gradient_accumulation_fusion=False,
            bias_activation_fusion=False,
            bias_dropout_fusion=False,
            masked_softmax_fusion=False,
            apply_rope_fusion=False,
        ),
        layer,
        config.vocabulary,
        config.length,
        position_embedding_type="learned_absolute",
        share_embeddings_and_output_weights=False,
        parallel_output=True,
    ).to(me.device, dtype)
    given = dict(made.named_parameters())
    with torch.no_grad():
        for name, own in _own_weights(dense, me):
            given.pop(name).copy_(own)
    if given:
        raise RuntimeError(f"Megatron-core has parameters without a counterpart ({list(given)})")
    return made


class FusedAttention(nn.Module):
    """torch's attention with the interface that Megatron-core's layer calls."""

    def __init__(self, *_: object, **__: object):
        super().__init__()

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object):
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))  # (b, heads/tp, s, d)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.permute(2, 0, 1, 3).flatten(2)  # (s, b, h/tp)


def _own_weights(dense: GPT, me: ranks.Me) -> Iterator[tuple[str, Tensor]]:
    """Yield (Megatron-core's name, this rank's elements) for every parameter."""

    def own(whole: Tensor, dim: int = 0) -> Tensor:
        return whole.narrow(dim, *_piece(whole.shape[dim], me))

    def both(name: str, module, cut=lambda x: x, cut_bias=lambda x: x):
        yield f"{name}.weight", cut(module.weight)
        yield f"{name}.bias", cut_bias(module.bias)

    yield "embedding.word_embeddings.weight", own(dense.tokens.weight)
    yield "embedding.position_embeddings.weight", dense.positions.weight
    yield "output_layer.weight", own(dense.head.weight)
    yield from both("decoder.final_layernorm", dense.norm)
    for i, block in enumerate(dense.blocks):
        layer, attention, mlp = f"decoder.layers.{i}", block.attention, block.mlp
        yield from both(f"{layer}.input_layernorm", block.norm_1)
        yield from both(f"{layer}.pre_mlp_layernorm", block.norm_2)
        qkv = [own(_by_head(whole, attention)) for whole in attention.qkv.parameters()]
        yield f"{layer}.self_attention.linear_qkv.weight", qkv[0]
        yield f"{layer}.self_attention.linear_qkv.bias", qkv[1]
        yield from both(f"{layer}.self_attention.linear_proj", attention.out, lambda x: own(x, 1))
        yield from both(f"{layer}.mlp.linear_fc1", mlp.up, own, own)
        yield from both(f"{layer}.mlp.linear_fc2", mlp.down, lambda x: own(x, 1))


def _by_head(whole: Tensor, attention: Attention) -> Tensor:
    """Reorder rows from all q, all k, all v to head by head, each with its q, k and v."""
    rows = whole.view(3, attention.heads, attention.head_size, *whole.shape[1:])
    return rows.transpose(0, 1).reshape(whole.shape)


def _piece(length: int, me: ranks.Me) -> tuple[int, int]:
    start, stop = span(length, me.world, me.rank)
    return start, stop - start
