"""Trials given as text: lessons 00 to 05 and 08 to 12, until they too name a function.

An expression over the answer's name, `bench` and `__trial__`, the group of the trial. New lessons
give `Judge.trial` a function instead, which an editor finds and a rename follows.
"""

from __future__ import annotations

import ast


def arrangement(call: str, members: list[int]) -> str:
    """The code that makes a trial's group, and a function of `call` for the cell that is timed."""
    return (
        "from course_lib.classroom.checks import bench\n"
        f"list(map(bench.part, {parts(call)}))\n"
        f"__trial__ = bench.group({members})\n"
        f"__tried__ = lambda: {call}"
    )


def parts(call: str) -> list[str]:
    """The modules that an expression reads as `bench.part(name)`: they load before it is timed."""
    nodes = ast.walk(ast.parse(call, mode="eval"))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    named = [node.args[0] for node in calls if ast.unparse(node.func) == "bench.part"]
    return sorted({node.value for node in named if isinstance(node, ast.Constant)})
