"""What a forward keeps for its backward, by the part that keeps it; one bar for each plan.

`keeping` asks autograd, tensor by tensor, and counts each storage once; `activations` draws several
such counts below each other. Lesson 06 draws a block with its tokens replicated and sharded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from course_lib.figures.colours import INK, QUIET, Picture, draw, hatch_of_method, ink_on, method

if TYPE_CHECKING:
    from torch import nn

SHADES = 5  # a place is no rank
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

    hooks = []
    for name, module in parts.items():
        hooks += [
            module.register_forward_pre_hook(lambda *_, name=name: at_work.append(name)),
            module.register_forward_hook(lambda *_: at_work.pop() and None, always_call=True),
        ]
    try:
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            yield kept
    finally:
        for hook in hooks:
            hook.remove()
        seen.clear()


def activations(
    kept: Mapping[str, Mapping[str, int]], *, unit: float, called: str, title: str = ""
) -> Picture:
    """Draw a bar for each plan, made of its places in their order; `kept[plan][place]` in bytes.

    Numbers stand in units of `unit` bytes, which is `called` so. Every plan has the same places.
    """
    plans = list(kept)
    if not plans or not any(any(places.values()) for places in kept.values()):
        raise ValueError("nothing was kept: there is no bar to draw")
    places = list(kept[plans[0]])
    for plan in plans:
        if list(kept[plan]) != places:
            raise ValueError(
                f"{plan} has the places {', '.join(kept[plan])}, and {plans[0]} has "
                f"{', '.join(places)}: bars can be compared place by place or not at all"
            )
    if len(places) > SHADES:
        raise ValueError(f"{len(places)} places; {SHADES} can be told apart at a glance")
    size = (max(WIDE, 0.085 * len(title) + 0.3), ROW * len(plans) + (1.35 if title else 1.1))
    alt = _in_words(kept, unit, called, title)
    return draw(size, alt, lambda figure: _paint(figure, kept, places, unit, called, title))


def _paint(figure, kept, places: list[str], unit: float, called: str, title: str) -> None:
    axis = figure.subplots()
    if title:
        figure.suptitle(title, fontsize=10, color=INK)
    most = max(sum(row.values()) for row in kept.values()) / unit
    for y, row in enumerate(kept.values()):
        left = 0.0
        for i, place in enumerate(places):
            wide, shade = row[place] / unit, method(i)
            look = {"color": shade, "edgecolor": QUIET, "hatch": hatch_of_method(i)}
            look["linewidth"] = 0.6
            axis.barh(y, wide, left=left, height=0.62, label=place if not y else None, **look)
            if wide > 0.06 * most:  # else there is no room for a number
                axis.text(
                    left + wide / 2, y, f"{wide:.2f}", ha="center", va="center", fontsize=8,
                    color=ink_on(shade), fontweight="bold",
                    bbox={"facecolor": shade, "edgecolor": "none", "pad": 0.8},
                )  # fmt: skip
            left += wide
        axis.text(left + 0.01 * most, y, f"{left:.2f}", va="center", fontsize=9, color=INK)
    axis.set_xlim(0, 1.1 * most)
    axis.set_ylim(len(kept) - 0.5, -0.5)
    axis.set_yticks(range(len(kept)), list(kept), color=INK)
    axis.set_xlabel(f"kept between forward and backward, in {called}")
    axis.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    figure.legend(loc="outside lower center", ncols=len(places), frameon=False, fontsize=8)


def _in_words(kept, unit: float, called: str, title: str) -> str:
    told = [
        f"{plan}: "
        + ", ".join(f"{place} {nbytes / unit:.2f}" for place, nbytes in places.items())
        + f"; in all {sum(places.values()) / unit:.2f}."
        for plan, places in kept.items()
    ]
    head = f"{title}. " if title else ""
    return f"{head}What a rank keeps between forward and backward, in {called}. {' '.join(told)}"
