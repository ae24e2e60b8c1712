"""The place of a thread while it runs."""

from __future__ import annotations

import sys
import threading

from course_classroom.ranks import stacks


def test_calls_of_another_thread_are_those_of_one_moment():
    """Thousands of looks at a thread that calls and returns all the time: none is torn."""
    code = "def élan(n):\n    return n and élan(n - 1)\nwhile not done.is_set(): élan(9)\n"
    done = threading.Event()
    names = {"done": done, "__builtins__": __builtins__}
    thread = threading.Thread(target=exec, args=(compile(code, "<cell é €>", "exec"), names))
    thread.start()
    depths = set()
    for _ in range(2000):
        calls = [call for call in stacks.of_all()[thread.ident] if call.file == "<cell é €>"]
        inner, outer = calls[:-1], calls[-1:]
        assert all(call.name == r"\xe9lan" and call.line in (1, 2) for call in inner)
        assert all((call.name, call.line) == ("<module>", 3) for call in outer)
        depths.add(len(inner))
    done.set()
    thread.join()
    assert max(depths) == 10
    own = next(stacks.own(sys._getframe()))
    assert own in [c._replace(line=own.line) for c in stacks.of_all()[threading.get_ident()]]
