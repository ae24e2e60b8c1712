"""The records of pytest and NCCL, read into counts, which are the only basis of the verdict.

No lesson derives it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

LONGEST = 400  # maximum characters of a reason


def read_records(file: Path, start: int = 0) -> dict[str, Any]:
    """Read passed, failed and skipped tests (with names and reasons) from byte `start` on.

    A test is failed if any part of it failed. It may have two lines, for the test and its teardown.
    """
    kinds: dict[str, dict[str, str]] = {"failed": {}, "skipped": {}, "passed": {}}
    with open(file, "rb") as lines:
        lines.seek(start)
        for row in map(json.loads, lines):
            kinds[row["outcome"]].setdefault(row["test"], row.get("why", ""))
    failed, skipped = (
        [{"name": name, "why": " ".join(why.split())[:LONGEST]} for name, why in rows.items()]
        for rows in (kinds["failed"], kinds["skipped"])
    )
    passed = kinds["passed"].keys() - kinds["failed"].keys()
    return {"passed": len(passed), "failed": failed, "skipped": skipped}


def last_json(file: Path | None) -> Any:
    """Parse the last complete JSON document among a command's output lines, or return None."""
    lines = file.read_text(errors="replace").splitlines() if file else []
    for line in reversed(lines):
        if line.startswith("{"):
            try:
                return json.loads(line)
            except ValueError:
                continue
    return None


def read_nccl(folder: Path) -> dict[int, int]:
    """Count the communicators that NCCL reports as complete, by number of ranks.

    Every rank writes a line for its part of a communicator; only rank 0's line is counted.
    """
    sizes: Counter[int] = Counter()
    for file in sorted(folder.glob("*")):
        text = file.read_text(errors="replace")
        sizes.update(
            int(line[1]) for line in re.finditer(r"\brank 0 nranks (\d+)\b.*Init COMPLETE", text)
        )
    return dict(sorted(sizes.items()))
