"""A model from Transformers' own code, without weights: its parameters and kept activations.

Its forward pass runs on torch's fake tensors, which have shapes but no memory, and autograd reports
the kept tensors. This works for any architecture, without formulas. Lesson 12.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from course_lib.estimate.forward_watch import (
    CUT,
    JOINED,
    REST,
    WORDS,
    ForwardWatch,
    cut_layers,
    head_of,
    linear_layers,
    stacks,
)

FUSED = "course_fused"  # the counted attention, under this name in Transformers
LOSS = 2 * 4  # bytes of a logit while the loss is computed: a float32 copy and its gradient


@dataclass(frozen=True)
class KeptBytes:
    """Bytes that a forward pass keeps on one rank: for each of the `blocks`, for a block's input
    (`entry`), for the `ends` before and after the blocks, and for the `loss`. With `recompute`, a
    block keeps only its input, and the outputs of its `products` if these are given."""

    blocks: tuple[int, ...]
    entry: int
    ends: int
    loss: int
    recompute: bool = False
    products: tuple[int, ...] = ()

    @property
    def total(self) -> int:
        """Bytes at the end of the forward pass, when the loss exists."""
        again = self.entry * len(self.blocks) + sum(self.products)
        return (again if self.recompute else sum(self.blocks)) + self.ends

    @property
    def peak(self) -> int:
        """Bytes including the most that the backward pass adds."""
        again = [b - p for b, p in zip(self.blocks, self.products, strict=True)]
        return self.total + max(self.loss, max(again, default=0) if self.recompute else 0)


class TransformersModel:
    """A model described by the keys of a config.json, which error messages call `where`."""

    def __init__(self, keys: Mapping, where: object, dtype: torch.dtype = torch.bfloat16):
        self.keys, self.where, self.dtype = keys, where, dtype
        self._mode = FakeTensorMode()
        self._sizes: dict[tuple[str, int], float] = {}
        self._counted: dict[tuple[int, int], tuple[list[Counter], Counter, list[int]]] = {}
        with _quiet(), self._mode:
            self.model = self._make()
        self.config = self.model.config.get_text_config()

    @property
    def can_be_cut(self) -> bool:
        """True if the layers that tensor parallelism shards are known."""
        return bool(self._ways)

    def params_of_rank(self, tp: int) -> int:
        """Count the parameters on one of `tp` ranks, which also share the vocabulary."""
        return int(self._of_rank("all", tp))

    def product_params(self, tp: int = 1) -> float:
        """Count the parameters that one of `tp` ranks multiplies with each token, with only the
        experts to which the token is sent, and without tables that are only looked up."""
        return self._of_rank("products", tp)

    def head_params(self, tp: int = 1) -> float:
        """Count the head's parameters on one of `tp` ranks."""
        return self._of_rank("head", tp)

    @cached_property
    def _products(self) -> dict[nn.Parameter, float]:
        """Each parameter of a product, and the fraction of it that a token uses."""
        ways, head = self._ways.items(), head_of(self.model)
        experts = {p for layer, way in ways if way == "both" for p in layer.parameters()}
        tables = [layer for layer in self.model.modules() if isinstance(layer, nn.Embedding)]
        looked_up = {p for table in tables for p in table.parameters()}
        looked_up -= set() if head is None else set(head.parameters())
        own = (p for p in self.model.parameters() if p.dim() > 1 and p not in looked_up)
        return {p: self._active if p in experts else 1.0 for p in own}

    @cached_property
    def sums(self) -> int:
        """Number of partial sums in a tensor-parallel forward pass: one after each row-parallel
        layer, without the sum of the embedding table."""
        blocks = (block for stack in stacks(self.model) for block in stack)
        layers = (layer for block in blocks for layer in block.modules())
        return sum(self._ways.get(layer, "columns") != "columns" for layer in layers)

    @cached_property
    def _ways(self) -> dict[nn.Module, str]:
        return cut_layers(self.model)

    @property
    def heads(self) -> tuple[int, int]:
        """(query heads, key/value heads), or 0 if the config does not state them."""
        heads = getattr(self.config, "num_attention_heads", 0)
        return heads, getattr(self.config, "num_key_value_heads", None) or heads

    def _of_rank(self, which: str, tp: int) -> float:
        if (which, tp) not in self._sizes:
            parts = self._products if which == "products" else dict.fromkeys(self._all(which), 1)
            shared = self._shared if tp > 1 else ()
            self._sizes[which, tp] = sum(
                part * (-(-p.numel() // tp) if p in shared else p.numel())
                for p, part in parts.items()
            )
        return self._sizes[which, tp]

    def _all(self, which: str) -> Iterator[nn.Parameter]:
        layer = head_of(self.model) if which == "head" else self.model
        return iter(()) if layer is None else layer.parameters()

    @cached_property
    def _shared(self) -> set[nn.Parameter]:
        """The parameters that tensor parallelism shards."""
        shared = {p for layer in self._ways for p in layer.parameters()}
        for table in (self.model.get_input_embeddings(), head_of(self.model)):
            shared |= set() if table is None else set(table.parameters())
        return shared

    @cached_property
    def attention_width(self) -> int:
        """The total width of all heads, summed over the layers."""
        heads, _ = self.heads
        size = getattr(self.config, "head_dim", None) or self.config.hidden_size // max(1, heads)
        return sum(map(len, stacks(self.model))) * heads * size

    @property
    def _active(self) -> float:
        """The fraction of the experts to which a token is sent."""
        names = ("num_local_experts", "num_experts", "n_routed_experts")
        every = next((n for name in names if (n := getattr(self.config, name, 0))), 1)
        return getattr(self.config, "num_experts_per_tok", every) / every

    def adapt(self, rank: int) -> int:
        """Freeze all parameters, add LoRA adapters of this rank to each linear layer of the blocks,
        and return the number of added parameters."""
        self.model.requires_grad_(False)
        added = 0
        for layer in linear_layers(self.model):
            a, b = layer.weight.shape[:: -1 if isinstance(layer, nn.Linear) else 1]
            with self._mode:
                layer.lora_a = nn.Parameter(torch.empty(a, rank, dtype=self.dtype))
                layer.lora_b = nn.Parameter(torch.empty(rank, b, dtype=self.dtype))
            layer.register_forward_hook(_adapted)
            added += rank * (a + b)
        return added

    def kept(
        self,
        rows: int,
        length: int,
        *,
        tp: int = 1,
        sequence: bool = False,
        recompute: bool = False,
        selective: bool = False,
    ) -> KeptBytes:
        """Count the bytes that a forward pass and its loss keep on one of `tp` ranks, for `rows`
        sequences of `length` tokens. With `sequence`, ranks share tokens between layers. With
        `recompute` a block keeps only its input, and with `selective` its products' outputs too.

        Attention is counted as in a fused kernel, except for the few families whose code does not
        allow one.
        """
        (blocks, ends, products), (more_blocks, more_ends, _) = (
            self._regions(n, length) for n in (1, 2)
        )

        def of_rank(one: Counter, two: Counter) -> int:
            part = {name: one[name] + (rows - 1) * (two[name] - one[name]) for name in two}
            rest = part.get(REST, 0)
            shared = part.get(CUT, 0) + part.get(WORDS, 0) + (rest if sequence else 0)
            return part.get(JOINED, 0) + -(-shared // tp) + (0 if sequence else rest)

        width = self.dtype.itemsize
        entry = rows * length * self.config.hidden_size * width
        words = -(-self.config.vocab_size // tp) if ends[WORDS] else 0
        return KeptBytes(
            tuple(of_rank(*pair) for pair in zip(blocks, more_blocks, strict=True)),
            -(-entry // tp) if sequence else entry,
            of_rank(ends, more_ends),
            rows * length * words * LOSS,
            recompute or selective,
            tuple(rows * selective * size for size in products),
        )

    def _regions(self, rows: int, length: int) -> tuple[list[Counter], Counter, list[int]]:
        if (rows, length) not in self._counted:
            watch = ForwardWatch(self.model)
            with _quiet(), self._mode, watch.watching():
                ids = torch.zeros(rows, length, dtype=torch.long)
                takes = inspect.signature(self.model.forward).parameters
                more = {"labels": ids} if "labels" in takes else {}
                more |= {"use_cache": False} if "use_cache" in takes else {}
                with torch.autograd.graph.saved_tensors_hooks(watch.keep, lambda x: x):
                    self.model(input_ids=ids, **more)
            self._counted[rows, length] = watch.found()
        return self._counted[rows, length]

    def _make(self) -> nn.Module:
        kind = self.keys.get("model_type")
        if kind is None:
            raise ValueError(f"{self.where} states no model_type. Is it a config.json of a model?")
        if importlib.util.find_spec("transformers") is None:
            raise ValueError(
                f"{self.where}: model_type={kind!r} needs transformers, which is not installed "
                "(pip install transformers)"
            )
        import transformers

        _register_fused_attention()
        try:
            config = transformers.CONFIG_MAPPING[kind].from_dict(dict(self.keys))
            if getattr(config, "quantization_config", None) is not None:
                del config.quantization_config  # the trained model is not quantized
            if config.is_encoder_decoder:
                for name in ("pad_token_id", "decoder_start_token_id"):
                    if getattr(config, name, None) is None:
                        setattr(config, name, 0)
            model = _maker(config)(config, dtype=self.dtype).train()
            if model.config._attn_implementation == "sdpa" and model._can_set_attn_implementation():
                model.set_attn_implementation(FUSED)
            return model
        except Exception as error:  # any error of a foreign config's or model's code
            first = (" ".join(str(error).split()) or type(error).__name__)[:200]
            raise ValueError(
                f"{self.where}: transformers makes no model of model_type={kind!r} from this "
                f"({first})"
            ) from error


def _adapted(layer: nn.Module, args: tuple[Tensor, ...], y: Tensor) -> Tensor:
    return y + args[0] @ layer.lora_a @ layer.lora_b


def _maker(config: object) -> Callable:
    import transformers

    named = getattr(transformers, (getattr(config, "architectures", None) or [""])[0], None)
    if named is not None:
        return named._from_config
    causal = type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    return (transformers.AutoModelForCausalLM if causal else transformers.AutoModel).from_config


def _fused(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **options: object
) -> tuple[Tensor, None]:
    """Compute attention with a kernel that keeps no pairs of tokens and needs no mask for causal
    attention or a window. With a trained bias, such as T5's for distances, the pairs are kept."""
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    bias = options.get("position_bias")
    how = {"is_causal": bool(causal) and bias is None, "scale": options.get("scaling")}
    how |= {"attn_mask": bias, "enable_gqa": q.shape[1] != k.shape[1]}
    trained = bias is not None and bias.requires_grad
    with sdpa_kernel(SDPBackend.MATH) if trained else nullcontext():
        y = F.scaled_dot_product_attention(q, k, v, **how)
    return y.transpose(1, 2).contiguous(), None


def _register_fused_attention() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(FUSED, _fused)
    AttentionMaskInterface.register(FUSED, lambda *_, **__: None)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide Transformers' warnings about a config, because they are not part of the result."""
    with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
        yield
