"""The log of a loss scale: our scale against DeepSpeed's own, its lines, and what they tell."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from course_lib import ranks, zero
from course_lib.peers.deepspeed_config import overflow_log as log
from course_lib.zero import LossScale, Precision

AT_LEAST = "Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."


@pytest.fixture
def scaler(monkeypatch):
    """DeepSpeed's module, whose logger writes into `lines`."""
    module = pytest.importorskip("deepspeed.runtime.fp16.loss_scaler")
    lines: list[str] = []
    monkeypatch.setattr(module.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(module, "logger", SimpleNamespace(info=lines.append))
    return SimpleNamespace(of=module.DynamicLossScaler, lines=lines)


def drawn(dice: random.Random) -> dict:
    least = dice.choice((1, 2, 16))
    return {
        "init_scale": 2.0 ** dice.randint(4, 12),
        "scale_window": dice.choice((1, 2, 5, 9)),
        "min_scale": least,
        "delayed_shift": dice.choice((1, 2, 3)),
        "consecutive_hysteresis": dice.random() < 0.5,
        "raise_error_at_min_scale": dice.random() < 0.5,
    }


def ours(settings: dict) -> LossScale:
    return LossScale(
        settings["init_scale"],
        window=settings["scale_window"],
        patience=settings["delayed_shift"],
        least=float(settings["min_scale"]),
        consecutive=settings["consecutive_hysteresis"],
        stops=settings["raise_error_at_min_scale"],
    )


def test_our_scale_and_its_lines_are_deepspeed_s_on_drawn_overflows(scaler):
    dice, ends = random.Random(3), []
    for _ in range(150):
        settings = drawn(dice)
        theirs, mine, often = scaler.of(**settings), ours(settings), dice.choice((0.1, 0.5, 0.8))
        for _ in range(60):
            overflow = dice.random() < often
            scaler.lines.clear()
            told = log.lines_of(mine, overflow)
            try:
                theirs.update_scale(overflow)
            except Exception as error:  # they raise nothing narrower
                ends.append((str(error), told, list(scaler.lines)))
                with pytest.raises(FloatingPointError, match="no scale is small enough"):
                    mine.after(overflow)
                break
            mine.after(overflow)
            assert (mine.value, told) == (theirs.cur_scale, scaler.lines), settings
    assert len(ends) > 20 and ends == [(AT_LEAST, [], [])] * len(ends)


# ---- reading
def run(overflows, scale: LossScale, first=1) -> list[str]:
    """The log of a loop of ours that prints each step after it."""
    lines = []
    for step, overflow in enumerate(overflows, first):
        lines += log.lines_of(scale, overflow)
        try:
            scale.after(overflow)
        except FloatingPointError:
            return [*lines, f"Exception: {AT_LEAST}"]
        lines.append(f"step {step} loss 2.31")
    return lines


def test_what_was_skipped_and_what_is_left_is_read_from_drawn_logs():
    dice = random.Random(4)
    for _ in range(200):
        settings = {**drawn(dice), "raise_error_at_min_scale": False}
        often = dice.choice((0.0, 0.2, 0.6))
        overflows = [dice.random() < often for _ in range(50)]
        scale, doubled = ours(settings), 0
        seen = []
        for step, overflow in enumerate(overflows, 1):
            before = scale.value
            seen += run([overflow], scale, first=step)
            doubled += scale.value > before
        reading = log.read_overflows(seen)
        assert reading.skipped == sum(overflows)
        if not any(overflows):
            assert (reading.verdict, reading.scale, reading.first) == (log.NONE, None, None)
            continue
        after = overflows[::-1].index(True)  # good steps at the end
        last = ours(settings)
        run(overflows[: len(overflows) - after], last)
        assert reading.scale == last.value
        assert reading.grown <= doubled and (after > 0) is (reading.verdict == log.SETTLED)


S = LossScale
VERDICTS = {
    "a few at the start": ([True] * 5 + [False] * 9, S(2.0**16), log.SETTLED),
    "one in each window": (([True] + [False] * 9) * 5, S(2.0**6, window=8), log.SETTLED),
    "all, and it stops": ([True] * 30, S(2.0**8, stops=True), log.NOT_FOUND),
    "all, and it goes on": ([True] * 30, S(2.0**8), log.NOT_FOUND),
    "all, down to 16": ([True] * 30, S(2.0**8, least=16.0), log.NOT_FOUND),
    "from a step on": ([True, False, False] + [True] * 30, S(2.0**8), log.DIVERGED),
    "from a step on, and it stops": ([False] + [True] * 30, S(2.0**8, stops=True), log.DIVERGED),
    "cut off": ([False] * 5 + [True] * 3, S(2.0**8), log.LOOKING),
    "cut off in the hysteresis": ([False] * 5 + [True], S(2.0**8), log.LOOKING),
    "one at the least": ([True] * 12 + [False], S(2.0**8), log.SETTLED),
    "none": ([False] * 9, S(2.0**8), log.NONE),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_the_verdict_goes_by_how_the_log_ends(name):
    overflows, scale, verdict = VERDICTS[name]
    lines = run(overflows, LossScale(**vars(scale)))
    assert log.read_overflows(lines).verdict == verdict
    if verdict in (log.SETTLED, log.LOOKING) and name != "one at the least":
        without = [line for line in lines if not line.startswith("step")]
        assert log.read_overflows(without).verdict == log.UNKNOWN


def test_a_scale_comes_back_after_as_many_steps_as_are_said():
    scale = LossScale(2.0**9, window=7)
    reading = log.read_overflows(run([True] * 4 + [False], scale))
    assert (reading.first, reading.scale) == (512, 64) == (512, scale.value)
    steps = 1  # one good step was made
    while scale.value < 512:
        scale.after(False)
        steps += 1
    assert reading.steps_back(window=7) == steps == 22
    with pytest.raises(ValueError, match="no line of the log has a scale"):
        log.read_overflows([]).steps_back(7)


def test_the_lines_of_the_transformers_page_are_read():
    """An older release: its name is another, and a pass by the hysteresis has no words."""
    tried = [(262144, "262144"), (262144, "131072.0"), (131072, "65536.0")]
    head = "[deepscale] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: "
    lines = [f" {head}{before}, reducing to {after}" for before, after in tried]
    assert log.read_overflows(lines) == log.LogReading(3, 262144, 65536, 0, log.UNKNOWN)
    assert log.read_overflows([*lines[:1], "step 1"]).verdict == log.LOOKING
    least = [f"{head}2, reducing to 1", f"{head}1, reducing to 1", "step 27"]
    assert log.read_overflows(lines + least).verdict == log.NOT_FOUND


@pytest.mark.parametrize("overflows", [[True, True, False, True, False], [True] * 12])
def test_ranks_that_print_together_count_once(overflows):
    """Each rank's order is kept, and ranks print at their own pace: here rank 1 is far ahead."""
    lines = run(overflows, LossScale(2.0**8))
    alone = log.read_overflows(lines)
    ahead = [f"[rank 1] {line}" for line in lines if "OVERFLOW" not in line]
    mine = [line if "OVERFLOW" in line else f"[rank 0] {line}" for line in lines]
    assert log.read_overflows(ahead + mine) == alone
    every = [x for line in lines for x in (line, line.replace("Rank 0", "Rank 1"))]
    assert log.read_overflows(every) == alone


# ---- a real run, in float16 on CPU ranks
def engine_of(me, model: nn.Module, scale: LossScale, **how) -> zero.Engine:
    sgd = torch.optim.SGD(model.parameters(), lr=1e-4)
    precision = Precision(torch.float16, True, scale)
    return zero.engine(
        model, sgd, mesh=ranks.mesh(me, dp=me.world, tp=1), precision=precision, **how
    )


def trained(me, target: float) -> dict:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    engine = engine_of(me, model, LossScale(2.0**16, window=6), stage=2)
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(me.rank)).half()
    lines, scales, made = [], [], []
    for step in range(30):
        scale = engine.precision.scale
        before = LossScale(**vars(scale))
        scales.append(scale.value)
        engine.backward((engine(x).float() - target).square().mean())
        made.append(engine.step())
        lines += [*log.lines_of(before, not made[-1]), f"step {step}"]
    return {"lines": lines, "scales": scales, "made": made, "skipped": engine.skipped}


def test_a_run_in_float16_is_read_from_its_log(pool):
    for found in pool.run(2, trained, 30.0):
        reading = log.read_overflows(found["lines"])
        assert reading.skipped == found["made"].count(False) == found["skipped"]
        assert reading.verdict in (log.SETTLED, log.LOOKING)
        assert found["made"][:3] == [False] * 3 and reading.skipped > 5  # the edge, again and again
        assert found["scales"][:4] == [2.0**16, 2.0**16, 2.0**15, 2.0**14]
        assert reading.grown >= 2


def stopped(me) -> tuple:
    """At its least scale the engine says so on every rank, and what has overflowed is forgotten."""
    torch.manual_seed(0)
    engine = engine_of(me, nn.Linear(6, 4), LossScale(2.0, patience=1, stops=True), stage=1)
    x = torch.ones(5, 6).half()
    bad = float("nan") if me.rank == 1 else 1.0
    told = None
    for step in range(3):
        engine.backward(engine(x).float().square().mean() * bad)
        try:
            engine.step()
        except FloatingPointError as error:
            told = (step, str(error))
            break
    engine.backward(engine(x).float().square().mean())
    return told, engine.step(), engine.skipped


def test_an_engine_stops_at_its_least_scale_and_can_go_on(pool):
    for (step, told), made, skipped in pool.run(2, stopped):
        assert (step, made, skipped) == (1, True, 1)
        assert "an overflow at the least loss scale, 1: no scale is small enough" in told
