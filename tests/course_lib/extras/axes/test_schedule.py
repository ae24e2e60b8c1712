"""Schedules as data: the bubble is (p - 1)/m, 1F1B keeps fewer activations."""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate

import pytest

from course_lib.extras.axes.schedule import (
    BACKWARD,
    FORWARD,
    UNITS,
    Step,
    Timed,
    bubble,
    gpipe,
    named,
    one_f_one_b,
)


def timetable(schedule: list[list[Step]]) -> list[list[Timed]]:
    """When steps begin and end: each waits for its stage's last one, and for its neighbour's."""
    done, timed = {}, [[] for _ in schedule]
    for _ in range(sum(map(len, schedule))):
        for stage, steps in enumerate(schedule):
            for step in steps[len(timed[stage]) :]:
                near = stage - 1 if step.kind == FORWARD else stage + 1
                if 0 <= near < len(schedule) and (near, step) not in done:
                    break
                free = timed[stage][-1].end if timed[stage] else 0
                start = max(done.get((near, step), 0), free)
                done[stage, step] = start + UNITS[step.kind]
                timed[stage].append(Timed(step, start, done[stage, step]))
    return timed


def most_alive(steps: list[Step]) -> int:
    """How many micro-batches have been forward and not yet backward, at most."""
    return max(accumulate(1 if step.kind == FORWARD else -1 for step in steps))


SHAPES = [(1, 1), (1, 4), (2, 1), (2, 3), (3, 2), (4, 4), (4, 9), (5, 3)]


@pytest.mark.parametrize(("p", "m"), SHAPES)
@pytest.mark.parametrize("schedule", [gpipe, one_f_one_b])
def test_each_micro_batch_goes_both_ways_once_and_the_bubble_is_p_minus_1_over_m(schedule, p, m):
    steps = [schedule(p, m, stage) for stage in range(p)]
    wanted = {Step(kind, k) for kind in (FORWARD, BACKWARD) for k in range(m)}
    assert all(set(some) == wanted and len(some) == 2 * m for some in steps)
    assert bubble(timetable(steps)) == Fraction(p - 1, m)


@pytest.mark.parametrize(("p", "m"), SHAPES)
def test_1f1b_keeps_p_minus_stage_micro_batches_and_gpipe_all(p, m):
    assert [most_alive(gpipe(p, m, i)) for i in range(p)] == [m] * p
    assert [most_alive(one_f_one_b(p, m, i)) for i in range(p)] == [min(m, p - i) for i in range(p)]


def test_1f1b_is_deepspeeds_schedule():
    """Its engine's list of instructions, of which the messages are left out."""
    schedule = pytest.importorskip("deepspeed.runtime.pipe.schedule")
    kinds = {schedule.ForwardPass: FORWARD, schedule.BackwardPass: BACKWARD}
    for p, m in SHAPES:
        for stage in range(p):
            theirs = schedule.TrainSchedule(micro_batches=m, stages=p, stage_id=stage)
            order = [kinds[type(c)] for some in theirs.steps() for c in some if type(c) in kinds]
            ours = one_f_one_b(p, m, stage)
            assert [step.kind for step in ours] == order
            assert theirs.num_pipe_buffers() == max(2, most_alive(ours))


def test_what_is_no_schedule_or_stage_is_refused():
    for p, m in ((0, 1), (2, 0)):
        with pytest.raises(ValueError, match="a pipeline needs at least one stage"):
            gpipe(p, m, 0)
    with pytest.raises(ValueError, match="stage=2 is not among 2 stages; they are 0 … 1"):
        one_f_one_b(2, 3, 2)
    with pytest.raises(ValueError, match="schedule='zero-bubble' is not among gpipe, 1f1b"):
        named("zero-bubble")
