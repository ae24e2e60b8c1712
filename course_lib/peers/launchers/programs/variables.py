"""A program that reports the variables set by its launcher, which the launcher itself did not have.

It imports only the standard library and needs no other rank. Lesson 13.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

ASIDE = ("_", "SHLVL", "PWD", "OLDPWD")  # the shell's variables


def report() -> None:
    """Print one line of JSON: the arguments, and each variable that is new or changed."""
    before = json.loads((Path(os.environ["COURSE_LAUNCH_FOLDER"]) / "before.json").read_text())
    new = {k: v for k, v in os.environ.items() if before.get(k) != v and k not in ASIDE}
    print(json.dumps({"arguments": sys.argv[1:], "variables": new}, sort_keys=True), flush=True)


if __name__ == "__main__":
    report()
