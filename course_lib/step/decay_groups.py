"""Weight decay for product weights and embedding tables, but not for biases and norms (one dim).

A norm's weight at 0 would switch its layer off, and a bias is not a product. Lesson 08.
"""

from __future__ import annotations

from torch import nn


def groups(model: nn.Module, decay: float) -> list[dict]:
    """Return an optimizer's two parameter groups; a tied weight is in only one group, once.

    The group depends only on the number of dims, so it is the same for every sharding.
    """
    if not decay >= 0:
        raise ValueError(f"decay={decay} must be 0 or more")
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": float(decay)},
        {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0},
    ]
