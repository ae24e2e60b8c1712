"""The results of `course bench scale` as a table, as notes and as a picture.

The picture shows the article's eight bars next to those of this machine, on one scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

TITLE = "Scaling: measured here, and Megatron-LM's eight bars (arXiv 1909.08053)"


def notes(worlds: Sequence[Mapping], cores: int) -> list[str]:
    """List limits of the figures that no message of the run mentions."""
    told = [
        f"{one['ranks']} ranks share {cores} core(s) (oversubscribed {one['oversubscribed']:g} "
        f"times), so no efficiency can exceed {1 / one['oversubscribed']:.0%} of the value "
        "with one core per rank"
        for one in worlds
        if one["oversubscribed"] > 1
    ]
    if any(one["device"] == "cuda" for one in worlds):
        told.append("no prediction on GPUs, because the probes measure this machine's processors")
    return told


def as_text(result: Mapping) -> str:
    lines = [f"{result['name']}: {', '.join(f'{k} {v}' for k, v in result['workload'].items())}"]
    width = max(len(one["name"]) for one in result["methods"])
    lines.append(
        f"{'':{width}} {'seconds':>9} {'ratio':>7} {'effic.':>7} {'predicted':>9} {'MFU':>6} "
        f"{'tp bytes':>12} {'dp bytes':>12}"
    )
    for one in result["methods"]:
        guess = one["predicted_efficiency"]
        lines.append(
            f"{one['name']:{width}} {one['seconds']:9.4f} {one['ratio']:7.3f} "
            f"{one['efficiency']:7.1%} {'' if guess is None else f'{guess:.1%}':>9} "
            f"{one['mfu']:6.1%} {one['bytes']['tp']['counted']:12,.0f} "
            f"{one['bytes']['dp']['counted']:12,.0f}"
        )
    lines.append("bytes of rank 0 per step (equal to the closed forms on every rank and axis)")
    return "\n".join([*lines, *result["notes"]])


def picture(result: Mapping):
    """Draw this machine's bars, strong and weak, next to the published bars and their model."""
    from course_classroom.figures.scaling import ScalingBar, scaling_bars
    from course_lib.estimate.time import bars

    constants = bars.fit((*bars.ALONE, bars.ONE))  # the other three are predicted

    panels: dict[str, list[ScalingBar]] = {}
    for scaling in ("strong", "weak"):
        rows = [one for one in result["methods"] if one["scaling"] == scaling]
        if rows:
            panels[f"{scaling} scaling, here"] = [
                ScalingBar(_label(one), *map(_percent, _both(one))) for one in rows
            ]
    for name, published in (("TP alone", bars.ALONE), ("TP × DP 64", bars.REPLICATED)):
        panels[f"{name}, published"] = [
            ScalingBar(
                f"{bar.name}\n{bar.tp * bar.dp} GPUs",
                predicted=bars.percent(bar, constants), published=bar.percent,
            )
            for bar in published
        ]  # fmt: skip
    return scaling_bars(panels, title=TITLE)


def _label(one: Mapping) -> str:
    return "\n".join(f"{axis} {one[axis]}" for axis in ("dp", "tp") if one[axis] > 1)


def _both(one: Mapping) -> tuple[float, float | None]:
    return one["efficiency"], one["predicted_efficiency"]


def _percent(part: float | None) -> float | None:
    return None if part is None else 100 * part
