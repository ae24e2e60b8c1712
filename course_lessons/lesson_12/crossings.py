"""Data that an offloaded step moves between its tiers, in order.

`crossing` records on a rank every copy between device and host and every file access. `crossings`
draws them in four lanes, each in the colour of the source tier. Lesson 12 draws a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple
from unittest.mock import patch

from course_classroom.figures.bars import PARTS, shown
from course_classroom.figures.colours import CARD, INK, Picture, draw, method
from course_classroom.figures.shapes import runs

if TYPE_CHECKING:
    from course_lib.zero import Engine

LANES = {
    "down": "device → host",
    "up": "host → device",
    "read": "file → host",
    "written": "host → file",
}
# Of the source tier, as stacked_bars draws device, host and disk.
SHADES = {way: method(PARTS[k]) for way, k in zip(LANES, (0, 1, 2, 1), strict=True)}
HIGH, WIDE = 0.8, 8.2  # inches: height of a lane, width of the picture


class Crossing(NamedTuple):
    """A transfer of `nbytes` bytes on one of the four ways, during a phase of the step."""

    way: str
    nbytes: int
    phase: str


@contextmanager
def crossing(engine: Engine) -> Iterator[list[Crossing]]:
    """Record the transfers of `engine` in the `with` block; a file's bytes count at the request.

    Copies that a collective makes through the host, as gloo does for GPU tensors, are omitted.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from course_lib.collectives.transport import copies_a_result
    from course_lib.memory import tier_of

    found: list[Crossing] = []
    updating = [False]

    def note(way: str, nbytes: int) -> None:
        backward = torch._C._current_graph_task_id() != -1
        phase = "step" if updating[0] else "backward" if backward else "forward"
        found.append(Crossing(way, nbytes, phase))

    class Copies(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.copy_.default and not copies_a_result():
                there, here = (tier_of(x.untyped_storage()) for x in args[:2])
                if {there, here} == {"device", "host"}:
                    note("down" if there == "host" else "up", args[0].nbytes)
            return func(*args, **(kwargs or {}))

    def noting(way: str, plain: Callable) -> Callable:
        def call(file, at, data):
            note(way, data.numel())
            return plain(file, at, data)

        return call

    io, plain = getattr(engine.home, "io", None), engine.step

    def step() -> bool:
        updating[0] = True
        try:
            return plain()
        finally:
            updating[0] = False

    with ExitStack() as patched, Copies():
        patched.enter_context(patch.object(engine, "step", step))
        for way, name in (("read", "read"), ("written", "write")) if io is not None else ():
            patched.enter_context(patch.object(io, name, noting(way, getattr(io, name))))
        yield found


def totals(noted: Sequence[Crossing]) -> dict[str, int]:
    """Return the bytes of each of the four ways."""
    return {way: sum(one.nbytes for one in noted if one.way == way) for way in LANES}


def crossings(noted: Sequence[Crossing], *, title: str = "") -> Picture:
    """Draw a step: every transfer is a bar as high as its bytes, all lanes on one scale."""
    if not noted:
        raise ValueError("nothing was transferred: does the engine have offload=?")
    told = ["Transfers between the tiers."]
    for phase, first, last in _phases(noted):
        sums = {way: nbytes for way, nbytes in totals(noted[first:last]).items() if nbytes}
        words = ", ".join(f"{LANES[way]} {shown(nbytes)}" for way, nbytes in sums.items())
        told.append(f"{phase.capitalize()}: {words.replace('→', 'to')}.")
    size = (WIDE, HIGH * len(LANES) + 0.45)
    return draw(size, " ".join(told), lambda figure: _paint(figure, noted), title)


def _paint(figure, noted: Sequence[Crossing]) -> None:
    axes = figure.subplots(len(LANES), 1, sharex=True)
    most, phases = max(one.nbytes for one in noted), _phases(noted)
    for axis, (way, name) in zip(axes, LANES.items(), strict=True):
        own = [(place, one.nbytes) for place, one in enumerate(noted) if one.way == way]
        places, heights = [place + 0.5 for place, _ in own], [nbytes for _, nbytes in own]
        look = {"color": SHADES[way], "edgecolor": CARD, "linewidth": 0.3}
        axis.bar(places, heights, width=1.0, **look)
        axis.set(ylim=(0, 1.15 * most), xlim=(0, len(noted)), yticks=[], xticks=[])
        total = shown(sum(nbytes for _, nbytes in own))
        axis.set_ylabel(f"{name}\n{total}", rotation=0, ha="right", va="center", fontsize=9)
        for _, begin, _ in phases[1:]:
            axis.axvline(begin, color=INK, linewidth=0.8, linestyle=":")
        axis.spines["left"].set_visible(False)
    for phase, first, last in phases:
        axes[-1].text((first + last) / 2, -0.08 * most, phase, ha="center", va="top", fontsize=9)


def _phases(noted: Sequence[Crossing]) -> list[tuple[str, int, int]]:
    return runs(one.phase for one in noted)
