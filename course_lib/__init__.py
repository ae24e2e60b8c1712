"""Tensor parallelism and ZeRO, one idea per file, in the order in which the course derives them.

Reading order, import order and lesson order are the same: ranks, collectives, ledger, memory,
layout and so on. Importing this package imports nothing else. Lesson 01 opens its first files.
"""

from __future__ import annotations

__version__ = "0.2.0"
