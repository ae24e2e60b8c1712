"""`course train`'s own launcher with another program in the place of the training.

It starts, watches and ends its ranks as ever; each then runs the program of `as_rank`. What a rank
is handed can be read in no other way, since it may be a fork and no new program. Lesson 13.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace

from course_lib.launchers import as_rank
from course_lib.prepared import Wanted
from course_lib.prepared.here import Process, start_here
from course_lib.train import launch
from course_lib.train.entry import READY, RENDEZVOUS, STARTER
from course_lib.train.meeting import abandon
from course_lib.train.stop import end_with

HERE = "course_lib.launchers.under_course_train"
RANK = "as-a-rank"
ARGUMENTS = "COURSE_LAUNCH_ARGUMENTS"  # the program's: the launcher takes the training's alone


def run() -> None:
    """One rank: as the training would, it ends with its starter and reports that it is there; then
    it runs the program."""
    end_with(int(os.environ[STARTER]), lambda: abandon(os.environ[RENDEZVOUS]))
    os.write(int(os.environ[READY]), b".")
    sys.argv[1:] = json.loads(os.environ[ARGUMENTS])
    as_rank.main()


def forked(argv: list[str], names: list[str], *descriptors: int) -> None:
    """A rank that is a fork of its launcher: the numbers of its descriptors are other ones."""
    os.environ.update(zip(names, map(str, descriptors), strict=False))
    run()


def instead(wanted: Wanted, command: list[str], modules: tuple[str, ...] = ()) -> Process:
    """Start a rank with all that the training would have, but for the training."""
    return start_here(replace(wanted, target=f"{HERE}:forked"), [sys.executable, "-m", HERE, RANK])


def main(words: list[str]) -> int:
    """The launcher's exit code."""
    launch.start_here = instead  # in this process, which is the launcher's and ends with it
    return launch.main(words)


if __name__ == "__main__":
    if sys.argv[1:] == [RANK]:
        run()
    else:
        sys.exit(main(sys.argv[1:]))
