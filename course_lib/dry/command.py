"""`course dry-run`: a command that reports traffic, memory in use and peak memory.

The exit code is 0 for success, 1 if the closed forms differ from the counts, and 2 for invalid
arguments. Lesson 15.
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
Count the bytes that one rank of `course train` sends over each axis in a step,
its memory in use and its peak memory. Only shapes are used, without a network.

  --world N      number of ranks, which form a mesh of dp × tp (required)
  --rank R       rank to count, from 0 to N - 1 [default: 0]
  --config FILE  config.json of a GPT-2 or Llama model, or a JSON file with an
                 object of the options below
  --json         print one JSON document to standard output

The other options are those of `course train`. Text, weights and checkpoints are
not read. By default, a step has one sequence per micro-batch in each replica,
and with a config.json a sequence has the maximum length in it.
    course dry-run --world 512 --tp 8 --stage 3 --config config.json
    course dry-run --world 64 --tp 4 --stage 2 --hidden 4096 --layers 32 \\
        --heads 32 --length 2048

"""


def main(argv: Sequence[str]) -> int:
    """Run the dry run, print its report and return the exit code."""
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
    """Yield the report, line by line."""
    offload = f", offload {options.offload}" if options.offload != "none" else ""
    yield (
        f"rank {counted.rank} of {counted.world}: dp {counted.dp} × tp {counted.tp}, ZeRO stage "
        f"{options.stage}{offload}, {options.precision}, {counted.parameters:,} parameters after "
        "sharding over tp"
    )
    yield (
        f"a step of {options.rows:,} sequences of {options.length:,} tokens on all ranks, in "
        f"{options.accumulate} micro-batch(es)"
    )
    yield ""
    rows = [("axis", "verb", "for", "calls", "payload", "must send", "")]
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
    yield f"counted in {counted.seconds:.1f} s, for a rank on a CPU with gloo"


def _beside_formulas(counted: DryRun) -> str:
    differences = counted.differences()
    if differences:
        return f"the closed forms differ: {'; '.join(differences)}"
    text = "the closed forms give the same memory and traffic, to the byte"
    if "peak" not in counted.estimate:
        return f"{text}; they give no peak for attention dropout"
    return f"{text}, and estimate a peak of {in_bytes(counted.estimate['peak'])}"
