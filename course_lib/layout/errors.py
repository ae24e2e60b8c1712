"""The one error of the checker: a tensor is not placed as the notation says.

Its message names the tensor, the dim, the rank, what was found and what was expected. Lesson 02.
"""

from __future__ import annotations


class LayoutError(ValueError):
    """What is written and what is there disagree."""
