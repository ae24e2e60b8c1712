"""Runs that resume from their checkpoint at a different layout, compared with an uninterrupted run.

The next losses must be equal, whatever ranks, stage, offload and precision were used for the
checkpoint. No lesson derives it.
"""

from __future__ import annotations

import tempfile
import time
from typing import Any

from tools.accept_gpu.reading import last_json
from tools.accept_gpu.running import Place
from tools.accept_gpu.training import CLOSE

# Layout at the save, and layout after resuming; a later --ranks overrides.
PAIRS = {
    "dp to tp": (["--stage", "2"], ["--tp", "2"]),
    "tp to dp": (["--tp", "2"], ["--stage", "3"]),
    "to one rank": (["--stage", "3", "--async-save"], ["--ranks", "1"]),
    "from one rank": (["--ranks", "1"], ["--stage", "1"]),
    "host to files": (
        ["--stage", "2", "--offload", "cpu"], ["--stage", "3", "--offload", "nvme"],
    ),
    "files to host": (
        ["--stage", "1", "--offload", "nvme"], ["--stage", "3", "--offload", "cpu"],
    ),
    "to 16 bits": (["--stage", "3"], ["--stage", "2", "--precision", "bfloat16"]),
    "from 16 bits": (["--stage", "2", "--precision", "bfloat16"], ["--stage", "3"]),
}  # fmt: skip
CUT, STEPS = 3, 6
EACH = 120.0  # maximum seconds of one run


def resuming(place: Place, limit: float, world: int, pairs: dict | None = None) -> dict[str, Any]:
    """Save after half of the steps and resume, for each pair, on up to `world` ranks."""
    pairs = PAIRS if pairs is None else pairs
    until = time.monotonic() + limit
    rows = 12 * world  # over all replicas, so that any number of replicas gets a share
    amiss: list[str] = []
    left_out: list[str] = []
    backends: set[str] = set()

    def ran(name: str, out: str, *argv: str) -> list[float] | None:
        command = ["-m", "course_classroom.cli", "train", "--ranks", str(world), "--out", out]
        ended = place.within(until, EACH, *command, *argv, "--json")
        run = last_json(ended.out) if ended.code == 0 else None
        if run is None:
            (left_out if ended.left_out else amiss).append(f"{name}: {ended.how()}")
            return None
        if "--ranks" not in argv:  # a single rank may use a different backend
            backends.add(run["backend"])
        return run["losses"]

    model = ["--layers", "2", "--corpus-bytes", "300000", "--rows", str(rows), "--no-pack"]
    folder = tempfile.mkdtemp(prefix="resume-", dir=place.scratch)
    want = ran("never cut", f"{folder}/whole", *model, "--steps", str(STEPS))
    for number, (name, (first, second)) in enumerate(pairs.items() if want else ()):
        out = f"{folder}/{number}"
        if ran(name, out, *model, *first, "--steps", str(CUT)) is None:
            continue
        losses = ran(name, out, "--resume", "--steps", str(STEPS), *_at(second, first))
        if losses is None:
            continue
        bound = CLOSE["bfloat16" if "bfloat16" in [*first, *second] else "float32"]
        far = max(abs(a / b - 1) for a, b in zip(losses, want, strict=True))
        if not far <= bound:
            amiss.append(f"{name}: its losses differ by up to {far:.1e} from the uninterrupted run")
    told = (
        "; ".join(amiss)
        or f"{len(pairs) - len(left_out)} pairs of layouts resume with the same losses"
    )
    return {"ok": not amiss, "found": told, "world": world, "backends": sorted(backends),
            "left_out": left_out}  # fmt: skip


def _at(second: list[str], first: list[str]) -> list[str]:
    """Write the second layout in full, because a resumed run keeps the saved layout otherwise."""
    given = dict(zip(second[::2], second[1::2], strict=True))
    usual = {"--tp": "1", "--stage": "0", "--offload": "none"}
    if "--precision" in first:
        usual["--precision"] = "float32"
    return [word for pair in {**usual, **given}.items() for word in pair]
