"""`dropout_streams` of lesson 05: masks equal on copies and independent between heads.

Masks of copies must be equal; independence is tested statistically for every pair of masks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from course_classroom.judge import bench
from course_classroom.judge.answer import Answer
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import Judge, on
from course_classroom.judge.looking import THREE, TWO, fresh_seed
from course_classroom.judge.words import Page
from course_lib.collectives.call import Group

ELEMENTS = 4000  # of a mask; half of them are dropped
REPLICAS = 3
# Two independent masks agree in half of their elements, give or take sqrt(ELEMENTS)/2. A deviation
# of six times that occurs once in 5·10⁸ pairs; a right answer has to pass about 2,000 pairs.
BOUND = 6.0
SWALLOWED = "the error is gone"
MOST = 1000  # of dp_rank and of tp_rank
# (dp_rank, tp_rank): a full row and a full column, so that sums coincide, and the ends. The last
# are 1 and 10, which when concatenated read like 11 and 0.
PAIRS = [(0, tp) for tp in range(MOST + 1)] + [(dp, 0) for dp in range(1, MOST + 1)]
PAIRS += [pair for few in range(1, 10) for pair in ((few, few), (few, MOST), (MOST, few))]
PAIRS += [(a, 10 * b) for a in range(1, 10) for b in range(1, 10)]
COMMON = [(0, 0), (0, 1), (2, 0), (0, MOST), (1, MOST), (MOST, MOST)]
SAYS = Page(__file__, "dropout_streams")


class Stumble(Exception):
    """An exception that the check raises inside a private block."""


def masks(function: Callable, group: Group, seed: int) -> dict:
    """Return the masks of each replica on this tp rank, with the replicas seeded one after the
    other on the same ranks, then of replica 0 again, then with a new seed."""
    tp_rank = group.rank()
    cases = [*((seed, dp) for dp in range(REPLICAS)), (seed, 0), (seed + 1, 0)]
    drawn, facts = bench.watched(lambda: [_block(function, *case, tp_rank) for case in cases])
    strange = next((one for one in drawn if isinstance(one, str)), "")
    if strange:
        return {"ops": facts["ops"], "kind": strange}
    *drawn, again, other = drawn
    copies, heads = zip(*drawn, strict=True)
    return {
        "ops": facts["ops"],
        "kind": "",
        "copies": torch.stack(copies),  # (dp, 4, ELEMENTS)
        "heads": torch.stack(heads),  # (dp, 4, ELEMENTS)
        "again": all(map(torch.equal, again, drawn[0])),
        "seed used": not any(map(torch.equal, other, drawn[0])),
    }


def _block(function: Callable, seed: int, dp: int, tp_rank: int) -> tuple[Tensor, Tensor] | str:
    """Seed, then draw as a block does; return the masks of copies and heads, or an error's kind."""
    torch.manual_seed(987 + tp_rank)  # an arbitrary earlier state, different on each rank
    private = function(seed, dp, tp_rank)
    if not callable(private) or not hasattr(private(), "__enter__"):
        return type(private).__name__
    copies, heads = [_mask()], []
    for _ in range(2):  # two layers of heads, with no copy between them
        with private():
            heads.append(_mask())
    copies.append(_mask())
    with private():  # heads that do not divide evenly, so ranks draw different amounts
        heads.append(_mask(ELEMENTS + 500 * (tp_rank + 1))[:ELEMENTS])
    copies.append(_mask())
    try:
        with private():
            heads.append(_mask())
            _mask(77 * (tp_rank + 1))
            raise Stumble
        return SWALLOWED
    except Stumble:
        copies.append(_mask())
    return torch.stack(copies), torch.stack(heads)


def _mask(elements: int = ELEMENTS) -> Tensor:
    """Return the elements that torch's dropout keeps with the current stream."""
    return F.dropout(torch.ones(elements), 0.5) > 0


def seeds(function: Callable, group: Group, seed: int) -> dict:
    """Return the first numbers of many ranks' streams; this process runs some of the ranks.

    `drawn` is (pairs, 2, 2): for each pair, two numbers of the shared stream, then two numbers of a
    private block. Every process runs the `common` pairs, with a second block.
    """

    def first(pair: tuple[int, int], blocks: int) -> Tensor:
        private, some = function(seed, *pair), [torch.rand(2, dtype=torch.float64)]
        for _ in range(blocks):
            with private():
                some.append(torch.rand(2, dtype=torch.float64))
        return torch.stack(some)

    mine = PAIRS[group.rank() :: group.size()]
    drawn, _ = bench.watched(lambda: [first(one, 1) for one in mine])
    common, _ = bench.watched(lambda: [first(pair, 2) for pair in COMMON])
    return {"drawn": torch.stack(drawn), "common": torch.stack(common)}


def judge_streams(answer: Answer, judge: Judge) -> None:
    """Seed three replicas on three tp ranks, then on two tp ranks, and compare all masks."""
    judge.take(answer, __name__)
    seed = fresh_seed()
    looks = {
        "nothing returned": lambda r: r["kind"] == "NoneType",
        "error swallowed": lambda r: r["kind"] == SWALLOWED,
        "not a context": lambda r: r["kind"],
        "collective called": lambda r: r["ops"],
    }
    for members in (THREE, TWO):
        where = f"On {len(members)} tp ranks and {REPLICAS} replicas"
        when = f"{on(members)}, as tp ranks"
        reports = judge.trial(answer, masks, seed, members=members, when=when)
        SAYS.refuse_each(reports, looks, where=where)
        _look_at_masks(reports, where)
    when = "with ranks up to 1,000 on both axes"
    reports = judge.trial(answer, seeds, seed, members=THREE, when=when)
    common = reports[0]["common"]  # the same numbers from three processes
    differs = {"not reproducible #2": lambda r: not torch.equal(r["common"], common)}
    SAYS.refuse_each(reports, differs)
    _look_at_many(reports, seed)


def _look_at_masks(reports: list[dict], where: str) -> None:
    """Compare all masks with each other; each look assumes that the earlier looks pass."""
    copies = torch.stack([report["copies"] for report in reports])  # (tp, dp, 4, ELEMENTS)
    heads = torch.stack([report["heads"] for report in reports])  # (tp, dp, 5, ELEMENTS)
    alike = (copies == copies[:1]).all(-1).all(1).all(0)  # on all tp ranks: of a copy's four masks
    twice = [
        alike[i] and torch.equal(copies[0, 0, i], m) for i in range(4) for m in copies[0, 0, :i]
    ]
    every = torch.cat((heads.flatten(0, 2), copies[0].flatten(0, 1)))  # (streams' masks, ELEMENTS)
    of_ranks = [torch.cat((a[0], b[0])) for a, b in zip(copies, heads, strict=True)]
    holds = {
        "copies drop different elements": not alike[0],
        "stream not given back": not alike[1],
        "shared stream rewound": any(twice),
        "one stream for all": any(map(_related, heads[:, 0].unbind(1))),
        "moved by the heads": not alike[2],
        "lost on an error": not alike[3],
        "the same mask again": any(map(_related, heads[:, 0])),
        "heads copy the residual": any(map(_related, of_ranks)),
        "not reproducible #1": not all(report["again"] for report in reports),
        "seed not used": not all(report["seed used"] for report in reports),
        "replicas drop alike": _related(copies[0, :, 0]),
        "heads of replicas drop alike": any(map(_related, heads[:, :, 0])),
        "seeds collide #1": _related(every),
    }
    SAYS.refuse(holds, where=where)


def _look_at_many(reports: list[dict], seed: int) -> None:
    """Check that no two of about 2,000 pairs share a stream, by their first numbers."""
    n = len(reports)
    played = [(PAIRS[rank::n], report["drawn"]) for rank, report in enumerate(reports)]
    played.append((COMMON, reports[0]["common"]))
    met: dict[bytes, str] = {}
    twice: list[tuple[str, str]] = []
    for streams, drawn in played:
        for (dp, tp), numbers in zip(streams, drawn, strict=True):
            for place, some in enumerate(numbers):
                private = f"the private stream of dp_rank {dp} and tp_rank {tp}"
                name = private if place else f"the shared stream of dp_rank {dp}"
                before = met.setdefault(some.numpy().tobytes(), name)
                if before != name:
                    twice.append((before, name))
    met_twice = len(set(twice)) > 1  # a single collision may be chance if seeds are drawn
    a, b = twice[0] if twice else ("", "")
    SAYS.refuse({"seeds collide #2": met_twice}, a=a, b=b, most=MOST)


def _related(masks: Tensor) -> tuple[int, int] | None:
    """Return the first two of (masks, ELEMENTS) that are not independent, or None."""
    signs = masks.float() * 2 - 1  # integers up to ELEMENTS, so exact
    z = (signs @ signs.t()).abs() / ELEMENTS**0.5  # standard normal, if independent
    pairs = (z.fill_diagonal_(0) > BOUND).nonzero()
    return tuple(map(int, pairs[0])) if len(pairs) else None


STREAMS = Exercise(judge=judge_streams, **SAYS.about)
