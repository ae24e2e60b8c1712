"""MFU from a log: worked out by hand, and equal to what the run itself has said."""

from __future__ import annotations

import io

import pytest

from course_lib.gpt import Config
from course_lib.train.curve import CurvePoint
from course_lib.train.log import Stretch, mfu, mfu_of_log, stretches
from course_lib.train.report import Lines, Progress

pytestmark = pytest.mark.cpu("lines of a log")

CONFIG = Config.gpt2(vocabulary=100, length=16, hidden=8, layers=2, heads=2)
# Of a token, forward: 12 h² of a block by 2, two products of all s tokens, the head.
FLOPS = 3 * (2 * 2 * (12 * 8 * 8 + 2 * 16 * 8) + 2 * 8 * 100)


def log(*told: tuple[int, float, float]) -> list[str]:
    """The lines that a run prints for (step, tokens per second, MFU)."""
    stream = io.StringIO()
    for step, speed, part in told:
        point = CurvePoint(step, 4.25, 64, 1.5, 1e-3)
        Lines(stream).step(Progress(point, 40, 4.5, speed, part, 12_000_000, 3.0), due=True)
    return stream.getvalue().splitlines()


def test_mfu_of_a_speed_is_flops_over_the_peak():
    assert mfu(1000.0, CONFIG, 16, 1e9) == pytest.approx(FLOPS * 1000 / 1e9, rel=1e-12)
    with pytest.raises(ValueError, match="above 0"):
        mfu(1000.0, CONFIG, 16, 0.0)


def test_a_runs_mfu_is_all_its_flops_over_all_its_seconds():
    """30 steps of 64 tokens at 6400 a second and 10 at 640: 0.3 s and 1 s."""
    lines = log((1, 10, 0.0), (31, 6400, 0.0), (41, 640, 0.0))
    want = FLOPS * 40 * 64 / 1.3 / 1e9
    assert mfu_of_log(lines, CONFIG, 16, 1e9) == pytest.approx(want, rel=1e-12)
    slow = FLOPS * 41 * 64 / (6.4 + 1.3) / 1e9
    assert mfu_of_log(lines, CONFIG, 16, 1e9, skip=0) == pytest.approx(slow, rel=1e-12)


def test_a_logs_lines_are_stretches_of_steps_from_where_it_went_on():
    lines = ["2 rank(s), dp 2", *log((1, 250, 0.1), (10, 12345, 0.2)), "validation loss 4.2"]
    assert stretches(lines) == [Stretch(1, 1, 250.0), Stretch(10, 9, 12345.0)]
    lines = ["going on after step 20, from out/step-20", *log((30, 100, 0.1))]
    assert stretches(lines) == [Stretch(30, 10, 100.0)]
    again = [*log((30, 100, 0.1)), "going on after step 25, from x", *log((30, 50, 0.1))]
    assert stretches(again)[-1] == Stretch(30, 5, 50.0)
    with pytest.raises(ValueError, match="step 10 follows step 30, so this log has two runs"):
        stretches(log((30, 100, 0.1), (10, 100, 0.1)))


def test_a_log_without_a_speed_is_refused():
    for lines, skip in (([], 0), (["loss 4.2"], 0), (log((1, 100, 0.1)), 1)):
        with pytest.raises(ValueError, match="Pass the output of `course train`"):
            mfu_of_log(lines, CONFIG, 16, 1e9, skip=skip)


def test_it_is_what_the_run_itself_has_said(monkeypatch):
    """Two rows of 16 tokens a step, a step in a fiftieth of a second."""
    from types import SimpleNamespace

    import course_lib.train.report as report

    clock = iter(i / 50 for i in range(1000))
    monkeypatch.setattr(report.time, "perf_counter", lambda: next(clock))
    options = SimpleNamespace(rows=2, length=16, log_every=1, steps=4, peak_tflops=0.001)
    me = SimpleNamespace(rank=0, world=2)
    stream = io.StringIO()
    told = report.RunReport(options, me, CONFIG, Lines(stream))
    for step in range(1, 5):
        told.step(CurvePoint(step, 4.0, 32, 1.0, 1e-3))
    lines = stream.getvalue().splitlines()
    printed = {line.split("MFU ")[1].split(" %")[0] for line in lines}
    got = mfu_of_log(lines, CONFIG, 16, 2 * 0.001e12, skip=0)
    assert printed == {f"{100 * got:.1f}"}
