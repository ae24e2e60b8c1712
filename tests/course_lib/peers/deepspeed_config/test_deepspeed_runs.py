"""DeepSpeed itself on two CPU ranks: what `communication_data_type` changes, and an overflow.

One start of DeepSpeed serves both: its import and its first engine are most of the time.
"""

from __future__ import annotations

import importlib.util
import logging
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.ledger import ledger
from course_lib.peers.deepspeed_config.overflow_log import read_overflows
from course_lib.peers.deepspeed_config.schedules import rates, where_skipped
from course_lib.peers.ways.launched import launched
from course_lib.peers.ways.with_deepspeed import started

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None,
    reason="deepspeed is not installed (pip install 'course_lib[deepspeed]')",
)
SIZES = (6, 11, 5)
PARAMETERS = 6 * 11 + 11 + 11 * 5 + 5
ENV = {"DS_ACCELERATOR": "cpu"}
WARMUP = {
    "type": "WarmupLR",
    "params": {"warmup_num_steps": 4, "warmup_max_lr": 1e-3, "warmup_type": "linear"},
}


def engine_of(deepspeed, **keys):
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(*SIZES[:2]), nn.ReLU(), nn.Linear(*SIZES[1:]))
    zero = {"stage": keys.pop("stage", 2), "reduce_bucket_size": 10_000}
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {**zero, "allgather_bucket_size": 10_000},
        **keys,
    }
    return deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )[0]  # fmt: skip


def traffic(deepspeed, me, dtype: str) -> dict:
    """(verb, phase) → bytes handed over in the third step."""
    engine = engine_of(deepspeed, communication_data_type=dtype)
    for step in range(3):
        x = torch.randn(4, SIZES[0], generator=torch.Generator().manual_seed(9 * step + me.rank))
        with ledger(axes={"dp": dist.group.WORLD}) as book:
            engine.backward(engine(x).square().mean())
            engine.step()
    big = [r for r in book.records if r.payload > 100]  # without the flag of an overflow
    return {(r.op, r.phase): r.payload for r in big} | {"records": len(big)}


def overflowing(deepspeed, stage: int, bad=(0, 3)) -> dict:
    """bf16 has no scale to lower, but a step whose gradients are NaN can be skipped in it, too."""
    from deepspeed.utils import logger

    bf16 = {"enabled": True, "check_grad_overflow": True}
    engine = engine_of(deepspeed, stage=stage, bf16=bf16, scheduler=WARMUP)
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)
    used = []
    try:
        for step in range(6):
            used.append(engine.get_lr()[0])
            loss = engine(torch.ones(4, SIZES[0], dtype=torch.bfloat16)).float().square().mean()
            engine.backward(loss * (float("nan") if step in bad else 1.0))
            engine.step()
            lines.append(f"step {step}")
    finally:
        logger.removeHandler(handler)
    return {
        "lines": lines,
        "skipped": engine.skipped_steps,
        "rates": used,
        "shows_info": logger.isEnabledFor(logging.INFO),
    }


def both(me) -> dict:
    warnings.filterwarnings("ignore")
    with launched(me):
        deepspeed = started(me)
        return {
            "fp32": traffic(deepspeed, me, "fp32"),
            "bf16": traffic(deepspeed, me, "bf16"),
            "overflow": overflowing(deepspeed, 2),
        }


@pytest.mark.slow  # DeepSpeed starts on two ranks
def test_the_type_of_the_communication_and_an_overflow(pool):
    for rank, found in enumerate(pool.run(2, both, timeout=150, env=ENV, alone=True)):
        fp32, bf16 = found["fp32"], found["bf16"]
        assert fp32 == {
            ("all_reduce", "backward"): 4 * PARAMETERS,
            ("all_gather", "step"): 4 * -(-PARAMETERS // 4) * 2,
            "records": 2,
        }
        assert bf16 == {**fp32, ("all_reduce", "backward"): 2 * PARAMETERS}
        look_at_overflow(found["overflow"], rank)


def look_at_overflow(found: dict, rank: int) -> None:
    """Rank 0 tells of it; no rank's scheduler moves at a step that was skipped."""
    assert found["skipped"] == 2 and not found["shows_info"]
    assert read_overflows(found["lines"]).skipped == (2 if rank == 0 else 0), found["lines"]
    skipped = [step in (0, 3) for step in range(6)]
    assert found["rates"] == where_skipped(rates(WARMUP, 6), skipped)
