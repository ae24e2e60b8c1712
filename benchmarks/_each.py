"""A benchmark that continues without a late or failed method, and names it.

The ranks are started again without that method, and the figures completed by then are kept. So a
peer that hangs, raises or dies loses only its own line in the table.
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
    """Measure a benchmark's `steps`, and return the document format that all benchmarks share."""
    measured = run(workload["ranks"], file, "steps", limit=limit, workload=workload, runs=runs)
    return {
        "name": name,
        "workload": {**workload, "runs": runs},
        "machine": _ranks.machine(),
        **measured,
        **more,
    }


def chosen(workload: dict, names: Sequence[str]) -> list[str]:
    """Return the methods of a workload: names separated by commas, or all if there are none."""
    return workload["only"].split(",") if workload["only"] else list(names)


def check_only(workload: dict, what: str, names: Sequence[str]) -> None:
    """Refuse unknown methods, and batches that the ranks cannot divide evenly."""
    strange = [name for name in chosen(workload, names) if name not in names]
    if strange:
        raise ValueError(f"only={','.join(strange)} is unknown; the {what} are {', '.join(names)}")
    if workload["batch"] % workload["ranks"]:
        raise ValueError(
            f"batch={workload['batch']} is the total over all ranks, but ranks={workload['ranks']} "
            "does not divide it; choose a multiple"
        )


def run(world: int, file: str | Path, function: str, *, limit: float, **arguments) -> dict:
    """Run a benchmark and return `methods` and, if any, `notes` and `missing` ({"name", "why"}).

    `function(me, without=…, measured=…, **arguments)` omits the methods named there, works in
    `_progress.doing`, and passes figures to `_progress.finished`. `limit` is the maximum seconds of
    one method over all its turns.
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
            missing.append({"name": "everything not measured yet", "why": str(fault)})
            break
        missing.append({"name": fault.method, "why": str(fault)})
        print(f"{fault.method} is left out ({fault}); others go on", file=sys.stderr, flush=True)
        if rows and rows[0]["name"] == fault.method:
            rows = []  # ratios to it are invalid, so measure again with a different method first
    result = {"methods": rows}
    if notes:
        result["notes"] = list(dict.fromkeys(notes))
    if missing:
        result["missing"] = missing
    return result
