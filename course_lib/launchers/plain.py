"""What a launcher prints, without what is another one each time: times, processes, ports, paths.

Lesson 13.
"""

from __future__ import annotations

import re

CUTS = (
    (r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+\] ", ""),  # DeepSpeed's clock
    (r"^([A-Z])\d{4} \d\d:\d\d:\d\d\.\d+ \d+ ", r"\1 "),  # torch's, with its process
    (r"\d{4}-\d\d-\d\d[_ T]\d\d:\d\d:\d\d(?:[.,]\d+)?", "(a time)"),
    (r"(?<![\w.])(?:/[\w.@+-]+)+/([\w.@+-]+)", r"\1"),  # a path: its last name stays
    (r"\[[\w.]+\.py:\d+:", "["),
    (r"(\.py):\d+\b", r"\1"),
    (r'(\.py"), line \d+', r"\1"),
    (r"\b([Pp]id:?|PID|[Pp]rocess|subprocess) ?\d+", r"\1 (a number)"),
    (r"\b(port:?|:) ?(?:[2-6]\d{4})\b", r"\1 (a port)"),
    (r"(host +: ).*", r"\1(this host)"),
    (r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", "(an id)"),
    (r"--world_info=\S+", "--world_info=…"),
)


def plain(text: str) -> str:
    """A text that is the same in every run of the same thing."""
    for pattern, instead in CUTS:
        text = re.sub(pattern, instead, text, flags=re.MULTILINE)
    return text
