"""The output of ranks: the newest lines during a cell, and all lines in rank order afterwards.

While a cell runs, a live area below it shows these lines and the ranks' activity. The area
disappears when the cell ends, so a notebook keeps the same output on every run. From lesson 00 on.
"""

from __future__ import annotations

import contextvars
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from IPython.display import clear_output, display

from course_classroom.ranks.own_time import OwnTime
from course_classroom.ranks.wire import Outcome

# Lines from torch's C++ code that contain a time. The course reports the same in plainer words, or
# they are not needed, as when a profiler starts.
_NOISE = re.compile(
    r"^((\[rank\d+\]:)?\[[WEI]\d{4} |(USDT|INFO|STAGE):\d{4}-\d\d-\d\d .*\.cpp:\d+\] ).*$\n?",
    re.MULTILINE,
)
NEWEST = 8  # lines of each rank in the live area
QUIET = 3.0  # seconds before a check shows a live line
_PAGE = "(Has this line not changed since you reopened the page? Run `%ranks last`.)"


def show(outcomes: Iterable[Outcome]) -> None:
    """Print and display the output of the ranks, rank after rank."""
    for outcome in outcomes:
        tag, text = _tag(outcome), ""
        for output in outcome.outputs:
            if output["output_type"] == "stream":
                text += _NOISE.sub("", output["text"])
            elif output["output_type"] != "error":
                text = _flush(tag, text)
                data = output["data"]
                if set(data) <= {"text/plain"}:
                    text += data.get("text/plain", "") + "\n"
                    continue
                print(tag.strip())
                display(data, raw=True, metadata=output.get("metadata", {}))
        _flush(tag, text)
        if outcome.dropped:
            print(f"{tag}… and {outcome.dropped:,} more characters, which are not shown")


def newest(outcomes: Iterable[Outcome]) -> list[str]:
    shown = []
    for outcome in outcomes:
        streams = [o["text"] for o in outcome.outputs if o["output_type"] == "stream"]
        lines = _lines(_tag(outcome), _NOISE.sub("", "".join(streams)))
        if len(lines) > NEWEST:
            shown.append(f"{_tag(outcome)}… {len(lines) - NEWEST} earlier lines follow at the end")
        shown += lines[-NEWEST:]
    return shown


def _tag(outcome: Outcome) -> str:
    return f"[rank {outcome.rank}] "


def _lines(tag: str, text: str) -> list[str]:
    # A progress bar rewrites its line many times; a reader sees only the last state.
    lines = text.removesuffix("\n").split("\n") if text else []
    return [tag + line.rstrip("\r").rsplit("\r", 1)[-1] for line in lines]


def _flush(tag: str, text: str) -> str:
    for line in _lines(tag, text):
        print(line)
    return ""


class LiveArea:
    """A changing text below a running cell, which is removed when the cell has ended."""

    def __init__(self) -> None:
        # Only for a viewer, because an executed notebook needs no signs of life.
        self.wanted = "JPY_SESSION_NAME" in os.environ or "VSCODE_PID" in os.environ
        self.text = ""
        self._handle = None

    def say(self, text: str) -> None:
        if not self.wanted or text == self.text:
            return
        self.text, bundle = text, {"text/plain": text}
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)

    def show(self, outcomes: Sequence[Outcome], doing: list[str], spent: OwnTime) -> None:
        """Show the newest lines of the ranks, their activity, and the time left."""
        line = f"{spent.wall:.0f} s · this cell is ended after {spent.left()}"
        self.say("\n".join([*newest(outcomes), line, *doing, _PAGE]))

    def clear(self) -> bool:
        """Remove the area and all output of the cell so far; return True if the area existed."""
        if self._handle is not None:
            clear_output()
        return self._handle is not None


@contextmanager
def watched(doing: Callable[[], str]) -> Iterator[None]:
    """Show the current activity from `doing`, if the block takes more than a few seconds.

    A separate thread shows it, because the block may be in any part of a check.
    """
    area, ended, began = LiveArea(), threading.Event(), time.monotonic()

    def watch() -> None:
        while not ended.wait(max(0.5, began + QUIET - time.monotonic())):
            area.say(f"{time.monotonic() - began:.0f} s · {doing()}")

    # The thread writes for this cell, because a notebook assigns outputs by their context.
    thread = threading.Thread(target=contextvars.copy_context().run, args=(watch,), daemon=True)
    if area.wanted:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if area.wanted:
            thread.join()
            area.clear()
