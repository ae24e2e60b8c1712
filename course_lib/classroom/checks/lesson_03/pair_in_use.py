"""f and g among others: tensors that another step needs, layouts, a net that learns.

What `conjugates` of lesson 03 is held to once each of the two is right alone. The dense results are
worked out here, in one process.
"""

from __future__ import annotations

import torch
from torch import Tensor

from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.lesson_03.pair_case import Trial, nearly
from course_lib.classroom.checks.lesson_03.trial import FACTOR, RATE, STEPS, leaf
from course_lib.classroom.checks.looking import near
from course_lib.layout import span


def look_shared(trial: Trial) -> None:
    """A branch beside f, an operation before g: what was written into shows in their gradients."""
    c, v, n = trial.each("c"), trial.same("v"), trial.n
    ps = [q.exp() for q in trial.each("q")]
    total, both = sum(ps), sum(c) + sum(trial.each("w"))
    for rank, report in enumerate(trial.reports):
        p = ps[rank]
        if not near(report["u"], FACTOR * c[rank]):
            twice = near(report["u"], FACTOR * sum(c))
            what = f"the sum over {n} ranks" if twice else "something else"
            raise Finding(
                "f in place on the way back",
                f"In h = 5 u + f(x) the gradient of h goes to both branches, as one tensor. In f's "
                f"backward it was summed in place, and the branch of u, which no other rank knows, "
                f"got {what} (rank {rank}, {trial.when}). Sum a copy.",
            )
        if not near(report["x"], sum(c)):
            raise Finding(
                "f beside a branch",
                f"In h = 5 u + f(x) the gradient of x is not the sum of the ranks' gradients "
                f"(rank {rank}, {trial.when}); alone, f gave it.",
            )
        if not near(report["p"], p) or not near(report["q"], p * (3 * v + c[rank])):
            raise Finding(
                "g in place",
                f"With p = exp(q), and g(p), g(2 p) and p itself in use, the gradient of q is not "
                f"right (rank {rank}, {trial.when}), though g alone is. Is what exp has kept still "
                "what it was?",
            )
        if not all(map(near, report["sums"], (total, 2 * total))):
            raise Finding(
                "one buffer for all",
                f"After g(p) and g(2 p) the first result is not what it was (rank {rank}, "
                f"{trial.when}). Each result needs memory of its own: a caller may use both.",
            )
        if not near(report["twice"], both):
            raise Finding(
                "one buffer for all",
                f"With f used twice on x, in f(x) · c + f(x) · w, the gradient of x is not the sum "
                f"of what both uses send back (rank {rank}, {trial.when}), though each alone is "
                "right. Is one gradient written over the other?",
            )


def look_at_once(trial: Trial) -> None:
    """A pair of one group, while another pair of another group is in use."""
    w, v, x = trial.each("w"), trial.same("v"), trial.same("x")
    for rank, report in enumerate(trial.reports):
        sums = {"mine": sum(w), "other": w[rank]}
        if not all(near(report[key][0], x * t) for key, t in sums.items()) or not all(
            near(report[key][1], v * t) for key, t in sums.items()
        ):
            raise two_at_once(f"On rank {rank} one of the two gives another result than alone.")


def two_at_once(what: str) -> Finding:
    """The Finding of a pair that is right as long as there is no other."""
    return Finding(
        "two at once",
        f"Two pairs were made, each for a group of its own, and both were used before the first "
        f"backward began, as in a net with two kinds of parallelism. {what} Does `conjugates` keep "
        "its group where the next call finds it: in a class, a global name, a default argument?",
    )


def look_shapes(trial: Trial, kinds: list[tuple[list[int], str]]) -> None:
    """Tensors of other shapes, and of another dtype."""
    for (shape, dtype), *reports in zip(kinds, *trial.reports, strict=True):
        x, v, w = trial.same("x", shape), trial.same("v", shape), sum(trial.each("w", shape))
        for rank, report in enumerate(reports):
            if report["dtype"] != dtype:
                raise Finding(
                    "another dtype",
                    f"g(f(x)) is of dtype {report['dtype']} for an x of dtype {dtype} (rank "
                    f"{rank}, {trial.when}): it comes back with x's.",
                )
            alike = near if dtype == "float64" else nearly
            if not alike(report["y"], x * w) or not alike(report["x"], w * v):
                raise another_shape(f"For {dtype} of shape {shape} result or gradient are not.")


def another_shape(what: str) -> Finding:
    return Finding(
        "another shape",
        f"x may have any shape and dtype. Float64 matrices come out right. {what}",
    )


def look_layouts(trial: Trial) -> None:
    """Tensors that are not one block of memory."""
    rows = trial.shape[::-1]
    total = sum(trial.each("p"))
    gradient = sum(trial.each("w", rows)).t()
    for rank, report in enumerate(trial.reports):
        if report["changed"]:
            raise Finding(
                "g in place",
                f"g(p) changed a p that wants no gradient (rank {rank}, {trial.when}). Its caller "
                "may need it all the same: sum a copy.",
            )
        if not near(report["data"], trial.same("x") + total):
            raise Finding(
                "only with a gradient",
                f"Given tensors that want no gradient, f or g gives another result (rank {rank}, "
                f"{trial.when}).",
            )
        right = [
            near(report["ones"], torch.full_like(total, float(trial.n))),
            near(report["y"], total.t()),
            near(report["x"], gradient),
        ]
        if not all(right):
            raise Finding(
                "another layout",
                "Tensors in one block of memory come out right; transposed ones, or a gradient of "
                f"which all elements are one number in memory, do not (rank {rank}, {trial.when}). "
                "torch.empty_like and clone keep the strides; .contiguous() makes one block.",
            )
        if not all(map(near, report["apart"], (total, gradient))):
            raise Finding(
                "another layout",
                "Where the ranks store their tensors alike the sums are right. Where one rank "
                "stores its tensor, or the gradient that comes, by columns and the others by rows, "
                f"they are not (rank {rank}, {trial.when}): a collective adds memory to memory. "
                "clone keeps the strides; .contiguous() makes one block.",
            )


def look_net(trial: Trial, dims: list[int]) -> None:
    """Three steps of SGD against the net in one piece."""
    dense = _dense(trial, dims)
    for again, how in ((False, ""), (True, " under torch.utils.checkpoint")):
        for rank, report in enumerate(trial.reports):
            mine = slice(*span(dims[2], trial.n, rank))
            wrong = _differences(report[again], dense, mine)
            if wrong:
                raise Finding(
                    f"not the dense net{how}",
                    f"After {STEPS} steps of a net of two layers{how}, {' and '.join(wrong)} on "
                    f"rank {rank} are not those of one process ({trial.when}). Does anything of an "
                    "earlier call stay in f or g?",
                )


def _differences(report: dict, dense: tuple, mine: slice) -> list[str]:
    losses, a, b, gradient = dense
    same = {
        "the loss": near(torch.tensor(report["losses"]), torch.tensor(losses)),
        "the gradient of x": near(report["x"], gradient),
        "the first weight": near(report["A"], a[:, mine]),
        "the second weight": near(report["B"], b[mine]),
    }
    return [name for name, right in same.items() if not right]


def _dense(trial: Trial, dims: list[int]) -> tuple[list[float], Tensor, Tensor, Tensor]:
    """Losses, both weights after the steps, and x's gradients added up."""
    rows, h, hidden, out = dims
    x, t = leaf(trial.same("x", [rows, h])), trial.same("t", [rows, out])
    a, b = leaf(trial.same("A", [h, hidden])), leaf(trial.same("B", [hidden, out]))
    losses = []
    for _ in range(STEPS):
        loss = (((x @ a).tanh() @ b - t) ** 2).mean()
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            for weight in (a, b):
                weight -= RATE * weight.grad
                weight.grad = None
    return losses, a.detach(), b.detach(), x.grad
