"""What the tests' children do."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time


def tell(number: int) -> None:
    """Everything about this process that a started one would have for itself, as JSON."""
    import numpy
    import torch

    told = {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "session": os.getsid(0),
        "descriptors": descriptors(),
        "umask": os.umask(0o077),
        "folder": os.getcwd(),
        "colour": os.environ.get("COLOUR"),
        "environment": sorted(os.environ),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "child": signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL,
        "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "threads": torch.get_num_threads(),
        "drawn": [random.random(), float(numpy.random.rand()), torch.rand(1).item()],
        "hash": hash("a string"),
        "number": number,
        "input": sys.stdin.read(),
        "modules": sorted({"deepspeed", "transformers", "triton"} & set(sys.modules)),
        "compiler": "torch._dynamo" in sys.modules,
        "path": sys.path,
    }
    print(json.dumps(told))


def descriptors() -> dict[int, str]:
    open_now = {}
    for number in sorted(map(int, os.listdir("/proc/self/fd"))):
        try:
            open_now[number] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue  # the one that listed them
    return open_now


def end(how: str) -> None:
    if how == "raise":
        raise LookupError("nothing here")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(int(how))


def write(text: str, descriptor: int) -> None:
    os.write(descriptor, text.encode())


def sleep(file: str = "") -> None:
    """Sleep; with `file`, note there the processes that this one has made."""
    if file:
        children = [subprocess.Popen(["sleep", "600"], start_new_session=own) for own in (0, 1)]
        if os.fork() == 0:
            os.setsid()
            time.sleep(600)
        with open(f"{file}.part", "w") as out:
            json.dump([os.getpid(), *(child.pid for child in children)], out)
        os.rename(f"{file}.part", file)
    time.sleep(600)
