"""A dry run as a person reads it: what is sent, what is held, the peak, and what formulas say.

Lesson 15.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from course_lib.dry.shapes import Sized
from course_lib.dry.step import DryRun
from course_lib.memory.words import in_bytes, rounded

COLUMNS = ("axis", "verb", "for", "calls", "handed over", "must send", "")


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
    rows = [
        (row.axis, row.verb, row.label, f"{row.calls:,}", f"{row.payload:,}", f"{row.must:,}",
         rounded(row.must))
        for row in counted.verbs
    ]  # fmt: skip
    yield from _aligned([COLUMNS, *rows], left=3)
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


def _aligned(rows: Sequence[Sequence[str]], left: int) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
