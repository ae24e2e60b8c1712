"""`course bench scale` on a node: efficiencies of both axes, and bytes equal to the formulas.

Times are reported but not judged. Omitted work, wrong bytes, or ranks without NCCL are failures. No
lesson derives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tools.accept_gpu.reading import last_json
from tools.accept_gpu.running import TAIL, Place

RUNS = 7
# Large enough to keep a GPU busy; float32, with all tokens of a row.
WORKLOAD = {"hidden": 1536, "heads": 24, "length": 512, "layers": 4, "vocabulary": 49152}
ROWS = 4  # per rank, for strong scaling
AXES = ("tp", "dp")


def scaling(
    place: Place, limit: float, world: int, workload: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Run weak and strong scaling on `world` ranks over tp, dp and, from four ranks, both."""
    wanted = {**(WORKLOAD if workload is None else workload), "ranks": world, "rows": ROWS * world}
    options = [part for key, value in wanted.items() for part in ("--set", f"{key}={value}")]
    command = [
        "-m",
        "course_classroom.cli",
        "bench",
        "scale",
        "--runs",
        str(RUNS),
        *options,
        "--json",
    ]
    ended = place.python(limit, *command)
    result = last_json(ended.out) if ended.code == 0 else None
    if result is None:
        return {"ok": False, "late": ended.code is None, "found": ended.how(), "world": world,
                "backends": [], "tail": ended.lines()[-TAIL:]}  # fmt: skip
    return judged(result, world)


def judged(result: Mapping[str, Any], world: int) -> dict[str, Any]:
    """Judge the benchmark's output."""
    amiss, told = [], []
    seen = {(row["scaling"], axis) for row in result["methods"] for axis in AXES if row[axis] > 1}
    for scaling_of in ("weak", "strong"):
        for axis in AXES:
            if (scaling_of, axis) not in seen:
                amiss.append(f"no {scaling_of} scaling over {axis}")
    for row in result["methods"]:
        for axis, sent in row["bytes"].items():
            if sent["counted"] != sent["form"] or (row[axis] > 1) != (sent["form"] > 0):
                amiss.append(f"{row['name']}: {sent['counted']:g} bytes over {axis}, but the "
                             f"form says {sent['form']:g}")  # fmt: skip
        if row["ranks"] > 1:
            told.append(f"{row['name']} {row['efficiency']:.0%}")
    backends = sorted({one["backend"] for one in result["worlds"]})
    return {"ok": not amiss, "found": "; ".join(amiss or told), "world": world,
            "backends": backends, "methods": result["methods"], "worlds": result["worlds"],
            "notes": result["notes"]}  # fmt: skip
