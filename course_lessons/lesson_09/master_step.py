"""`master_step` of lesson 09: a ZeRO-1 step in bfloat16, with master weights for one shard.

In six steps, most updates are smaller than the rounding. Master weights, values and counts are
compared with the right results and with wrong ideas; ledger and meter show the cost.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from course_classroom.judge import bench
from course_classroom.judge.finding import Finding
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import refuse_none
from course_classroom.judge.looking import ITEM, THREE
from course_classroom.judge.words import Page
from course_lessons.lesson_09.each import judged, value_of
from course_lib.collectives.call import Group
from course_lib.layout import flat
from course_lib.memory import held, peak
from course_lib.memory.release_wait import wait_until_settled

STEPS, RATE, MOMENTUM = 6, 2e-4, 0.9
SLACK = 16  # numbers of 8 bytes in addition to the two messages: a count
SAYS = Page(__file__, "master_step")
READINGS = ("right", "gradients not summed", "a sum for a mean", "divided twice")
READINGS += ("master weights rounded #1", "master weights rounded #2", "gradients added up")
READINGS += ("wrong shard",)


def warm() -> None:
    """Use the meter once before the trial, so that its code is loaded."""
    with peak():
        torch.zeros(2)


def optimizer_of(part: nn.Parameter) -> torch.optim.Optimizer:
    return torch.optim.SGD([part], lr=RATE, momentum=MOMENTUM)


def start(seed: int, n: int) -> tuple[Tensor, int]:
    """Return the model's bfloat16 values, padded for n ranks, and their number without padding."""
    made = torch.Generator().manual_seed(seed)
    total = 400 * n + 1
    values = torch.zeros(flat(total, n).padded, dtype=torch.bfloat16)
    sign = torch.randint(2, (total,), generator=made) * 2 - 1
    values[:total] = sign * (0.5 + 2 * torch.rand(total, generator=made))
    return values, total


def gradients(seed: int, n: int, step: int) -> Tensor:
    """Return the ranks' bf16 gradients (n, padded). Their sums are exact. Some values do not move,
    some move by less than a hundred-thousandth of their size, and some visibly in bf16."""
    _, total = start(seed, n)
    made = torch.Generator().manual_seed(seed * 31 + step)
    whole = torch.zeros(n, flat(total, n).padded)
    # Not centred at zero, so that lost updates would have added up.
    whole[:, :total] = torch.randint(-2, 13, (n, total), generator=made).float()
    whole[:, total // 4 : total // 2] = 0
    whole[:, total // 2 : total * 5 // 8] /= 512
    whole[:, total * 7 // 8 : total] *= 8
    return whole.bfloat16()


def train(function: Callable, group: Group, seed: int) -> list[dict]:
    """Run steps with the answer; return the state and traffic after each step."""
    n, rank, reports = group.size(), group.rank(), []
    numbers = start(seed, n)[0]
    shard = len(numbers) // n
    master = nn.Parameter(numbers[rank * shard :][:shard].float())
    optimizer, place = optimizer_of(master), numbers.data_ptr()
    for step in range(STEPS):
        gradient = gradients(seed, n, step)[rank]
        given = (numbers, gradient.clone(), master, optimizer, group)
        # The meter is slow because it visits every tensor, so it only checks the first step, before
        # which no call has left anything
        with peak() if n == len(THREE) and not step else nullcontext() as p:
            out, facts = bench.watched(lambda given=given: function(*given))
        if p is not None:
            wait_until_settled()
        kept = [] if p is None else [one.nbytes() for one in p.made_and_alive()]
        whole = numbers.shape == (n * shard,) and numbers.dtype == torch.bfloat16
        count = value_of(out)
        report = {
            "kind": bench.kind(out),
            "out": int(count) if count is not None and count == count // 1 else None,
            "master": master.detach().float().clone() if len(master) == shard else None,
            "numbers": numbers.clone() if whole and numbers.data_ptr() == place else None,
            "bytes": facts["bytes"],
            "kept": sum(kept),
            "largest": max(kept, default=0),
            "state": held(optimizer).by_kind["optimizer states"],
            "knows": any(p is master for g in optimizer.param_groups for p in g["params"]),
            "mixed": not _rests(function, group),
            "changed": not torch.equal(given[1], gradient),
        }
        reports.append(report)
    return reports


def _rests(function: Callable, group: Group) -> bool:
    """Return True if a step of a second model with zero gradients changes and counts nothing."""
    numbers = torch.ones(2 * group.size(), dtype=torch.bfloat16)
    master = nn.Parameter(torch.ones(2))
    with_zeros = (numbers, torch.zeros_like(numbers), master, optimizer_of(master), group)
    out, _ = bench.watched(lambda: function(*with_zeros))
    return value_of(out) == 0 and bool((numbers == 1).all() and (master == 1).all())


def stepped(
    known: dict[str, tuple[Tensor, Tensor]], own: Tensor, so_far: Tensor
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return each reading's master weights for all elements, and their momentum, after a step.

    `own` (n, padded) are the ranks' gradients; `so_far` sums their means over all steps.
    """
    n, mean, after = len(own), own.mean(0), {}
    pieces = own.view(n, n, -1)  # by rank, by owner
    gradients = {
        "gradients not summed": torch.cat([pieces[rank, rank] for rank in range(n)]),
        "a sum for a mean": mean * n,
        "divided twice": mean / n,
        "wrong shard": pieces[:, 0].mean(0).repeat(n),
        "gradients added up": so_far,
    }
    for entry, (master, momentum) in known.items():
        if entry == "master weights rounded #1":
            master = master.bfloat16().float()
        momentum = MOMENTUM * momentum + gradients.get(entry, mean)
        master = master - RATE * momentum
        if entry == "master weights rounded #2":
            master = master.bfloat16().float()
        after[entry] = master, momentum
    return after


def look(every: list[list[dict]], when: str, seed: int) -> None:
    """Examine each step in turn."""
    n = len(every)
    values, total = start(seed, n)
    before, so_far, lost = values.float(), torch.zeros(len(values)), 0
    known = dict.fromkeys(READINGS, (before, so_far))
    for k, reports in enumerate(zip(*every, strict=True)):
        own, where = gradients(seed, n, k).float(), f"{when}, in step {k + 1}"
        so_far = so_far + own.mean(0)
        known = stepped(known, own, so_far)
        refuse_none(reports, where, "a count")
        look_at_masters(reports, known, before, where)
        after = torch.cat([report["master"] for report in reports])
        look_at_numbers(reports, before.bfloat16(), after.bfloat16(), where)
        counts = counts_of(before, after, own, total, lost)
        look_at_counts(reports, counts, where)
        lost, before = lost + counts[0][1][0], after
        look_at_cost(reports, len(values), where)


def look_at_masters(reports: list[dict], known: dict, before: Tensor, where: str) -> None:
    """Raise the Finding that explains the master weights of all ranks, if they are wrong."""
    SAYS.refuse_each(reports, {"wrong parameter": lambda r: not r["knows"]}, where=where)
    seen, n, right = [report["master"] for report in reports], len(reports), known["right"][0]
    # up to the rounding of a gradient in 16 bits
    bounds = [0.02 * piece.abs().max() + 1e-9 for piece in (right - before).chunk(n)]

    def off(wanted: Tensor) -> list[int]:
        found = enumerate(zip(seen, wanted.chunk(n), bounds, strict=True))
        return [r for r, (x, w, b) in found if x is None or not (x - w).abs().max() <= b]

    wrong = off(right)
    if not wrong:
        return
    rest = all(
        x is not None and torch.equal(x, b) for x, b in zip(seen, before.chunk(n), strict=True)
    )
    entry = next((entry for entry, (master, _) in known.items() if not off(master)), "")
    entry = "no update" if rest else entry or "wrong master copy"
    name, text = SAYS.of(entry, rank=wrong[0])
    raise Finding(name, f"The master weights are wrong {where}. {text}")


def look_at_numbers(reports: list[dict], old: Tensor, new: Tensor, where: str) -> None:
    """Check the model's values: rounded master weights, in the memory that the model reads."""
    SAYS.refuse_each(reports, {"wrong memory": lambda r: r["numbers"] is None}, where=where)
    n, seen = len(reports), [report["numbers"] for report in reports]
    if all(torch.equal(x, new) for x in seen):
        return
    holds = {
        "not gathered": all(
            torch.equal(x.chunk(n)[r], new.chunk(n)[r]) for r, x in enumerate(seen)
        ),
        "not written back": all(torch.equal(x, old) for x in seen),
        "wrong values": True,
    }
    SAYS.refuse(holds, where=where)


def counts_of(
    before: Tensor, after: Tensor, own: Tensor, total: int, lost: int
) -> list[tuple[str, list[int]]]:
    """Return the ranks' counts: first the right counts, then the counts of each wrong idea."""
    n, moved, same = len(own), after != before, after.bfloat16() == before.bfloat16()
    each = (moved & same).view(n, -1).sum(1).tolist()
    alike = (
        ("right", moved & same),
        ("unchanged weights counted", same),
        ("unchanged weights counted", same[:total]),
        ("small changes not counted", ~torch.isclose(after, before) & same),
        ("the gradient looked at", (own.mean(0) != 0) & same),
        ("everything that moved", moved),
        ("visible updates counted", ~same),
    )
    right, *found = [(entry, [int(which.sum())] * n) for entry, which in alike]
    so_far = [lost + sum(each)] * n
    ranks = [("a rank's own count #1", each), ("a rank's own count #2", [n * k for k in each])]
    return [right, *ranks, *found, ("kept between calls #1", so_far)]


def look_at_counts(reports: list[dict], counts: list[tuple[str, list[int]]], where: str) -> None:
    """Raise the Finding that explains all ranks' counts, if they are wrong."""
    SAYS.refuse_each(reports, {"not a count": lambda r: r["out"] is None}, where=where)
    seen, right = [report["out"] for report in reports], counts[0][1]
    if seen == right:
        return
    idea = next((entry for entry, count in counts if count == seen), "")
    holds = {
        idea: idea,
        "on one rank only": sum(map(int.__eq__, seen, right)) == 1,
        "nothing counted": not any(seen),
        "rounded on the way": all(abs(a - b) <= b / 64 for a, b in zip(seen, right, strict=True)),
        "wrong count": True,
    }
    name, text = SAYS.of(next(entry for entry, met in holds.items() if met))
    raise Finding(name, f"The step is correct, but the count is wrong ({where}). {text}")


def look_at_cost(reports: list[dict], numbers: int, where: str) -> None:
    """Check that the cost is two bf16 messages, a momentum, perhaps a gradient, and little more."""
    part, shard = (len(reports) - 1) / len(reports), 4 * numbers // len(reports)
    right, count = 2 * part * 2 * numbers, 2 * part * ITEM * SLACK
    looks = {
        "too much sent": lambda r: r["bytes"] > right + count,
        "unsharded states": lambda r: (
            r["kept"] > 3 * shard + 256 or max(r["largest"], r["state"]) > shard + 64
        ),
        "kept between calls #2": lambda r: r["mixed"],
        "input changed": lambda r: r["changed"],
    }
    SAYS.refuse_each(reports, looks, right=right, shard=shard, where=where)


MASTER = Exercise(judge=judged(train, look), **SAYS.about)
