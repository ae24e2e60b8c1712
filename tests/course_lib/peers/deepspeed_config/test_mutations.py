"""Each key of each valid config, broken in each way: flagged wherever DeepSpeed's parse differs."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from course_lib.peers.deepspeed_config.finding import Finding
from tests.course_lib.peers.deepspeed_config.mutations import Mutation, mutations
from tests.course_lib.peers.deepspeed_config.oracle import parses
from tests.course_lib.peers.deepspeed_config.parts import VALID, loud, report, resolved

pytest.importorskip("deepspeed")
SAMPLE = 12  # mutations of each config that are tried in every run


def _judged(chosen: dict[Path, list[Mutation]]) -> list[str]:
    """What was missed among the mutations of configs, all in one process of DeepSpeed's."""
    texts = {path: json.dumps(json.loads(path.read_text()), indent=2) for path in chosen}
    asked = [
        text for path, some in chosen.items() for text in (texts[path], *(x.text for x in some))
    ]
    outcomes = iter(parses([resolved(text) for text in asked]))
    missed = []
    for path, some in chosen.items():
        first = next(outcomes)
        missed += _missed(path, texts[path], first, [(x, next(outcomes)) for x in some])
    return missed


def _missed(path: Path, text: str, first: tuple, outcomes: list) -> list[str]:
    known = {(item.path, item.message) for item in report(text).findings}
    missed = []
    for mutation, outcome in outcomes:
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
        return bool(new) or not differs or _autotuners(mutation)
    near = [item for item in loud(new) if mutation.path[-1] in item.suggestion]
    if mutation.kind == "renamed" and len(mutation.path[-1]) > 5:
        return bool(near) or not differs
    return bool(loud(new)) or not differs


def _autotuners(mutation: Mutation) -> bool:
    """Whether a stage is a list that only the autotuner reads, before any engine does."""
    tuned = json.loads(mutation.text).get("autotuning", {}).get("enabled") is True
    return tuned and mutation.path == ("zero_optimization", "stage") and "[" in mutation.said


def test_a_sample():
    draw = random.Random(3)
    missed = _judged({
        path: draw.sample(list(mutations(json.loads(path.read_text()), 7)), SAMPLE)
        for path in VALID
    })  # fmt: skip
    assert not missed, "\n".join(missed)


@pytest.mark.slow
@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_every_key_in_every_way(path):
    for seed in (0, 1):
        missed = _judged({path: list(mutations(json.loads(path.read_text()), seed))})
        assert not missed, "\n".join(missed)


@pytest.mark.parametrize("section", ["fp16", "flops_profiler", "tensorboard", "autotuning"])
def test_a_key_is_sent_to_the_section_that_lacks_it(section):
    """Many sections have an "enabled": the one that has lost its own was meant."""
    config = {"train_batch_size": 8, "wandb": {"enabled": True}, "bf16": {"enabled": False}}
    config |= {section: {}, "enabled": True}
    (finding,) = [x for x in report(json.dumps(config)).findings if x.path == "enabled"]
    assert finding.suggestion == f"move it to {section}.enabled"
