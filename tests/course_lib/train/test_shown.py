"""What a person sees of a run: a bar with the time left on a terminal, lines elsewhere."""

from __future__ import annotations

import io
import re

import pytest

from course_lib.train import __main__ as main
from course_lib.train import report as shown
from course_lib.train.curve import CurvePoint
from course_lib.train.options import Options
from course_lib.train.report import Lines, Progress, RunReport, clock

pytestmark = pytest.mark.cpu("lines that are shown")

POINT = CurvePoint(30, 2.5, 64, 0.75, 1e-3, 2.625)
PROGRESS = Progress(POINT, 200, 2.625, 12_345.6, 0.413, 45_600_000, 125.0)


def test_a_line_says_all_of_it():
    stream = io.StringIO()
    lines = Lines(stream)
    lines.say("hello")
    lines.step(PROGRESS, due=False)
    lines.step(PROGRESS, due=True)
    assert stream.getvalue() == (
        "hello\nstep 30/200  loss 2.5000  validation 2.6250  norm 0.750  lr 1.00e-03  12,346 "
        "tokens/s  MFU 41.3 %  45.6 MB  2:05 left\n"
    )
    early = PROGRESS._replace(validation=None, memory=None)
    assert "validation" not in str(early) and "MB" not in str(early)


def test_a_clock():
    assert [clock(seconds) for seconds in (59.4, 60, 3599.6)] == ["59 s", "1:00", "1:00:00"]


@pytest.mark.parametrize("json", [False, True])
def test_lines_where_it_is_piped(monkeypatch, json):
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    display = main.display(Options(json=json))
    display.say("here")
    assert isinstance(display, Lines) and (err if json else out).getvalue() == "here\n"


LARGE = Progress(
    CurvePoint(12345, 10.1234, 64, 12.75, 1e-3, 2.6),
    20000, 10.625, 123_456.0, 0.413, 12_345_600_000, 5025.0,
)  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("columns", [50, 80, 200])
def test_a_bar_has_step_and_time_left_and_as_much_of_the_words_as_fits(monkeypatch, columns):
    pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    display = main.ProgressBar(20_000, stream)
    display.say("[begun] 1/2")
    display.step(LARGE, due=False)
    display.close()
    assert "[begun] 1/2" in stream.getvalue()
    assert "\x1b[?25l" not in stream.getvalue()  # the cursor stays, also if the rank is killed
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    line = [line for line in re.split("[\r\n]+", text) if line.strip()][-1]
    assert line.startswith("step 12345/20000 ") and line.endswith(" 1:23:45 left")
    words = re.sub("[━╸╺]+", "|", line).partition("| ")[2].removesuffix(" 1:23:45 left").rstrip()
    assert str(LARGE).startswith(words.rstrip("…")) and len(line) <= columns
    assert (words == str(LARGE)) == (columns == 200)


class Kept:
    """A `Show` that keeps what it is given."""

    def __init__(self):
        self.progress: list[tuple[Progress, bool]] = []

    def step(self, progress, *, due):
        self.progress.append((progress, due))

    def say(self, text): ...


def reported(monkeypatch, options) -> tuple[RunReport, Kept]:
    clock_ = [100.0]
    monkeypatch.setattr(shown.time, "perf_counter", lambda: clock_[0])
    me = type("Me", (), {"rank": 0, "world": 2})
    config, show = options.config(), Kept()
    report = RunReport(options, me, config, show)
    report.clock = clock_
    return report, show


def test_what_is_no_training_takes_no_time(monkeypatch):
    options = Options(steps=40, log_every=2, peak_tflops=1.0, hidden=8, layers=1, heads=2)
    report, show = reported(monkeypatch, options)
    for step in (1, 2, 3, 4):
        report.clock[0] += 2.0
        with report.apart():
            report.clock[0] += 50.0  # a save, say
        report.step(CurvePoint(step, 1.0, 10, 1.0, 1e-3))
    assert [due for _, due in show.progress] == [True, True, False, True]
    assert all(p.tokens_per_second == pytest.approx(5.0) for p, _ in show.progress)
    assert [p.left for p, _ in show.progress] == pytest.approx([78.0, 76.0, 74.0, 72.0])
    assert report.summary()["tokens_per_second"] == pytest.approx(5.0)
    assert report.peak == 2e12  # of both ranks


@pytest.mark.parametrize(("steps", "counted", "seconds"), [(1, 1, 20.0), (2, 1, 2.0), (5, 4, 8.0)])
def test_the_first_step_is_left_out_where_others_follow(monkeypatch, steps, counted, seconds):
    """It loads libraries. The stretches here are step 1, step 2, steps 3 and 4, and step 5."""
    options = Options(steps=40, log_every=2, peak_tflops=1.0, hidden=8, layers=1, heads=2)
    report, _ = reported(monkeypatch, options)
    for step in range(1, steps + 1):
        report.clock[0] += 20.0 if step == 1 else 2.0
        report.step(CurvePoint(step, 1.0, 10, 1.0, 1e-3))
    assert report.summary() == {
        "tokens_per_second": pytest.approx(10 * counted / seconds),
        "mfu": pytest.approx(report.flops * counted / seconds / 2e12),
        "steps_counted": counted,
    }
