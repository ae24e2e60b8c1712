"""`course dry-run`: from a command line to a report of what is sent, what is held, and the peak.

Exit code 0 is good, 1 says that the closed forms are not what was counted, 2 is a wrong call.
Lesson 15.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence

from course_lib.dry.shapes import Sized, parse
from course_lib.dry.step import DryRun, run
from course_lib.ledger.table import aligned
from course_lib.memory.formatting import in_bytes, rounded
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


def lines(options: Sized, counted: DryRun) -> Iterator[str]:
    """The report, line by line."""
    offload = f", offload {options.offload}" if options.offload != "none" else ""
    yield (
        f"rank {counted.rank} of {counted.world}: dp {counted.dp} × tp {counted.tp}, ZeRO stage "
        f"{options.stage}{offload}, {options.precision}; {counted.parameters:,} parameters after "
        "the cut over tp"
    )
    yield (
        f"a step of {options.rows:,} sequences of {options.length:,} tokens on all ranks, in "
        f"{options.accumulate} micro-batch(es)"
    )
    yield ""
    rows = [("axis", "verb", "for", "calls", "handed over", "must send", "")]
    for row in counted.verbs:
        counts = [f"{n:,}" for n in (row.calls, row.payload, row.must)]
        rows.append((row.axis, row.verb, row.label, *counts, rounded(row.must)))
    yield from aligned(rows, right=range(3, 7))
    for axis, sent in sorted(counted.sent_by_axis.items()):
        yield f"sent over {axis}: {in_bytes(sent)}"
    yield ""
    for kind, nbytes in counted.held_by_kind.items():
        yield f"held, {kind}: {in_bytes(nbytes)}"
    for tier, nbytes in counted.held_by_tier.items():
        if nbytes:
            yield f"held between steps on the {tier}: {in_bytes(nbytes)}"
    yield f"peak of the device: {in_bytes(counted.peak)}"
    if counted.host_peak:
        yield f"peak of the host: {in_bytes(counted.host_peak)}"
    yield ""
    yield _beside_formulas(counted)
    yield f"counted in {counted.seconds:.1f} s, as a rank on a CPU with gloo does it"


def _beside_formulas(counted: DryRun) -> str:
    differences = counted.differences()
    if differences:
        return f"the closed forms say otherwise: {'; '.join(differences)}"
    text = "the closed forms say the same of all that is held and sent, to the byte"
    if "peak" not in counted.estimate:
        return f"{text}; they have no peak for attention dropout"
    return f"{text}, and estimate a peak of {in_bytes(counted.estimate['peak'])}"
