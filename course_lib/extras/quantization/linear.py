"""A linear layer whose weight is codes: floats are made for one product, and dropped after it.

The weight is frozen; the gradient of the input passes through, so adapters can be trained beside
it, as QLoRA does. Appendix E2.
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
    """The weight itself; refuses one that has no codes and scales yet."""
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
    """(outputs, inputs) floats of a quantized weight."""
    return check_quantized(weight).dequantize(dtype)


class QuantizedLinear(nn.Module):
    """y = (x/s) Wᵀ + bias, W from codes. `threshold`: LLM.int8()'s product, which has no backward.

    The codes are no buffers: `model.to(torch.bfloat16)` would round the scales.
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
            raise TypeError("a threshold belongs to the product of int8 codes: quantize_int8 first")
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.threshold is not None:
            y = int8_product(x, self.weight, self.threshold)
            return y if self.bias is None else y + self.bias
        x = x if self.s is None else x / self.s.to(x.dtype)
        return F.linear(x, self.weight.dequantize(x.dtype), self.bias)

    @property
    def nbytes(self) -> int:
        """Of codes, scales and s; the bias is a parameter and counted as one."""
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
    """The linear layers of a model by name, without those whose name ends so: a head that shares
    the embedding's table stays as it is."""
    found = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    return {name: m for name, m in found.items() if not name.endswith(skip)}


def quantize_model(
    model: nn.Module,
    make: Callable[[str, nn.Linear], QuantizedLinear],
    skip: tuple[str, ...] = ("head",),
) -> int:
    """Put make(name, linear) in the place of every linear layer; the bytes that they hold."""
    found = linears(model, skip)
    if not found:
        raise ValueError(
            "there is no linear layer to quantize in this model: has it been done already, or does "
            f"skip={skip} name them all?"
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
    """What each linear layer read while the model saw ids, as (tokens, inputs): calibration."""
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
