"""What a forward keeps for its backward, by the part that keeps it; one bar for each plan.

`keeping` asks autograd, tensor by tensor, and counts each storage once; `activations` draws several
such counts below each other. Lesson 06 draws a block with its tokens replicated and sharded.
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
    """Bytes that autograd keeps, by the innermost of these parts that was at work; without weights.

    A storage that several parts keep is counted for the first of them. What is kept while none is
    at work is under "between". For a forward alone: no backward belongs into the block.
    """
    from torch.autograd.graph import saved_tensors_hooks

    kept = {**dict.fromkeys(parts, 0), BETWEEN: 0}
    weights = {p.untyped_storage().data_ptr() for part in parts.values() for p in part.parameters()}
    at_work, seen = [BETWEEN], {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        if storage.nbytes() and key not in weights and key not in seen:
            seen[key] = tensor.detach()  # alive until the end: no later one can take its place
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
    """Draw a bar for each plan, made of its places in their order; `kept[plan][place]` in bytes.

    Numbers stand in units of `unit` bytes, which is `called` so. Every plan has the same places.
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
        axis.set_xlabel(f"kept between forward and backward, in {called}")

    parts = {
        plan: (
            ", ".join(f"{place} {wide:.2f}" for place, wide in zip(places, row, strict=True)),
            f"in all {sum(row):.2f}",
        )
        for plan, row in lengths.items()
    }
    words = in_words(
        f"What a rank keeps between forward and backward, in {called}", parts, between="; "
    )
    return draw((WIDE, ROW * len(kept) + 1.1), words, paint, title)
