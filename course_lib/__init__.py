"""Tensor parallelism and ZeRO, one idea a file, in the order in which the course derives them.

Reading order, import order and lesson order are one order: ranks, collectives, ledger, memory,
layout, and on. Importing this package imports nothing else; lesson 01 opens its first files.
"""

from __future__ import annotations

__version__ = "0.1.0"
