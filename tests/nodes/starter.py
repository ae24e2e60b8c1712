"""Started on a host: has the program imported once, and forks a rank for each line that comes in.

A line is JSON: variables, arguments, files to print to, and Python to run first. What comes back is
a process number, and, when that is asked after, its exit code.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from course_lib.train import __main__ as program
from course_lib.train import entry


def rank(order: dict) -> None:
    for number, file in ((1, order["out"]), (2, order["err"])):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    os.environ.update(order["env"])
    exec(order["first"], {})
    sys.exit(entry.run(order["argv"], program.train))


def main() -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            pid, status = os.waitpid(order["wait"], os.WNOHANG)
            print(json.dumps(os.waitstatus_to_exitcode(status) if pid else None), flush=True)
            continue
        if "kill" in order:
            os.kill(order["kill"], signal.SIGKILL)
            print(json.dumps(None), flush=True)
            continue
        pid = os.fork()
        if not pid:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            rank(order)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
