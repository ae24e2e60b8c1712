"""f and g among others: tensors that another step needs, layouts, a net that learns.

What `conjugates` of lesson 03 is held to once each of the two is right alone. The dense results are
worked out here, in one process.
"""

from __future__ import annotations

import torch
from torch import Tensor

from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.lesson_03.pair_case import Trial, close
from course_lib.classroom.checks.lesson_03.trial import FACTOR, RATE, STEPS, leaf
from course_lib.layout import span


def look_shared(trial: Trial) -> None:
    """A branch beside f, an operation before g: what was written into shows in their gradients."""
    c, v, n = trial.each("c"), trial.same("v"), trial.n
    for rank, report in enumerate(trial.reports):
        p = trial.each("q")[rank].exp()
        if not close(report["u"], FACTOR * c[rank]):
            twice = close(report["u"], FACTOR * sum(c))
            what = f"the sum over {n} ranks" if twice else "something else"
            raise Finding(
                "f in place on the way back",
                f"In h = 5 u + f(x) the gradient of h goes to both branches, as one tensor. In f's "
                f"backward it was summed in place, and the branch of u, which no other rank knows, "
                f"got {what} (rank {rank}, {trial.when}). Sum a copy.",
            )
        if not close(report["x"], sum(c)):
            raise Finding(
                "f beside a branch",
                f"In h = 5 u + f(x) the gradient of x is not the sum of the ranks' gradients "
                f"(rank {rank}, {trial.when}); alone, f gave it.",
            )
        if not close(report["p"], p) or not close(report["q"], p * (2 * v + c[rank])):
            raise Finding(
                "g in place",
                f"With p = exp(q), g used twice on p and p itself once, the gradient of q is not "
                f"right (rank {rank}, {trial.when}), though g alone is. Is what exp has kept still "
                "what it was?",
            )


def look_layouts(trial: Trial) -> None:
    """Tensors that are not one block of memory."""
    rows = trial.shape[::-1]
    total = sum(trial.each("p"))
    gradient = sum(trial.each("w", rows)).t()
    for rank, report in enumerate(trial.reports):
        if not close(report["data"], trial.same("x") + total):
            raise Finding(
                "only with a gradient",
                f"Given tensors that want no gradient, f or g gives another result (rank {rank}, "
                f"{trial.when}).",
            )
        right = [
            close(report["ones"], torch.full_like(total, float(trial.n))),
            close(report["y"], total.t()),
            close(report["x"], gradient),
        ]
        if not all(right):
            raise Finding(
                "another layout",
                "Tensors in one block of memory come out right; transposed ones, or a gradient of "
                f"which all elements are one number in memory, do not (rank {rank}, {trial.when}). "
                "torch.empty_like and clone keep the strides; .contiguous() makes one block.",
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
        "the loss": close(torch.tensor(report["losses"]), torch.tensor(losses)),
        "the gradient of x": close(report["x"], gradient),
        "the first weight": close(report["A"], a[:, mine]),
        "the second weight": close(report["B"], b[mine]),
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
