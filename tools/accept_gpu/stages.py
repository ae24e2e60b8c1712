"""The stages: doctor, tests, forked ranks, six ways, notebooks, training, bandwidths, scaling.

Each returns its results as plain data with `ok`. A stage that crashes or exceeds its time has
failed, but the others continue. No lesson derives it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.accept_gpu import recorder
from tools.accept_gpu.reading import last_json, read_nccl, read_records
from tools.accept_gpu.resuming import resuming
from tools.accept_gpu.running import TAIL, Ended, Place
from tools.accept_gpu.scaling import scaling
from tools.accept_gpu.training import training

Found = dict[str, Any]
FORKED = ("tests/course_lib/processes", "tests/course_classroom", "tests/house/test_pool.py")
# Lesson 13's matrix: every stage, offload and precision.
WAYS = ("-m", "", "tests/course_lib/peers/ways")
PARALLEL = ["-n", "auto", "--maxprocesses", "4", "--dist", "loadfile"]


@dataclass(frozen=True)
class Stage:
    """A stage: its name, its group for --only, its maximum seconds, and its function.

    Neighbours with the same `beside` run in parallel.
    """

    name: str
    group: str
    limit: float
    run: Callable[[Place, float], Found]
    beside: str = ""


def stages(world: int) -> list[Stage]:
    """List all stages for a node whose GPUs give `world` ranks."""
    worlds = sorted({2, world})
    return [
        Stage("doctor", "doctor", 900, doctor),
        Stage("tests", "tests", 1800, lambda place, limit: tests(place, limit, *PARALLEL)),
        Stage("gpu tests", "tests", 600, lambda place, limit: tests(place, limit, "-m", "gpu")),
        Stage("forked ranks", "tests", 780, forked),
        Stage("six ways", "tests", 1800, lambda place, limit: tests(place, limit, *WAYS)),
        *(Stage(f"notebooks at world {n}", "notebooks", 1800, _notebooks_at(n)) for n in worlds),
        *(Stage(f"training at world {n}", "training", 900, _training_at(n)) for n in worlds),
        *(Stage(f"resuming at world {n}", "training", 900, _resuming_at(n)) for n in worlds),
        Stage(f"bandwidth at world {world}", "bandwidth", 400, _bandwidth_at(world)),
        *(Stage(f"scaling at world {n}", "scaling", 900, _scaling_at(n)) for n in worlds),
    ]


def _notebooks_at(world: int) -> Callable[[Place, float], Found]:
    return lambda place, limit: notebooks(place, limit, world)


def _training_at(world: int) -> Callable[[Place, float], Found]:
    return lambda place, limit: training(place, limit, world)


def _resuming_at(world: int) -> Callable[[Place, float], Found]:
    return lambda place, limit: resuming(place, limit, world)


def _bandwidth_at(world: int) -> Callable[[Place, float], Found]:
    return lambda place, limit: bandwidth(place, limit, world)


def _scaling_at(world: int) -> Callable[[Place, float], Found]:
    return lambda place, limit: scaling(place, limit, world)


def doctor(place: Place, limit: float) -> Found:
    """Run `course doctor --json` and keep its full report."""
    ended = place.python(limit, "-m", "course_classroom.cli", "doctor", "--json")
    report = _document(ended)
    red = [one["name"] for one in report["checks"] if one["level"] == "bad"]
    told = f"to repair: {', '.join(red)}" if red else f"{len(report['checks'])} checks, none bad"
    backends = sorted({row["backend"] for row in report["bandwidth"]})
    return {"ok": report["ok"] and ended.code == 0, "found": told, "backends": backends,
            "report": report}  # fmt: skip


def tests(place: Place, limit: float, *options: str) -> Found:
    """Run pytest and count results from its own report."""
    return _pytest(place, limit, [*options], {})


def forked(place: Place, limit: float) -> Found:
    """Test the classroom with forked ranks, which a CUDA build uses only on request."""
    return _pytest(place, limit, list(FORKED), {"COURSE_START": "fork"})


def notebooks(place: Place, limit: float, world: int) -> Found:
    """Run every notebook on `world` ranks, and count the communicators that NCCL reports."""
    folders = [
        one for one in ("notebooks", "solutions") if any(place.root.glob(f"{one}/**/*.ipynb"))
    ]
    nccl = Path(tempfile.mkdtemp(prefix="nccl-", dir=place.scratch))
    variables = {
        "WORLD_SIZE": str(world),
        "IPYTHONDIR": tempfile.mkdtemp(prefix="ipython-", dir=place.scratch),
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT",
        "NCCL_DEBUG_FILE": str(nccl / "%p"),
    }
    # One at a time, because each uses all GPUs that its ranks need.
    options = ["--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout", "900", *folders]
    found = _pytest(place, limit, options, variables)
    made = read_nccl(nccl)
    told = ", ".join(f"{times} of {ranks} ranks" for ranks, times in made.items())
    found["found"] += f"; NCCL communicators: {told or 'none'}"
    found["nccl_communicators"] = {str(ranks): times for ranks, times in made.items()}
    found["world"] = world
    return found


def bandwidth(place: Place, limit: float, world: int) -> Found:
    """Measure all-reduce by size on `world` real ranks."""
    ended = place.python(limit, "-m", "tools.accept_gpu.measure", str(world))
    measured = _document(ended)
    red = [one for one in measured["findings"] if one["level"] == "bad"]
    told = "; ".join(one["found"] for one in red or measured["findings"])
    return {"ok": not red and bool(measured["rows"]), "found": told, "world": world,
            "backends": [measured["backend"]], "rows": measured["rows"]}  # fmt: skip


def _pytest(place: Place, limit: float, options: list[str], variables: dict[str, str]) -> Found:
    """Run pytest and count the lines that tools.accept_gpu.recorder writes as its tests end."""
    records = place.records or place.scratch / "tests.jsonl"
    records.touch()
    start = records.stat().st_size
    ended = place.python(
        limit, "-m", "pytest", "-p", "tools.accept_gpu.recorder", "-p", "no:cacheprovider",
        "--continue-on-collection-errors", *options, **variables, **{recorder.FILE: str(records)},
    )  # fmt: skip
    counts = read_records(records, start)
    numbers = {"failed": len(counts["failed"]), "skipped": len(counts["skipped"])}
    more = "".join(f", {n} {word}" for word, n in numbers.items() if n)
    found = f"{counts['passed']} passed{more}"
    if ended.code not in (0, 1):
        how = f"pytest itself ended with {ended.code}"
        how = f"unfinished after {ended.seconds:.0f} s" if ended.code is None else how
        found, counts["tail"] = f"{how}: {found}", ended.lines()[-TAIL:]
    good = ended.code == 0 and counts["passed"] > 0 and not counts["failed"]
    return {"ok": good, "late": ended.code is None, "found": found, **counts}


def _document(ended: Ended) -> dict[str, Any]:
    """Parse the JSON output of a stage's command; otherwise raise its output as an error."""
    document = last_json(ended.out)
    if document is None:
        raise (TimeoutError if ended.code is None else RuntimeError)(ended.how())
    return document
