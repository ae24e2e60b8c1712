"""Broken configs: each mistake is found by its name, with the suggestion that sets it right."""

from __future__ import annotations

import json

import pytest

from course_lib.deepspeed_config import check, fix
from tests.deepspeed_config.broken import BROKEN, STAGE_2, STAGE_3, TRAINING
from tests.deepspeed_config.broken_more import MORE
from tests.deepspeed_config.parts import loud, report, shipped

FIXED = {"unknown", "moved", "deprecated", "type", "comment", "trailing comma", "duplicate"}


@pytest.mark.parametrize("base", [TRAINING, STAGE_2, STAGE_3])
def test_what_they_are_made_of_is_right(base):
    assert report(json.dumps(base)).findings == []


def test_there_are_at_least_forty():
    assert len({case.name for case in BROKEN + MORE}) == len(BROKEN + MORE) >= 80
    assert len(BROKEN) >= 40


@pytest.mark.parametrize("case", BROKEN + MORE, ids=lambda case: case.name)
def test_the_mistake_is_found_and_nothing_else(case):
    findings = report(case.text, world=case.world, arguments=case.arguments).findings
    hits = [item for item in findings if item.path == case.path and item.level == case.level]
    hits = [item for item in hits if case.word in item.message + item.reason]
    assert [item for item in hits if case.right in item.suggestion], findings
    assert [item for item in loud(findings) if item not in hits] == []
    name = case.path.rpartition(".")[2]
    for item in hits:
        line = case.text.splitlines()[item.line - 1]
        assert 1 <= item.column <= len(line)
        assert f'"{name}"' not in case.text or f'"{name}"' in line, (
            "the finding's line has the key in it"
        )
        assert item.source and item.reason


@pytest.mark.parametrize("case", BROKEN + MORE, ids=lambda case: case.name)
def test_a_corrected_copy_has_nothing_left_of_what_was_corrected(case, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(case.text)
    how = {"world": case.world, "arguments": case.arguments}
    before = check.check_file(path, known=shipped(), **how)
    if any(item.kind == "endless" for item in before.findings):
        with pytest.raises(ValueError, match="only you know the number"):
            fix.fix_file(path, before, shipped(), **how)
        return
    result = fix.fix_file(path, before, shipped(), **how)
    assert path.read_text() == case.text
    again = {} if result.place is None else json.loads(result.place.read_text())
    assert (result.place is None) == (not result.done)
    assert [item for item in before.findings if item.repair and item not in result.done] == []
    if result.place is None:
        return
    left = check.check_file(result.place, known=shipped(), **how).findings
    for item in left:
        assert item.repair is None or item.kind not in FIXED, (item, again)
    corrected = {(item.path, item.message) for item in result.done}
    assert not corrected & {(item.path, item.message) for item in left}


def test_the_ranks_are_those_of_the_file_where_none_are_named():
    """64 sequences are 4 × 4 on four ranks, and agree with arguments that say 4 and 4."""
    arguments = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}
    arguments |= {"bf16": True, "learning_rate": 1e-4}
    text = json.dumps(STAGE_2 | {"train_batch_size": 64})
    assert loud(report(text, arguments=arguments).findings) == []
    (finding,) = loud(report(text, arguments=arguments, world=8).findings)[:1]
    assert finding.path == "train_batch_size"
    auto = json.dumps(STAGE_2 | {"train_batch_size": "auto"})
    entry = report(auto, arguments=arguments).resolved["train_batch_size"]
    assert entry["value"] == 16 and "--world" in entry["origin"]
    entry = report(auto, arguments=arguments, world=8).resolved["train_batch_size"]
    assert entry["value"] == 128 and "--world" not in entry["origin"]


NESTED = {
    **TRAINING, "zero_optimisation": {"stage": 3, "overlap_com": True, "stage3_gather": 1,
    "offload_optimiser": {"device": "cpu", "pin_memry": True, "nvme_path": "/local"}},
}  # fmt: skip


def test_a_misspelt_section_is_looked_into():
    """At once, and not only when its own name is right."""
    text = json.dumps({k: v for k, v in NESTED.items() if k != "zero_optimization"}, indent=2)
    findings = report(text).findings
    suggested = {item.path: item.suggestion for item in loud(findings)}
    outer = "zero_optimisation"
    assert suggested[outer] == "rename it to zero_optimization"
    assert suggested[f"{outer}.overlap_com"].endswith("zero_optimization.overlap_comm")
    inner = f"{outer}.offload_optimiser"
    assert suggested[inner].endswith("zero_optimization.offload_optimizer")
    assert suggested[f"{inner}.pin_memry"].endswith("offload_optimizer.pin_memory")
    hints = {item.path for item in findings if item.level == "hint"}
    assert f"{inner}.nvme_path" in hints  # of no effect with the device cpu
    for item in findings:
        assert item.path.rpartition(".")[2] in text.splitlines()[item.line - 1]
    again = fix.fixed(json.loads(text), lambda value: report(json.dumps(value)).findings, findings)
    assert again.config["zero_optimization"]["offload_optimizer"]["pin_memory"] is True
    assert again.config["zero_optimization"]["overlap_comm"] is True
