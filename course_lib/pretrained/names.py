"""Our parameters and the stored tensors of published checkpoints, for GPT-2 and Llama.

A weight may consist of several stored tensors joined by rows, or of a transposed one. The sharded
layers define each rank's part of a weight, so that no rule is written twice. Lesson 08.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from torch import Tensor, nn

from course_lib.gpt import GPT, Config
from course_lib.pretrained.config import family
from course_lib.pretrained.header import CheckpointError
from course_lib.pretrained.sketch import without_numbers
from course_lib.tensor_parallel.embedding import VocabularyParallelEmbedding, VocabularyParallelHead
from course_lib.tensor_parallel.linear import ColumnParallelLinear, RowParallelLinear

HEAD, TABLE = "head.weight", "tokens.weight"


class Stored(NamedTuple):
    """A tensor of a checkpoint, and the number of rows that it contributes to our weight."""

    name: str
    rows: int
    transposed: bool  # GPT-2's Conv1D stores (inputs, outputs)

    def shape(self, weight: Weight) -> tuple[int, ...]:
        ours = (self.rows, *weight.shape[1:])
        return ours[::-1] if self.transposed else ours

    def turned(self, x: Tensor) -> Tensor:
        """Convert between our order of dims and the stored order."""
        return x.t() if self.transposed else x


class Weight(NamedTuple):
    """A parameter of the dense model, and its stored tensors in the order of rows."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[Stored, ...]


class WeightPiece(NamedTuple):
    """A rank's part of a weight: these spans along `dim`, in sequence."""

    dim: int
    spans: tuple[tuple[int, int], ...]

    @property
    def length(self) -> int:
        return sum(stop - start for start, stop in self.spans)


# Our name: their name, inside a block and outside the blocks.
BLOCK = {
    "gpt2": {
        "norm_1": ["ln_1"],
        "attention.qkv": ["attn.c_attn"],
        "attention.out": ["attn.c_proj"],
        "norm_2": ["ln_2"],
        "mlp.up": ["mlp.c_fc"],
        "mlp.down": ["mlp.c_proj"],
    },
    "llama": {
        "norm_1": ["input_layernorm"],
        "attention.qkv": [f"self_attn.{one}_proj" for one in "qkv"],
        "attention.out": ["self_attn.o_proj"],
        "norm_2": ["post_attention_layernorm"],
        "mlp.gate_up": ["mlp.gate_proj", "mlp.up_proj"],
        "mlp.down": ["mlp.down_proj"],
    },
}
AROUND = {
    "gpt2": {"tokens": "wte", "positions": "wpe", "norm": "ln_f"},
    "llama": {"tokens": "embed_tokens", "norm": "norm"},
}
PREFIX = {"gpt2": "transformer.", "llama": "model."}
LIST = {"gpt2": "h", "llama": "layers"}
STORED_HEAD = "lm_head.weight"  # never with a prefix
# Buffers that older versions saved: causal masks, and rotary frequencies.
IGNORED = {
    "gpt2": re.compile(r"h\.\d+\.attn\.(masked_)?bias"),
    "llama": re.compile(r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"),
}


def weights_of(config: Config, prefix: str | None = None) -> list[Weight]:
    """List the dense model's parameters in order, without a tied head, and their stored tensors."""
    kind = family(config)
    prefix = PREFIX[kind] if prefix is None else prefix
    return [_weight(kind, config, prefix, name, shape) for name, shape in _shapes(config)]


@functools.lru_cache(maxsize=8)
def _shapes(config: Config) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """List (name, shape) of the dense model's parameters, which depend only on the config."""
    return tuple((name, tuple(p.shape)) for name, p in without_numbers(config).named_parameters())


def _weight(kind: str, config: Config, prefix: str, name: str, shape: tuple) -> Weight:
    module, _, last = name.rpartition(".")
    inside = module.startswith("blocks.")
    if name == HEAD:
        stored = [STORED_HEAD]
    elif inside:
        _, layer, inner = module.split(".", 2)
        stored = [f"{prefix}{LIST[kind]}.{layer}.{one}.{last}" for one in BLOCK[kind][inner]]
    else:
        stored = [f"{prefix}{AROUND[kind][module]}.{last}"]
    rows = [shape[0] // len(stored)] * len(stored)  # gate and up have equal lengths
    if len(stored) == 3:
        q, kv = config.heads * config.head_size, config.kv_heads * config.head_size
        rows = [q, kv, kv]
    turned = kind == "gpt2" and inside and len(shape) == 2
    parts = [Stored(*pair, turned) for pair in zip(stored, rows, strict=True)]
    return Weight(name, shape, tuple(parts))


def prefix_of(config: Config, names: Iterable[str]) -> str:
    """Return the prefix of a checkpoint's names, empty if it was saved without the head."""
    prefix = PREFIX[family(config)]
    return prefix if any(name.startswith(prefix) for name in names) else ""


def ignored(config: Config, name: str, prefix: str) -> bool:
    return bool(IGNORED[family(config)].fullmatch(name.removeprefix(prefix)))


def check_model(model: GPT) -> None:
    """Refuse anything but a GPT, and a GPT whose head and table are not tied as its config says."""
    if not isinstance(model, GPT):
        inner = getattr(model, "module", None)
        more = "; pass its .module" if isinstance(inner, GPT) else ""
        raise CheckpointError(
            f"only a course_lib.gpt.GPT works here, but this is a {type(model).__name__}{more}"
        )
    tied = model.head.weight is model.tokens.weight
    if tied != model.config.tied:
        raise CheckpointError(
            f"tied={model.config.tied} in the model's config, but its head and table are "
            f"{'one parameter' if tied else 'two parameters'}; change one to match"
        )


def held(model: GPT, weight: Weight) -> WeightPiece:
    """Return the part of a weight that this rank's model holds, without padding."""
    path, _, last = weight.name.rpartition(".")
    layer: nn.Module = model.get_submodule(path)
    if isinstance(layer, ColumnParallelLinear):
        return WeightPiece(0, _joined(layer.spans))
    if isinstance(layer, RowParallelLinear) and last == "weight":
        return WeightPiece(1, _joined(layer.spans))
    if isinstance(layer, VocabularyParallelHead):
        layer = model.tokens  # sharded in the same way
    if isinstance(layer, VocabularyParallelEmbedding):
        return WeightPiece(0, _joined([(layer.start, min(layer.stop, layer.vocabulary))]))
    return WeightPiece(0, ((0, weight.shape[0]),))


def places(weight: Weight, piece: WeightPiece) -> Iterator[tuple[Stored, int, int, int]]:
    """Yield (stored tensor, start and stop in it along the piece's dim, start in the piece)."""
    at = 0
    for start, stop in piece.spans:
        first = 0
        for part in weight.parts:
            length = part.rows if piece.dim == 0 else weight.shape[1]
            a, b = max(start, first), min(stop, first + length)
            if a < b:
                yield part, a - first, b - first, at + a - start
            first += length
        at += stop - start


def _joined(spans: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Remove empty spans and merge neighbours, which saves reads."""
    found: list[tuple[int, int]] = []
    for start, stop in spans:
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        elif start < stop:
            found.append((start, stop))
    return tuple(found)
