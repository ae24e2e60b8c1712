"""`recompute_dropout` of lesson 05: a block run again in the backward, with the masks of the first.

An answer takes two training steps with two blocks, beside the same steps with everything stored:
outputs, masks, gradients and both random streams have to be equal bit by bit. In the first step the
blocks follow each other, in the second they stand side by side: their backwards come in either
order.
"""

from __future__ import annotations

from course_lib.classroom.checks import general
from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on
from course_lib.classroom.checks.lesson_05 import recompute_trial as trial
from course_lib.classroom.checks.looking import THREE, TWO, fresh_seed
from course_lib.classroom.checks.words import Words

SHARED, PRIVATE = "torch's own generator", "`private`"
SAYS = Words("""
nothing returned: None came back {where}. Wanted is what block(x) gives.
wrong shape: What came back {where} ({kind}) is not a tensor of x's shape and dtype, as block(x) is.
no history: What came back {where} does not know where it comes from, so there is no backward. To
  keep nothing of a run and to have a gradient all the same, autograd has to be told how to run it
  again: torch.utils.checkpoint, or a Function of your own.
another mask in the forward: Already in the forward, the first run of the block {where} draws other
  masks than block(x) would have: {which} was set to something. Recomputation changes nothing there;
  it only remembers where the streams stood.
moved in the forward: What is drawn after the forward, in the next block, is another number than
  after block(x), {where}. Not where block(x) would have left it: {which}.
another forward: The masks are right and the result is not block(x), {where}.
nothing recomputed: The block ran once {where}: all it computes was kept for the backward. The point
  is to keep x alone, and to run the block again when its backward comes.
x cut off: No gradient came back to x {where}: the second run worked on a detached x, and what it
  found there was not handed on. In a model, every block below would stand still.
kept all the same: The block is run again, and what its first run computed is still alive before the
  backward begins, {where}. Then it has cost time and saved nothing: the first run must leave no
  graph behind.
run too often: The two blocks ran {runs} times {where}; twice is enough, and each run sends its
  messages again.
one state for two blocks: The second run of a block draws the masks of the other block, {where}: two
  calls share the place where the state is kept (a global, a class, one list for all), and both are
  alive before the first backward, in whatever order the backwards come. Keep a state with its own
  call: in a closure, or in `ctx`.
state taken too late: The second run draws the masks of the *next* block, {where}: the state that is
  put back is the one after the first run. Take it before.
new masks: The second run draws masks of its own, in both streams, {where}: the gradient is that of
  another function than the one whose value went into the loss.
private stream forgotten: At the block's end the second run has the mask of the first; inside, where
  it draws from `private`, it draws a new one, {where}. torch.utils.checkpoint knows torch's
  generators and no others.
shared stream forgotten: Inside, the second run has the mask of the first; at the block's end, where
  it draws from torch's own generator, it draws a new one, {where}.
weights left out: x got its gradient and the block's weights got none, {where}. The second run's
  backward has to reach them too.
counted twice: Some gradient is {times} times what it should be, {where}: it was added up more
  than once.
rounded on the way: The masks of both runs agree, and the gradients are those of the stored run but
  for rounding, {where}: they went through float32 on the way. Keep x's dtype.
other gradients: The masks of both runs agree and the gradients are not those of the stored run, bit
  by bit, {where}.
private stream rewound: The gradients are right. After the backward, `private` does not stand where
  it stood before, {where}: numbers that were used come again. What was put back for the second run
  has to be undone after it, also where torch ends that run early, by an exception.
shared stream rewound: The gradients are right. After the backward, torch's own generator does not
  stand where it stood before, {where}: numbers that were used come again. Put it back after the
  second run.
second step: {text}
""")


def judge_recompute(answer: Answer, judge: Judge) -> None:
    """Train on three ranks and on two, and compare with the stored run."""
    judge.take(answer, trial.__name__)
    seed = fresh_seed()
    for members, shape, dtype in ((THREE, (2, 5), "float64"), (TWO, (6,), "float32")):
        given, when = (seed, shape, dtype), on(members)
        reports = judge.trial(answer, trial.compare, *given, members=members, when=when)
        for rank, report in enumerate(reports):
            where = f"{when}, rank {rank}"
            _look_at_result(report["problem"], where)
            first, second = report["steps"]
            _look_at_step(first, where)
            try:
                _look_at_step(second, f"{where}, in step 2, with the two blocks side by side")
            except Finding as finding:
                if finding.name not in ("other gradients", "another forward"):
                    raise
                raise SAYS("second step", text=finding.text) from None


def _look_at_result(problem: str, where: str) -> None:
    if problem == "NoneType":
        raise SAYS("nothing returned", where=where)
    if problem == "no history":
        raise SAYS("no history", where=where)
    if problem:
        raise SAYS("wrong shape", where=where, kind=problem)


def _look_at_step(step: dict, where: str) -> None:
    """Hold a step against the stored one; what comes later means nothing where it is not so."""
    first, second = step["first masks"]
    moved = [a and b for a, b in zip(second, step["after forward"][::-1], strict=True)]
    heads, end = (all(each) for each in zip(*step["masks again"], strict=True))
    theirs, others = step["another block's"]
    shared, private = step["after backward"]
    holds = {
        "another mask in the forward": not all(first),
        "moved in the forward": not all(moved),
        "another forward": not step["forward"],
        "nothing recomputed": step["runs"][-1] < 2,
        "x cut off": "x" in step["missing"],
        "kept all the same": step["alive"],
        "run too often": max(step["runs"]) > 2,
        "one state for two blocks": theirs and (others or all(step["masks again"][1])),
        "state taken too late": theirs,
        "new masks": not (heads or end),
        "private stream forgotten": not heads,
        "shared stream forgotten": not end,
        "weights left out": step["missing"],
        "rounded on the way": step["times"] == general.ROUNDED,
        "counted twice": step["times"] in (2.0, 3.0),
        "other gradients": step["times"] != 1.0,
        "private stream rewound": shared and not private,
        "shared stream rewound": not shared,
    }
    heads, end = moved if all(first) else first
    which = {(True, False): SHARED, (False, True): PRIVATE}.get((heads, end), "both streams")
    for entry, so in holds.items():
        if so:
            raise SAYS(entry, where=where, which=which, times=step["times"], runs=step["runs"])


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
