"""`token_mean_step` of lesson 08: one mean over all tokens, however they are spread over the ranks.

Loss and gradients are held against one process that has all batches, and against what known wrong
ideas would give; the ledger says how much was sent for it.
"""

from __future__ import annotations

from course_lib.classroom.checks import looking
from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none, refuse_world_numbers
from course_lib.classroom.checks.lesson_08 import mean_trial
from course_lib.classroom.checks.lesson_08.mean_trial import MICRO
from course_lib.classroom.checks.looking import THREE, TWO, fresh_seed

TOLERANCE = 1e-10
SLACK = 16  # numbers beside the gradients: sums and counts
MEANS = (
    "The ranks and micro-batches have different numbers of tokens. A mean of means gives a token "
    "in a short batch more weight than one in a long batch: add up sums, and divide once."
)
IDEAS = {
    "mean of means": ("mean of means", MEANS),
    "mean of micro-means, by rank": ("mean of means", MEANS),
    "micro-means added": ("mean of means", MEANS),
    "mean of rank means": ("mean of means", MEANS),
    "rank means added": ("mean of means", MEANS),
    "a sum": ("a sum", "It is a sum over tokens, still to be divided by how many there are."),
    "padding counted": (
        "padding counted",
        "It is divided by all places, those with the label -100 among them. Padding is no token.",
    ),
    "divided by n as well": (
        "divided by the ranks as well",
        "It is divided by the tokens of all ranks, and by the number of ranks once more.",
    ),
    "times n": (
        "counted n times",
        "It is n times too large: multiplied by the ranks, or the same sum taken twice.",
    ),
    "times k": (
        "counted for each micro-batch",
        f"It is {MICRO} times too large, once for each micro-batch.",
    ),
    "divided by k as well": (
        "divided by the micro-batches as well",
        "It is divided by the tokens of all micro-batches, and by their number once more.",
    ),
    "divided by its own tokens": (
        "divided by its own tokens",
        "The sum is that of all ranks and the divisor is this rank's own, so the ranks disagree. "
        "The count has to be summed like the loss.",
    ),
    "the first micro-batch": (
        "the first micro-batch alone",
        "Only the first micro-batch is in it. All of a rank's batches count.",
    ),
    "nothing": ("no backward", "It is 0 everywhere: did a backward run?"),
    "the last micro-batch": (
        "the last micro-batch alone",
        "Only the last micro-batch is in it: gradients add up in `p.grad` until they are cleared.",
    ),
}
IDEAS["the first one's mean"] = IDEAS["the first micro-batch"]
OWN = ("own mean", "own part", "own micro-means", "own sum")


def judge_mean(answer: Answer, judge: Judge) -> None:
    """Three steps on three ranks, then on two others; each time one more in float32."""
    judge.take(answer, mean_trial.__name__)
    seed = fresh_seed()
    for members in (THREE, TWO):
        when, last = on(members), len(members) - 1
        reports = judge.trial(
            answer, mean_trial.train, seed, members=members, when=when, empty=[last]
        )
        for k in range(len(reports[0]["steps"])):
            told = [report["steps"][k] for report in reports]
            where = f"{when}, in step {k + 1}{', with a model in float32' * (k == 3)}"
            if len(members) == 2 and any("right" not in one["gradients"] for one in told):
                refuse_world_numbers(answer, where)
            _look_at_results(told, where)
            _look_at_gradients(told, where)
            _look_at_losses(told, where)
            _look_at_traffic(told, where)
            _look_at_model(told, where)
        gap = max(report["gap"] for report in reports)
        if not gap <= TOLERANCE:
            raise Finding(
                "other weights",
                f"Each step is right, and after three the weights are off by {gap:.2g}, {when}.",
            )


def _look_at_results(told: list[dict], where: str) -> None:
    for rank, one in enumerate(told):
        if one["missing"]:
            raise Finding(
                "no gradients",
                f"Rank {rank} has no gradient in {one['missing'][0]} {where}. A rank without a "
                "single token gets the gradient of the others' tokens all the same: its copy of "
                "the weights takes the same step.",
            )
        if one["rows"] > one["own rows"]:
            raise Finding(
                "rows of others",
                f"The model of rank {rank} was shown {one['rows']} rows {where}, and its own "
                f"batches have {one['own rows']}. A rank that computes all rows saves no work.",
            )
        if one["changed"]:
            raise Finding("input changed", f"Your function changed the batches of rank {rank}.")
        if one["nan"] or (one["loss"] is not None and one["loss"] != one["loss"]):
            raise Finding(
                "a mean of nothing",
                f"NaN came out {where}. A mean over a batch without a token is 0/0. A sum over it "
                "is 0, and asks for no exception.",
            )
    refuse_none(told, where, "the loss")
    for rank, one in enumerate(told):
        if one["loss"] is None:
            raise Finding(
                "not a number",
                f"Rank {rank} got a {one['kind']} back {where}; the loss is one number, a float or "
                "a tensor of one element.",
            )


def _idea(told: list[dict], key: str, names: tuple | dict) -> str | None:
    """The first idea that explains what all ranks have."""
    return next((name for name in names if all(name in one[key] for one in told)), None)


def _look_at_gradients(told: list[dict], where: str) -> None:
    if all("right" in one["gradients"] for one in told):
        return
    own = all(any(name in one["gradients"] for name in OWN) for one in told)
    if own:
        raise Finding(
            "gradients not summed",
            f"Each rank has the gradient of its own tokens alone {where}. The copies of the model "
            "take different steps, and are copies no longer.",
        )
    idea = _idea(told, "gradients", IDEAS)
    if idea:
        name, text = IDEAS[idea]
        raise Finding(name, f"The gradient is not that of the mean over all tokens {where}. {text}")
    said = f"The gradient is not that of the mean over all tokens {where}."
    fine = set.intersection(*(set(one["fine"]) for one in told))
    if fine:
        raise Finding(
            "only some parameters",
            f"{said} It is for {' and '.join(sorted(fine))}, and not for the other parameters.",
        )
    found, right = [one["flat"] for one in told], [one["wanted"][1] for one in told]
    looking.refuse_general(found, right, where, sizes={"micro-batches": MICRO}, what="gradient")
    raise Finding("wrong gradients", said)


def _look_at_losses(told: list[dict], where: str) -> None:
    if all("right" in one["losses"] for one in told):
        return
    if all(any(name in one["losses"] for name in OWN) for one in told):
        raise Finding(
            "a rank's own loss",
            f"The gradients are right, and each rank returns the loss of its own tokens {where}. "
            "A log on rank 0 then shows a part of the batch.",
        )
    idea = _idea(told, "losses", IDEAS)
    if idea:
        name, text = IDEAS[idea]
        raise Finding(name, f"The gradients are right and the loss is not {where}. {text}")
    found, right = [one["loss"] for one in told], [one["wanted"][0] for one in told]
    looking.refuse_general(found, right, where, sizes={"micro-batches": MICRO}, what="loss")
    raise Finding("wrong loss", f"The gradients are right and the loss is not {where}.")


def _look_at_model(told: list[dict], where: str) -> None:
    """Nothing but the gradients may have changed in the model, and they stay what they are."""
    for rank, one in enumerate(told):
        if one["moved"]:
            raise Finding(
                "other weights",
                f"Gradients and loss are right, and your function changed the weights of rank "
                f"{rank} {where}. The optimizer's step is the caller's.",
            )
        if one["left"]:
            raise Finding(
                "model changed",
                f"Gradients and loss are right, and the model of rank {rank} is left "
                f"{one['left']} {where}. Nothing but its gradients should change.",
            )
        if one["overwritten"]:
            raise Finding(
                "one buffer for two results",
                "When your function had been called for another model, the gradients of the first "
                f"had changed on rank {rank} {where}. Each model's gradients need memory of their "
                "own.",
            )


def _look_at_traffic(told: list[dict], where: str) -> None:
    n = len(told)
    for rank, one in enumerate(told):
        once = 2 * (n - 1) / n * 8 * one["numbers"]
        if one["bytes"] <= once + 2 * (n - 1) / n * 8 * SLACK:
            continue
        if one["bytes"] >= 2 * once:
            raise Finding(
                "sent for each micro-batch",
                f"Rank {rank} had to send {one['bytes']} bytes {where}; one all-reduce of the "
                f"gradients sends {once:.0f}. Add up the micro-batches first, then send once.",
            )
        raise Finding(
            "too much sent",
            f"Rank {rank} had to send {one['bytes']} bytes {where}; the gradients once, and a few "
            f"numbers, are {once:.0f} and a little.",
        )


MEAN = Exercise(
    name="token_mean_step",
    title="One mean over all tokens",
    points=4,
    judge=judge_mean,
    when_right=(
        "With unequal padding, a micro-batch without a token and a rank without one, loss and "
        "gradients were those of one process with all batches, on three ranks and on two, for "
        "three steps; and the gradients were sent once a step."
    ),
    hints=(
        "Which number would one process divide by, if it had all the batches of all ranks? Who "
        "knows that number, and when?",
        '`F.cross_entropy(…, reduction="sum")` is 0 for a batch of padding, and its gradient is '
        "0 as well. Sums can be added in any order; means cannot.",
        "Backward of each micro-batch's sum adds up in `p.grad`. Then one sum over the ranks, of "
        "the gradients, of the loss and of the count; then one division.",
    ),
)
