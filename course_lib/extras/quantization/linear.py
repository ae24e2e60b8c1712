"""A linear layer with a quantized weight, which is dequantized for each product and then dropped.

The weight is frozen. The gradient of the input passes through, so adapters can be trained with it,
as in QLoRA. Appendix E2.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.extras.quantization.absmax import Int8
from course_lib.extras.quantization.four_bit import FourBit
from course_lib.extras.quantization.llm_int8 import int8_product

Quantized = Int8 | FourBit


def check_quantized(weight: object) -> Quantized:
    """Return the weight unchanged, or raise if it is not quantized."""
    if isinstance(weight, (Int8, FourBit)):
        return weight
    if isinstance(weight, Tensor):
        raise TypeError(
            f"this weight of {weight.dtype}, {tuple(weight.shape)}, is not quantized: it has no "
            "scales. Call quantize_int8 or quantize_4bit first; a float weight needs no "
            "dequantizing"
        )
    raise TypeError(f"a quantized weight is an Int8 or a FourBit, not a {type(weight).__name__}")


def dequantize(weight: Quantized, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the (outputs, inputs) floats of a quantized weight."""
    return check_quantized(weight).dequantize(dtype)


class QuantizedLinear(nn.Module):
    """y = (x/s) Wᵀ + bias, with W from codes; `threshold` selects LLM.int8(), without gradients.

    The codes are not buffers, because `model.to(torch.bfloat16)` would round the scales.
    """

    def __init__(
        self,
        weight: Quantized,
        bias: Tensor | None = None,
        *,
        s: Tensor | None = None,
        threshold: float | None = None,
    ):
        super().__init__()
        self.weight, self.s, self.threshold = check_quantized(weight), s, threshold
        if threshold is not None and not isinstance(weight, Int8):
            raise TypeError("a threshold needs the product of int8 codes: call quantize_int8")
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.threshold is not None:
            y = int8_product(x, self.weight, self.threshold)
            return y if self.bias is None else y + self.bias
        x = x if self.s is None else x / self.s.to(x.dtype)
        return F.linear(x, self.weight.dequantize(x.dtype), self.bias)

    @property
    def nbytes(self) -> int:
        """The bytes of codes, scales and s, without the bias, which is a parameter."""
        return self.weight.nbytes + (0 if self.s is None else self.s.nbytes)

    def _apply(self, fn, *args):
        device = fn(torch.empty(0)).device  # follow the module to its device, keep the dtypes
        self.weight = self.weight.to(device)
        self.s = None if self.s is None else self.s.to(device)
        return super()._apply(fn, *args)

    def extra_repr(self) -> str:
        outputs, inputs = self.weight.shape
        return f"{inputs} inputs, {outputs} outputs, {type(self.weight).__name__}"


def linears(model: nn.Module, skip: tuple[str, ...] = ("head",)) -> dict[str, nn.Linear]:
    """Return the linear layers of a model by name, except names that end with one of `skip`. A head
    may share the embedding table, so it is skipped by default."""
    found = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    return {name: m for name, m in found.items() if not name.endswith(skip)}


def quantize_model(
    model: nn.Module,
    make: Callable[[str, nn.Linear], QuantizedLinear],
    skip: tuple[str, ...] = ("head",),
) -> int:
    """Replace every linear layer by make(name, linear), and return the bytes of the new layers."""
    found = linears(model, skip)
    if not found:
        raise ValueError(
            "there is no linear layer to quantize in this model: either it is quantized already, "
            f"or skip={skip} excludes all of them"
        )
    total = 0
    for name, layer in found.items():
        place, _, last = name.rpartition(".")
        made = make(name, layer)
        setattr(model.get_submodule(place), last, made)
        total += made.nbytes
    return total


@torch.no_grad()
def inputs_of(
    model: nn.Module, ids: Tensor, skip: tuple[str, ...] = ("head",)
) -> dict[str, Tensor]:
    """Record each linear layer's (tokens, inputs) inputs for `ids`, as calibration data."""
    kept: dict[str, Tensor] = {}
    hooks = [
        layer.register_forward_pre_hook(
            lambda module, args, name=name: kept.update({name: args[0].detach().flatten(0, -2)})
        )
        for name, layer in linears(model, skip).items()
    ]
    try:
        model(ids)
    finally:
        for hook in hooks:
            hook.remove()
    return kept
