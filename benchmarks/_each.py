"""A benchmark that goes on without the method that is late or has failed, and names it.

The ranks are started anew without that one; figures that were whole by then are kept. So a peer
that hangs, raises or dies costs its own line in the table and no other's.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import _progress
import _ranks
import _start


def document(name: str, file: str, workload: dict, runs: int, limit: float, **more: object) -> dict:
    """What a benchmark's `steps` measures, in the shape that all benchmarks share."""
    measured = run(workload["ranks"], file, "steps", limit=limit, workload=workload, runs=runs)
    return {
        "name": name,
        "workload": {**workload, "runs": runs},
        "machine": _ranks.machine(),
        **measured,
        **more,
    }


def chosen(workload: dict, names: Sequence[str]) -> list[str]:
    """The methods of a workload, which names them with commas between, or none for all."""
    return workload["only"].split(",") if workload["only"] else list(names)


def check_only(workload: dict, what: str, names: Sequence[str]) -> None:
    """Refuse a method that there is not, and rows that the ranks cannot share evenly."""
    strange = [name for name in chosen(workload, names) if name not in names]
    if strange:
        raise ValueError(f"only={','.join(strange)}: the {what} are {', '.join(names)}")
    if workload["batch"] % workload["ranks"]:
        raise ValueError(
            f"batch={workload['batch']} is of all ranks together, and ranks={workload['ranks']} "
            "does not divide it; choose a multiple"
        )


def run(world: int, file: str | Path, function: str, *, limit: float, **arguments) -> dict:
    """`methods`, and where there are any, `notes` and `missing`: [{"name", "why"}, …].

    `function(me, without=…, measured=…, **arguments)` leaves out the methods named there, works in
    `_progress.doing`, and hands figures to `_progress.finished`. `limit` is the seconds that one
    method may take, all its turns together.
    """
    rows: list[dict] = []
    notes: list[str] = []
    missing: list[dict] = []
    while True:
        without = [one["name"] for one in missing]
        more = {"without": without, "measured": [row["name"] for row in rows]}
        fault = None
        with tempfile.TemporaryDirectory(prefix="course-bench-") as folder:
            try:
                _start.attempt(world, file, function, folder, limit, {**arguments, **more})
            except _start.Fault as error:
                fault = error
            new_rows, new_notes = _progress.read_finished(Path(folder))
        rows += [row for row in new_rows if row["name"] not in more["measured"]]
        notes += new_notes
        if fault is None:
            break
        if fault.method is None or fault.method in without:
            if not rows:
                raise fault
            missing.append({"name": "all that was not measured yet", "why": str(fault)})
            break
        missing.append({"name": fault.method, "why": str(fault)})
        print(f"{fault.method} is left out: {fault}; the others go on", file=sys.stderr, flush=True)
        if rows and rows[0]["name"] == fault.method:
            rows = []  # ratios to it; they are taken anew, to another method
    result = {"methods": rows}
    if notes:
        result["notes"] = list(dict.fromkeys(notes))
    if missing:
        result["missing"] = missing
    return result
