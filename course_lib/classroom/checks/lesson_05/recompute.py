"""`recompute_dropout` of lesson 05: a block run again in the backward, with the masks of the first.

An answer takes two training steps with two blocks, beside the same steps with everything stored:
outputs, masks, gradients and both random streams have to be equal bit by bit. The blocks follow
each other, and then stand side by side: their backwards come in either order.
"""

from __future__ import annotations

import os

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on
from course_lib.classroom.checks.lesson_05 import recompute_trial as trial

SHARED, PRIVATE = "torch's own generator", "`private`"


def judge_recompute(answer: Answer, judge: Judge) -> None:
    """Train on three ranks and on two, and compare with the stored run."""
    judge.take(answer, trial.__name__)
    seed = int.from_bytes(os.urandom(3), "big")
    for members, shape, dtype in (([0, 1, 2], (2, 5), "float64"), ([1, 2], (6,), "float32")):
        when = on(members)
        given = (seed, shape, dtype)
        reports = judge.trial(answer, trial.compare, *given, members=members, when=when)
        for rank, report in enumerate(reports):
            where = f"{when}, rank {rank}"
            _look_at_result(report, where)
            first, second = report["steps"]
            _look_at_step(first, where)
            try:
                _look_at_step(second, f"{where}, in step 2, with the two blocks side by side")
            except Finding as finding:
                later = finding.name in ("other gradients", "another forward")
                raise Finding("second step" if later else finding.name, finding.text) from None


def _look_at_step(step: dict, where: str) -> None:
    _look_at_forward(step, where)
    _look_at_recomputation(step, where)
    _look_at_gradients(step, where)
    _look_at_streams(step, where)


def _look_at_result(report: dict, where: str) -> None:
    if report["kind"] == "NoneType":
        raise Finding("nothing returned", f"None came back {where}. Wanted is what block(x) gives.")
    if report["problem"] == "no result":
        raise Finding(
            "wrong shape",
            f"What came back {where} ({report['kind']}) is not a tensor of x's shape and dtype, as "
            "block(x) is.",
        )
    if report["problem"] == "no history":
        raise Finding(
            "no history",
            f"What came back {where} does not know where it comes from, so there is no backward. "
            "To keep nothing of a run and to have a gradient all the same, autograd has to be told "
            "how to run it again: torch.utils.checkpoint, or a Function of your own.",
        )


def _look_at_forward(report: dict, where: str) -> None:
    heads, end = report["first masks"][0]
    if not (heads and end):
        which = SHARED if heads else PRIVATE if end else "both streams"
        raise Finding(
            "another mask in the forward",
            f"Already in the forward, the first run of the block {where} draws other masks than "
            f"block(x) would have: {which} was set to something. Recomputation changes nothing "
            "there; it only remembers where the streams stood.",
        )
    for heads, end in (report["first masks"][1], report["after forward"][::-1]):
        if heads and end:
            continue
        which = SHARED if heads else PRIVATE if end else "neither of the streams"
        stands = "does not stand" if heads or end else "stands"
        raise Finding(
            "moved in the forward",
            f"After the forward, {which} {stands} where block(x) would have left it, "
            f"{where}: what is drawn next, in the next block, is another number.",
        )
    if not report["forward"]:
        raise Finding(
            "another forward", f"The masks are right and the result is not block(x), {where}."
        )


def _look_at_recomputation(report: dict, where: str) -> None:
    """Whether anything was saved, then whether the second run drew what the first had."""
    if report["runs"][-1] < 2:
        raise Finding(
            "nothing recomputed",
            f"The block ran once {where}: all it computes was kept for the backward. The point is "
            "to keep x alone, and to run the block again when its backward comes.",
        )
    if "x" in report["missing"]:
        raise Finding(
            "x cut off",
            f"No gradient came back to x {where}: the second run worked on a detached x, and what "
            "it found there was not handed on. In a model, every block below would stand still.",
        )
    if report["alive"]:
        raise Finding(
            "kept all the same",
            f"The block is run again, and what its first run computed is still alive before the "
            f"backward begins, {where}. Then it has cost time and saved nothing: the first run "
            "must leave no graph behind.",
        )
    if max(report["runs"]) > 2:
        raise Finding(
            "run too often",
            f"The block ran {max(report['runs'])} times {where}; twice is enough, and each run "
            "sends its messages again.",
        )
    heads, end = (all(each) for each in zip(*report["masks again"], strict=True))
    if heads and end:
        return
    first, second = report["another block's"]
    if first and (second or all(report["masks again"][1])):
        raise Finding(
            "one state for two blocks",
            f"The second run of a block draws the masks of the other block, {where}: two calls "
            "share the place where the state is kept (a global, a class, one list for all), and "
            "both are alive before the first backward, in whatever order the backwards come. Keep "
            "a state with its own call: in a closure, or in `ctx`.",
        )
    if first:
        raise Finding(
            "state taken too late",
            f"The second run draws the masks of the *next* block, {where}: the state that is put "
            "back is the one after the first run. Take it before.",
        )
    if not heads and not end:
        raise Finding(
            "new masks",
            f"The second run draws masks of its own, in both streams, {where}: the gradient is "
            "that of another function than the one whose value went into the loss.",
        )
    if end:
        raise Finding(
            "private stream forgotten",
            f"At the block's end the second run has the mask of the first; inside, where it draws "
            f"from {PRIVATE}, it draws a new one, {where}. torch.utils.checkpoint knows torch's "
            "generators and no others.",
        )
    raise Finding(
        "shared stream forgotten",
        f"Inside, the second run has the mask of the first; at the block's end, where it draws "
        f"from {SHARED}, it draws a new one, {where}.",
    )


def _look_at_gradients(report: dict, where: str) -> None:
    """Held against the stored run, bit by bit."""
    if report["missing"]:
        raise Finding(
            "weights left out",
            f"x got its gradient and the block's weights got none, {where}. The second run's "
            "backward has to reach them too.",
        )
    if report["ratio"] in (2.0, 3.0):
        raise Finding(
            "counted twice",
            f"Some gradient is {report['ratio']:g} times what it should be, {where}: it was added "
            "up more than once.",
        )
    if report["ratio"] != 1.0:
        raise Finding(
            "other gradients",
            f"The masks of both runs agree and the gradients are not those of the stored run, bit "
            f"by bit, {where}.",
        )


def _look_at_streams(report: dict, where: str) -> None:
    shared, private = report["after backward"]
    if not (shared and private):
        which = SHARED if private else PRIVATE if shared else "both"
        raise Finding(
            "private stream rewound" if shared else "shared stream rewound",
            f"The gradients are right. After the backward, {which} does not stand where it stood "
            f"before, {where}: numbers that were used come again. What was put back for the second "
            "run has to be undone after it, also where torch ends that run early, by an exception.",
        )


RECOMPUTE = Exercise(
    name="recompute_dropout",
    title="Run again, with the same masks",
    points=4,
    judge=judge_recompute,
    when_right=(
        "Between forward and backward only x was kept; the second run drew the masks of the first, "
        "in both streams; gradients and two steps of training were bit by bit those of the stored "
        "run; and both streams went on as if nothing had been run again."
    ),
    hints=(
        "`torch.utils.checkpoint.checkpoint(function, x, use_reentrant=False)` runs the function "
        "again in the backward, and puts torch's own generator where it stood, and back. Which "
        "stream does it not know?",
        "A generator's state is a tensor: `private.get_state()`, `private.set_state(state)`. When "
        "has it to be taken, and in which of the two runs has it to be set?",
        "The function that you hand to checkpoint may be one of yours, that calls the block and "
        "knows whether it is called for the first time.",
        "After the second run the private stream has to stand where the backward found it. "
        "Checkpoint may leave the second run by an exception, as soon as it has what it needs: "
        "what belongs into a `finally`?",
    ),
)
