"""`course dry-run`: from a command line to a report.

Exit code 0 is good, 1 says that the closed forms are not what was counted, 2 is a wrong call.
Lesson 15.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from course_lib.dry.shapes import parse
from course_lib.dry.show import lines
from course_lib.dry.step import run
from course_lib.train.options import Refused, parser

PROG = "course dry-run"
ABOUT = """\
Count a step of `course train` as one rank of any world, on shapes alone, without memory or network:
what it sends over each axis, what it holds, its peak.

  --world N      how many ranks there are; with --tp they make dp × tp
  --rank R       which of them this is (0)
  --config FILE  a model's config.json (GPT-2's, Llama's), or a file of the options below
  --json         one JSON document on standard output

The other options are those of `course train`; text, weights and checkpoints are not looked at.
Where nothing else is typed there is one sequence for each replica and micro-batch, as long as the
config allows.
    course dry-run --world 512 --tp 8 --stage 3 --config config.json
    course dry-run --world 64 --tp 4 --stage 2 --hidden 4096 --layers 32 --heads 32 --length 2048

"""


def main(argv: Sequence[str]) -> int:
    """Run it and say what came of it; the exit code."""
    if {"-h", "--help"} & set(argv):
        print(ABOUT + parser(PROG).format_help())
        return 0
    try:
        options, world, rank = parse(argv, PROG)
        counted = run(options, world, rank)
    except Refused as error:
        print(f"{PROG}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(counted.as_dict()))
    else:
        print("\n".join(lines(options, counted)))
    return 1 if counted.differences() else 0
