"""What pytest and NCCL wrote down, read into counts: the verdict rests on nothing else.

No lesson derives it.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as xml
from collections import Counter
from pathlib import Path
from typing import Any

LONGEST = 400  # characters of a reason


def read_junit(file: Path) -> dict[str, Any]:
    """Passed, failed with names and reasons, skipped with names and reasons."""
    passed, failed, skipped = 0, [], []
    for case in xml.parse(file).getroot().iter("testcase"):
        name = f"{case.get('classname', '')}::{case.get('name', '')}".removeprefix("::")
        broken = [one for one in case if one.tag in ("failure", "error")]
        left_out = case.find("skipped")
        if broken:
            failed.append({"name": name, "why": _reason(broken[0])})
        elif left_out is not None:
            skipped.append({"name": name, "why": _reason(left_out)})
        else:
            passed += 1
    return {"passed": passed, "failed": failed, "skipped": skipped}


def _reason(element: xml.Element) -> str:
    text = element.get("message") or element.text or ""
    return " ".join(text.split())[:LONGEST]


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
