"""DeepSpeed's schedules, update by update: ours against its own classes on drawn parameters, and
beside the calls of transformers and torch that are said to be the same."""

from __future__ import annotations

import inspect
import logging
import random

import pytest
import torch

from course_lib.peers.deepspeed_config.schedule_peers import equivalent
from course_lib.peers.deepspeed_config.schedules import PARAMETERS, REQUIRED, rates, where_skipped

NAMES = list(PARAMETERS)
LR, UPDATES, DRAWS = 3e-4, 70, 40


def adamw(lr=LR):
    return torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=lr)


def theirs(block, updates):
    """The rate of each update under DeepSpeed's own class."""
    schedules = pytest.importorskip("deepspeed.runtime.lr_schedules")
    optimizer = adamw()
    scheduler = getattr(schedules, block["type"])(optimizer, **block["params"])
    return run(optimizer, scheduler, updates)


def run(optimizer, scheduler, updates):
    seen = []
    for _ in range(updates):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


@pytest.fixture(autouse=True)
def quiet():
    logger = logging.getLogger("DeepSpeed")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)


def drawn(name: str, dice: random.Random) -> dict:
    """A block of that type: each parameter that may be left out is there in half of the draws."""
    low, high = dice.uniform(1e-6, 1e-4), dice.uniform(2e-4, 1e-2)
    warm = dice.randint(1, 30)
    values = {
        "warmup_min_lr": dice.choice((0.0, low)),
        "warmup_max_lr": high,
        "warmup_num_steps": warm,
        "warmup_type": dice.choice(("log", "linear", "linear", "cubic")),
        "total_num_steps": dice.choice((warm - 1, warm, dice.randint(31, 90))),
        "warmup_min_ratio": dice.choice((0.0, 0.1)),
        "cos_min_ratio": dice.choice((0.0, 0.0001, 0.2)),
        "lr_range_test_min_lr": low,
        "lr_range_test_step_size": dice.randint(1, 12),
        "lr_range_test_step_rate": dice.uniform(0.1, 3.0),
        "lr_range_test_staircase": dice.choice((True, False)),
        "cycle_min_lr": low,
        "cycle_max_lr": high,
        "decay_lr_rate": dice.choice((0.0, 0.5)),
        "cycle_first_step_size": dice.randint(1, 30),
        "cycle_second_step_size": dice.randint(0, 30),
        "cycle_first_stair_count": dice.choice((0, 3, 7)),
        "cycle_second_stair_count": dice.choice((0, 2, 5)),
        "decay_step_size": dice.choice((0, 1, 4)),
        "cycle_momentum": True,
        "cycle_min_mom": dice.uniform(0.7, 0.85),
        "cycle_max_mom": dice.uniform(0.86, 0.95),
        "decay_mom_rate": dice.choice((0.0, 0.3)),
        "last_batch_iteration": dice.choice((-1, -1, -1, 0, 11)),
    }
    known = PARAMETERS[name]
    params = {k: values[k] for k in known if known[k] is REQUIRED or dice.random() < 0.7}
    return {"type": name, "params": params}


@pytest.mark.parametrize("name", NAMES)
def test_every_update_has_deepspeed_s_rate(name):
    dice, lasts = random.Random(name), set()
    for _ in range(DRAWS):
        block = drawn(name, dice)
        want = theirs(block, UPDATES)
        got = rates(block, UPDATES, lr=LR)
        lasts.add(block["params"].get("last_batch_iteration", -1))
        if name == "OneCycle":  # the same line, written otherwise
            assert got == pytest.approx(want, rel=1e-9), block
        else:
            assert got == want, block
    assert lasts == {-1, 0, 11}


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_of_the_installed_class_is_known_with_its_default(name):
    schedules = pytest.importorskip("deepspeed.runtime.lr_schedules")
    taken = dict(inspect.signature(getattr(schedules, name).__init__).parameters)
    del taken["self"], taken["optimizer"]
    empty = inspect.Parameter.empty
    wanted = {k: REQUIRED if p.default is empty else p.default for k, p in taken.items()}
    assert wanted == dict(PARAMETERS[name])
    assert set(schedules.VALID_LR_SCHEDULES) == set(NAMES)


# ---- beside transformers and torch
def of_call(call: str, lr: float, updates: int) -> list[float]:
    """The rates of an equivalent's call on an optimizer of its own."""
    transformers = pytest.importorskip("transformers")
    optimizer = adamw(lr)
    scheduler = eval(call, {"torch": torch, "transformers": transformers, "optimizer": optimizer})
    return run(optimizer, scheduler, updates)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.*:UserWarning")
def test_the_equivalent_s_call_makes_the_rates_that_it_says(name):
    dice, compared, worded = random.Random(name), 0, 0
    for _ in range(DRAWS):
        block = drawn(name, dice)
        found = equivalent(block, lr=LR)
        if found.call is None:
            worded += 1
            assert found.words.startswith("None") and not found.spans
            continue
        got = rates(block, UPDATES, lr=LR)
        other = of_call(found.call, found.lr, UPDATES)
        for span in found.spans:
            for n in range(span.first, min(span.end or UPDATES, UPDATES)):
                same = pytest.approx(other[n - span.late], rel=1e-9, abs=1e-15)
                assert got[n] == same, (n, block)
                compared += 1
    assert compared > UPDATES and worded > 0


def test_a_skipped_step_leaves_the_rate_where_it_was():
    block = {"type": "WarmupLR", "params": {"warmup_num_steps": 4, "warmup_type": "linear"}}
    block["params"]["warmup_max_lr"] = 8.0
    skipped = [True, True, False, False, True, False, False]
    assert where_skipped(rates(block, 7), skipped) == [0, 0, 0, 0, 2, 2, 4]


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"type": "Cosine"}, "not one of DeepSpeed's schedules: WarmupLR, "),
        ({"type": "WarmupLR", "params": {"warmup_steps": 3}}, "no parameter 'warmup_steps'"),
        ({"type": "WarmupDecayLR", "params": {}}, "needs total_num_steps: write it under"),
        ({"type": "WarmupLR", "params": {"warmup_max_lr": "auto"}}, "'auto', which the Trainer"),
        ({"type": "WarmupLR", "params": {"warmup_max_lr": [1e-3, 1e-4]}}, "use one of them"),
        ({"type": "WarmupLR", "params": {}}, "Give the optimizer's rate with lr="),
        ({"type": "WarmupCosineLR", "params": {"total_num_steps": 9}}, "with lr="),
    ],
)
def test_a_block_that_makes_no_schedule_is_refused_with_its_remedy(block, message):
    with pytest.raises(ValueError, match=message):
        rates(block, 5)
