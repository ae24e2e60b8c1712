"""The four stages of ZeRO in one picture: one rank's memory in GB, by kind.

Each stage has a bar, from the closed forms of `course_lib.estimate`. For 7.5 billion parameters on
64 ranks, the picture is figure 1 of the ZeRO paper. Lesson 09; its slider is in
`course_classroom.notebook.sliders`.
"""

from __future__ import annotations

from course_classroom.figures.colours import CARD, Picture, draw, in_words, method
from course_classroom.figures.shapes import stacked

GIGA = 1e9  # a GB is 10⁹ bytes, as in the paper
STAGES = ("stage 0 (DDP)", "stage 1", "stage 2", "stage 3 (FSDP)")
KINDS = ("parameters", "gradients", "optimizer states")
SHADES = dict(zip(KINDS, map(method, (0, 1, 3)), strict=True))
SIZE = (7.8, 3.0)  # inches


# Bytes of a parameter, bytes of a gradient, and whether a float32 master copy is kept.
PRECISIONS = {
    "float32": (4, 4, False),
    "bf16": (2, 2, True),
    "bf16, float32 gradients": (2, 4, True),
}


def stage_bytes(
    stage: int, ranks: int, *, precision: str = "bf16", optimizer: str = "adamw"
) -> dict[str, float]:
    """Return the bytes per parameter that a rank holds at a stage, by kind, including gradients."""
    from course_lib.estimate import RULES, per_parameter

    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r} is none of {', '.join(map(repr, PRECISIONS))}")
    if optimizer not in RULES:
        raise ValueError(f"optimizer={optimizer!r} is none of {', '.join(map(repr, RULES))}")
    parameter, gradient, master = PRECISIONS[precision]

    def holds(width: int, states: int, *, alive: bool = False, of: int = stage) -> float:
        return per_parameter(of, ranks, width=width, states=states, alive=alive)

    # The form adds all kinds; from stage 2 on it counts gradients only while they are alive.
    without = max(stage, 2)
    alone = holds(parameter, 0, of=without)
    gradients = holds(gradient, 0, alive=True) - holds(gradient, 0, of=without)
    kept = RULES[optimizer].states + master  # 4 bytes each
    return dict(zip(KINDS, (alone, gradients, holds(4, kept) - holds(4, 0)), strict=True))


def stage_bars(
    parameters: float = 7.5e9,
    ranks: int = 64,
    precision: str = "bf16",
    optimizer: str = "adamw",
    *,
    title: str | None = None,
) -> Picture:
    """Draw the memory of one of `ranks` ranks at stages 0 to 3, in GB of 10⁹ bytes.

    `precision` is "float32", "bf16" with a float32 master copy of the parameters, or "bf16, float32
    gradients" as in Megatron (18 bytes per parameter with Adam).
    """
    held = {}
    for number, stage in enumerate(STAGES):
        each = stage_bytes(number, ranks, precision=precision, optimizer=optimizer)
        held[stage] = {kind: nbytes * parameters / GIGA for kind, nbytes in each.items()}
    if title is None:
        title = f"{counted(parameters)} parameters on {ranks} ranks, {precision}, {optimizer}"

    def paint(figure) -> None:
        axis = figure.subplots()
        ways = {stage: list(row.values()) for stage, row in held.items()}
        looks = {kind: {"facecolor": shade, "edgecolor": CARD} for kind, shade in SHADES.items()}
        stacked(axis, ways, looks, gigabytes)
        axis.set_xlabel("GB on each rank (1 GB = 10⁹ bytes)")
        axis.xaxis.set_major_formatter(lambda x, _: gigabytes(x) if x else "0")

    words = {}
    for stage, row in held.items():
        parts = [f"{kind} {gigabytes(value)}" for kind, value in row.items() if value]
        words[stage] = [f"{gigabytes(sum(row.values()))} GB", *parts]
    return draw(SIZE, in_words("GB that each rank holds", words), paint, title)


def counted(parameters: float) -> str:
    """7.5e9 -> "7.5 billion"."""
    for name, size in (("trillion", 1e12), ("billion", 1e9), ("million", 1e6)):
        if parameters >= size:
            return f"{parameters / size:.3g} {name}"
    return f"{parameters:,.0f}"


def gigabytes(value: float) -> str:
    """Format a number of GB to one decimal, or to two significant digits below 1."""
    return f"{value:.2g}" if value < 1 else f"{value:,.1f}".removesuffix(".0")
