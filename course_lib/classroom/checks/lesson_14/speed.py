"""`streamed_speed` of lesson 14: what streamed weights make of a token step.

Cases are drawn anew for each check; a wrong idea is recognised, key by key, by what it makes of all
of them.
"""

from __future__ import annotations

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.by_cases import Cases, judge_cases
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge
from course_lib.classroom.checks.lesson_14.speed_cases import COUNT, KEYS, make, right
from course_lib.classroom.checks.lesson_14.speed_ideas import IDEAS

CASES = Cases(KEYS, COUNT, make, right, IDEAS)


def judge_speed(answer: Answer, judge: Judge) -> None:
    judge_cases(answer, judge, CASES, __name__)


STREAMED_SPEED = Exercise(
    name="streamed_speed",
    title="Tokens per second against the batch",
    points=4,
    judge=judge_speed,
    when_right=(
        "All drawn cases are right. What a rank receives in a token step does not depend on the "
        "batch: up to the break-even a larger batch takes no more time, and after it stage 3 "
        "is as fast "
        "as a rank that has all the weights. Streaming is for many prompts and tensor parallelism "
        "for few: its ranks send activations, which grow with the batch."
    ),
    hints=(
        "Two times for a token step at stage 3: until the missing weights have arrived, and until "
        "the arithmetic is done. They run beside each other.",
        "The arithmetic itself is the longer of two: each weight read once from the rank's own "
        "memory, and two operations for each parameter and token of this forward.",
        "For tp, multiply the tokens by N and divide the weights by N; then add the all-reduces, "
        "each of tokens · hidden · item bytes, of which a ring moves 2(N−1)/N.",
        "Break-even: write down both times with an unknown batch, set them equal, and see what "
        "falls out of the equation. The next whole number up.",
    ),
)
