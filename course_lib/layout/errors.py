"""The checker's only error, raised if a tensor's layout differs from the notation.

Its message names tensor, dim and rank, and the actual and the expected value. Lesson 02.
"""

from __future__ import annotations


class LayoutError(ValueError):
    """An error for tensors that differ from their declared layout."""
