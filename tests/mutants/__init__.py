"""The registry of mistakes: each is one that a reader of this course, or its writer, could make.

`python -m tests.mutants` runs them all, `--id NAME` some, `--list` shows them. A part of course_lib
adds its own in a file of this folder, which holds a list MUTANTS.
"""

from __future__ import annotations

import importlib
import pkgutil

from tests.support.mutation import Mutant


def gathered() -> list[Mutant]:
    """The mutants of every file in this folder, in the files' order by name."""
    names = sorted(found.name for found in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names if name[0] != "_"]
    return [mutant for module in modules for mutant in module.MUTANTS]


MUTANTS: list[Mutant] = gathered()
