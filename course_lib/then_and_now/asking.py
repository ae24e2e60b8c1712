"""Make an installed release speak: the exception that it raises, the remark that it makes.

What is asked runs in this process and leaves nothing behind: environment, warnings, loggers and
accelerate's state are put back, and files go to a folder that is removed. Lesson 13.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator

LOGGERS = ("transformers", "DeepSpeed", "accelerate")
# By these Accelerate and DeepSpeed know their ranks; a probe has none.
LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Unchanged(Exception):
    """The installed release takes what the row says it refuses, or says nothing of it."""


def refusal(call: Callable[[], object], kind: type[Exception] = Exception) -> str:
    """The exception with which the release ends the call; `kind`: the only one that counts."""
    with left_as_found():
        try:
            call()
        except kind as error:
            return f"{type(error).__name__}: {error}"
    raise Unchanged("the call was accepted")


def remark(call: Callable[[], object]) -> str:
    """What the release warns of while the call succeeds: its warnings and its log."""
    with left_as_found() as heard:
        call()
    if not heard:
        raise Unchanged("the call was accepted without a word")
    return " | ".join(heard)


@contextlib.contextmanager
def left_as_found() -> Iterator[list[str]]:
    """Collect what is said, print nothing, and put back what libraries keep in globals."""
    heard: list[str] = []
    environment = dict(os.environ)
    for name in LAUNCHED:
        os.environ.pop(name, None)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_states_of_accelerate())
        for name in LOGGERS:
            stack.enter_context(_listening(logging.getLogger(name), heard))
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        try:
            yield heard
        finally:
            heard += [f"{one.category.__name__}: {one.message}" for one in caught]
            os.environ.clear()
            os.environ.update(environment)


@contextlib.contextmanager
def folder() -> Iterator[str]:
    """A folder for what the release writes; it is removed."""
    with tempfile.TemporaryDirectory(prefix="course-then-and-now-") as path:
        yield path


@contextlib.contextmanager
def _listening(logger: logging.Logger, heard: list[str]) -> Iterator[None]:
    """Its warnings go to `heard` and nowhere else, however quiet it was told to be."""
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    kept = logger.handlers[:], logger.level, logger.propagate
    logger.handlers[:], logger.propagate = [handler], False
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.handlers[:], _, logger.propagate = kept
        logger.setLevel(kept[1])


@contextlib.contextmanager
def _states_of_accelerate() -> Iterator[None]:
    """accelerate keeps one state a process, which the arguments of a Trainer make anew."""
    before = {} if "accelerate" not in sys.modules else _shared()
    try:
        yield
    finally:
        if "accelerate" in sys.modules:
            for state in _classes():
                state._shared_state.clear()
                state._shared_state.update(before.get(state, {}))


def _classes() -> tuple[type, ...]:
    from accelerate.state import AcceleratorState, GradientState, PartialState

    return AcceleratorState, GradientState, PartialState


def _shared() -> dict[type, dict]:
    return {state: dict(state._shared_state) for state in _classes()}
