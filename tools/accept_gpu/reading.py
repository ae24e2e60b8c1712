"""What pytest and NCCL wrote down, read into counts: the verdict rests on nothing else.

No lesson derives it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

LONGEST = 400  # characters of a reason


def read_records(file: Path, start: int = 0) -> dict[str, Any]:
    """Passed, failed with names and reasons, skipped with names and reasons, from byte `start` on.

    A test is failed where any part of it is, and its lines may be two: the test, then its teardown.
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
    """The last whole document among the lines that a command printed; None where there is none."""
    lines = file.read_text(errors="replace").splitlines() if file else []
    for line in reversed(lines):
        if line.startswith("{"):
            try:
                return json.loads(line)
            except ValueError:
                continue
    return None


def read_nccl(folder: Path) -> dict[int, int]:
    """By number of ranks: communicators that NCCL says it has completed, one count for each.

    Every rank writes a line for its part of one; rank 0's is counted.
    """
    sizes: Counter[int] = Counter()
    for file in sorted(folder.glob("*")):
        text = file.read_text(errors="replace")
        sizes.update(
            int(line[1]) for line in re.finditer(r"\brank 0 nranks (\d+)\b.*Init COMPLETE", text)
        )
    return dict(sorted(sizes.items()))
