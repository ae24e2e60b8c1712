"""What generating text has a rank of a cut model send: a closed form, exact for every config.

A forward of s tokens completes 1 + 2·layers partial sums of b·s·h elements. The prompt goes through
once, then each new token but the last; every choice gathers what the ranks offer. Lesson 08 derives
the parts.
"""

from __future__ import annotations

from course_lib.collectives.agreement import SENT
from course_lib.gpt import Config
from course_lib.layout import cut

OFFER = 16  # bytes of an entry that a rank offers: its value and its id, in float64


def generation_bytes(
    config: Config,
    n: int,
    rank: int,
    *,
    rows: int,
    prompt: int,
    count: int,
    item: int,
    offered: int = 1,
    sequence: bool = False,
) -> int | float:
    """Bytes that rank `rank` of `n` has to send for `count` new tokens in each of `rows` rows.

    `item` is the width of an activation in bytes; each rank offers `offered` entries for a token.
    With `sequence` the tokens are cut: a single token is one rank's, which sends it to the others.
    """
    sums, times_n = 1 + 2 * config.layers, 0
    for s in [prompt] + [1] * (count - 1) if count else []:
        token = rows * config.hidden * item
        if sequence:
            own = cut(s, n)[rank]
            times_n += n * sums * token * ((s - own) + (n - 1) * own)
        else:
            times_n += sums * 2 * (n - 1) * token * s
    times_n += n * (n - 1) * (count * OFFER * rows * offered + SENT)
    quotient, rest = divmod(times_n, n)
    return times_n / n if rest else quotient
