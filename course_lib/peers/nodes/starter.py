"""The process on a host that imports the training program once and forks a rank for each order.

An order is a line of JSON with variables, arguments, output files, and Python to run first. The
answer is the new process's id or, for an order to wait, the exit code of a process. Lesson 15.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

from course_lib.train import entry

PROGRAM = importlib.import_module("course_lib.train.__main__")  # what `python -m` would run
importlib.import_module("torch._dynamo")  # an optimizer imports it in its first step


def rank(order: dict) -> None:
    """Become a rank, and end with its exit code."""
    for number, file in ((1, order["out"]), (2, order["err"])):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    os.environ.update(order["env"])
    exec(order["first"], {})
    sys.exit(entry.run(order["argv"], PROGRAM.train))


def main() -> None:
    """Serve incoming orders until there are no more."""
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            pid, status = os.waitpid(order["wait"], os.WNOHANG)
            print(json.dumps(os.waitstatus_to_exitcode(status) if pid else None), flush=True)
            continue
        pid = os.fork()
        if not pid:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            rank(order)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
