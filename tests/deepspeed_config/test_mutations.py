"""Each key of each valid config, broken in each way: flagged wherever DeepSpeed's parse differs."""

from __future__ import annotations

import json
import random

import pytest

from course_lib.deepspeed_config.finding import Finding
from tests.deepspeed_config.mutations import Mutation, mutations
from tests.deepspeed_config.oracle import parses
from tests.deepspeed_config.parts import VALID, loud, report, resolved

pytest.importorskip("deepspeed")
SAMPLE = 16  # mutations of each config that are tried in every run


def _judged(path, chosen: list[Mutation]) -> list[str]:
    """What was missed among the mutations of a config."""
    text = json.dumps(json.loads(path.read_text()), indent=2)
    first, *after = parses([resolved(x) for x in (text, *(item.text for item in chosen))])
    known = {(item.path, item.message) for item in report(text).findings}
    missed = []
    for mutation, outcome in zip(chosen, after, strict=True):
        found = report(mutation.text).findings
        new = [item for item in found if (item.path, item.message) not in known]
        if not _flagged(mutation, new, outcome != first, failed=bool(outcome[1])):
            missed.append(f"{path.stem}: {mutation.kind} {mutation.path} {mutation.said}: {new}")
    return missed


def _flagged(mutation: Mutation, new: list[Finding], differs: bool, *, failed: bool) -> bool:
    if mutation.kind == "units":
        return bool(new)  # a hint is enough: it may be meant
    if mutation.kind == "dropped":
        return bool(new) or not failed  # a default is as good, where no other key needs this one
    if mutation.kind == "retyped":
        return bool(new) or not differs
    near = [item for item in loud(new) if mutation.path[-1] in item.suggestion]
    if mutation.kind == "renamed" and len(mutation.path[-1]) > 5:
        return bool(near) or not differs
    return bool(loud(new)) or not differs


def test_a_sample():
    """Some of every kind from every config, all in one process of DeepSpeed's for each config."""
    missed: list[str] = []
    draw = random.Random(3)
    for path in draw.sample(VALID, 3):
        chosen = draw.sample(list(mutations(json.loads(path.read_text()), 7)), SAMPLE)
        missed += _judged(path, chosen)
    assert not missed, "\n".join(missed)


@pytest.mark.slow
@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_every_key_in_every_way(path):
    for seed in (0, 1):
        missed = _judged(path, list(mutations(json.loads(path.read_text()), seed)))
        assert not missed, "\n".join(missed)


@pytest.mark.parametrize("section", ["fp16", "flops_profiler", "tensorboard", "autotuning"])
def test_a_key_is_sent_to_the_section_that_lacks_it(section):
    """Many sections have an "enabled": the one that has lost its own was meant."""
    config = {"train_batch_size": 8, "wandb": {"enabled": True}, "bf16": {"enabled": False}}
    config |= {section: {}, "enabled": True}
    (finding,) = [x for x in report(json.dumps(config)).findings if x.path == "enabled"]
    assert finding.suggestion == f"move it: {section}.enabled"
