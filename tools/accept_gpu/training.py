"""The training program at every stage and offload, compared with stage 0 and the formulas.

A rank's held and sent bytes must equal the closed forms exactly. The peak's deviation from the
estimate is only reported, since a GPU's allocator rounds up each block. No lesson derives it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from typing import Any

from course_lib.train.log import stretches
from tools.accept_gpu.reading import last_json
from tools.accept_gpu.running import Ended, Place, grouped

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
EACH = 120.0  # maximum seconds of one run
CLOSE = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 2e-2}  # relative, for each step's loss


def training(
    place: Place, limit: float, world: int, layouts: dict | None = None, at_once: int = 1
) -> dict[str, Any]:
    """Run short trainings on `world` ranks, as many at once as fit."""
    tp = 2 if world > 2 and world % 2 == 0 else 1
    common = ["--ranks", str(world), "--tp", str(tp), *SMALL]
    layouts = LAYOUTS if layouts is None else layouts
    runs = {name: [*common, *argv] for name, argv in layouts.items()}
    return {**trained(place, limit, runs, at_once, against="0"), "world": world}


def trained(
    place: Place, limit: float, runs: Mapping[str, list[str]], at_once: int = 1, against: str = ""
) -> dict[str, Any]:
    """Run `course train` jobs; compare each with the formulas and the losses of `against`."""
    outs = {name: tempfile.mkdtemp(prefix="train-", dir=place.scratch) for name in runs}
    jobs = {
        name: ["-m", "course_classroom.cli", "train", *argv, "--out", outs[name]]
        for name, argv in runs.items()
    }
    documents: dict[str, dict] = {}
    faults: dict[str, list[str]] = {name: [] for name in runs}
    left_out: dict[str, str] = {}
    for name, ended in place.together(limit, EACH, jobs, at_once):
        shutil.rmtree(outs[name], ignore_errors=True)  # a checkpoint is as large as the model
        document = last_json(ended.out) if ended.code == 0 else None
        if document is not None:
            documents[name] = document
            faults[name] = _beside_the_formulas(document)
            found = "; ".join([*faults[name], _speed(document, ended)])
            place.keep(name, {"ok": not faults[name], "found": found, "run": document})
        elif ended.left_out:
            left_out[name] = ended.left_out
        else:
            faults[name] = [ended.how()]
    for name, document in documents.items() if against in documents else ():
        faults[name] += _beside(document, documents[against], runs[name])
    amiss = [f"{name}: {fault}" for name in runs for fault in faults[name]]
    peaks = [r["peak"] / r["estimate"]["peak"] for d in documents.values() for r in d["ranks"]]
    spread = f"peaks {min(peaks):.2f} to {max(peaks):.2f} of the estimate" if peaks else "no peak"
    equal = "equal to stage 0 and the formulas" if against else "equal to the formulas"
    found = "; ".join(amiss) or f"{len(documents)} of {len(runs)} runs {equal}; {spread}"
    both = {
        f"{word}s": sorted({document[word] for document in documents.values()})
        for word in ("backend", "device")
    }
    return {"ok": not amiss, "found": found, **both, "left_out": grouped(left_out)}


def _speed(document: Mapping[str, Any], ended: Ended) -> str:
    """Format tokens per second and MFU of the last steps only, because the first load kernels."""
    lines = stretches(ended.lines())
    if not lines or not document.get("tokens_per_second"):
        return "no speed"
    last = lines[-1].tokens_per_second
    mfu = document["mfu"] * last / document["tokens_per_second"]
    return f"{last:,.0f} tokens/s, MFU {mfu:.1%} at the end"


def _beside_the_formulas(run: Mapping[str, Any]) -> list[str]:
    """List held and sent bytes that differ from the closed forms."""
    faults = [] if run["ranks"] else ["no step was measured"]
    for report in run["ranks"]:
        for what in ("held", "sent"):
            if report[what] != report["estimate"][what]:
                faults.append(
                    f"rank {report['rank']} {what} {report[what]} bytes, by formula "
                    f"{report['estimate'][what]}"
                )
    return faults


def _beside(run: Mapping[str, Any], whole: Mapping[str, Any], argv: list[str]) -> list[str]:
    """Report a run's losses if they differ from stage 0's by more than its precision allows."""
    precision = argv[argv.index("--precision") + 1] if "--precision" in argv else "float32"
    far = max(abs(a / b - 1) for a, b in zip(run["losses"], whole["losses"], strict=True))
    return [] if far <= CLOSE[precision] else [f"its losses differ by {far:.1e} from stage 0's"]
