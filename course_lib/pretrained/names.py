"""Our parameters and the tensors that published checkpoints keep them in, GPT-2's and Llama's.

A weight here may be several tensors there, joined by rows, or one that is transposed. Which part of
a weight a rank holds is read off the cut layers, so that no rule is written twice. Lesson 08.
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
from course_lib.tensor_parallel.embedding import (
    VocabularyParallelEmbedding,
    VocabularyParallelHead,
)
from course_lib.tensor_parallel.linear import ColumnParallelLinear, RowParallelLinear

HEAD, TABLE = "head.weight", "tokens.weight"


class Stored(NamedTuple):
    """A tensor of a checkpoint, and how many rows of our weight it makes."""

    name: str
    rows: int
    transposed: bool  # GPT-2's Conv1D keeps (inputs, outputs)

    def shape(self, weight: Weight) -> tuple[int, ...]:
        ours = (self.rows, *weight.shape[1:])
        return ours[::-1] if self.transposed else ours

    def turned(self, x: Tensor) -> Tensor:
        """From our order of dims to the stored one, or back."""
        return x.t() if self.transposed else x


class Weight(NamedTuple):
    """A parameter of the dense model and the tensors that it is stored as, in the order of rows."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[Stored, ...]


class WeightPiece(NamedTuple):
    """What a rank holds of a weight: these spans along `dim`, one after another."""

    dim: int
    spans: tuple[tuple[int, int], ...]

    @property
    def length(self) -> int:
        return sum(stop - start for start, stop in self.spans)


# Ours: theirs, of a block and of the model around the blocks.
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
# Buffers that older versions saved: causal masks, and what positions follow from.
IGNORED = {
    "gpt2": re.compile(r"h\.\d+\.attn\.(masked_)?bias"),
    "llama": re.compile(r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"),
}


def weights_of(config: Config, prefix: str | None = None) -> list[Weight]:
    """Every parameter of the dense model in its order, a tied head left out, and where it lies."""
    kind = family(config)
    prefix = PREFIX[kind] if prefix is None else prefix
    return [_weight(kind, config, prefix, name, shape) for name, shape in _shapes(config)]


@functools.lru_cache(maxsize=8)
def _shapes(config: Config) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """(name, shape) of the dense model's parameters: a function of the config alone."""
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
    rows = [shape[0] // len(stored)] * len(stored)  # gate and up are equally long
    if len(stored) == 3:
        q, kv = config.heads * config.head_size, config.kv_heads * config.head_size
        rows = [q, kv, kv]
    turned = kind == "gpt2" and inside and len(shape) == 2
    parts = [Stored(*pair, turned) for pair in zip(stored, rows, strict=True)]
    return Weight(name, shape, tuple(parts))


def prefix_of(config: Config, names: Iterable[str]) -> str:
    """What the names of a checkpoint begin with; one of the model without its head has nothing."""
    prefix = PREFIX[family(config)]
    return prefix if any(name.startswith(prefix) for name in names) else ""


def ignored(config: Config, name: str, prefix: str) -> bool:
    return bool(IGNORED[family(config)].fullmatch(name.removeprefix(prefix)))


def check_model(model: GPT) -> None:
    """Refuse what is no GPT, or one whose head and table are not tied as its config says."""
    if not isinstance(model, GPT):
        inner = getattr(model, "module", None)
        more = "; pass its .module" if isinstance(inner, GPT) else ""
        raise CheckpointError(
            f"course_lib.gpt.GPT goes in and out, and this is a {type(model).__name__}{more}"
        )
    tied = model.head.weight is model.tokens.weight
    if tied != model.config.tied:
        raise CheckpointError(
            f"tied={model.config.tied} in the model's config, and its head and table are "
            f"{'one parameter' if tied else 'two parameters'}; make the two agree"
        )


def held(model: GPT, weight: Weight) -> WeightPiece:
    """The part of a weight that this rank's model holds; padding is no part of it."""
    path, _, last = weight.name.rpartition(".")
    layer: nn.Module = model.get_submodule(path)
    if isinstance(layer, ColumnParallelLinear):
        return WeightPiece(0, _joined(layer.spans))
    if isinstance(layer, RowParallelLinear) and last == "weight":
        return WeightPiece(1, _joined(layer.spans))
    if isinstance(layer, VocabularyParallelHead):
        layer = model.tokens  # which is cut alike
    if isinstance(layer, VocabularyParallelEmbedding):
        return WeightPiece(0, _joined([(layer.start, min(layer.stop, layer.vocabulary))]))
    return WeightPiece(0, ((0, weight.shape[0]),))


def places(weight: Weight, piece: WeightPiece) -> Iterator[tuple[Stored, int, int, int]]:
    """(stored tensor, start and stop in it along the piece's dim, start in the piece), in order."""
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
    """The same without empty spans, and with neighbours as one: fewer reads."""
    found: list[tuple[int, int]] = []
    for start, stop in spans:
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        elif start < stop:
            found.append((start, stop))
    return tuple(found)
