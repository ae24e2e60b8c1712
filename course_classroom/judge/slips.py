"""Learners' slips, reported in one sentence: a mistyped name or number needs no traceback.

The functions that a notebook calls are marked with `plainly`; lesson 00 uses the first of them.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Collection
from typing import TypeVar

_SAID = (ValueError, TypeError, KeyError, MemoryError, RuntimeError)
Function = TypeVar("Function", bound=Callable)


def plainly(function: Function) -> Function:
    """Make a notebook show only an error's sentence, without the course's lines of a traceback."""

    @functools.wraps(function)
    def said(*args: object, **kwargs: object) -> object:
        try:
            return function(*args, **kwargs)
        except _SAID as error:
            if not hasattr(error, "_render_traceback_"):
                text = error.args[0] if isinstance(error, KeyError) and error.args else error
                lines = f"{type(error).__name__}: {text}".splitlines()
                error._render_traceback_ = lambda: lines
            raise

    return said


def meant(name: object, known: Collection[str]) -> str:
    """Return a question that suggests names similar to a mistyped name, or an empty string."""
    near = difflib.get_close_matches(str(name), list(known), n=3, cutoff=0.6)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else ""
