"""`python -m course_lib.train`, under torchrun, srun or alone: the program, then its curve.

The only file of the library that draws: it is a program's top, and nothing imports it. Lesson 08.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from course_lib import ranks
from course_lib.train import curve, entry, program
from course_lib.train.meeting import behind
from course_lib.train.stop import Stop


def train(told: Mapping, me: ranks.Me, stop: Stop) -> None:
    done = program.train(told, me, stop)
    if me.rank:
        return
    done["figure"] = draw(Path(done["curve"]))
    if told.get("json"):
        print(json.dumps(done))


def draw(path: Path) -> str | None:
    """The curve's picture beside it; a word and no failure where it cannot be drawn."""
    picture = path.with_suffix(".png")
    try:
        from course_lib.figures.loss_curve import loss_curve

        loss_curve({"loss": [(p.step, p.loss) for p in curve.read(path)]}).save(picture)
    except ImportError as error:
        print(
            f"no picture: {error}; pip install 'course_lib[classroom]' brings what draws",
            file=sys.stderr,
        )
        return None
    except (OSError, ValueError) as error:
        print(f"no picture: {error}", file=sys.stderr)
        return None
    return str(picture)


def forked(argv: list[str], names: list[str], *descriptors: int) -> None:
    """A rank that is a fork of its launcher: the numbers of its descriptors are other ones."""
    os.environ.update(zip(names, map(str, descriptors), strict=False))
    for number in descriptors[len(names) :]:
        os.environ[entry.RENDEZVOUS] = behind(number)
    sys.exit(entry.run(argv, train))


if __name__ == "__main__":
    sys.exit(entry.run(sys.argv[1:], train))
