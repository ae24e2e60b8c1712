"""`place_ranks` of lesson 15: choose each rank's coordinates, and count the bytes leaving a node.

A ring over several nodes sends, out of each node, as many bytes as one of its ranks sends. Every
placement with the fewest bytes out of its busiest node is right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from course_classroom.judge.answer import Answer
from course_classroom.judge.by_cases import Case, Cases, Idea, about, judge_cases, same
from course_classroom.judge.finding import Finding
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import Judge
from course_classroom.judge.words import Page

SAYS = Page(__file__, "place_ranks")

RANKS, SENT = KEYS = ("ranks", "sent")
Place = Sequence[tuple[int, int]]  # (dp, tp) of each rank
# GPUs of a node, tp, and the axis that sends more. The first three are 64 ranks on 8 nodes. In
# "both", keeping only one axis inside is not best: a node holds some neighbours of both. In "near",
# one axis inside is best, but would not be if groups inside a node counted as sent.
KINDS = (
    (8, 4, "tp"),
    (8, 8, "tp"),
    (8, 4, "dp"),
    (4, 8, "tp"),
    (4, 2, "dp"),
    (8, 16, "dp"),
    (8, 16, "both, tp"),
    (8, 16, "both, dp"),
    (8, 4, "near, dp"),
    (8, 16, "near, tp"),
    (16, 32, "even, tp"),
    (16, 16, "even, dp"),
)


def make(r: Random, k: int) -> Case:
    gpus, tp, more = KINDS[k % len(KINDS)]
    nodes = 8 if k < 3 or more.startswith("near") else r.choice((4, 8))
    large, small = r.randint(4000, 9000) * 10**6, r.randint(100, 900) * 10**6
    if more.startswith("both"):
        nodes, small = 32, round(large / r.uniform(1.6, 2.6))
    if more.startswith("even"):  # the best node is a square of neighbours
        nodes, small = 64, round(large / r.uniform(1.1, 1.4))
    if more.startswith("near"):
        small = round(large / r.uniform(1.1, 1.7))
    sent = {"tp": large, "dp": small} if more.endswith("tp") else {"tp": small, "dp": large}
    case = {"nodes": nodes, "gpus": gpus, "tp": tp, "dp": nodes * gpus // tp}
    return case | {"tp_bytes": sent["tp"], "dp_bytes": sent["dp"]}


# ---- the only count
def out_of_nodes(case: Case, place: Place) -> list[int]:
    """Return the bytes that each node sends out in a step."""
    node = {coordinate: rank // case["gpus"] for rank, coordinate in enumerate(place)}
    sent = [0] * case["nodes"]
    groups = [("tp", [(d, t) for t in range(case["tp"])]) for d in range(case["dp"])]
    groups += [("dp", [(d, t) for d in range(case["dp"])]) for t in range(case["tp"])]
    for axis, members in groups:
        touched = {node[member] for member in members}
        if len(touched) > 1:
            for each in touched:
                sent[each] += case[f"{axis}_bytes"]
    return sent


def boxed(case: Case, a: int) -> Place:
    """Place ranks so that each node holds `a` neighbours along tp and gpus / a along dp."""
    tp, dp, b = case["tp"], case["dp"], case["gpus"] // a
    corners = [(d, t) for d in range(0, dp, b) for t in range(0, tp, a)]
    return [(d + i, t + j) for d, t in corners for i in range(b) for j in range(a)]


def boxes(case: Case) -> Iterator[Place]:
    for a in range(1, case["gpus"] + 1):
        fits = case["gpus"] % a == 0 and case["tp"] % a == 0
        if fits and case["dp"] % (case["gpus"] // a) == 0:
            yield boxed(case, a)


def tp_inside(case: Case) -> Place:
    return [(d, t) for d in range(case["dp"]) for t in range(case["tp"])]


def dp_inside(case: Case) -> Place:
    return [(d, t) for t in range(case["tp"]) for d in range(case["dp"])]


def best(case: Case) -> Place:
    return min(boxes(case), key=lambda place: max(out_of_nodes(case, place)))


def right(case: Case) -> dict[str, object]:
    place = best(case)
    return {RANKS: place, SENT: max(out_of_nodes(case, place))}


def _counts(case: Case) -> tuple[int, int]:
    """Count the rings of tp and of dp that leave the first node of the best placement."""
    axes = (("tp", "dp"), ("dp", "tp"))
    only = [{**case, f"{other}_bytes": 0, f"{axis}_bytes": 1} for axis, other in axes]
    tp, dp = (max(out_of_nodes(one, best(case))) for one in only)
    return tp, dp


def _one_ring(case: Case) -> int:
    tp, dp = _counts(case)
    return min(tp, 1) * case["tp_bytes"] + min(dp, 1) * case["dp_bytes"]


def _each_rank(case: Case) -> int:
    return case["gpus"] * _one_ring(case)


def _all_nodes(case: Case) -> int:
    return sum(out_of_nodes(case, best(case)))


def _inside_too(case: Case) -> int:
    return _with_inside(case, best(case), ("tp", "dp"))


def _with_inside(case: Case, place: Place, axes: Sequence[str]) -> int:
    """Return the first node's bytes if rings of `axes` that stay inside the node count too."""
    first = place[: case["gpus"]]
    rings = {"tp": len({d for d, _ in first}), "dp": len({t for _, t in first})}
    inside = {"tp": len({t for _, t in first}), "dp": len({d for d, _ in first})}
    counted = [axis for axis in rings if axis in axes or inside[axis] < case[axis]]
    return sum(rings[axis] * case[f"{axis}_bytes"] for axis in counted)


def chosen_with_inside(case: Case, axes: Sequence[str]) -> Place:
    return min(boxes(case), key=lambda place: _with_inside(case, place, axes))


INSIDE = "A group whose ranks are all on one node sends nothing out of it."
IDEAS = (
    Idea(SENT, *SAYS.of("one ring"), _one_ring),
    Idea(SENT, *SAYS.of("every rank sends out"), _each_rank),
    Idea(SENT, *SAYS.of("all nodes"), _all_nodes),
    Idea(SENT, "rings inside counted", INSIDE, _inside_too),
)


def judge_placements(cases: Sequence[Case], seen: Sequence[object]) -> None:
    """Raise a Finding for an invalid placement, or one that sends more than needed."""
    for case, place in zip(cases, seen, strict=True):
        _refuse_malformed(case, place)
    places = [[(int(d), int(t)) for d, t in place] for place in seen]
    busiest = [max(out_of_nodes(*pair)) for pair in zip(cases, places, strict=True)]
    dear = [k for k, case in enumerate(cases) if busiest[k] > right(case)[SENT]]
    if not dear:
        return
    few = f"{len(dear)} of {len(cases)} randomly chosen cases"
    text = f"In {few}, the busiest node could send out less"
    first = cases[dear[0]]
    sent, least = busiest[dear[0]], right(first)[SENT]
    node = places[dear[0]][: first["gpus"]]
    axes = ("dp", "tp")
    holds = " and ".join(f"{len({x[i] for x in node})} of {a}" for i, a in enumerate(axes))
    tail = f": {sent:.4g} bytes instead of {least:.4g} ({about(first)}). "
    tail += f"In your placement the first node holds {holds}."
    if all(map(same, places, map(tp_inside, cases))):
        raise SAYS("tp inside, always", text=text, tail=tail)
    if all(map(same, places, map(dp_inside, cases))):
        raise SAYS("tp laid across nodes", text=text, tail=tail)
    for axes in (("tp", "dp"), ("tp",), ("dp",)):
        chosen = [max(out_of_nodes(case, chosen_with_inside(case, axes))) for case in cases]
        if chosen == busiest:
            raise SAYS("rings inside counted", text=text, inside=INSIDE, tail=tail)
    ways = (tp_inside, dp_inside)
    ends = [min(max(out_of_nodes(case, way(case))) for way in ways) for case in cases]
    if busiest == ends:
        raise SAYS("one axis inside, always", text=text, tail=tail)
    raise Finding("not the cheapest", text + tail)


def _refuse_malformed(case: Case, place: object) -> None:
    world = case["nodes"] * case["gpus"]
    pairs = isinstance(place, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(x, float) for x in pair)
        for pair in place
    )
    if not pairs:
        raise SAYS("no list of pairs", ranks=RANKS)
    if len(place) != world:
        raise SAYS("not every rank", world=world, place=len(place), case=about(case))
    wanted = {(d, t) for d in range(case["dp"]) for t in range(case["tp"])}
    got = {(d, t) for d, t in place}
    if got == wanted:
        return
    if {(t, d) for d, t in got} == wanted:
        raise SAYS("coordinates swapped", case=about(case))
    if got < wanted:
        raise SAYS("coordinates twice", case=about(case))
    raise SAYS("outside the mesh", case=about(case))


CASES = Cases(KEYS, len(KINDS), make, right, IDEAS, {RANKS: judge_placements})


def judge_place(answer: Answer, judge: Judge) -> None:
    judge_cases(answer, judge, CASES, __name__)


PLACE_RANKS = Exercise(judge=judge_place, **SAYS.about)
