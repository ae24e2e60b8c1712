"""A chart of the activations that a forward pass keeps, by part, with one bar for each plan.

`keeping` counts the bytes that autograd saves, each storage once. `activations` draws one bar for
each such count. Lesson 06 draws a block with replicated and with sharded tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from course_classroom.figures.colours import QUIET, Picture, draw, hatch_of_method, in_words, method
from course_classroom.figures.shapes import stacked

if TYPE_CHECKING:
    from torch import nn

ROW, WIDE = 0.62, 7.6  # inches
BETWEEN = "between"


@contextmanager
def keeping(parts: Mapping[str, nn.Module]) -> Iterator[dict[str, int]]:
    """Count the bytes, excluding weights, that autograd saves during each innermost active part.

    A storage that several parts keep is counted only for the first of them. Tensors saved while no
    part is active count as "between". The `with` block must contain only a forward pass.
    """
    from torch.autograd.graph import saved_tensors_hooks

    kept = {**dict.fromkeys(parts, 0), BETWEEN: 0}
    weights = {p.untyped_storage().data_ptr() for part in parts.values() for p in part.parameters()}
    at_work, seen = [BETWEEN], {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        if storage.nbytes() and key not in weights and key not in seen:
            seen[key] = tensor.detach()  # kept alive so that no later tensor reuses its address
            kept[at_work[-1]] += storage.nbytes()
        return tensor

    with ExitStack() as hooks, saved_tensors_hooks(pack, lambda tensor: tensor):
        hooks.callback(seen.clear)
        for name, module in parts.items():
            for hook in (
                module.register_forward_pre_hook(lambda *_, name=name: at_work.append(name)),
                module.register_forward_hook(lambda *_: at_work.pop() and None, always_call=True),
            ):
                hooks.callback(hook.remove)
        yield kept


def activations(
    kept: Mapping[str, Mapping[str, int]], *, unit: float, called: str, title: str = ""
) -> Picture:
    """Draw a bar for each plan, divided into its places; `kept[plan][place]` is in bytes.

    Values are shown in units of `unit` bytes, named `called`. Every plan must have the same places.
    """
    places = list(next(iter(kept.values())))
    lengths = {plan: [row[place] / unit for place in places] for plan, row in kept.items()}
    looks = {
        place: {"facecolor": method(i), "hatch": hatch_of_method(i), "edgecolor": QUIET}
        for i, place in enumerate(places)
    }

    def paint(figure) -> None:
        axis = figure.subplots()
        stacked(axis, lengths, looks, "{:.2f}".format)
        axis.set_xlabel(f"kept between forward and backward pass, in {called}")

    parts = {
        plan: (
            ", ".join(f"{place} {wide:.2f}" for place, wide in zip(places, row, strict=True)),
            f"{sum(row):.2f} in total",
        )
        for plan, row in lengths.items()
    }
    words = in_words(
        f"Activations kept between forward and backward pass, in {called}", parts, between="; "
    )
    return draw((WIDE, ROW * len(kept) + 1.1), words, paint, title)
