"""What lesson 13's exercises say of DeepSpeed and of the Trainer, held to both where they are.

The checks themselves need neither: the references and constants stand in them, and here they are
compared with the installed release.
"""

from __future__ import annotations

import importlib
import importlib.util
from random import Random

import pytest

from course_lessons.lesson_13 import broken, words
from course_lessons.lesson_13 import fill_batch as batch
from course_lessons.lesson_13 import mend_config as mend
from course_lessons.lesson_13 import read_config as clinic
from course_lessons.lesson_13.triple import TRIPLE, filled
from tests.course_lessons.answers.lesson_13_mend import MEND, MEND_ANEW

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None,
    reason="deepspeed is not installed (pip install 'course_lib[deepspeed]')",
)
SEEDS = (broken.PRINTED, 1, 2)
REFUSED = {"precision", "batch"}  # by DeepSpeed's reading of the file; `schedule` later


class Ranks:
    """As many data-parallel ranks as a test says."""

    def __init__(self, world: int):
        self.world = world

    def get_data_parallel_world_size(self) -> int:
        return self.world


@pytest.fixture
def parsed(monkeypatch):
    """DeepSpeed's own reading of a config on so many ranks."""
    config = importlib.import_module("deepspeed.runtime.config")
    monkeypatch.setattr(config.dist, "get_rank", lambda: 0)

    def parse(file: dict, world: int = 1):
        return config.DeepSpeedConfig(dict(file), mpu=Ranks(world))

    return parse


def mended(case: broken.Case, source: str = MEND) -> dict:
    space: dict = {}
    exec(source, space)
    return space["mend_config"](case.name, case.config, case.facts)


def cases() -> list[broken.Case]:
    return [case for seed in SEEDS for case in broken.drawn(seed)]


def test_deepspeed_refuses_two_of_the_eight_as_they_are_and_takes_six(parsed):
    for case in cases():
        if case.name in REFUSED:
            with pytest.raises(AssertionError, match=r"simultaneously|Check batch"):
                parsed(case.config, case.facts["world"])
        else:
            parsed(case.config, case.facts["world"])


def test_a_scheduler_without_steps_is_refused_when_it_is_made():
    torch = importlib.import_module("torch")
    schedules = importlib.import_module("deepspeed.runtime.lr_schedules")
    (case,) = [one for one in broken.drawn(3) if one.name == "schedule"]
    adamw = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=1e-4)
    with pytest.raises(TypeError, match="total_num_steps"):
        schedules.WarmupDecayLR(adamw, **case.config["scheduler"]["params"])
    rate = schedules.WarmupDecayLR(adamw, **mended(case)["scheduler"]["params"])
    for _ in range(case.facts["steps"] + 1):
        adamw.step()
        rate.step()
    assert adamw.param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-12)


def test_what_five_of_them_come_to_is_not_what_was_meant(parsed):
    for case in cases():
        if case.name in REFUSED:
            continue
        found = parsed(case.config, case.facts["world"])
        zero = found.zero_config
        if case.name == "stage":
            assert zero.stage == 0
        if case.name == "offload":
            assert zero.stage > 0 and zero.offload_optimizer is None
        if case.name == "parameters":
            assert zero.stage < 3 and zero.offload_param.device == "cpu"
        if case.name == "auto":
            section = case.config[mend.ZERO]
            left = [name for name in broken.AUTO if section[name] == "auto"]
            assert len(left) >= 2  # at most one is what the author has named
            for name in left:
                default = mend.DEFAULTS[f"{mend.ZERO}.{name}"]
                assert getattr(zero, name.removeprefix("stage3_")) == default
        if case.name == "buckets":
            takes = 4.5 * 2 * (zero.reduce_bucket_size + zero.allgather_bucket_size)
            assert takes > case.facts["room"]


@pytest.mark.parametrize("source", [MEND, MEND_ANEW], ids=["in a copy", "anew"])
def test_deepspeed_reads_the_mended_ones_as_they_were_meant(parsed, source):
    for case in cases():
        config, world = mended(case, source), case.facts["world"]
        found = parsed(config, world)
        zero = found.zero_config
        if case.name == "stage":
            wanted = case.config["zero_optimisation"]
            assert (zero.stage, zero.reduce_bucket_size, zero.overlap_comm) == (
                wanted["stage"], wanted["reduce_bucket_size"], True,
            )  # fmt: skip
        if case.name == "offload":
            assert zero.offload_optimizer.device == "cpu"
        if case.name == "precision":
            assert found.bfloat16_config.enabled and not found.float16_config.enabled
        if case.name == "parameters":
            assert zero.stage == 3 and zero.offload_param.device == "cpu"
        if case.name == "batch":
            names = ("train_batch_size", "train_micro_batch_size_per_gpu")
            assert [getattr(found, n) for n in names] == [case.config[n] for n in names]
        if case.name == "auto":
            h, section = case.facts["hidden"], case.config[mend.ZERO]
            trainers = dict(zip(broken.AUTO, (h * h, int(0.9 * h * h), 10 * h), strict=True))
            for name, size in trainers.items():
                meant = size if section[name] == "auto" else section[name]
                assert getattr(zero, name.removeprefix("stage3_")) == meant


def test_the_triple_is_deepspeed_s(parsed):
    """Every drawn case: the same three sizes, or a refusal by both."""
    seen = {True: 0, False: 0}
    for config, world in batch.drawn(Random(5).randrange(10**6)):
        try:
            found = parsed(config, world)
            theirs = [getattr(found, name) for name in TRIPLE]
        except (AssertionError, ZeroDivisionError):
            theirs = None
        assert batch.gives(filled, (config, world)) == theirs, (config, world)
        seen[theirs is None] += 1
    assert min(seen.values()) > 40


def test_the_question_s_config_comes_to_what_its_numbers_say(parsed):
    asked = {
        "train_micro_batch_size_per_gpu": clinic.MICRO,
        "gradient_accumulation_steps": clinic.TIMES,
        "gradient_cliping": clinic.ASKED,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
    }
    found = parsed(asked, clinic.GPUS)
    assert found.train_batch_size == clinic.RIGHT["batch"]
    assert found.gradient_clipping == clinic.RIGHT["clipping"]
    assert found.zero_config.reduce_bucket_size == clinic.RIGHT["reduce_bucket_size, own loop"]
    misspelt = {("zero_optimisation" if k == "zero_optimization" else k): asked[k] for k in asked}
    assert parsed(misspelt, clinic.GPUS).zero_config.stage == clinic.RIGHT["stage, misspelt"]
    nested = {**asked, "zero_optimization": {"stage": 2, "overlap_com": True}}
    raised = 0
    for file in (asked, misspelt, nested):
        try:
            parsed(file, clinic.GPUS)
        except ValueError:  # pydantic's
            raised += 1
    assert raised == clinic.RIGHT["misspellings that raise"]


def test_both_libraries_pin_where_nothing_is_said_and_reduce_as_they_compute(parsed):
    block = {"device": "cpu"}
    section = {"stage": 3, "offload_param": block, "offload_optimizer": block}
    config = {"train_micro_batch_size_per_gpu": 1, mend.ZERO: section}
    zero = parsed(config).zero_config
    fsdp = importlib.import_module("torch.distributed.fsdp")
    pinned = fsdp.CPUOffloadPolicy().pin_memory
    assert zero.offload_param.pin_memory is zero.offload_optimizer.pin_memory is pinned is True
    assert words.words(config).pinned is True
    for short, name in words.DTYPES.items():
        dtype = parsed({**config, "communication_data_type": short}).communication_data_type
        assert str(dtype) == f"torch.{name}"
