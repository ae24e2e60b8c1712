"""`token_mean_step` of lesson 08: one mean over all tokens, however they are spread over the ranks.

Loss and gradients are held against one process that has all batches, and against what known wrong
ideas would give; the ledger says how much was sent for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.classroom.checks import looking
from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none
from course_lib.classroom.checks.lesson_08 import mean_trial
from course_lib.classroom.checks.lesson_08.mean_trial import MICRO
from course_lib.classroom.checks.lesson_08.model import refuse
from course_lib.classroom.checks.looking import ITEM, THREE, TWO
from course_lib.classroom.checks.words import Words
from course_lib.ledger import forms

SLACK = 16  # numbers beside the gradients: sums and counts
VALUES = {  # what is said of a rank's own, of what has no name, and before each idea
    "gradient": (
        "gradients not summed",
        "wrong gradients",
        "The gradient is not that of the mean over all tokens",
    ),
    "loss": ("a rank's own loss", "wrong loss", "The gradients are right and the loss is not"),
}
SAYS = Words("""
mean of means: The ranks and micro-batches have different numbers of tokens. A mean of means gives a
  token in a short batch more weight than one in a long batch: add up sums, and divide once.
a sum: It is a sum over tokens, still to be divided by how many there are.
padding counted: It is divided by all places, those with the label -100 among them. Padding is no
  token.
an entry taken for padding: Tokens whose target is entry 0 are not counted. It is an entry like any
  other; padding has the label -100.
divided by the ranks as well: It is divided by the tokens of all ranks, and by the number of ranks
  once more.
counted n times: It is n times too large: multiplied by the ranks, or the same sum taken twice.
counted for each micro-batch: It is {k} times too large, once for each micro-batch.
divided by the micro-batches as well: It is divided by the tokens of all micro-batches, and by their
  number once more.
divided by its own tokens: The sum is that of all ranks and the divisor counts the tokens of one
  rank, or of one micro-batch. The count has to be summed like the loss.
targets shifted: The logits of a place were held against the target of the next. In `targets` each
  place has its own already.
the first micro-batch alone: Only the first micro-batch is in it. All of a rank's batches count.
the last micro-batch alone: Only the last micro-batch is in it: gradients add up in `p.grad` until
  they are cleared.
no backward: It is 0 everywhere: did a backward run?
gradients not summed: Each rank has the gradient of its own tokens alone {where}. The copies of the
  model take different steps, and are copies no longer.
a rank's own loss: The gradients are right, and each rank returns the loss of its own tokens
  {where}. A log on rank 0 then shows a part of the batch.
rounded on the way: {head} It is close to it, and went through a narrower type, such as bfloat16.
  Keep the dtype of the model.
only some parameters: {head} It is for {fine}, and not for the other parameters.
wrong gradients: {head}
wrong loss: {head}
no gradients: Rank {rank} has no gradient in {missing} {where}. A rank without a single token gets
  the gradient of the others' tokens all the same: its copy of the weights takes the same step.
rows of others: The model of rank {rank} was shown {rows} rows {where}, and its own batches have
  {own}. A rank that computes all rows saves no work.
input changed: Your function changed the batches of rank {rank} {where}.
a mean of nothing: NaN came out {where}. A mean over a batch without a token is 0/0. A sum over it
  is 0, and asks for no exception.
not a number: Rank {rank} got a {kind} back {where}; the loss is one number, a float or a tensor of
  one element.
other weights: Gradients and loss are right, and your function changed the weights of rank {rank}
  {where}. The optimizer's step is the caller's.
model changed: Gradients and loss are right, and the model of rank {rank} is left {left} {where}.
  Nothing but its gradients should change.
one buffer for two results: When your function had been called for another model, the gradients of
  the first had changed on rank {rank} {where}. Each model's gradients need memory of their own.
sent for each micro-batch: Rank {rank} had to send {bytes} bytes {where}; one all-reduce of the
  gradients sends {once:.0f}. Add up the micro-batches first, then send once.
too much sent: Rank {rank} had to send {bytes} bytes {where}; the gradients once, and a few numbers,
  are {once:.0f} and a little.
""")


def judge_mean(answer: Answer, judge: Judge) -> None:
    """Three steps on three ranks, then on two others; each time one more in float32."""
    judge.take(answer, mean_trial.__name__)
    seed = looking.fresh_seed()
    for members in (THREE, TWO):
        when, last = on(members), len(members) - 1
        reports = judge.trial(
            answer, mean_trial.train, seed, members=members, when=when, empty=[last]
        )
        for k, told in enumerate(zip(*reports, strict=True)):
            where = f"{when}, in step {k + 1}{', with a model in float32' * (k == 3)}"
            _look_at_results(told, where)
            _look_at_values(told, "gradient", where)
            _look_at_values(told, "loss", where)
            _look_at_traffic(told, where)
            _look_at_model(told, where)


def _look_at_results(told: Sequence[dict], where: str) -> None:
    refuse(SAYS, "no gradients", told, lambda one: one["missing"], where=where)
    refuse(SAYS, "rows of others", told, lambda one: one["rows"] > one["own"], where=where)
    refuse(SAYS, "input changed", told, lambda one: one["changed"], where=where)
    refuse(SAYS, "a mean of nothing", told, lambda one: one["nan"], where=where)
    refuse_none(told, where, "the loss")
    refuse(SAYS, "not a number", told, lambda one: one["loss"] is None, where=where)


def _look_at_values(told: Sequence[dict], what: str, where: str) -> None:
    """A Finding where some rank's loss or gradient is not that of one process: by an idea if one
    explains what all ranks have."""
    ideas = [name for name in told[0]["ideas"][what] if all(name in t["ideas"][what] for t in told)]
    if "right" in ideas:
        return
    own, wrong, head = VALUES[what]
    head = f"{head} {where}."
    if "own" in ideas:
        raise SAYS(own, where=where)
    if ideas:
        name, text = SAYS.of(ideas[0], k=MICRO)
        raise Finding(name, f"{head} {text}")
    fine = set.intersection(*(set(one["fine"]) for one in told))
    if what == "gradient" and fine:
        raise SAYS("only some parameters", head=head, fine=" and ".join(sorted(fine)))
    found, right = [one[what] for one in told], [one["wanted"][what] for one in told]
    looking.refuse_general(found, right, where, sizes={"micro-batches": MICRO}, what=what)
    roughly = what == "gradient" and all(one["roughly"] for one in told)
    raise SAYS("rounded on the way" if roughly else wrong, head=head)


def _look_at_model(told: Sequence[dict], where: str) -> None:
    """Nothing but the gradients may have changed in the model, and they stay what they are."""
    refuse(SAYS, "other weights", told, lambda one: one["moved"], where=where)
    refuse(SAYS, "model changed", told, lambda one: one["left"], where=where)
    refuse(SAYS, "one buffer for two results", told, lambda one: one["overwritten"], where=where)


def _look_at_traffic(told: Sequence[dict], where: str) -> None:
    once, beside = (
        forms.all_reduce(len(told), ITEM * many) for many in (told[0]["numbers"], SLACK)
    )
    many = any(one["bytes"] >= 2 * once for one in told)
    entry = "sent for each micro-batch" if many else "too much sent"
    too_much = once + beside
    refuse(SAYS, entry, told, lambda one: one["bytes"] > too_much, where=where, once=once)


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
