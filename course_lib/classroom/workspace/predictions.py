"""Fold the outputs that follow a prediction, so that a learner predicts before the answer is seen.

JupyterLab unfolds an output when its cell is run, or on a click; what the cells say stays as it
was. Every lesson from 00 on asks for predictions.
"""

from __future__ import annotations

import json

ASKS = "predict("
FOLDED = {"outputs_hidden": True}


def folded(data: bytes) -> bytes:
    """The notebook with the outputs below its first prediction folded; else the same bytes."""
    try:
        notebook = json.loads(data)
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        asks = [any(_asks(line) for line in "".join(cell["source"]).splitlines()) for cell in cells]
        below = cells[asks.index(True) + 1 :]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return data  # no notebook, or none that asks
    for cell in below:
        if cell["outputs"]:
            cell["metadata"]["jupyter"] = {**cell["metadata"].get("jupyter", {}), **FOLDED}
    text = json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True)
    return text.encode() + b"\n"


def _asks(line: str) -> bool:
    return line.startswith(ASKS)
