"""Which parameters decay: weights of products and tables; biases and norms, of one dim, do not.

A norm's weight pulled to 0 switches its layer off, and a bias is no product. Lesson 08.
"""

from __future__ import annotations

from torch import nn


def groups(model: nn.Module, decay: float) -> list[dict]:
    """The parameters in two groups for an optimizer of torch; a tied weight is in one, once.

    Which group it is depends on the dims alone, so it is the same however the model is cut.
    """
    if not decay >= 0:
        raise ValueError(f"decay={decay} has to be 0 or more")
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": float(decay)},
        {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0},
    ]
