"""What a right MLP may send: one all-reduce of Φ elements forward, one backward, and no byte more.

For `five_to_two` of lesson 04. What was sent instead names the idea.
"""

from __future__ import annotations

from math import prod

from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.lesson_04.five_values import Trial
from course_lib.ledger import forms

ITEM = 8  # bytes of a float64
ONE = {"all_reduce": 1}


def look_at_traffic(one: Trial) -> None:
    """Hold collectives and bytes of both directions against the budget, on every rank."""
    n, sizes = one.n, one.sizes
    phi = prod(sizes[:3])
    fair = forms.all_reduce(n, phi * ITEM)
    for rank, report in enumerate(one.reports):
        forward, backward = report["forward"], report["backward"]
        if forward["ops"] == backward["ops"] == ONE:
            if forward["bytes"] == backward["bytes"] == fair:
                continue
            raise Finding(
                "more than Φ",
                f"One all-reduce in each direction, but of more than Φ = {phi} elements: rank "
                f"{rank} sends {forward['bytes']} bytes forward and {backward['bytes']} backward "
                f"{one.when}; the budget is {fair} each. What is summed need not be wider than x.",
            )
        head = (
            f"Values and gradients are right. Rank {rank} sends {_told(forward['ops'])} forward "
            f"and {_told(backward['ops'])} backward {one.when}; the budget is one all_reduce each. "
        )
        raise Finding(*_idea(one, report, head))


def _idea(one: Trial, report: dict, head: str) -> tuple[str, str]:
    """Name and text for a wiring over the budget."""
    forward, backward = report["forward"]["ops"], report["backward"]["ops"]
    b, s, h, f = one.sizes
    weights = f * h // one.n
    gathered = [elements for op, elements in report["sent"] if op in ("all_gather", "broadcast")]
    wide = b * s * f // one.n
    if len(gathered) >= 3:
        return (
            "weights on the way",
            f"{head}Gathered were the weights (about {weights} elements each), so that every rank "
            "computes the whole MLP: nothing is saved by the cut. The weights stay where they are.",
        )
    if forward == ONE and backward == {"all_reduce": 2}:
        return (
            "one f per product",
            f"{head}Each of the two products has an f of its own, and each f sums a gradient of "
            "x. Sums may be joined: add first, then send once.",
        )
    if "all_gather" in forward and "all_reduce" in forward:
        return (
            "gathered in the middle",
            f"{head}What is gathered (about {wide} elements a rank) is taken apart again right "
            "after: `down` wants exactly the pieces that the ranks have.",
        )
    if {"reduce_scatter", "all_gather"} <= set(forward) or {"reduce_scatter", "all_gather"} <= set(
        backward
    ):
        return (
            "all-reduce in two halves",
            f"{head}A reduce-scatter and an all-gather move as many bytes as one all-reduce, and "
            "cost the α's of two calls. Where nothing stands between them, call it once.",
        )
    return "over budget", f"{head}Which of these messages does no result need?"


def _told(ops: dict) -> str:
    return " and ".join(f"{count} {op}" for op, count in ops.items()) or "nothing"
