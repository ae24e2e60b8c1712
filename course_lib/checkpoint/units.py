"""One parameter after another whole at stage 3, each unit gathered once: what a save walks over.

`pretrained.save(..., gathered=)` asks for one parameter at a time; a unit stays gathered until one
of another unit is asked for. Lesson 14.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn

from course_lib.zero import Engine


@contextlib.contextmanager
def unit_by_unit(engine: Engine) -> Iterator:
    """A way to have one parameter after another whole: its unit stays gathered until the next one's
    is asked for, so that at stage 3 each is gathered once and one is whole at a time."""
    with contextlib.ExitStack() as stack:
        unit_of = engine.shards.of if engine.stage == 3 else {}
        current: list = []

        def gathered(parameter: nn.Parameter) -> contextlib.AbstractContextManager:
            unit = unit_of.get(parameter)
            if unit is not None and not unit.persistent and current != [unit]:
                stack.close()
                current[:] = [unit]
                stack.enter_context(engine.gathered(parameter))
            return contextlib.nullcontext()

        yield gathered
