"""The training program at every stage and offload, held against stage 0 and the formulas.

What a rank holds and sends has to equal the closed forms to the byte; how far its peak is from the
estimate is reported, since a GPU's allocator rounds each block up. No lesson derives it.
"""

from __future__ import annotations

import json
import tempfile
from typing import Any

from tools.accept_gpu.running import Place

LAYOUTS = {
    "0": [], "1": ["--stage", "1"], "2": ["--stage", "2"], "3": ["--stage", "3"],
    "3-fast": ["--stage", "3", "--fast"], "2-cpu": ["--stage", "2", "--offload", "cpu"],
    "1-nvme": ["--stage", "1", "--offload", "nvme"], "3-cpu": ["--stage", "3", "--offload", "cpu"],
    "3-nvme": ["--stage", "3", "--offload", "nvme"],
    "2-bf16": ["--stage", "2", "--precision", "bfloat16"],
    "3-bf16-cpu": ["--stage", "3", "--precision", "bfloat16", "--offload", "cpu"],
    "3-lent": [
        *("--stage", "3", "--precision", "bfloat16", "--offload", "cpu", "--no-offload-optimizer"),
    ],
    "3-fp16": ["--stage", "3", "--precision", "float16"],
}  # fmt: skip
SMALL = ["--steps", "6", "--layers", "3", "--corpus-bytes", "300000", "--json"]
CLOSE = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 2e-2}  # relative, of each step's loss


def training(place: Place, limit: float, world: int, layouts: dict | None = None) -> dict[str, Any]:
    """Short runs of the program on `world` ranks, one after another."""
    layouts = LAYOUTS if layouts is None else layouts
    tp = 2 if world > 2 and world % 2 == 0 else 1
    each = limit / len(layouts)
    runs: dict[str, dict] = {}
    amiss: list[str] = []
    for name, argv in layouts.items():
        out = tempfile.mkdtemp(prefix="train-", dir=place.scratch)
        command = ["-m", "course_lib.cli", "train", "--ranks", str(world), "--tp", str(tp)]
        ended = place.python(each, *command, *SMALL, *argv, "--out", out)
        if ended.code != 0:
            amiss.append(f"{name}: ended with {ended.code}: {' '.join(ended.tail()[-3:])}")
            continue
        runs[name] = json.loads(ended.out.read_text().splitlines()[-1])
        amiss += [f"{name}: {fault}" for fault in _faults(runs[name], runs.get("0"), argv)]
    peaks = [r["peak"] / r["estimate"]["peak"] for run in runs.values() for r in run["ranks"]]
    spread = f"peaks {min(peaks):.2f} to {max(peaks):.2f} of the estimate" if peaks else "no peak"
    backends = sorted({run["backend"] for run in runs.values()})
    found = "; ".join(amiss) or f"{len(runs)} layouts as stage 0 and as the formulas; {spread}"
    return {"ok": not amiss, "found": found, "world": world, "backends": backends, "runs": runs}


def _faults(run: dict, whole: dict | None, argv: list[str]) -> list[str]:
    """What a run has otherwise than the formulas, or than stage 0."""
    faults = []
    for report in run["ranks"]:
        for what in ("held", "sent"):
            if report[what] != report["estimate"][what]:
                faults.append(
                    f"rank {report['rank']} {what} {report[what]} bytes, by formula "
                    f"{report['estimate'][what]}"
                )
    if not run["ranks"]:
        faults.append("no step was measured")
    precision = argv[argv.index("--precision") + 1] if "--precision" in argv else "float32"
    if whole is not None:
        far = max(abs(a / b - 1) for a, b in zip(run["losses"], whole["losses"], strict=True))
        if not far <= CLOSE[precision]:
            faults.append(f"its losses are up to {far:.1e} from stage 0's")
    return faults
