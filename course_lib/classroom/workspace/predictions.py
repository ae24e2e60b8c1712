"""Leave out the outputs that follow a prediction, so that a learner predicts before the answer.

Pictures of a statement stay: they belong to the derivation, and nothing in them was measured. What
the cells say stays as it was. Every lesson from 00 on asks for predictions.
"""

from __future__ import annotations

import json

ASKS = ("predict(",)
# Drawn from the notation or from the algorithm alone, before anything is run.
SCHEMATIC = ("statement(", "f_and_g(", "parameter_life(", "ring_steps(", "sliders.ring(")


def without_answers(data: bytes) -> bytes:
    """The notebook without the outputs below its first prediction; else the same bytes."""
    try:
        notebook = json.loads(data)
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        asks = [_calls(cell, ASKS) for cell in cells]
        below = cells[asks.index(True) + 1 :]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return data  # no notebook, or none that asks
    for cell in below:
        if not _calls(cell, SCHEMATIC):
            cell["outputs"], cell["execution_count"] = [], None
    text = json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True)
    return text.encode() + b"\n"


def _calls(cell: dict, names: tuple[str, ...]) -> bool:
    """Whether a line of the cell begins with such a call."""
    return any(line.startswith(names) for line in "".join(cell["source"]).splitlines())
